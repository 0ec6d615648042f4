//! A labeled image by its source: a file, bytes in memory, raw pixels, or a drawing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::decode::{Decoded, decode_bytes, probe_bytes};
use super::drawing;
use super::limits::DecodeLimits;
use super::memory;
use super::pixels::Image;
use crate::files::{BadFile, Fault, Place, Spool, read_regular, shown};
use crate::{DatasetError, Labels};

/// The source of an image, from which [`ImageSource::decode`] makes pixels.
#[derive(Clone, Debug)]
pub enum ImageSource {
    /// An image file.
    File(PathBuf),
    /// An encoded image file held in memory, as read from an archive.
    Encoded {
        /// The name that messages use: the path inside the archive.
        name: String,
        /// The file's bytes.
        bytes: Arc<[u8]>,
    },
    /// An encoded image file in a temporary file, as read from a large archive.
    Spooled {
        /// The name that messages use: the path inside the archive.
        name: String,
        /// The temporary file.
        spool: Arc<Spool>,
        /// The position of the image's bytes in it.
        place: Place,
    },
    /// Raw pixels inside a larger buffer, as in IDX files and CIFAR batches.
    Raw {
        /// The name that messages use: the file and the index in it.
        name: String,
        /// The buffer of all images.
        buffer: Arc<[u8]>,
        /// First byte of this image.
        offset: usize,
        /// Columns.
        width: u32,
        /// Rows.
        height: u32,
        /// 1, or 3 as separate planes, as in CIFAR's batches.
        channels: u8,
    },
    /// Pixels that a program has decoded itself.
    Pixels {
        /// The name that messages use.
        name: String,
        /// The pixels.
        image: Arc<Image>,
    },
    /// Drawn on demand by the `shapes` data set.
    Drawn {
        /// The class to draw.
        class: usize,
        /// Seed of position, colors, texture, and noise.
        seed: u64,
    },
}

/// An image and its classes.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Indices into [`crate::DatasetInfo::classes`].
    pub labels: Labels,
    /// The image.
    pub source: ImageSource,
}

