//! The convolutional tokenizer of Compact Transformers (Hassani et al. 2021, section 3.3), and the convolution of all
//! tokenizers.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation};

use super::tokenizer_gate;
use crate::ModelConfig;
use crate::attention::ChannelGating;
use crate::graph::{Graph, Value};
use crate::linear::normal;
use vitrine_kernels::{Int8Weight, round_to_int8};

/// A convolution without bias, with the channels last, that keeps the size of the map, or maps patches of it.
#[derive(Module, Debug)]
pub struct Convolution {
    /// `[out, in, kernel, kernel]`, as PyTorch stores it.
    pub weight: Param<Tensor<4>>,
    /// 1 with padding, or the side of the kernels without.
    stride: usize,
    #[module(skip)]
    int8: Option<Int8Weight>,
}

impl Convolution {
    /// A convolution of this weight, `[out, in, kernel, kernel]`.
    pub fn of(weight: Param<Tensor<4>>) -> Self {
        Self { weight, stride: 1, int8: None }
    }

    /// A convolution of patches without overlap, whose stride is the side of the kernels.
    pub fn of_patches(weight: Param<Tensor<4>>) -> Self {
        Self { stride: weight.lazy_shape()[2], ..Self::of(weight) }
    }

    /// Rounds the weight to bytes, and multiplies bytes from now on where the device can.
    pub(crate) fn quantize(&mut self) {
        let weight = round_to_int8(self.weight.val(), 0);
        self.int8 = Int8Weight::of_kernels(weight.clone());
        self.weight = Param::initialized(self.weight.id, weight);
    }

    /// # Shapes
    /// - map: `[batch, rows, columns, in]`
    /// - output: `[batch, rows / stride, columns / stride, out]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::embed::Convolution;
    ///
    /// let device = Device::default();
    /// let convolution = Convolution::of(Param::from_tensor(Tensor::ones([5, 2, 3, 3], &device)));
    /// let y = convolution.forward(Tensor::ones([1, 4, 4, 2], &device));
    /// assert_eq!(y.dims(), [1, 4, 4, 5]);
    /// assert_eq!(y.max().into_scalar::<f32>(), 18.0); // two channels of nine pixels
    /// ```
    pub fn forward(&self, map: Tensor<4>) -> Tensor<4> {
        match self.on_bytes(&map) {
            Some(map) => map,
            None => vitrine_kernels::convolution(map, self.weight.val(), self.shape()),
        }
    }

    /// The largest of each two by two outputs of [`Self::forward`]: `[batch, rows / 2, columns / 2, out]`.
    pub(crate) fn forward_halved(&self, map: Tensor<4>) -> Tensor<4> {
        let halving = vitrine_kernels::MaxPool::HALVING;
        match self.on_bytes(&map) {
            Some(map) => vitrine_kernels::max_pool(map, halving),
            None => vitrine_kernels::convolution_max_pool(map, self.weight.val(), self.shape(), halving),
        }
    }

    /// [`Self::forward`] of a quantized model, where the device multiplies bytes.
    fn on_bytes(&self, map: &Tensor<4>) -> Option<Tensor<4>> {
        self.int8.as_ref().and_then(|int8| vitrine_kernels::convolution_int8(map, int8))
    }

    fn shape(&self) -> vitrine_kernels::Convolution {
        let kernel_size = self.weight.dims()[2];
        match self.stride {
            1 => vitrine_kernels::Convolution::same(kernel_size),
            stride => vitrine_kernels::Convolution { kernel_size, stride, padding: 0 },
        }
    }

    /// [`Self::forward`] as operators; channels come before rows and columns, and `name` is the name of the layer.
    pub(crate) fn trace(&self, graph: &mut Graph, name: &str, map: &Value) -> Value {
        graph.within(name, |graph| {
            let weight = graph.weight("weight", self.weight.val());
            match self.stride {
                1 => graph.same_convolution(map, &weight, None, false),
                _ => graph.patch_convolution(map, &weight, None),
            }
        })
    }
}

/// Convolutions with ReLU, each followed by max pooling that halves the rows and columns.
#[derive(Module, Debug)]
pub struct ConvolutionEmbed {
    /// The convolutions, from the image to the tokens.
    pub layers: Vec<Convolution>,
    /// The gates on the maps after each layer; none if the configuration has no gate in the tokenizer.
    pub gates: Vec<ChannelGating>,
}

