//! The precision of the products of training.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The numbers that matrix products and convolutions multiply in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Float32.
    #[default]
    F32,
    /// Rounded to bfloat16 in linear layers, convolutions, and Muon, with sums in float32; everything else stays in float32.
    Bf16,
}

impl Precision {
    /// Whether this is the precision that is used if nothing is stated.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl From<Precision> for vitrine_kernels::Precision {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::F32 => Self::Float32,
            Precision::Bf16 => Self::Bfloat16,
        }
    }
}
