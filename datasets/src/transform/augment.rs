//! stub
use super::RandAugment;
use crate::Image;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
/// x
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
#[allow(missing_docs)]
pub struct Augmentation {
    pub crop: Crop,
    pub horizontal_flip: f64,
    pub rand_augment: Option<RandAugment>,
    pub mixup: f64,
    pub cutmix: f64,
    pub random_erasing: f64,
}
/// x
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Copy, Default)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Crop {
    #[default]
    None,
    Pad {
        pixels: u32,
    },
    Resized {
        scale: [f64; 2],
        ratio: [f64; 2],
    },
}
/// x
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct InvalidAugmentation;
#[allow(missing_docs)]
impl Augmentation {
    pub fn none() -> Self {
        Self::default()
    }
    pub fn with_jitter(self, _s: f64) -> Self {
        self
    }
    pub fn strong(self) -> Self {
        self
    }
    pub fn validate(&self) -> Result<(), InvalidAugmentation> {
        Ok(())
    }
    pub fn apply(
        &self,
        image: &Image,
        _s: [usize; 2],
        resize: &dyn Fn(&Image) -> Image,
        _r: &mut ChaCha8Rng,
    ) -> Image {
        resize(image)
    }
    pub fn erase(&self, _v: &mut [f32], _s: [usize; 3], _r: &mut ChaCha8Rng) {}
    pub fn mix(&self, _i: &mut [f32], _t: &mut [f32], _s: [usize; 4], _c: usize, _r: &mut ChaCha8Rng) {}
}
