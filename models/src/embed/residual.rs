//! A tokenizer of residual convolutions, which gives the model the locality that a Vision Transformer lacks on small
//! data sets.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::{Convolution, tokenizer_gate};
use crate::attention::ChannelGating;
use crate::graph::{Graph, Value};
use crate::linear::uniform;
use crate::norm::BatchNorm;
use crate::{ModelConfig, Tokenizer};

/// The convolutional part of a hybrid model (Dosovitskiy et al. 2021, section 3.1; Xiao et al. 2021, 'Early
/// Convolutions Help Transformers See Better'). Its stages are those of Jordan 2024 ('94% on CIFAR-10 in 3.29 Seconds',
/// section 3.1), chosen because they train fastest, with residual connections added.
#[derive(Module, Debug)]
pub struct ResidualEmbed {
    /// The first convolution, to half the channels of the first stage: at the size of the image, so that the first pooled values
    /// depend on more than 3 by 3 pixels, or of patches.
    pub stem: Convolution,
    /// The norm after the stem, followed by GELU.
    pub stem_norm: BatchNorm,
    /// The stages, each of which halves the rows and columns.
    pub stages: Vec<ResidualStage>,
}

/// `y = gelu(norm(pool(convolution(x))))`, then `y + gate(gelu(norm(convolution(y))))`, in which most models have no gate.
#[derive(Module, Debug)]
pub struct ResidualStage {
    /// The convolution to the stage's channels, before the pooling.
    pub conv1: Convolution,
    /// The norm after the pooling.
    pub norm1: BatchNorm,
    /// The convolution of the residual branch.
    pub conv2: Convolution,
    /// The norm after it, in the branch.
    pub norm2: BatchNorm,
    /// The gate at the end of the branch.
    pub gate: Option<ChannelGating>,
}

impl ResidualEmbed {
    /// The number of stages, because each stage halves the map that the stem leaves.
    pub(crate) fn stages(config: &ModelConfig) -> usize {
        (config.patch_size / Self::stride_of(config)).ilog2() as usize
    }

    /// The number of places of the map that the stem leaves.
    pub(crate) fn area(config: &ModelConfig) -> usize {
        config.image_size.height * config.image_size.width / Self::stride_of(config).pow(2)
    }

    /// The side of the stem's kernels.
    pub(crate) fn kernel(stride: usize) -> usize {
        if stride == 1 { 3 } else { stride }
    }

    fn stride_of(config: &ModelConfig) -> usize {
        match config.tokenizer {
            Tokenizer::Residual { stride, .. } => stride,
            Tokenizer::Patch | Tokenizer::ShiftedPatch | Tokenizer::Convolution { .. } => 1,
        }
    }

    /// The channels of the map `after` this many of the stages; with 0, those of the stem.
    pub(crate) fn width(config: &ModelConfig, width: usize, after: usize) -> usize {
        match after {
            0 => width.div_ceil(2),
            last if last == Self::stages(config) => config.embed_dim,
            _ => width << (after - 1),
        }
    }

    /// Fresh kernels from the distribution that PyTorch uses for a convolution.
    pub fn new(config: &ModelConfig, (width, stride): (usize, usize), device: &Device) -> Self {
        let stage = |index| {
            let [input, output] = [index, index + 1].map(|after| Self::width(config, width, after));
            ResidualStage {
                conv1: Convolution::of(kernels(input, output, 3, device)),
                norm1: BatchNorm::new(output, config.norm_epsilon, device),
                conv2: Convolution::of(kernels(output, output, 3, device)),
                norm2: BatchNorm::new(output, config.norm_epsilon, device),
                gate: tokenizer_gate(config, output, device),
            }
        };
        let stem_width = Self::width(config, width, 0);
        let stem = kernels(config.channels, stem_width, Self::kernel(stride), device);
        let stem = if stride == 1 { Convolution::of(stem) } else { Convolution::of_patches(stem) };
        Self {
            stem,
            stem_norm: BatchNorm::new(stem_width, config.norm_epsilon, device),
            stages: (0..Self::stages(config)).map(stage).collect(),
        }
    }

    /// Rounds the kernels of the stages to bytes, not those of the stem, which read the image.
    pub(crate) fn quantize(&mut self) {
        for stage in &mut self.stages {
            stage.conv1.quantize();
            stage.conv2.quantize();
        }
    }

    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, height * width / patch_size², dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use vitrine_models::{ModelConfig, Tokenizer, embed::ResidualEmbed, preset};
    ///
    /// let device = Device::default();
    /// let plain = preset::find("vit_pico_patch4_32").expect("listed"); // 96 channels
    /// let config = ModelConfig { tokenizer: Tokenizer::Residual { width: 48, stride: 1 }, ..plain };
    /// let embed = ResidualEmbed::new(&config, (48, 1), &device);
    /// assert_eq!(embed.stages.len(), 2);
    /// let images = Tensor::<4>::random([2, 3, 32, 32], Distribution::Default, &device);
    /// assert_eq!(embed.forward(images).dims(), [2, 8 * 8, 96]);
    /// ```
    pub fn forward(&self, images: Tensor<4>) -> Tensor<3> {
        let stem = self.stem_norm.forward_gelu(self.stem.forward(images.permute([0, 2, 3, 1])));
        let map = self.stages.iter().fold(stem, |map, stage| stage.forward(map));
        map.flatten(1, 2)
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, images: &Value) -> Value {
        let stem = self.stem.trace(graph, "stem", images);
        let stem = self.stem_norm.trace_gelu(graph, "stem_norm", &stem);
        let map = self.stages.iter().enumerate().fold(stem, |map, (index, stage)| {
            graph.within(format!("stages.{index}"), |graph| stage.trace(graph, &map))
        });
        graph.tokens_of_map(&map)
    }
}

impl ResidualStage {
    /// # Shapes
    /// - map: `[batch, rows, columns, in]`
    /// - output: `[batch, rows / 2, columns / 2, out]`
    pub fn forward(&self, map: Tensor<4>) -> Tensor<4> {
        let map = self.norm1.forward_gelu(self.conv1.forward_halved(map));
        let branch = self.norm2.forward_gelu(self.conv2.forward(map.clone()));
        match &self.gate {
            Some(gate) => map + gate.forward_map(branch),
            None => map + branch,
        }
    }

    /// [`Self::forward`] as operators; channels come before rows and columns.
    fn trace(&self, graph: &mut Graph, map: &Value) -> Value {
        let map = self.conv1.trace(graph, "conv1", map);
        let map = graph.max_pool(&map, [2, 2, 0]);
        let map = self.norm1.trace_gelu(graph, "norm1", &map);
        let branch = self.conv2.trace(graph, "conv2", &map);
        let branch = self.norm2.trace_gelu(graph, "norm2", &branch);
        let branch = match &self.gate {
            Some(gate) => gate.trace_map(graph, &branch),
            None => branch,
        };
        graph.add(&map, &branch)
    }
}

fn kernels(input: usize, output: usize, side: usize, device: &Device) -> Param<Tensor<4>> {
    let bound = 1.0 / ((side * side * input) as f64).sqrt();
    uniform([output, input, side, side], bound, device)
}
