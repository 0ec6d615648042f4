//! Layer norm (Ba et al. 2016).

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::{linear::constant, ops};

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
    /// A norm over `dim` values; `epsilon` is added to their variance.
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
        ops::layer_norm(x, self.weight.val(), self.bias.val(), self.epsilon)
    }
}
