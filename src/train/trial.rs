//! A probe of some training images before a run begins, by which its image size is chosen.

use anyhow::Result;
use vitrine_models::VisionTransformer;
use vitrine_models::weights::NamedTensor;

use super::initial_state::with_parameters;
use super::probing::{SplitImages, measured_speed};
use crate::probe::Judgment;
use crate::run_folder::{RunConfig, RunData};
use crate::runtime::Runtime;

/// About the number of training images that are probed, at most: the standard error of an accuracy of 60% is then 2.4 points,
/// and that of the difference of two accuracies on the same images less.
const IMAGES: usize = 400;
/// With fewer images, the comparison says too little.
const MIN_IMAGES: usize = 100;
/// With fewer images of each class, on average, a probe is not the one that all of them would give.
const MIN_IMAGES_OF_A_CLASS: usize = 4;
/// The largest share of a run's time for the features of these images at its image size.
const MAX_SHARE: f64 = 0.12;

/// Training images for probes that are compared with each other.
pub struct Trial(SplitImages);

impl Trial {
    /// Chooses some training images of each class, at most `affordable` in all; `None` if too few for a comparison.
    pub fn new(data: &RunData, config: &RunConfig, affordable: usize) -> Option<Self> {
        let fewest = MIN_IMAGES.max(MIN_IMAGES_OF_A_CLASS * config.classes.len());
        let wanted = IMAGES.min(affordable);
        if wanted < fewest || data.dataset().train.len() < fewest {
            return None;
        }
        Some(Self(SplitImages::part_of_training(data, wanted, config.seed)))
    }

    /// The number of images.
    pub fn images(&self) -> usize {
        self.0.samples.len()
    }

    /// How well a head that is fitted to features of the images recognizes held-out ones among them, by cross-validation; `None`
    /// if no image could be held out, or the user asked to stop.
    ///
    /// # Errors
    /// If the parameters do not fit the architecture, the images cannot be loaded, or a feature is not finite.
    pub fn judgment(
        &self,
        config: &RunConfig,
        tensors: Vec<NamedTensor>,
        runtime: Runtime<'_>,
    ) -> Result<Option<Judgment>> {
        self.0.cross_validated(&backbone(config, tensors, runtime)?, config, runtime)
    }
}

/// The number of images for whose features a run with a time limit of `seconds` seconds has the time before it begins.
///
/// # Errors
/// If the parameters do not fit the architecture, the images cannot be loaded, or the device fails.
pub fn affordable_images(
    seconds: f64,
    data: &RunData,
    config: &RunConfig,
    tensors: Vec<NamedTensor>,
    runtime: Runtime<'_>,
) -> Result<usize> {
    let images = SplitImages::part_of_training(data, MIN_IMAGES, config.seed);
    let speed = measured_speed(&images, &backbone(config, tensors, runtime)?, config, runtime)?;
    Ok((MAX_SHARE * seconds * speed) as usize)
}

fn backbone(
    config: &RunConfig,
    tensors: Vec<NamedTensor>,
    runtime: Runtime<'_>,
) -> Result<VisionTransformer> {
    with_parameters(config.model.init(&runtime.device.device)?, tensors)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use vitrine_datasets::DecodeLimits;

    use super::*;
    use crate::run_folder::HoldOut;
    use crate::run_folder::testing::{config, drawn};

    #[test]
    fn a_trial_has_several_images_of_each_class_or_there_is_none() {
        let images = |train: usize, classes: usize, affordable: usize| {
            let hold_out = HoldOut { fraction: 0.1, seed: 1, fold: None };
            let data = drawn([train, 0, 10]);
            let data = RunData::choose(data, "drawn", hold_out, None, &DecodeLimits::default()).unwrap();
            let classes: Vec<String> = (0..classes).map(|class| class.to_string()).collect();
            let config = RunConfig { classes, ..config(&["circle", "ring"]) };
            Trial::new(&data, &config, affordable).map(|trial| trial.images())
        };
        let about = |wanted: usize| Some(wanted..=wanted + 1);
        for (train, classes, affordable, expected) in [
            (1000, 2, usize::MAX, about(400)),
            (1000, 2, 150, about(150)),
            (1000, 2, 99, None),
            (90, 2, usize::MAX, None),
            (1000, 100, usize::MAX, about(400)),
            (1000, 101, usize::MAX, None),
            (1000, 60, 230, None),
        ] {
            let found = images(train, classes, affordable);
            let fits =
                found.map_or(expected.is_none(), |found| expected.is_some_and(|of| of.contains(&found)));
            assert!(fits, "{train} {classes} {affordable}: {found:?}");
        }
    }
}
