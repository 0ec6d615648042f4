//! The metadata that configuration files contain: facts about the architecture, class names, and preprocessing.

use vitrine_datasets::{Interpolation, ResizeRule};
use vitrine_models::weights::{Facts, Layout};

/// Mean and standard deviation of ImageNet's pixels, as the models' authors rounded them.
pub(crate) const IMAGENET: ([f32; 3], [f32; 3]) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
/// Mean and standard deviation that map values from 0 to 1 to the range from -1 to 1.
pub(crate) const HALF: ([f32; 3], [f32; 3]) = ([0.5; 3], [0.5; 3]);
/// Mean and standard deviation of CLIP's training images.
pub(crate) const CLIP: ([f32; 3], [f32; 3]) =
    ([0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_6, 0.275_777_1]);

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
