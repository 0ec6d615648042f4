//! Channel attention: gates that weight channels by statistics of the whole image.
//!
//! The gates read and change only patches. Prefix tokens (class token, registers) pass unchanged: they are not part of
//! the image, and their channels have another meaning.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, activation};

use crate::graph::{Graph, Value};
use crate::linear::{Linear, constant, uniform};
use crate::{ChannelAttention, ChannelGate};

/// The gates that a configuration chooses from.
#[derive(Module, Debug)]
pub enum ChannelGating {
    /// Squeeze and excitation.
    SqueezeExcitation(SqueezeExcitation),
    /// ECA.
    Efficient(Efficient),
    /// CBAM.
    Cbam(Cbam),
    /// The gate of places alone.
    Spatial(SpatialGate),
}

impl ChannelGating {
    /// The gate for tokens of `dim` values.
    pub fn new(config: ChannelAttention, dim: usize, device: &Device) -> Self {
        match config.kind {
            ChannelGate::SqueezeExcitation => {
                Self::SqueezeExcitation(SqueezeExcitation::new(dim, config.reduction(), device))
            }
            ChannelGate::Efficient => Self::Efficient(Efficient::new(dim, device)),
            ChannelGate::Cbam => Self::Cbam(Cbam::new(dim, config.reduction(), device)),
            ChannelGate::Spatial => Self::Spatial(SpatialGate::new(device)),
        }
    }

    /// # Shapes
    /// - x, output: `[batch, prefix + rows * columns, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::{ChannelGate, GatePlace, attention::ChannelGating};
    ///
    /// let device = Device::default();
    /// let config = vitrine_models::ChannelAttention {
    ///     kind: ChannelGate::SqueezeExcitation,
    ///     reduction: None,
    ///     place: GatePlace::Mixer,
    /// };
    /// let gate = ChannelGating::new(config, 32, &device);
    /// let y = gate.forward(Tensor::ones([1, 1 + 4, 32], &device), 1, [2, 2]);
    /// let values = y.into_data().try_into_vec_as::<f32>()?;
    /// assert_eq!(values[..32], [1.0; 32]); // the prefix token
    /// assert!(values[32..].iter().all(|&value| 0.0 < value && value < 1.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forward(&self, x: Tensor<3>, prefix: usize, grid: [usize; 2]) -> Tensor<3> {
        let [_, tokens, _] = x.dims();
        if prefix == 0 {
            return self.gate(x, grid);
        }
        let patches = self.gate(x.clone().narrow(1, prefix, tokens - prefix), grid);
        Tensor::cat(vec![x.narrow(1, 0, prefix), patches], 1)
    }

    /// [`Self::forward`] on a feature map.
    ///
    /// # Shapes
    /// - x, output: `[batch, rows, columns, channels]`
    pub fn forward_map(&self, x: Tensor<4>) -> Tensor<4> {
        let [batch, rows, columns, channels] = x.dims();
        let gated = self.gate(x.reshape([batch, rows * columns, channels]), [rows, columns]);
        gated.reshape([batch, rows, columns, channels])
    }

    fn gate(&self, patches: Tensor<3>, grid: [usize; 2]) -> Tensor<3> {
        match self {
            Self::SqueezeExcitation(gate) => gate.forward(patches),
            Self::Efficient(gate) => gate.forward(patches),
            Self::Cbam(gate) => gate.forward(patches, grid),
            Self::Spatial(gate) => gate.forward(patches, grid),
        }
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, x: &Value, prefix: usize, grid: [usize; 2]) -> Value {
        graph.within("channel_attention", |graph| {
            let patches = graph.narrow(x, 1, prefix, x.dims[1] - prefix);
            let gated = match self {
                Self::SqueezeExcitation(gate) => gate.trace(graph, &patches),
                Self::Efficient(gate) => gate.trace(graph, &patches),
                Self::Cbam(gate) => gate.trace(graph, &patches, grid),
                Self::Spatial(gate) => trace_gate_places(graph, &patches, grid, &gate.conv, &gate.conv_bias),
            };
            if prefix == 0 {
                return gated;
            }
            let first = graph.narrow(x, 1, 0, prefix);
            graph.concat(&[&first, &gated], 1)
        })
    }

    /// [`Self::forward_map`] as operators. Channels come before rows and columns.
    pub(crate) fn trace_map(&self, graph: &mut Graph, map: &Value) -> Value {
        let grid = [map.dims[2], map.dims[3]];
        let patches = graph.tokens_of_map(map);
        let gated = self.trace(graph, &patches, 0, grid);
        graph.map_of_tokens(&gated, grid)
    }
}

