//! Antialiased scaling of images, whole or in part.

use std::cell::RefCell;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::{U8, U8x3};
use fast_image_resize::{PixelTrait, ResizeAlg, ResizeOptions, Resizer};

use super::Interpolation;
use crate::Image;

thread_local! {
    /// Keeps its buffers between images.
    static RESIZER: RefCell<Resizer> = RefCell::new(Resizer::new());
}

impl Image {
    /// The image scaled to `width` by `height` (at least 1) with an antialiased filter.
    pub fn resize(&self, width: u32, height: u32, interpolation: Interpolation) -> Self {
        let (width, height) = (width.max(1), height.max(1));
        if (width, height) == (self.width, self.height) {
            return self.clone();
        }
        self.resize_part([0, 0, self.width, self.height], width, height, interpolation)
    }

    /// A part (left, top, width, height) scaled to `width` by `height`, at least 1 each.
    ///
    /// # Panics
    ///
    /// When the part is empty or reaches beyond the image.
    pub(super) fn resize_part(
        &self,
        part: [u32; 4],
        width: u32,
        height: u32,
        interpolation: Interpolation,
    ) -> Self {
        // One pixel type at a time: the crate's untyped form would be compiled here for all that it knows.
        let scale = if self.channels == 1 { scale::<U8> } else { scale::<U8x3> };
        // Rows first, then columns, as PIL does; the crate alone would begin with the columns.
        let [left, top, columns, rows] = part;
        let wide = scale(self, [left, top, columns, rows], width, rows, interpolation);
        scale(&wide, [0, 0, width, rows], width, height, interpolation)
    }
}

fn scale<P: PixelTrait>(
    image: &Image,
    [left, top, columns, rows]: [u32; 4],
    width: u32,
    height: u32,
    interpolation: Interpolation,
) -> Image {
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(interpolation.filter())).crop(
        left.into(),
        top.into(),
        columns.into(),
        rows.into(),
    );
    let mut pixels = vec![0; width as usize * height as usize * usize::from(image.channels)];
    let source = TypedImageRef::<P>::from_buffer(image.width, image.height, &image.pixels);
    let done = source.ok().and_then(|source| {
        let mut target = TypedImage::<P>::from_buffer(width, height, &mut pixels).ok()?;
        RESIZER.with_borrow_mut(|resizer| resizer.resize_typed(&source, &mut target, &options).ok())
    });
    assert!(done.is_some(), "an image's buffer has the length of its size, and the part lies in it");
    Image { width, height, channels: image.channels, pixels }
}
