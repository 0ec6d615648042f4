//! Tokenizers: from an image to tokens.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::attention::ChannelGating;
use crate::graph::{Graph, Value};
use crate::linear::{Linear, uniform};
use crate::norm::LayerNorm;
use crate::{GatePlace, ModelConfig, Tokenizer};

mod convolution;
mod residual;

pub use convolution::{Convolution, ConvolutionEmbed};
pub use residual::{ResidualEmbed, ResidualStage};

/// The tokenizer that the configuration chooses, with the norm that may follow it.
#[derive(Module, Debug)]
pub struct TokenEmbed {
    tokenizer: ImageTokenizer,
    norm: Option<LayerNorm>,
}

/// The tokenizers that a configuration chooses from.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // one per model
pub enum ImageTokenizer {
    /// Patches, with or without shifted copies of the image.
    Patch(PatchEmbed),
    /// Convolutions.
    Convolution(ConvolutionEmbed),
    /// Residual stages of convolutions.
    Residual(ResidualEmbed),
}

/// The gate for a map of `channels` in a tokenizer of convolutions, if the configuration has one there.
fn tokenizer_gate(config: &ModelConfig, channels: usize, device: &Device) -> Option<ChannelGating> {
    let gate = config.channel_attention.filter(|gate| gate.place == GatePlace::Tokenizer)?;
    Some(ChannelGating::new(gate, channels, device))
}

impl TokenEmbed {
    /// Fresh parameters.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let tokenizer = match config.tokenizer {
            Tokenizer::Patch | Tokenizer::ShiftedPatch => {
                ImageTokenizer::Patch(PatchEmbed::new(config, device))
            }
            Tokenizer::Convolution { layers, kernel_size } => {
                ImageTokenizer::Convolution(ConvolutionEmbed::new(config, layers, kernel_size, device))
            }
            Tokenizer::Residual { width, stride } => {
                ImageTokenizer::Residual(ResidualEmbed::new(config, (width, stride), device))
            }
        };
        let norm = config.embed_norm.then(|| LayerNorm::new(config.embed_dim, config.norm_epsilon, device));
        Self { tokenizer, norm }
    }

    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, height * width / patch_size², dim]`, tokens in reading order
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use vitrine_models::{embed::TokenEmbed, preset};
    ///
    /// let device = Device::default();
    /// // Patches of 2 by 2 pixels, with a norm after them.
    /// let embed = TokenEmbed::new(&preset::find("swin_pico_patch2_window4_32").expect("listed"), &device);
    /// let tokens = embed.forward(Tensor::random([2, 3, 32, 32], Distribution::Default, &device));
    /// assert_eq!(tokens.dims(), [2, 16 * 16, 32]);
    /// assert!(tokens.mean_dim(2).abs().max().into_scalar::<f32>() < 1e-5);
    /// ```
    pub fn forward(&self, images: Tensor<4>) -> Tensor<3> {
        let tokens = match &self.tokenizer {
            ImageTokenizer::Patch(patches) => patches.forward(images),
            ImageTokenizer::Convolution(convolution) => convolution.forward(images),
            ImageTokenizer::Residual(residual) => residual.forward(images),
        };
        match &self.norm {
            Some(norm) => norm.forward(tokens),
            None => tokens,
        }
    }

    /// Rounds the kernels of convolutions to bytes, apart from those that read the image.
    pub(crate) fn quantize(&mut self) {
        match &mut self.tokenizer {
            ImageTokenizer::Patch(_) => {}
            ImageTokenizer::Convolution(convolution) => convolution.quantize(),
            ImageTokenizer::Residual(residual) => residual.quantize(),
        }
    }

    /// The layer that maps each patch, if the tokens are patches.
    pub(crate) fn linear_layer(&mut self) -> Option<&mut Linear> {
        match &mut self.tokenizer {
            ImageTokenizer::Patch(patches) => Some(&mut patches.proj),
            ImageTokenizer::Convolution(_) | ImageTokenizer::Residual(_) => None,
        }
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, images: &Value) -> Value {
        graph.within("patch_embed", |graph| {
            let tokens = match &self.tokenizer {
                ImageTokenizer::Patch(patches) => patches.trace(graph, images),
                ImageTokenizer::Convolution(convolution) => convolution.trace(graph, images),
                ImageTokenizer::Residual(residual) => residual.trace(graph, images),
            };
            match &self.norm {
                Some(norm) => norm.trace(graph, "norm", &tokens),
                None => tokens,
            }
        })
    }
}

