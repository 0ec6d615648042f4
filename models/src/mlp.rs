//! The MLP of a block: two linear layers with an activation between them, and an optional mixing of neighboring
//! patches.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use burn::module::{Module, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor, activation};

use crate::MlpKind;
use crate::graph::{Attribute, Graph, Value};
use crate::linear::{Linear, constant, uniform};
use crate::norm::LayerNorm;

/// A linear layer from a token to `hidden` values, an activation, and a linear layer back.
#[derive(Module, Debug)]
pub struct Mlp {
    /// The layer to the hidden values; for [`MlpKind::SwiGlu`], to the values that gate them, then to the hidden values.
    pub fc1: Linear,
    /// The mixing of [`MlpKind::DepthwiseChannel`].
    depthwise: Option<DepthwiseChannel>,
    /// The norm of the hidden values.
    norm: Option<LayerNorm>,
    /// The layer back to a token.
    pub fc2: Linear,
    dropout: Dropout,
    #[module(skip)]
    kind: MlpKind,
}

impl Mlp {
    /// Fresh parameters; `has_prefix` says whether there are prefix tokens (class token, registers).
    pub fn new(
        kind: MlpKind,
        [dim, hidden]: [usize; 2],
        has_prefix: bool,
        dropout: f64,
        device: &Device,
    ) -> Self {
        Self {
            fc1: Linear::new(dim, (kind.matrices() - 1) * hidden, true, device),
            depthwise: (kind == MlpKind::DepthwiseChannel)
                .then(|| DepthwiseChannel::new([dim, hidden], has_prefix, device)),
            norm: None,
            fc2: Linear::new(hidden, dim, true, device),
            dropout: DropoutConfig::new(dropout).init(),
            kind,
        }
    }

    /// The MLP with a norm of the hidden values, before the layer back to a token.
    pub fn with_norm(mut self, epsilon: f64, device: &Device) -> Self {
        let [hidden, _] = self.fc2.weight.lazy_shape().dims();
        self.norm = Some(LayerNorm::new(hidden, epsilon, device));
        self
    }

    /// # Shapes
    /// - x, output: `[batch, prefix + rows * columns, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Param;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::{MlpKind, mlp::Mlp};
    ///
    /// let device = Device::default();
    /// let mut mlp = Mlp::new(MlpKind::Relu, [1, 2], false, 0.0, &device);
    /// mlp.fc1.weight = Param::from_tensor(Tensor::from_floats([[1.0, -1.0]], &device));
    /// mlp.fc2.weight = Param::from_tensor(Tensor::from_floats([[1.0], [1.0]], &device));
    /// let tokens = Tensor::<3>::from_floats([[[-3.0], [5.0]]], &device);
    /// // Each token by itself: relu(x) + relu(-x) = |x|.
    /// assert_eq!(mlp.forward(tokens, 0, [1, 2]).into_data().try_into_vec_as::<f32>()?, [3.0, 5.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forward(&self, x: Tensor<3>, prefix: usize, grid: [usize; 2]) -> Tensor<3> {
        let output = match &self.depthwise {
            Some(depthwise) => self.among_patches(depthwise, x, prefix, grid),
            None => self.map(x, |hidden| hidden),
        };
        self.dropout.forward(output)
    }

    /// Both layers.
    pub(crate) fn linear_layers(&mut self) -> [&mut Linear; 2] {
        [&mut self.fc1, &mut self.fc2]
    }

    /// Whether each token is mapped by itself.
    pub(crate) fn is_tokenwise(&self) -> bool {
        self.depthwise.is_none()
    }

    /// Both layers, with `between` applied after the activation.
    fn map(&self, x: Tensor<3>, between: impl Fn(Tensor<3>) -> Tensor<3>) -> Tensor<3> {
        let hidden = match self.kind {
            MlpKind::Relu => activation::relu(self.fc1.forward(x)),
            MlpKind::GeluTanh => gelu_tanh(self.fc1.forward(x)),
            MlpKind::QuickGelu => quick_gelu(self.fc1.forward(x)),
            MlpKind::SwiGlu => gated(self.fc1.forward(x)),
            MlpKind::Gelu | MlpKind::DepthwiseChannel => self.fc1.forward_gelu(x),
        };
        let hidden = self.dropout.forward(between(hidden));
        self.fc2.forward(match &self.norm {
            Some(norm) => norm.forward(hidden),
            None => hidden,
        })
    }

    /// The MLP of the patches, mixed with their neighbors, and of the prefix tokens, whose channels are weighted by the
    /// patches.
    fn among_patches(
        &self,
        depthwise: &DepthwiseChannel,
        x: Tensor<3>,
        prefix: usize,
        grid: [usize; 2],
    ) -> Tensor<3> {
        let [_, tokens, _] = x.dims();
        let patches = x.clone().narrow(1, prefix, tokens - prefix);
        let patches = self.map(patches, |hidden| depthwise.among_neighbors(hidden, grid));
        match &depthwise.prefix {
            Some(gate) => {
                Tensor::cat(vec![x.narrow(1, 0, prefix) * gate.weight(patches.clone()), patches], 1)
            }
            None => patches,
        }
    }
}

