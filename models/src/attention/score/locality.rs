//! Locality self-attention (Lee et al. 2021, section 3.2).

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::super::mask::HIDDEN;
use super::DotScore;
use crate::linear::constant;

/// `q · k` times a learned factor; no token sees itself.
#[derive(Module, Debug)]
pub struct LocalityScore {
    /// The factor: `[heads, 1, 1]`.
    pub temperature: Param<Tensor<3>>,
}

impl LocalityScore {
    pub(super) fn new([heads, dim]: [usize; 2], device: &Device) -> Self {
        Self { temperature: constant([heads, 1, 1], 1.0 / (dim as f64).sqrt(), device) }
    }

    /// # Panics
    /// If there are not as many keys as queries.
    pub(super) fn as_dot(&self, q: Tensor<4>, k: Tensor<4>) -> DotScore {
        assert_eq!(q.dims()[2], k.dims()[2], "locality is of a sequence with itself");
        let bias = Tensor::<2>::eye(q.dims()[2], &q.device()).mul_scalar(HIDDEN).unsqueeze();
        DotScore { q: q * self.temperature.val().unsqueeze(), k, scale: 1.0, bias: Some(bias) }
    }
}
