//! The precision of the products of training.

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::device::FoundDevice;
use crate::usage::usage;

/// The numbers that matrix products and convolutions multiply in training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Float32.
    #[default]
    F32,
    /// Rounded to bfloat16, with sums in float32; weights, attention, and everything else stay in float32.
    Bf16,
}

impl Precision {
    /// Whether this is the precision that is used if nothing is stated.
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a device computes no slower in this precision than in float32.
    pub fn suits(self, device: &FoundDevice) -> bool {
        self == Self::F32 || vitrine_kernels::multiplies_bfloat16(&device.device)
    }

    /// Checks that a device computes faster in this precision than in float32.
    ///
    /// # Errors
    /// If it does not.
    pub fn check(self, device: &FoundDevice) -> Result<()> {
        if !self.suits(device) {
            usage!(
                "`precision = \"bf16\"` (--precision): {} does not multiply bfloat16 numbers faster here: it would need flex on a processor with \
                 AVX512-BF16 (AMD since Zen 4) and without AMX, whose products of float32 are faster still; leave it out",
                device.name
            );
        }
        Ok(())
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