/// Patches times the sigmoid of a gate, as operators.
fn trace_gate(graph: &mut Graph, patches: &Value, gate: &Value) -> Value {
    let gate = graph.unary("Sigmoid", gate);
    graph.multiply(patches, &gate)
}

/// Squeeze and excitation: the mean over the image, an MLP with a bottleneck and ReLU, and a sigmoid (Hu et al. 2018,
/// section 3).
#[derive(Module, Debug)]
pub struct SqueezeExcitation {
    /// The layer to the bottleneck.
    pub fc1: Linear,
    /// The layer from the bottleneck.
    pub fc2: Linear,
}

impl SqueezeExcitation {
    /// A bottleneck of `dim / reduction` values, at least 1.
    pub fn new(dim: usize, reduction: usize, device: &Device) -> Self {
        let hidden = (dim / reduction).max(1);
        Self { fc1: Linear::new(dim, hidden, true, device), fc2: Linear::new(hidden, dim, true, device) }
    }

    /// # Shapes
    /// - patches, output: `[batch, patches, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::attention::SqueezeExcitation;
    ///
    /// let device = Device::default();
    /// let mut gate = SqueezeExcitation::new(2, 2, &device);
    /// gate.fc1.weight = Param::from_tensor(Tensor::from_floats([[1.0], [0.0]], &device));
    /// gate.fc2.weight = Param::from_tensor(Tensor::from_floats([[0.0, 3f32.ln() / 2.0]], &device));
    /// // The mean of the first channel, 2, gives the gates sigmoid(0) = 1/2 and sigmoid(ln 3) = 3/4.
    /// let y = gate.forward(Tensor::from_floats([[[1.0, 8.0], [3.0, 4.0]]], &device));
    /// for (value, expected) in y.into_data().iter::<f32>().zip([0.5, 6.0, 1.5, 3.0]) {
    ///     assert!((value - expected).abs() < 1e-5);
    /// }
    /// ```
    pub fn forward(&self, patches: Tensor<3>) -> Tensor<3> {
        let squeezed = patches.clone().mean_dim(1);
        patches * activation::sigmoid(self.excite(squeezed))
    }

    /// The gate before the sigmoid: `[batch, 1, dim]`.
    fn excite(&self, squeezed: Tensor<3>) -> Tensor<3> {
        self.fc2.forward(activation::relu(self.fc1.forward(squeezed)))
    }

    fn trace(&self, graph: &mut Graph, patches: &Value) -> Value {
        let squeezed = graph.reduce("ReduceMean", patches, 1);
        let gate = trace_excite(graph, [&self.fc1, &self.fc2], &squeezed);
        trace_gate(graph, patches, &gate)
    }
}

/// Two layers with ReLU between them, as operators.
fn trace_excite(graph: &mut Graph, [fc1, fc2]: [&Linear; 2], x: &Value) -> Value {
    let hidden = fc1.trace(graph, "fc1", x);
    let hidden = graph.unary("Relu", &hidden);
    fc2.trace(graph, "fc2", &hidden)
}

/// ECA: the mean over the image, a convolution over neighboring channels, and a sigmoid (Wang et al. 2020, section
/// 3.2).
#[derive(Module, Debug)]
pub struct Efficient {
    /// `[1, 1, kernel]`.
    pub conv: Param<Tensor<3>>,
}

impl Efficient {
    /// The length of the kernel, which grows with the logarithm of the number of channels (Wang et al. 2020, equation
    /// 12).
    ///
    /// # Examples
    ///
    /// ```
    /// use vitrine_models::attention::Efficient;
    ///
    /// assert_eq!([64, 256, 512, 2048].map(Efficient::kernel), [3, 5, 5, 7]);
    /// ```
    pub fn kernel(dim: usize) -> usize {
        let kernel = (((dim as f64).log2() + 1.0) / 2.0).abs() as usize;
        (kernel + usize::from(kernel.is_multiple_of(2))).max(3)
    }

    /// Fresh parameters.
    pub fn new(dim: usize, device: &Device) -> Self {
        let kernel = Self::kernel(dim);
        Self { conv: uniform([1, 1, kernel], 1.0 / (kernel as f64).sqrt(), device) }
    }