/// Splits images into patches and maps each to a token (Dosovitskiy et al. 2021, equation 1). With a patch size of 1,
/// every pixel is a token.
///
/// The map is a linear layer over the `channels * patch_size²` values of a patch. It equals a convolution whose stride
/// is its kernel size, and model files store it as this convolution.
#[derive(Module, Debug)]
pub struct PatchEmbed {
    /// The norm of the image joined with its shifts, for [`Tokenizer::ShiftedPatch`] (Lee et al. 2021, section 3.1).
    pub shift_norm: Option<LayerNorm>,
    /// The linear layer from the values of a patch, ordered by channel, row and column, to a token.
    pub proj: Linear,
    patch_size: usize,
}

impl PatchEmbed {
    /// Fresh parameters from the distribution that PyTorch uses for a convolution.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let shifted = config.tokenizer == Tokenizer::ShiftedPatch;
        let copies = if shifted { 5 } else { 1 };
        let inputs = copies * config.channels * config.patch_size * config.patch_size;
        let bound = 1.0 / (inputs as f64).sqrt();
        let proj = Linear::of(
            uniform([inputs, config.embed_dim], bound, device),
            Some(uniform([config.embed_dim], bound, device)),
        );
        let shift_norm = shifted.then(|| LayerNorm::new(inputs, config.norm_epsilon, device));
        Self { shift_norm, proj, patch_size: config.patch_size }
    }

    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, height * width / patch_size², dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::{embed::PatchEmbed, preset};
    ///
    /// let device = Device::default();
    /// let mut embed = PatchEmbed::new(&preset::find("vit_pico_patch4_32").expect("listed"), &device);
    /// // With weights of 1 and no bias, every value of a token is the sum of its patch: 3 * 4 * 4 pixels.
    /// embed.proj.weight = Param::from_tensor(Tensor::ones([48, 96], &device));
    /// embed.proj.bias = None;
    /// let tokens = embed.forward(Tensor::ones([1, 3, 32, 32], &device));
    /// assert_eq!(tokens.dims(), [1, 64, 96]);
    /// assert!(tokens.into_data().iter::<f32>().all(|value| value == 48.0));
    /// ```
    pub fn forward(&self, images: Tensor<4>) -> Tensor<3> {
        match &self.shift_norm {
            None => self.proj.forward(patchify(images, self.patch_size)),
            Some(norm) => {
                let shifted = with_diagonal_shifts(images, self.patch_size / 2);
                self.proj.forward(norm.forward(patchify(shifted, self.patch_size)))
            }
        }
    }

    /// [`Self::forward`] as operators: without shifts, as the convolution that it equals.
    fn trace(&self, graph: &mut Graph, images: &Value) -> Value {
        match &self.shift_norm {
            None => self.trace_convolution(graph, images),
            Some(norm) => {
                let shifted = trace_diagonal_shifts(graph, images, self.patch_size / 2);
                let patches = trace_patchify(graph, &shifted, self.patch_size);
                let normalized = norm.trace(graph, "shift_norm", &patches);
                self.proj.trace(graph, "proj", &normalized)
            }
        }
    }

    fn trace_convolution(&self, graph: &mut Graph, images: &Value) -> Value {
        let [_, dim] = self.proj.weight.val().dims();
        let (channels, side) = (images.dims[1], self.patch_size);
        let map = graph.within("proj", |graph| {
            let weight = self.proj.weight.val().transpose().reshape([dim, channels, side, side]);
            let weight = graph.weight("weight", weight);
            let bias = self.proj.bias.as_ref().map(|bias| graph.constant("bias", bias.val()));
            graph.patch_convolution(images, &weight, bias.as_ref())
        });
        graph.tokens_of_map(&map)
    }
}

