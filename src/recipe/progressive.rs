//! Progressive learning: small images and little augmentation first, the model's size and the whole recipe then.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use vitrine_datasets::Augmentation;
use vitrine_models::{ImageSize, ModelConfig};

use crate::bounds;

/// A first phase in which images are smaller, which costs less, and only cropped and mirrored (Tan & Le 2021, EfficientNetV2, section
/// 4.1, in two steps; of the sizes alone, Howard 2018, 'Training Imagenet in 3 hours').
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgressiveLearning {
    /// Share of the run in which epochs begin so.
    pub until: f64,
    /// Height and width of its images, as a share of the model's; the nearest size that the model's patches divide is taken.
    #[serde(default = "whole")]
    pub scale: f64,
}

fn whole() -> f64 {
    1.0
}

impl ProgressiveLearning {
    /// The size of the first images.
    pub fn size(&self, model: &ModelConfig) -> ImageSize {
        let patch = model.patch_size;
        let side = |full: usize| {
            let patches = (self.scale * full as f64 / patch as f64).round() as usize;
            patch * patches.clamp(1, full / patch)
        };
        ImageSize { height: side(model.image_size.height), width: side(model.image_size.width) }
    }

    /// What one image of the first phase costs, as a share of one of the model's size: about its share of the pixels.
    pub fn cost(&self, model: &ModelConfig) -> f64 {
        let pixels = |size: ImageSize| (size.height * size.width) as f64;
        pixels(self.size(model)) / pixels(model.image_size)
    }

    /// Images that are seen in the time of one at the model's size, on average over a run that ends by the clock.
    pub fn images_for_one(&self, model: &ModelConfig) -> f64 {
        1.0 - self.until + self.until / self.cost(model)
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// Names the key, its value and what is allowed.
    pub(super) fn check(&self) -> Result<()> {
        for (key, value, allowed) in
            [("until", self.until, bounds::PART), ("scale", self.scale, bounds::FACTOR)]
        {
            if !allowed.contain(value) {
                bail!("`progressive_learning.{key}` is {value}: it must be {allowed}");
            }
        }
        Ok(())
    }

    /// Checks that a model can be trained so, and that it makes a difference.
    ///
    /// # Errors
    /// When it cannot, or does not.
    pub fn check_model(&self, model: &ModelConfig, augmentation: &Augmentation) -> Result<()> {
        if self.scale < 1.0 && !model.fits_all_sizes() {
            bail!(
                "`progressive_learning.scale` needs a model without parameters for one image size, and this one has learned positions, \
                 windows or stages: leave it out, or use another --model, such as the default"
            );
        }
        let size = self.size(model);
        if size == model.image_size && *augmentation == augmentation.crop_and_flips() {
            bail!(
                "`progressive_learning` has no effect: nothing but crop and flips is left out in its first phase, and its images of {}x{} \
                 are not smaller; set `scale`, to a whole number of patches of {}",
                size.width,
                size.height,
                model.patch_size
            );
        }
        Ok(ModelConfig { image_size: size, ..model.clone() }.validate()?)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use vitrine_models::preset;

    const HALF: ProgressiveLearning = ProgressiveLearning { until: 0.5, scale: 0.5 };

    #[test]
    fn smaller_images_are_whole_patches() {
        let model = preset::find("hybrid_nano_patch8_64").unwrap();
        let size = |scale| ProgressiveLearning { scale, ..HALF }.size(&model);
        assert_eq!([0.5, 0.7, 0.01, 0.99, 1.0].map(size), [32, 48, 8, 64, 64].map(ImageSize::square));
        assert_eq!((HALF.cost(&model), HALF.images_for_one(&model)), (0.25, 2.5));
    }

    #[test]
    fn what_cannot_be_trained_so_is_refused() {
        let hybrid = preset::find("hybrid_nano_patch8_64").unwrap();
        let (light, strong) = (Augmentation::none(), Augmentation { cutmix: 1.0, ..Augmentation::none() });
        assert!(HALF.check().is_ok() && HALF.check_model(&hybrid, &light).is_ok());
        let windows = preset::find("swin_pico_patch2_window4_32").unwrap();
        let error = HALF.check_model(&windows, &strong).unwrap_err().to_string();
        assert!(error.contains("positions, windows"), "{error}");
        let whole = ProgressiveLearning { scale: 1.0, ..HALF };
        whole.check_model(&windows, &strong).unwrap();
        for scale in [0.97, 1.0] {
            let error = ProgressiveLearning { scale, ..HALF }.check_model(&hybrid, &light).unwrap_err();
            assert!(error.to_string().contains("no effect"), "{error}");
        }
        for (key, wrong) in [
            ("until", ProgressiveLearning { until: 1.0, ..HALF }),
            ("scale", ProgressiveLearning { scale: 0.0, ..HALF }),
        ] {
            assert!(wrong.check().unwrap_err().to_string().contains(key));
        }
    }
}