impl ImageSource {
    /// The name of the image in messages.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => shown(path),
            Self::Encoded { name, .. }
            | Self::Spooled { name, .. }
            | Self::Raw { name, .. }
            | Self::Pixels { name, .. } => name.clone(),
            Self::Drawn { class, seed } => format!("{} {seed:016x}", drawing::CLASSES[*class]),
        }
    }

    /// The entry for this image in a list of unreadable images, given the error of decoding or probing it.
    pub(crate) fn as_bad_file(&self, error: &DatasetError) -> BadFile {
        match error {
            DatasetError::Image { fault, .. } => BadFile::new(self.name(), fault),
            other => BadFile::new(self.name(), &Fault::Other(other.to_string())),
        }
    }

    /// The path of an image file; `None` for an image in an archive or a buffer, or a drawing.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Encoded { .. }
            | Self::Spooled { .. }
            | Self::Raw { .. }
            | Self::Pixels { .. }
            | Self::Drawn { .. } => None,
        }
    }

    /// Where the shape of a drawing is visible, for judging what a model looked at: a gray image of the drawing's size, from 0
    /// outside the shape to 255 inside it. `None` for other images.
    ///
    /// # Examples
    ///
    /// ```
    /// use vitrine_datasets::ImageSource;
    ///
    /// let shape = ImageSource::Drawn { class: 0, seed: 7 }.shape_mask().expect("a drawn circle");
    /// assert_eq!((shape.width, shape.height, shape.channels), (32, 32, 1));
    /// assert!(shape.pixels.contains(&0) && shape.pixels.contains(&255));
    /// ```
    pub fn shape_mask(&self) -> Option<Image> {
        match self {
            Self::Drawn { class, seed } => Some(drawing::visible_shape(*class, *seed)),
            Self::File(_)
            | Self::Encoded { .. }
            | Self::Spooled { .. }
            | Self::Raw { .. }
            | Self::Pixels { .. } => None,
        }
    }

    /// Decodes the image: a gray one to 1 channel, all others to 3.
    ///
    /// The format is recognized by the content, not the name. EXIF orientation is applied, what is transparent lies
    /// on white (PIL's `convert("RGB")` shows the color that is hidden under it), 16 bits are scaled to 8, and an animation gives its first frame.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, is not an image, is truncated, or exceeds the limits. The message names it.
    pub fn decode(&self, limits: &DecodeLimits) -> Result<Image, DatasetError> {
        Ok(self.decode_for_use(limits)?.into_image())
    }

    /// As [`ImageSource::decode`], for decoding on many threads. The memory of a large image stays reserved until the
    /// result is dropped, and other threads wait for it if they need more than is left.
    ///
    /// # Errors
    ///
    /// As [`ImageSource::decode`].
    pub fn decode_for_use(&self, limits: &DecodeLimits) -> Result<Decoded, DatasetError> {
        match self {
            Self::Raw { buffer, offset, width, height, channels, .. } => {
                let length = *width as usize * *height as usize * usize::from(*channels);
                let planes = buffer.get(*offset..*offset + length).ok_or_else(|| {
                    let fault = Fault::Other("it lies beyond the end of its file".to_owned());
                    DatasetError::Image { image: self.name(), fault }
                })?;
                Ok(Decoded::small(Image {
                    width: *width,
                    height: *height,
                    channels: *channels,
                    pixels: interleave(planes, usize::from(*channels)),
                }))
            }
            Self::Pixels { image, .. } => {
                self.checked(image)?;
                Ok(Decoded::small(Arc::clone(image)))
            }
            Self::Drawn { class, seed } => Ok(Decoded::small(drawing::draw(*class, *seed))),
            Self::File(_) | Self::Encoded { .. } | Self::Spooled { .. } => {
                self.with_bytes(limits, |name, bytes| decode_bytes(name, bytes, limits))
            }
        }
    }

    /// Checks the image without decoding pixels: it can be read, is within the limits, has a known format and a valid
    /// header, and if it is a JPEG file, an end marker.
    ///
    /// # Errors
    ///
    /// As [`ImageSource::decode`].
    pub fn probe(&self, limits: &DecodeLimits) -> Result<(), DatasetError> {
        match self {
            Self::Raw { .. } | Self::Drawn { .. } => Ok(()),
            Self::Pixels { image, .. } => self.checked(image),
            Self::File(_) | Self::Encoded { .. } | Self::Spooled { .. } => {
                self.with_bytes(limits, |name, bytes| probe_bytes(name, bytes, limits))
            }
        }
    }

    /// Checks pixels that a program has made.
    fn checked(&self, image: &Image) -> Result<(), DatasetError> {
        let error = |problem| DatasetError::Image { image: self.name(), fault: Fault::Other(problem) };
        image.check().map_err(error)
    }

    /// Calls `work` with the name and the encoded bytes of an image file.
    pub(crate) fn with_bytes<T>(
        &self,
        limits: &DecodeLimits,
        work: impl FnOnce(&str, &[u8]) -> Result<T, String>,
    ) -> Result<T, DatasetError> {
        let work = |name: &str, bytes: &[u8]| work(name, bytes).map_err(Fault::Other);
        let done = match self {
            Self::File(path) => {
                let _lock = memory::lock_for_large_file(path);
                read_regular(path, limits.max_file_bytes).and_then(|bytes| work(&shown(path), &bytes))
            }
            Self::Encoded { name, bytes } => work(name, bytes),
            Self::Spooled { name, spool, place } => spool
                .get(*place)
                .map_err(|error| Fault::Other(error.to_string()))
                .and_then(|bytes| work(name, &bytes)),
            Self::Raw { .. } | Self::Pixels { .. } | Self::Drawn { .. } => {
                Err(Fault::Other("it has no encoded bytes".to_owned()))
            }
        };
        done.map_err(|fault| DatasetError::Image { image: self.name(), fault })
    }
}

