//! Progressive learning: the first part of a run trains on smaller images with light augmentation.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use vitrine_datasets::Augmentation;
use vitrine_models::{ImageSize, ModelConfig};

use super::check;
use crate::bounds;

/// A first phase in which images are smaller, which costs less, and are only cropped and mirrored.
///
/// This is Tan & Le 2021 (EfficientNetV2), section 4.1, in two steps. Howard 2018, 'Training Imagenet in 3 hours', has
/// the sizes alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProgressiveLearning {
    /// Share of the run after which the first phase ends.
    pub until: f64,
    /// Height and width of the images in the first phase, as a share of the model's. They are rounded to whole patches.
    #[serde(default = "whole")]
    pub scale: f64,
}

/// The default of [`ProgressiveLearning::scale`].
fn whole() -> f64 {
    1.0
}

impl ProgressiveLearning {
    /// The size of the images in the first phase.
    pub fn size(&self, model: &ModelConfig) -> ImageSize {
        let patch = model.patch_size;
        let side = |full: usize| {
            let patches = (self.scale * full as f64 / patch as f64).round() as usize;
            // Images smaller than a patch are refused later.
            patch * patches.clamp(1, (full / patch).max(1))
        };
        ImageSize { height: side(model.image_size.height), width: side(model.image_size.width) }
    }

    /// The cost of one image of the first phase as a share of the cost of a whole one, estimated by the numbers of
    /// pixels.
    pub fn cost(&self, model: &ModelConfig) -> f64 {
        let pixels = |size: ImageSize| (size.height * size.width) as f64;
        pixels(self.size(model)) / pixels(model.image_size)
    }

    /// How many times as many images a run of a given time trains on as it would without the first phase.
    pub fn images_for_one(&self, model: &ModelConfig) -> f64 {
        1.0 - self.until + self.until / self.cost(model)
    }

    /// Checks the numbers.
    ///
    /// # Errors
    /// Names the key, its value, and the allowed range.
    pub(super) fn check(&self) -> Result<()> {
        check("progressive_learning.until", self.until, bounds::PART)?;
        check("progressive_learning.scale", self.scale, bounds::FACTOR)
    }

    /// Checks that the model takes smaller images, and that the first phase differs from the rest of the run.
    ///
    /// # Errors
    /// When either is not so; the message names the key.
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
    fn smaller_images_have_whole_patches() {
        let model = preset::find("hybrid_nano_patch8_64").unwrap();
        let size = |scale| ProgressiveLearning { scale, ..HALF }.size(&model);
        assert_eq!([0.5, 0.7, 0.01, 0.99, 1.0].map(size), [32, 48, 8, 64, 64].map(ImageSize::square));
        assert_eq!((HALF.cost(&model), HALF.images_for_one(&model)), (0.25, 2.5));
        let tiny = ModelConfig { image_size: ImageSize::square(4), ..model };
        assert_eq!(HALF.size(&tiny), ImageSize::square(8), "a whole patch, where the image is none");
    }

    #[test]
    fn unsuitable_models_and_numbers_are_refused() {
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
