//! Stochastic depth (Huang et al. 2016): whole residual branches are left out, sample by sample.

use burn::module::{Flag, Module, Param};
use burn::tensor::{Distribution, Tensor};

/// Decides for every sample of a batch whether its branch counts.
#[derive(Module, Debug)]
pub struct DropPath {
    /// Probability that a branch is left out.
    probability: f64,
    training: Param<Flag>,
}

impl DropPath {
    /// Leaves a branch out with `probability` (in [0, 1)) while training.
    pub fn new(probability: f64) -> Self {
        Self { probability, training: Param::from_bool(true) }
    }

    /// One factor a sample, 0 or `1 / (1 - probability)`; nothing outside training.
    ///
    /// # Shapes
    /// - x: `[batch, tokens, dim]`
    /// - output: `[batch]`
    pub fn factors(&self, x: &Tensor<3>) -> Option<Tensor<1>> {
        let device = x.device();
        if self.probability == 0.0 || !self.training.is_enabled() || !device.is_autodiff() {
            return None;
        }
        let [batch, _, _] = x.dims();
        let keep = 1.0 - self.probability;
        Some(Tensor::random([batch], Distribution::Bernoulli(keep), &device).div_scalar(keep))
    }
}