/// Converts separate planes of color channels to interleaved pixels.
fn interleave(planes: &[u8], channels: usize) -> Vec<u8> {
    let mut pixels = vec![0; planes.len()];
    let area = (planes.len() / channels).max(1);
    for (channel, plane) in planes.chunks_exact(area).enumerate() {
        for (pixel, value) in pixels.chunks_exact_mut(channels).zip(plane) {
            pixel[channel] = *value;
        }
    }
    pixels
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use image::{DynamicImage, GrayAlphaImage, ImageFormat, LumaA, Rgb, Rgb32FImage, RgbImage, RgbaImage};

    use super::*;

    fn encoded(source: &DynamicImage, format: ImageFormat) -> Vec<u8> {
        let mut bytes = Vec::new();
        source.write_to(&mut Cursor::new(&mut bytes), format).unwrap();
        bytes
    }

    fn decode(bytes: Vec<u8>) -> Result<Image, DatasetError> {
        ImageSource::Encoded { name: "an image".into(), bytes: bytes.into() }.decode(&DecodeLimits::default())
    }

    fn sample() -> DynamicImage {
        DynamicImage::ImageRgb8(RgbImage::from_fn(23, 17, |x, y| Rgb([x as u8 * 9, y as u8 * 11, 77])))
    }

    #[test]
    fn every_format_gives_the_same_pixels() {
        let expected = sample().into_rgb8().into_raw();
        for format in
            [ImageFormat::Png, ImageFormat::Bmp, ImageFormat::Tiff, ImageFormat::Pnm, ImageFormat::WebP]
        {
            let image = decode(encoded(&sample(), format)).unwrap();
            assert_eq!((image.width, image.height, image.channels), (23, 17, 3), "{format:?}");
            assert_eq!(image.pixels, expected, "{format:?}");
        }
        for format in [ImageFormat::Jpeg, ImageFormat::Gif] {
            assert_eq!(decode(encoded(&sample(), format)).unwrap().pixels.len(), expected.len());
        }
    }

    #[test]
    fn transparency_lies_on_white_and_sixteen_bits_are_converted() {
        for (alpha, expected) in [(0, 255), (51, 222), (255, 90)] {
            let gray = GrayAlphaImage::from_pixel(3, 2, LumaA([90, alpha]));
            let image = decode(encoded(&DynamicImage::ImageLumaA8(gray), ImageFormat::Png)).unwrap();
            assert_eq!((image.channels, image.pixels), (1, vec![expected; 6]));
        }
        for (alpha, expected) in [(0, [255; 3]), (51, [204, 214, 255]), (255, [0, 50, 255])] {
            let color = RgbaImage::from_pixel(2, 1, image::Rgba([0, 50, 255, alpha]));
            for format in [ImageFormat::Png, ImageFormat::WebP] {
                let image = decode(encoded(&DynamicImage::ImageRgba8(color.clone()), format)).unwrap();
                assert_eq!((image.channels, image.pixels), (3, expected.repeat(2)), "{format:?}");
            }
        }
        // An alpha of 0 everywhere, and one that differs.
        let mut color = RgbaImage::from_pixel(2, 1, image::Rgba([0, 50, 255, 0]));
        for (alpha, expected) in [(0, [0, 50, 255].repeat(2)), (255, [[255; 3], [0, 50, 255]].concat())] {
            color.get_pixel_mut(1, 0).0[3] = alpha;
            for (name, format) in [("a.bmp", ImageFormat::Bmp), ("a.tga", ImageFormat::Tga)] {
                let bytes = encoded(&DynamicImage::ImageRgba8(color.clone()), format).into();
                let named = ImageSource::Encoded { name: name.into(), bytes };
                let image = named.decode(&DecodeLimits::default()).unwrap();
                assert_eq!((image.channels, &image.pixels), (3, &expected), "{format:?} {alpha}");
            }
        }
        let fine = DynamicImage::ImageRgba8(RgbaImage::from_pixel(1, 1, image::Rgba([0, 50, 255, 51])));
        let image =
            decode(encoded(&DynamicImage::ImageRgba16(fine.into_rgba16()), ImageFormat::Png)).unwrap();
        assert_eq!(image.pixels, [204, 214, 255]);
        let fine =
            DynamicImage::ImageRgb32F(Rgb32FImage::from_pixel(1, 1, Rgb([0.0, 0.5, 1.0]))).into_rgb16();
        let image = decode(encoded(&DynamicImage::ImageRgb16(fine), ImageFormat::Png)).unwrap();
        assert_eq!(image.pixels, [0, 128, 255]);
    }

    #[test]
    fn a_truncated_file_is_an_error_that_names_the_image() {
        for format in
            [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Bmp, ImageFormat::Gif, ImageFormat::WebP]
        {
            let whole = encoded(&sample(), format);
            for length in [whole.len() / 2, whole.len() * 9 / 10] {
                let error = decode(whole[..length].to_vec()).unwrap_err().to_string();
                assert!(error.contains("an image"), "{format:?}: {error}");
            }
        }
        assert!(decode(b"this is text".to_vec()).unwrap_err().to_string().contains("not an image"));
    }

    #[test]
    fn only_the_end_marker_of_the_main_image_completes_a_jpeg_file() {
        let jpeg = encoded(&sample(), ImageFormat::Jpeg);
        let film = [&jpeg[..], b"film\xff\xda\x00\x08and sound"].concat();
        assert_eq!(decode(film).unwrap(), decode(jpeg.clone()).unwrap());
        let length = (jpeg.len() as u16 + 2).to_be_bytes();
        let with_thumbnail = [&jpeg[..2], b"\xff\xe1", &length, &jpeg, &jpeg[2..]].concat();
        assert!(decode(with_thumbnail.clone()).is_ok());
        assert!(decode(with_thumbnail[..with_thumbnail.len() - jpeg.len() / 4].to_vec()).is_err());
    }

    #[test]
    fn a_file_is_recognized_by_its_content_and_named_by_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("photo.jpg");
        std::fs::File::create(&path).unwrap().write_all(&encoded(&sample(), ImageFormat::Png)).unwrap();
        let source = ImageSource::File(path.clone());
        assert_eq!(source.decode(&DecodeLimits::default()).unwrap().width, 23);
        std::fs::write(&path, "text").unwrap();
        let error = source.decode(&DecodeLimits::default()).unwrap_err().to_string();
        assert!(error.contains("photo.jpg"), "{error}");
    }

    #[test]
    fn decompression_bombs_are_refused_by_their_header() {
        let limits = DecodeLimits { max_side: 20, ..DecodeLimits::default() };
        let bytes = encoded(&sample(), ImageFormat::Png);
        let source = ImageSource::Encoded { name: "bomb".into(), bytes: bytes.clone().into() };
        assert!(source.decode(&limits).is_err());
        let limits = DecodeLimits { max_bytes: 1000, ..DecodeLimits::default() };
        assert!(source.decode(&limits).is_err());
    }

    #[test]
    fn a_probe_finds_invalid_headers_and_truncated_jpeg_files() {
        let folder = tempfile::tempdir().unwrap();
        let limits = DecodeLimits::default();
        let probe = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            ImageSource::File(path).probe(&limits).map_err(|error| error.to_string())
        };
        let jpeg = encoded(&sample(), ImageFormat::Jpeg);
        assert!(probe("whole.jpg", &jpeg).is_ok());
        for (name, bytes, part) in [
            ("cut.jpg", &jpeg[..jpeg.len() / 2], "cut short"),
            ("text.png", b"this is text", "known format"),
            ("empty.png", b"", "empty"),
            ("photo.png", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIC images are not supported"),
        ] {
            let message = probe(name, bytes).unwrap_err();
            assert!(message.contains(name) && message.contains(part), "{message}");
        }
        assert!(ImageSource::File(folder.path().join("nothing.png")).probe(&limits).is_err());
    }

    #[test]
    fn icons_and_targa_images_are_decoded() {
        let small = sample().into_rgba8();
        let icon = encoded(&DynamicImage::ImageRgba8(small), ImageFormat::Ico);
        assert_eq!(decode(icon).unwrap().pixels, sample().into_rgb8().into_raw());
        let bytes: Arc<[u8]> = encoded(&sample(), ImageFormat::Tga).into();
        let decode = |name: &str| {
            ImageSource::Encoded { name: name.into(), bytes: Arc::clone(&bytes) }
                .decode(&DecodeLimits::default())
        };
        assert_eq!(decode("a.TGA").unwrap().pixels, sample().into_rgb8().into_raw());
        assert!(decode("a.png").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_refused() {
        let message = ImageSource::File("/dev/zero".into()).decode(&DecodeLimits::default()).unwrap_err();
        assert!(message.to_string().contains("/dev/zero: it is a device"), "{message}");
    }

    #[test]
    fn a_decoded_image_reserves_its_memory() {
        let source = ImageSource::Encoded {
            name: "large".into(),
            bytes: encoded(&DynamicImage::new_rgb8(2000, 1000), ImageFormat::Png).into(),
        };
        let decoded = source.decode_for_use(&DecodeLimits::default()).unwrap();
        let Some(reserved) = &decoded.reserved else { panic!("an image file reserves memory") };
        assert!(reserved.bytes() >= decoded.pixels.len() as u64);
        assert_eq!(decoded.into_image(), source.decode(&DecodeLimits::default()).unwrap());
    }

    #[test]
    fn pixels_that_a_program_has_decoded_are_used_where_they_lie() {
        let image = Arc::new(Image { width: 2, height: 1, channels: 1, pixels: vec![1, 2] });
        let source = ImageSource::Pixels { name: "made".into(), image: Arc::clone(&image) };
        let decoded = source.decode_for_use(&DecodeLimits::default()).unwrap();
        assert!(std::ptr::eq(&*decoded, &*image));
        assert_eq!(decoded.into_image(), *image);
    }

    #[test]
    fn exif_orientation_is_applied() {
        // An EXIF block with the orientation "rotate by 90 degrees" is inserted after the start marker.
        let jpeg = encoded(&sample(), ImageFormat::Jpeg);
        let exif =
            b"\xff\xe1\x00\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
        let rotated = [&jpeg[..2], exif, &jpeg[2..]].concat();
        let image = decode(rotated).unwrap();
        assert_eq!((image.width, image.height), (17, 23));
    }

    #[test]
    fn planes_are_interleaved() {
        let source = ImageSource::Raw {
            name: "batch".into(),
            buffer: vec![9, 1, 2, 11, 12, 21, 22].into(),
            offset: 1,
            width: 2,
            height: 1,
            channels: 3,
        };
        assert_eq!(source.decode(&DecodeLimits::default()).unwrap().pixels, [1, 11, 21, 2, 12, 22]);
    }
}
