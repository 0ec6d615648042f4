//! The bilinear score ('general' in Luong et al. 2015, section 3.1).

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::DotScore;
use crate::linear::uniform;
use crate::ops;

/// `q · matrix · k`.
#[derive(Module, Debug)]
pub struct BilinearScore {
    /// The matrix between query and key: `[heads, head_dim, head_dim]`.
    pub bilinear: Param<Tensor<3>>,
}

impl BilinearScore {
    pub(super) fn new([heads, dim]: [usize; 2], device: &Device) -> Self {
        Self { bilinear: uniform([heads, dim, dim], 1.0 / (dim as f64).sqrt(), device) }
    }

    pub(super) fn as_dot(&self, q: Tensor<4>, k: Tensor<4>) -> DotScore {
        DotScore { q: ops::matmul(q, self.bilinear.val().unsqueeze()), k, scale: 1.0, bias: None }
    }
}
