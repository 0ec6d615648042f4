//! Stochastic depth (Huang et al. 2016): each sample of a batch leaves out whole residual branches at random.

use burn::module::{Flag, Module, Param};
use burn::tensor::{Distribution, Tensor};

/// Draws for every sample of a batch whether it leaves out a branch.
#[derive(Module, Debug)]
pub struct DropPath {
    /// The probability that a sample leaves out the branch.
    probability: f64,
    training: Param<Flag>,
}

impl DropPath {
    /// Leaves out branches with this `probability`, in [0, 1), in training.
    pub fn new(probability: f64) -> Self {
        Self { probability, training: Param::from_bool(true) }
    }

    /// A factor of the branch for each sample, 0 or `1 / (1 - probability)`; `None` outside training.
    ///
    /// # Shapes
    /// - x: `[batch, tokens, dim]`
    /// - output: `[batch]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::drop_path::DropPath;
    ///
    /// let drop_path = DropPath::new(0.5);
    /// let x = |device: &Device| Tensor::<3>::ones([1000, 1, 1], device);
    /// assert!(drop_path.factors(&x(&Device::default())).is_none());
    ///
    /// let factors = drop_path.factors(&x(&Device::default().autodiff())).expect("in training");
    /// let factors = factors.into_data().try_into_vec_as::<f32>()?;
    /// assert!(factors.iter().all(|factor| [0.0, 2.0].contains(factor)));
    /// let mean = factors.iter().sum::<f32>() / 1000.0;
    /// assert!((mean - 1.0).abs() < 0.25); // the expected factor
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
