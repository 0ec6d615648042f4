//! What configuration files say of a model and of its images.

use vitrine_datasets::{Interpolation, ResizeRule};
use vitrine_models::weights::{Facts, Layout};

/// What configuration files say; everything may be missing.
#[derive(Debug, Default)]
pub(super) struct Description {
    /// Of the architecture.
    pub(super) facts: Facts,
    /// timm's name of the architecture.
    pub(super) name: Option<String>,
    /// Whose configuration it is, where that tells whose names the keys have.
    pub(super) layout: Option<Layout>,
    /// Class names in the order of the logits.
    pub(super) classes: Option<Vec<String>>,
    /// Height and width.
    pub(super) image_size: Option<[usize; 2]>,
    pub(super) resize: Option<ResizeRule>,
    pub(super) interpolation: Option<Interpolation>,
    pub(super) mean: Option<Vec<f32>>,
    pub(super) std: Option<Vec<f32>>,
    /// For the user.
    pub(super) notes: Vec<String>,
}

/// How a whole image is scaled, of which the share `crop` is kept.
pub(super) fn squash(crop: f64) -> ResizeRule {
    if crop < 1.0 { ResizeRule::SquashCrop { crop } } else { ResizeRule::Squash }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_image_is_not_cropped() {
        assert_eq!(squash(0.875), ResizeRule::SquashCrop { crop: 0.875 });
        assert_eq!(squash(1.0), ResizeRule::Squash);
    }
}
