//! Layer norm (Ba et al. 2016) and batch norm (Ioffe & Szegedy 2015).

use burn::module::{Module, Param, RunningState};
use burn::tensor::{Device, Tensor};

use crate::graph::{Attribute, Graph, Value};
use crate::linear::constant;

/// Normalizes the last dimension to mean 0 and variance 1, then scales and shifts it.
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// Scale `[dim]`, ones at the start.
    pub weight: Param<Tensor<1>>,
    /// Shift `[dim]`, zeros at the start.
    pub bias: Param<Tensor<1>>,
    epsilon: f64,
}

impl LayerNorm {
    /// A norm over `dim` values, whose variance is increased by `epsilon`.
    pub fn new(dim: usize, epsilon: f64, device: &Device) -> Self {
        Self { weight: constant([dim], 1.0, device), bias: constant([dim], 0.0, device), epsilon }
    }

    /// # Shapes
    /// - x, output: `[..., dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::norm::LayerNorm;
    ///
    /// let device = Device::default();
    /// let norm = LayerNorm::new(4, 1e-6, &device);
    /// let x = Tensor::<2>::from_floats([[2.0, 4.0, 6.0, 8.0], [-1.0, 50.0, 0.5, 7.0]], &device);
    /// let (variance, mean) = norm.forward(x).var_mean_bias(1);
    /// assert_eq!(mean.dims(), [2, 1]);
    /// assert!(mean.abs().max().into_scalar::<f32>() < 1e-6);
    /// assert!((variance - 1.0).abs().max().into_scalar::<f32>() < 1e-5);
    /// ```
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        vitrine_kernels::layer_norm(x, self.weight.val(), self.bias.val(), self.epsilon)
    }

    /// [`Self::forward`] as operators; `name` is the name of the norm.
    pub(crate) fn trace(&self, graph: &mut Graph, name: &str, x: &Value) -> Value {
        graph.within(name, |graph| {
            let weight = graph.constant("weight", self.weight.val());
            let bias = graph.constant("bias", self.bias.val());
            let attributes =
                vec![("axis", Attribute::Int(-1)), ("epsilon", Attribute::Float(self.epsilon as f32))];
            graph.node("LayerNormalization", &[x, &weight, &bias], attributes, x.dims.clone())
        })
    }
}

/// Normalizes each channel, over the batch in training and by running averages otherwise, then scales and shifts it.
#[derive(Module, Debug)]
pub struct BatchNorm {
    /// Scale `[channels]`, ones at the start.
    pub weight: Param<Tensor<1>>,
    /// Shift `[channels]`, zeros at the start.
    pub bias: Param<Tensor<1>>,
    /// The average of the means: `[channels]`.
    running_mean: RunningState<Tensor<1>>,
    /// The average of the unbiased variances: `[channels]`.
    running_var: RunningState<Tensor<1>>,
    /// The number of batches in the averages: `[1]`.
    num_batches_tracked: RunningState<Tensor<1>>,
    epsilon: f64,
}

impl BatchNorm {
    /// The share of a new batch in the running averages, as in PyTorch. The first batches have equal shares.
    const MOMENTUM: f64 = 0.1;

    /// A norm of `channels` channels, whose variance is increased by `epsilon`.
    pub fn new(channels: usize, epsilon: f64, device: &Device) -> Self {
        Self {
            weight: constant([channels], 1.0, device),
            bias: constant([channels], 0.0, device),
            running_mean: RunningState::new(Tensor::zeros([channels], device)),
            running_var: RunningState::new(Tensor::ones([channels], device)),
            num_batches_tracked: RunningState::new(Tensor::zeros([1], device)),
            epsilon,
        }
    }

    /// Whether a tensor of a norm, by its name, is one of its running averages: the mean, the variance, and the number of batches, in this
    /// order and after the parameters.
    pub fn is_average(name: &str) -> bool {
        matches!(name, "running_mean" | "running_var" | "num_batches_tracked")
    }