/// [`patchify`] as operators.
fn trace_patchify(graph: &mut Graph, images: &Value, side: usize) -> Value {
    let [batch, channels, height, width] = images.dims[..] else { panic!("images have four dimensions") };
    let (rows, columns) = (height / side, width / side);
    let cut = graph.reshape(images, &[batch, channels, rows, side, columns, side]);
    let patches = graph.transpose(&cut, &[0, 2, 4, 1, 3, 5]);
    graph.reshape(&patches, &[batch, rows * columns, channels * side * side])
}

/// [`with_diagonal_shifts`] as operators.
fn trace_diagonal_shifts(graph: &mut Graph, map: &Value, shift: usize) -> Value {
    let (rows, columns) = (map.dims[2], map.dims[3]);
    let around = [0, 0, shift, shift];
    let padded = graph.pad(map, &around, &around);
    let copies = [(0, 0), (0, 2 * shift), (2 * shift, 0), (2 * shift, 2 * shift)].map(|(top, left)| {
        let part = graph.narrow(&padded, 2, top, rows);
        graph.narrow(&part, 3, left, columns)
    });
    graph.concat(&[map].into_iter().chain(&copies).collect::<Vec<_>>(), 1)
}

/// The values of each patch, in reading order.
///
/// # Shapes
/// - images: `[batch, channels, height, width]`
/// - output: `[batch, height * width / patch_size², channels * patch_size²]`
///
/// # Panics
/// If the sides are not divisible by `patch_size`.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use vitrine_models::embed::patchify;
///
/// let pixels = Tensor::<1, Int>::arange(0..16, &Device::default()).float();
/// let patches = patchify(pixels.reshape([1, 1, 4, 4]), 2);
/// assert_eq!(patches.dims(), [1, 4, 4]);
/// let values = patches.into_data().try_into_vec_as::<f32>()?;
/// assert_eq!(values[..8], [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn patchify(images: Tensor<4>, patch_size: usize) -> Tensor<3> {
    let [batch, channels, height, width] = images.dims();
    let (rows, columns) = (height / patch_size, width / patch_size);
    images
        .reshape([batch, channels, rows, patch_size, columns, patch_size])
        .permute([0, 2, 4, 1, 3, 5]) // [batch, rows, columns, channels, patch_size, patch_size]
        .reshape([batch, rows * columns, channels * patch_size * patch_size])
}

/// The map, joined with its copies that are shifted by `shift` toward each of the four corners and filled up with zeros
/// (Lee et al. 2021, equation 8).
///
/// # Shapes
/// - map: `[batch, channels, rows, columns]`
/// - output: `[batch, 5 * channels, rows, columns]`
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_models::embed::with_diagonal_shifts;
///
/// let map = Tensor::<4>::from_floats([[[[1.0, 2.0], [3.0, 4.0]]]], &Device::default());
/// let all = with_diagonal_shifts(map, 1);
/// assert_eq!(all.dims(), [1, 5, 2, 2]);
/// let values = all.into_data().try_into_vec_as::<f32>()?;
/// assert_eq!(values[..4], [1.0, 2.0, 3.0, 4.0]);
/// assert_eq!(values[4..8], [0.0, 0.0, 0.0, 1.0]); // down and to the right
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn with_diagonal_shifts(map: Tensor<4>, shift: usize) -> Tensor<4> {
    let [_, _, rows, columns] = map.dims();
    let padded = map.clone().pad((shift, shift, shift, shift), 0.0);
    let mut copies = vec![map];
    for (top, left) in [(0, 0), (0, 2 * shift), (2 * shift, 0), (2 * shift, 2 * shift)] {
        copies.push(padded.clone().narrow(2, top, rows).narrow(3, left, columns));
    }
    Tensor::cat(copies, 1)
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

    #[test]
    fn shifts_move_to_the_four_corners() {
        let device = Device::default();
        let map = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0].as_slice(), &device).reshape([1, 1, 2, 2]);
        let all: Vec<f32> = with_diagonal_shifts(map, 1).into_data().iter::<f32>().collect();
        let expected = [
            [1.0, 2.0, 3.0, 4.0],
            [0.0, 0.0, 0.0, 1.0],
            [0.0, 0.0, 2.0, 0.0],
            [0.0, 3.0, 0.0, 0.0],
            [4.0, 0.0, 0.0, 0.0],
        ];
        assert_eq!(all, expected.concat());
    }
}