impl ConvolutionEmbed {
    /// The channels between two convolutions.
    const HIDDEN: usize = 64;

    /// The channels of the map `after` this many of the layers.
    pub(crate) fn width(config: &ModelConfig, layers: usize, after: usize) -> usize {
        match after {
            0 => config.channels,
            last if last == layers => config.embed_dim,
            _ => Self::HIDDEN,
        }
    }

    /// Fresh kernels from the distribution that He et al. 2015 propose for ReLU.
    pub fn new(config: &ModelConfig, layers: usize, kernel: usize, device: &Device) -> Self {
        let layer = |index: usize| {
            let shape =
                [Self::width(config, layers, index + 1), Self::width(config, layers, index), kernel, kernel];
            let deviation = (2.0 / (shape[1] * kernel * kernel) as f64).sqrt();
            Convolution::of(normal(shape, deviation, device))
        };
        let gate = |index: usize| tokenizer_gate(config, Self::width(config, layers, index + 1), device);
        Self { layers: (0..layers).map(layer).collect(), gates: (0..layers).filter_map(gate).collect() }
    }

    /// Rounds the kernels to bytes, apart from those that read the image.
    pub(crate) fn quantize(&mut self) {
        self.layers.iter_mut().skip(1).for_each(Convolution::quantize);
    }

    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, height * width / 4^layers, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use vitrine_models::{embed::ConvolutionEmbed, preset};
    ///
    /// let device = Device::default();
    /// let config = preset::find("cct_2_3x2").expect("listed");
    /// let embed = ConvolutionEmbed::new(&config, 2, 3, &device);
    /// let images = Tensor::<4>::random([1, 3, 32, 32], Distribution::Default, &device);
    /// let tokens = embed.forward(images.clone());
    /// assert_eq!(tokens.dims(), [1, 8 * 8, 128]);
    /// // There is no bias: an image twice as bright gives tokens twice as large.
    /// assert_eq!(embed.forward(images * 2.0).into_data(), (tokens * 2.0).into_data());
    /// ```
    pub fn forward(&self, images: Tensor<4>) -> Tensor<3> {
        // ReLU comes after the pooling, which gives the same result with a quarter of the work.
        let pool = vitrine_kernels::MaxPool { kernel_size: 3, stride: 2, padding: 1 };
        let map = self.layers.iter().enumerate().fold(images.permute([0, 2, 3, 1]), |map, (index, layer)| {
            let map = activation::relu(vitrine_kernels::max_pool(layer.forward(map), pool));
            match self.gates.get(index) {
                Some(gate) => gate.forward_map(map),
                None => map,
            }
        });
        map.flatten(1, 2)
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, images: &Value) -> Value {
        let map = self.layers.iter().enumerate().fold(images.clone(), |map, (index, layer)| {
            graph.within(format!("conv_layers.{index}"), |graph| {
                let map = layer.trace(graph, "conv", &map);
                let map = graph.max_pool(&map, [3, 2, 1]);
                let map = graph.unary("Relu", &map);
                match self.gates.get(index) {
                    Some(gate) => gate.trace_map(graph, &map),
                    None => map,
                }
            })
        });
        graph.tokens_of_map(&map)
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;
    use burn::tensor::module::conv2d;
    use burn::tensor::ops::ConvOptions;

    use super::*;

    #[test]
    fn a_convolution_of_patches_is_one_whose_stride_is_its_kernel() {
        let device = Device::default();
        for [stride, height, width] in [[2, 6, 4], [3, 3, 9], [4, 8, 8]] {
            let random = |shape: [usize; 4]| Tensor::<4>::random(shape, Distribution::Default, &device);
            let (images, weight) = (random([2, 3, height, width]), random([5, 3, stride, stride]));
            let options = ConvOptions::new([stride; 2], [0; 2], [1; 2], 1);
            let expected = conv2d(images.clone(), weight.clone(), None, options).permute([0, 2, 3, 1]);
            let convolution = Convolution::of_patches(Param::from_tensor(weight));
            let found = convolution.forward(images.permute([0, 2, 3, 1]));
            assert_eq!(found.dims(), [2, height / stride, width / stride, 5]);
            assert!((found - expected).abs().max().into_scalar::<f32>() < 1e-5, "{stride}");
        }
    }
}