    /// Moves the [running averages](Self::is_average) of a norm toward those of another one that began with zeros and saw one batch, or
    /// several equal ones. The result has the same bits as if this norm had seen them, on the CPU.
    pub fn follow_averages([mean, variance, batches]: &mut [Vec<f32>; 3], other: &[Vec<f32>; 3]) {
        for _ in 0..other[2][0] as usize {
            batches[0] += 1.0;
            let share = batches[0].recip().max(Self::MOMENTUM as f32);
            for (before, found) in [&mut *mean, &mut *variance].into_iter().zip(other) {
                before.iter_mut().zip(found).for_each(|(before, found)| *before += (found - *before) * share);
            }
        }
    }

    /// The norm, followed by GELU.
    ///
    /// If its parameters learn (on a device with autodiff, and not frozen), it normalizes by the moments of the batch,
    /// and the running averages move toward these moments. Otherwise it normalizes by the running averages.
    ///
    /// # Shapes
    /// - map, output: `[..., channels]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Module;
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use vitrine_models::norm::BatchNorm;
    ///
    /// let norm = BatchNorm::new(2, 1e-5, &Device::default().autodiff());
    /// let map = Tensor::<2>::random([50, 2], Distribution::Normal(7.0, 3.0), &Device::default());
    /// let learning = norm.forward_gelu(Tensor::from_inner(map.clone())).inner();
    /// // The running averages are those of all batches so far, of one here.
    /// let apart: f32 = (norm.valid().forward_gelu(map) - learning).abs().max().into_scalar();
    /// assert!(apart < 0.05, "{apart}");
    /// ```
    pub fn forward_gelu<const D: usize>(&self, map: Tensor<D>) -> Tensor<D> {
        let (weight, bias) = (self.weight.val(), self.bias.val());
        let learns = weight.is_require_grad();
        let moments = if learns {
            let moments = vitrine_kernels::moments(map.clone());
            self.follow(&moments, map.shape().num_elements() / weight.dims()[0].max(1));
            moments
        } else {
            let [mean, variance] = [&self.running_mean, &self.running_var].map(|state| {
                let value = state.value_sync();
                if value.device().is_autodiff() { value.inner() } else { value }
            });
            vitrine_kernels::Moments { mean, variance }
        };
        vitrine_kernels::batch_norm(
            map,
            weight,
            bias,
            moments,
            self.epsilon,
            vitrine_kernels::BatchNorm { of_batch: learns, gelu: true },
        )
    }

    /// [`Self::forward_gelu`] of a model that does not learn, as operators. Channels come before rows and columns.
    pub(crate) fn trace_gelu(&self, graph: &mut Graph, name: &str, map: &Value) -> Value {
        graph.within(name, |graph| {
            let constants = [
                graph.constant("weight", self.weight.val()),
                graph.constant("bias", self.bias.val()),
                graph.constant("running_mean", self.running_mean.value_sync()),
                graph.constant("running_var", self.running_var.value_sync()),
            ];
            let inputs: Vec<&Value> = [map].into_iter().chain(&constants).collect();
            let attributes = vec![("epsilon", Attribute::Float(self.epsilon as f32))];
            let normalized = graph.node("BatchNormalization", &inputs, attributes, map.dims.clone());
            graph.gelu(&normalized)
        })
    }

    /// Moves the running averages toward the moments of a batch with `count` values in each channel.
    fn follow(&self, moments: &vitrine_kernels::Moments, count: usize) {
        if count < 2 {
            return; // a single value has no unbiased variance
        }
        let unbiased = moments.variance.clone() * (count as f64 / (count - 1) as f64);
        let batches = self.num_batches_tracked.value_sync() + 1.0;
        let share = batches.clone().recip().clamp_min(Self::MOMENTUM);
        let toward = |state: &RunningState<Tensor<1>>, found: Tensor<1>| {
            let before = state.value_sync();
            let found = if before.device().is_autodiff() { Tensor::from_inner(found) } else { found };
            before.clone() + (found - before) * share.clone()
        };
        let mean = toward(&self.running_mean, moments.mean.clone());
        let variance = toward(&self.running_var, unbiased);
        for (state, value) in
            [(&self.running_mean, mean), (&self.running_var, variance), (&self.num_batches_tracked, batches)]
        {
            state.update(value);
            // Applies the update now: saving a model reads the value, not a pending update.
            state.value_sync();
        }
    }
}