    /// # Shapes
    /// - patches, output: `[batch, patches, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::attention::Efficient;
    ///
    /// let device = Device::default();
    /// let mut gate = Efficient::new(3, &device);
    /// // The gate of a channel is the sigmoid of the next channel's mean.
    /// gate.conv = Param::from_tensor(Tensor::from_floats([[[0.0, 0.0, 1.0]]], &device));
    /// let y = gate.forward(Tensor::from_floats([[[8.0, 0.0, 3f32.ln()]]], &device));
    /// for (value, expected) in y.into_data().iter::<f32>().zip([8.0 / 2.0, 0.0, 3f32.ln() / 2.0]) {
    ///     assert!((value - expected).abs() < 1e-5);
    /// }
    /// ```
    pub fn forward(&self, patches: Tensor<3>) -> Tensor<3> {
        let mean = patches.clone().mean_dim(1).unsqueeze_dim::<4>(1); // [batch, 1, 1, dim]
        let gate =
            vitrine_kernels::same_conv2d(mean, self.conv.val().unsqueeze_dim(2), None).squeeze_dim::<3>(1);
        patches * activation::sigmoid(gate)
    }

    fn trace(&self, graph: &mut Graph, patches: &Value) -> Value {
        let dim = patches.dims[2];
        let mean = graph.reduce("ReduceMean", patches, 1);
        let mean = graph.reshape(&mean, &[1, 1, 1, dim]);
        let kernel = graph.weight("conv.weight", self.conv.val().unsqueeze_dim::<4>(2));
        let gate = graph.same_convolution(&mean, &kernel, None, false);
        let gate = graph.reshape(&gate, &[1, 1, dim]);
        trace_gate(graph, patches, &gate)
    }
}

/// CBAM: a gate of channels from their mean and maximum over the image, then a gate of places from their mean and
/// maximum over the channels (Woo et al. 2018, section 3).
///
/// The original has a batch norm of one channel after its convolution. In inference this is an affine map, which is
/// part of the weights and the bias of the convolution here.
#[derive(Module, Debug)]
pub struct Cbam {
    /// The layer to the bottleneck, without bias.
    pub fc1: Linear,
    /// The layer from the bottleneck, without bias.
    pub fc2: Linear,
    /// The convolution of the mean and maximum over the channels: `[1, 2, 7, 7]`.
    pub conv: Param<Tensor<4>>,
    /// `[1]`.
    pub conv_bias: Param<Tensor<1>>,
}

impl Cbam {
    /// A bottleneck of `dim / reduction` values, at least 1.
    pub fn new(dim: usize, reduction: usize, device: &Device) -> Self {
        let hidden = (dim / reduction).max(1);
        let SpatialGate { conv, conv_bias } = SpatialGate::new(device);
        Self {
            fc1: Linear::new(dim, hidden, false, device),
            fc2: Linear::new(hidden, dim, false, device),
            conv,
            conv_bias,
        }
    }

    /// # Shapes
    /// - patches, output: `[batch, rows * columns, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::attention::Cbam;
    ///
    /// let device = Device::default();
    /// let mut gate = Cbam::new(2, 2, &device);
    /// gate.fc1.weight = Param::from_tensor(Tensor::zeros([2, 1], &device));
    /// gate.conv = Param::from_tensor(Tensor::zeros([1, 2, 7, 7], &device));
    /// // The gates of channels and of places are both sigmoid(0) = 1/2.
    /// let y = gate.forward(Tensor::from_floats([[[4.0, 8.0], [-4.0, 0.0]]], &device), [1, 2]);
    /// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [1.0, 2.0, -1.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forward(&self, patches: Tensor<3>, grid: [usize; 2]) -> Tensor<3> {
        let excite = |x: Tensor<3>| self.fc2.forward(activation::relu(self.fc1.forward(x)));
        let channels = excite(patches.clone().mean_dim(1)) + excite(patches.clone().max_dim(1));
        gate_places(patches * activation::sigmoid(channels), grid, &self.conv, &self.conv_bias)
    }

    fn trace(&self, graph: &mut Graph, patches: &Value, grid: [usize; 2]) -> Value {
        let [mean, largest] = ["ReduceMean", "ReduceMax"].map(|statistic| {
            let squeezed = graph.reduce(statistic, patches, 1);
            trace_excite(graph, [&self.fc1, &self.fc2], &squeezed)
        });
        let gate = graph.add(&mean, &largest);
        let gated = trace_gate(graph, patches, &gate);
        trace_gate_places(graph, &gated, grid, &self.conv, &self.conv_bias)
    }
}

