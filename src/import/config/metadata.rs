//! The metadata that configuration files contain: facts about the architecture, class names, and preprocessing.

use vitrine_datasets::{Interpolation, ResizeRule};
use vitrine_models::weights::{Facts, Layout};

/// What configuration files say about a model. Every field may be missing.
#[derive(Debug, Default)]
pub(crate) struct ModelMetadata {
    /// Facts about the architecture.
    pub(crate) facts: Facts,
    /// timm's name of the architecture, or the name of a preset.
    pub(crate) name: Option<String>,
    /// The layout that tensors have next to such a configuration, for configurations that only one library writes.
    pub(crate) layout: Option<Layout>,
    /// Class names in the order of the logits.
    pub(crate) classes: Option<Vec<String>>,
    /// Whether an image has any number of classes.
    pub(crate) multi_label: bool,
    /// Height and width of the preprocessed image in pixels.
    pub(crate) image_size: Option<[usize; 2]>,
    /// How an image is scaled and cropped to this size.
    pub(crate) resize: Option<ResizeRule>,
    /// The filter for scaling.
    pub(crate) interpolation: Option<Interpolation>,
    /// Mean per channel, of values from 0 to 1.
    pub(crate) mean: Option<Vec<f32>>,
    /// Standard deviation per channel.
    pub(crate) std: Option<Vec<f32>>,
}

/// The rule that scales a whole image, whatever its shape, and keeps the share `crop` of each side.
pub(crate) fn squash(crop: f64) -> ResizeRule {
    if crop < 1.0 { ResizeRule::SquashCrop { crop } } else { ResizeRule::Squash }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squashing_without_a_crop_is_a_rule_of_its_own() {
        assert_eq!(squash(0.875), ResizeRule::SquashCrop { crop: 0.875 });
        assert_eq!(squash(1.0), ResizeRule::Squash);
    }
}
