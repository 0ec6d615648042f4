//! The scaled cosine (Liu et al. 2022, Swin v2, section 3.2).

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::DotScore;
use crate::linear::constant;

/// The cosine of the angle between query and key times a factor of at most 100.
#[derive(Module, Debug)]
pub struct CosineScore {
    /// The logarithm of the factor: `[heads, 1, 1]`.
    pub logit_scale: Param<Tensor<3>>,
}

impl CosineScore {
    pub(super) fn new([heads, _]: [usize; 2], device: &Device) -> Self {
        Self { logit_scale: constant([heads, 1, 1], 10f64.ln(), device) }
    }

    pub(super) fn as_dot(&self, q: Tensor<4>, k: Tensor<4>) -> DotScore {
        let factor = self.logit_scale.val().unsqueeze::<4>().clamp_max(100f64.ln()).exp();
        DotScore { q: l2_normalize(q) * factor, k: l2_normalize(k), scale: 1.0, bias: None }
    }
}

/// Every vector of the last dimension at length 1; PyTorch's `normalize`.
pub(in super::super) fn l2_normalize(x: Tensor<4>) -> Tensor<4> {
    // Bounded before the root, whose gradient at 0 is infinite.
    let length = x.clone().powi_scalar(2).sum_dim(3).clamp_min(1e-24).sqrt();
    x / length
}
