//! Images to tokens: every patch is flattened and mapped to the model's width (Dosovitskiy et al. 2021, equation 1).

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::ModelConfig;
use crate::linear::{Linear, uniform};

/// Cuts images into patches and embeds each; with patch 1 every pixel is a token.
///
/// The map is a linear layer over `channels * patch_size²` values, the same numbers as a convolution whose
/// stride is its kernel size, and is stored as that convolution in model files.
#[derive(Module, Debug)]
pub struct PatchEmbed {
    /// From the values of a patch, ordered channel, row, column, to the model's width.
    pub proj: Linear,
    patch_size: usize,
}

impl PatchEmbed {
    /// Fresh parameters, drawn as PyTorch draws a convolution's.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let inputs = config.channels * config.patch_size * config.patch_size;
        let bound = 1.0 / (inputs as f64).sqrt();
        let proj = Linear {
            weight: uniform([inputs, config.embed_dim], bound, device),
            bias: Some(uniform([config.embed_dim], bound, device)),
        };
        Self { proj, patch_size: config.patch_size }
    }

    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, height * width / patch_size², dim]`, patches in reading order
    pub fn forward(&self, images: Tensor<4>) -> Tensor<3> {
        self.proj.forward(patchify(images, self.patch_size))
    }
}

/// The values of each patch, in reading order.
///
/// # Shapes
/// - images: `[batch, channels, height, width]`
/// - output: `[batch, height * width / patch_size², channels * patch_size²]`
///
/// # Panics
/// When the sides are not divisible by `patch_size`.
pub fn patchify(images: Tensor<4>, patch_size: usize) -> Tensor<3> {
    let [batch, channels, height, width] = images.dims();
    let (rows, columns) = (height / patch_size, width / patch_size);
    images
        .reshape([batch, channels, rows, patch_size, columns, patch_size])
        .permute([0, 2, 4, 1, 3, 5]) // [batch, rows, columns, channels, patch_size, patch_size]
        .reshape([batch, rows * columns, channels * patch_size * patch_size])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn patches_are_read_row_by_row_and_pixels_are_tokens_at_patch_one() {
        let device = Device::default();
        let images =
            Tensor::<1>::from_floats((0..32).map(|i| i as f32).collect::<Vec<_>>().as_slice(), &device)
                .reshape([1, 2, 4, 4]);
        let values = |t: Tensor<3>| t.into_data().try_into_vec_as::<f32>().unwrap();
        let patches = values(patchify(images.clone(), 2));
        assert_eq!(patches[..8], [0.0, 1.0, 4.0, 5.0, 16.0, 17.0, 20.0, 21.0]);
        assert_eq!(patches[8..12], [2.0, 3.0, 6.0, 7.0]);
        let pixels = patchify(images, 1);
        assert_eq!(pixels.dims(), [1, 16, 2]);
        assert_eq!(values(pixels)[..4], [0.0, 16.0, 1.0, 17.0]);
    }
}