impl Mlp {
    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, x: &Value, prefix: usize, grid: [usize; 2]) -> Value {
        graph.within("mlp", |graph| match &self.depthwise {
            Some(depthwise) => {
                let patches = graph.narrow(x, 1, prefix, x.dims[1] - prefix);
                let patches =
                    self.trace_map(graph, &patches, |graph, hidden| depthwise.trace(graph, &hidden, grid));
                match &depthwise.prefix {
                    Some(gate) => {
                        let weight = gate.trace(graph, &patches);
                        let first = graph.narrow(x, 1, 0, prefix);
                        let first = graph.multiply(&first, &weight);
                        graph.concat(&[&first, &patches], 1)
                    }
                    None => patches,
                }
            }
            None => self.trace_map(graph, x, |_, hidden| hidden),
        })
    }

    fn trace_map(&self, graph: &mut Graph, x: &Value, between: impl Fn(&mut Graph, Value) -> Value) -> Value {
        let hidden = self.fc1.trace(graph, "fc1", x);
        let hidden = match self.kind {
            MlpKind::Relu => graph.unary("Relu", &hidden),
            MlpKind::GeluTanh => {
                let tanh = vec![("approximate", Attribute::Text("tanh"))];
                graph.node("Gelu", &[&hidden], tanh, hidden.dims.clone())
            }
            MlpKind::QuickGelu => {
                let scaled = graph.scale(&hidden, QUICK_GELU);
                let gate = graph.unary("Sigmoid", &scaled);
                graph.multiply(&hidden, &gate)
            }
            MlpKind::SwiGlu => {
                let [gate, values] = graph.split(&hidden, 2);
                let sigmoid = graph.unary("Sigmoid", &gate);
                let silu = graph.multiply(&gate, &sigmoid);
                graph.multiply(&silu, &values)
            }
            MlpKind::Gelu | MlpKind::DepthwiseChannel => graph.gelu(&hidden),
        };
        let hidden = between(graph, hidden);
        let hidden = match &self.norm {
            Some(norm) => norm.trace(graph, "norm", &hidden),
            None => hidden,
        };
        self.fc2.trace(graph, "fc2", &hidden)
    }
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`, element by element.
fn gelu_tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let cube = x.clone() * x.clone() * x.clone();
    let inner = (x.clone() + cube * 0.044715) * (FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
    x * (inner.tanh() + 1.0) * 0.5
}

/// `x · sigmoid(1.702 x)`, element by element.
fn quick_gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.clone() * activation::sigmoid(x * QUICK_GELU)
}

/// The slope of the sigmoid that stands for the normal distribution.
const QUICK_GELU: f64 = 1.702;

/// The second half of the values, multiplied by `silu` of the first half: `[batch, tokens, 2 * hidden]` to
/// `[batch, tokens, hidden]`.
fn gated(x: Tensor<3>) -> Tensor<3> {
    let [_, _, both] = x.dims();
    let (gate, values) = (x.clone().narrow(2, 0, both / 2), x.narrow(2, both / 2, both / 2));
    activation::silu(gate) * values
}

/// The dynamic aggregation feed-forward of Lu et al. 2022 (DHVT, section 3.3): in each channel, patches are mixed with
/// their neighbors, and the channels of prefix tokens are weighted by the mean of the patches.
///
/// It has no batch norms, unlike the original, because the block normalizes already.
#[derive(Module, Debug)]
pub struct DepthwiseChannel {
    /// `[hidden, 1, 3, 3]`.
    pub conv: Param<Tensor<4>>,
    /// `[hidden]`.
    pub conv_bias: Param<Tensor<1>>,
    /// The weights of prefix tokens; absent if there are none.
    pub prefix: Option<PrefixGate>,
}

/// Computes the weights of a prefix token's channels from the mean of the patches.
#[derive(Module, Debug)]
pub struct PrefixGate {
    /// The layer to a bottleneck of a quarter of the channels.
    pub compress: Linear,
    /// The layer from the bottleneck to the weights.
    pub excite: Linear,
}

impl DepthwiseChannel {
    fn new([dim, hidden]: [usize; 2], has_prefix: bool, device: &Device) -> Self {
        let narrow = (dim / 4).max(1);
        Self {
            conv: uniform([hidden, 1, 3, 3], 1.0 / 3.0, device),
            conv_bias: constant([hidden], 0.0, device),
            prefix: has_prefix.then(|| PrefixGate {
                compress: Linear::new(dim, narrow, true, device),
                excite: Linear::new(narrow, dim, true, device),
            }),
        }
    }

    /// `x + gelu(convolution(x))` of the patches.
    fn among_neighbors(&self, x: Tensor<3>, [rows, columns]: [usize; 2]) -> Tensor<3> {
        let [batch, patches, hidden] = x.dims();
        let map = x.clone().reshape([batch, rows, columns, hidden]);
        let weight = self.conv.val().reshape([hidden, 3 * 3]).transpose();
        let map = vitrine_kernels::depthwise_convolution(map, weight, Some(self.conv_bias.val()));
        x + vitrine_kernels::gelu(map.reshape([batch, patches, hidden]))
    }

    /// The mixing of neighbors as operators.
    fn trace(&self, graph: &mut Graph, x: &Value, grid: [usize; 2]) -> Value {
        let map = graph.map_of_tokens(x, grid);
        let weight = graph.weight("conv.weight", self.conv.val());
        let bias = graph.constant("conv.bias", self.conv_bias.val());
        let map = graph.same_convolution(&map, &weight, Some(&bias), true);
        let map = graph.gelu(&map);
        let mixed = graph.tokens_of_map(&map);
        graph.add(x, &mixed)
    }
}

impl PrefixGate {
    /// The weights: `[batch, 1, dim]`.
    fn weight(&self, patches: Tensor<3>) -> Tensor<3> {
        self.excite.forward(self.compress.forward_gelu(patches.mean_dim(1)))
    }

    fn trace(&self, graph: &mut Graph, patches: &Value) -> Value {
        let mean = graph.reduce("ReduceMean", patches, 1);
        let hidden = self.compress.trace(graph, "compress", &mean);
        let hidden = graph.gelu(&hidden);
        self.excite.trace(graph, "excite", &hidden)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::tensor::Distribution;

    #[test]
    fn patches_are_mixed_with_their_neighbors_in_each_channel() {
        let device = Device::default();
        let ([rows, columns], hidden) = ([3, 4], 5);
        let layer = DepthwiseChannel {
            conv_bias: uniform([hidden], 1.0, &device),
            ..DepthwiseChannel::new([2, hidden], false, &device)
        };
        let x = Tensor::<3>::random([2, rows * columns, hidden], Distribution::Default, &device);
        // Channels before rows and columns, as the weights are stored.
        let map = x.clone().swap_dims(1, 2).reshape([2, hidden, rows, columns]);
        let map = vitrine_kernels::same_conv2d(map, layer.conv.val(), Some(layer.conv_bias.val()));
        let expected = x.clone() + vitrine_kernels::gelu(map.flatten::<3>(2, 3).swap_dims(1, 2));
        let difference = (layer.among_neighbors(x, [rows, columns]) - expected).abs();
        assert!(difference.max().into_scalar::<f32>() < 1e-6);
    }

    #[test]
    fn other_activations_are_pytorchs() {
        let values = |x: Tensor<1>| x.into_data().try_into_vec_as::<f32>().unwrap();
        let x = Tensor::<1>::from_floats([-3.0, -1.0, 0.0, 1.0, 3.0], &Device::default());
        // x * torch.sigmoid(1.702 * x)
        let expected = [-0.018_071, -0.154_204, 0.0, 0.845_796, 2.981_929];
        for (ours, torch) in values(quick_gelu(x)).iter().zip(expected) {
            assert!((ours - torch).abs() < 2e-6, "{ours} for {torch}");
        }
        // torch.nn.functional.silu([1, -2]) * [3, 5]
        let x = Tensor::<3>::from_floats([[[1.0, -2.0, 3.0, 5.0]]], &Device::default());
        for (ours, torch) in values(gated(x).flatten(0, 2)).iter().zip([2.193_176, -1.192_029]) {
            assert!((ours - torch).abs() < 2e-6, "{ours} for {torch}");
        }
    }

    #[test]
    fn the_tanh_form_of_gelu_is_pytorchs() {
        // The expected values are from torch.nn.functional.gelu(x, approximate="tanh").
        let x = Tensor::<1>::from_floats([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0], &Device::default());
        let expected = [-0.003_637_39, -0.158_808, -0.154_286, 0.0, 0.345_714, 0.841_192, 2.996_362_6];
        let ours = gelu_tanh(x).into_data().try_into_vec_as::<f32>().unwrap();
        for (a, b) in ours.iter().zip(expected) {
            assert!((a - b).abs() < 2e-6, "{a} for {b}");
        }
    }
}