/// The second half of CBAM: a gate of places from their mean and maximum over the channels (Woo et al. 2018, section 3).
/// As in [`Cbam`], the convolution's weights and bias hold the batch norm of the original.
#[derive(Module, Debug)]
pub struct SpatialGate {
    /// The convolution of the mean and maximum over the channels: `[1, 2, 7, 7]`.
    pub conv: Param<Tensor<4>>,
    /// `[1]`.
    pub conv_bias: Param<Tensor<1>>,
}

impl SpatialGate {
    /// The side of the convolution's kernel.
    pub(crate) const KERNEL: usize = 7;

    /// Fresh parameters.
    pub fn new(device: &Device) -> Self {
        let side = Self::KERNEL;
        Self {
            conv: uniform([1, 2, side, side], 1.0 / (2.0 * (side * side) as f64).sqrt(), device),
            conv_bias: constant([1], 0.0, device),
        }
    }

    /// # Shapes
    /// - patches, output: `[batch, rows * columns, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::attention::SpatialGate;
    ///
    /// let device = Device::default();
    /// let mut gate = SpatialGate::new(&device);
    /// gate.conv = Param::from_tensor(Tensor::zeros([1, 2, 7, 7], &device));
    /// gate.conv_bias = Param::from_tensor(Tensor::from_floats([3f32.ln()], &device));
    /// // Every place gets sigmoid(ln 3) = 3/4.
    /// let y = gate.forward(Tensor::from_floats([[[4.0, 8.0], [-4.0, 0.0]]], &device), [1, 2]);
    /// for (value, expected) in y.into_data().iter::<f32>().zip([3.0, 6.0, -3.0, 0.0]) {
    ///     assert!((value - expected).abs() < 1e-5);
    /// }
    /// ```
    pub fn forward(&self, patches: Tensor<3>, grid: [usize; 2]) -> Tensor<3> {
        gate_places(patches, grid, &self.conv, &self.conv_bias)
    }
}

/// The patches, each times the sigmoid of a convolution over the mean and the maximum of the channels around its place.
fn gate_places(
    patches: Tensor<3>,
    [rows, columns]: [usize; 2],
    conv: &Param<Tensor<4>>,
    bias: &Param<Tensor<1>>,
) -> Tensor<3> {
    let [batch, count, _] = patches.dims();
    let places = Tensor::cat(vec![patches.clone().mean_dim(2), patches.clone().max_dim(2)], 2);
    let places = places.swap_dims(1, 2).reshape([batch, 2, rows, columns]);
    let gate = vitrine_kernels::same_conv2d(places, conv.val(), Some(bias.val()));
    patches * activation::sigmoid(gate).reshape([batch, count, 1])
}

/// [`gate_places`] as operators.
fn trace_gate_places(
    graph: &mut Graph,
    patches: &Value,
    grid: [usize; 2],
    conv: &Param<Tensor<4>>,
    bias: &Param<Tensor<1>>,
) -> Value {
    let [mean, largest] = ["ReduceMean", "ReduceMax"].map(|statistic| graph.reduce(statistic, patches, 2));
    let places = graph.concat(&[&mean, &largest], 2);
    let places = graph.map_of_tokens(&places, grid);
    let weight = graph.weight("conv.weight", conv.val());
    let bias = graph.constant("conv.bias", bias.val());
    let gate = graph.same_convolution(&places, &weight, Some(&bias), false);
    let gate = graph.tokens_of_map(&gate);
    trace_gate(graph, patches, &gate)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::GatePlace;
    use burn::tensor::Distribution;

    #[test]
    fn gates_shrink_patches_and_do_not_change_prefix_tokens() {
        let device = Device::default();
        for &kind in ChannelGate::ALL {
            let reduction = kind.has_bottleneck().then_some(4);
            let config = ChannelAttention { kind, reduction, place: GatePlace::Mixer };
            let gate = ChannelGating::new(config, 16, &device);
            let x = Tensor::<3>::random([2, 2 + 12, 16], Distribution::Normal(0.0, 1.0), &device);
            let y = gate.forward(x.clone(), 2, [3, 4]);
            let prefix = |x: &Tensor<3>| x.clone().narrow(1, 0, 2).into_data();
            assert_eq!(prefix(&x), prefix(&y));
            let ratio = (y / x).narrow(1, 2, 12);
            let (low, high): (f32, f32) = (ratio.clone().min().into_scalar(), ratio.max().into_scalar());
            assert!(low > 0.0 && high < 1.0, "{kind:?}: {low} to {high}");
        }
    }
}
