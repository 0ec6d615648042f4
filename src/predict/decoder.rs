//! Decoding and preprocessing of images into the input tensor of a model.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::tensor::{Device, Tensor, TensorData};
use rayon::prelude::*;
use vitrine_datasets::{DatasetError, DecodeLimits, ImageSource, Preprocessing};

/// Decodes and preprocesses images for one model.
#[derive(Clone, Debug)]
pub(super) struct Decoder {
    pub(super) preprocessing: Preprocessing,
    pub(super) limits: DecodeLimits,
}

/// A batch of decoded images.
pub(super) struct Decoded {
    /// Preprocessed pixels: `[readable images, channels, height, width]`.
    pub(super) values: Vec<f32>,
    /// Number of readable images.
    pub(super) readable: usize,
    /// For each image of the batch, readable or not: the error if it cannot be read.
    pub(super) outcomes: Vec<Result<(), DatasetError>>,
}

impl Decoder {
    /// Decodes a batch in parallel, in rayon's current thread pool.
    pub(super) fn decode(&self, images: &[ImageSource]) -> Decoded {
        let size = self.preprocessing.values();
        let mut values = vec![0.0; images.len() * size];
        let outcomes: Vec<_> = values
            .par_chunks_exact_mut(size)
            .zip(images)
            .map(|(slot, image)| unless_panicked(|| self.decode_one(image, slot)))
            .collect();
        let readable = keep_readable(&mut values, &outcomes, size);
        Decoded { values, readable, outcomes }
    }

    /// Decodes one image into `slot`, its part of the batch.
    fn decode_one(&self, image: &ImageSource, slot: &mut [f32]) -> Result<(), DatasetError> {
        let image = image.decode_for_use(&self.limits)?;
        self.preprocessing.normalize(&self.preprocessing.resized(&image), slot);
        Ok(())
    }
}

/// The outcome of decoding an image. One that brings a decoder to panic fails alone.
pub(crate) fn unless_panicked<T>(
    decode: impl FnOnce() -> Result<T, DatasetError>,
) -> Result<T, DatasetError> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|_| {
        let problem = "it could not be decoded: a bug in the program".to_owned();
        Err(DatasetError::Threads { problem })
    })
}

/// Moves the readable images, each of `size` values, to the front, truncates the rest, and returns the number of
/// readable images.
fn keep_readable(values: &mut Vec<f32>, outcomes: &[Result<(), DatasetError>], size: usize) -> usize {
    let mut readable = 0;
    for (place, _) in outcomes.iter().enumerate().filter(|(_, outcome)| outcome.is_ok()) {
        if readable < place {
            values.copy_within(place * size..(place + 1) * size, readable * size);
        }
        readable += 1;
    }
    values.truncate(readable * size);
    readable
}

/// Moves `count` preprocessed images to the device.
///
/// # Shapes
/// - values: `[count, channels, height, width]`, of the preprocessing's image size
/// - output: the same shape
pub(crate) fn image_tensor(
    values: Vec<f32>,
    count: usize,
    preprocessing: &Preprocessing,
    device: &Device,
) -> Tensor<4> {
    let [height, width] = preprocessing.image_size;
    Tensor::from_data(TensorData::new(values, [count, preprocessing.channels, height, width]), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_images_move_to_the_front() {
        let mut values = vec![1.0, 1.0, 2.0, 2.0, 3.0, 3.0];
        let broken = Err(DatasetError::Threads { problem: "none".to_owned() });
        let readable = keep_readable(&mut values, &[Ok(()), broken, Ok(())], 2);
        assert_eq!((readable, values), (2, vec![1.0, 1.0, 3.0, 3.0]));
    }
}
