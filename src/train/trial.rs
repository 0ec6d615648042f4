//! A probe of some training images before a run begins, by which its image size is chosen.

use anyhow::Result;
use vitrine_models::VisionTransformer;
use vitrine_models::weights::NamedTensor;

use super::initial_state::with_parameters;
use super::probing::{Probing, measured_speed};
use crate::probe::Judgment;
use crate::run_folder::{RunConfig, RunData};
use crate::runtime::Runtime;

/// The number of training images that are probed, at most: the standard error of an accuracy of 60% is then 2.4 points, and
/// that of the difference of two accuracies on the same images less.
const IMAGES: usize = 400;
/// With fewer images, the comparison says too little.
const MIN_IMAGES: usize = 100;
/// The largest share of a run's time for the features of these images.
const MAX_SHARE: f64 = 0.15;

/// A backbone whose features are tried with the preprocessing of a configuration.
pub struct Trial {
    config: RunConfig,
    model: VisionTransformer,
}

impl Trial {
    /// A trial of the backbone with these parameters.
    ///
    /// # Errors
    /// If the parameters do not fit the architecture.
    pub fn new(config: RunConfig, tensors: Vec<NamedTensor>, runtime: Runtime<'_>) -> Result<Self> {
        let model = with_parameters(config.model.init(&runtime.device.device)?, tensors)?;
        Ok(Self { config, model })
    }

    /// The number of training images for which the time of the run suffices; `None` if too few.
    ///
    /// # Errors
    /// If the device fails.
    pub fn affordable_images(&self, data: &RunData, runtime: Runtime<'_>) -> Result<Option<usize>> {
        let affordable = match self.config.recipe.time_seconds {
            Some(seconds) => {
                (MAX_SHARE * seconds * measured_speed(&self.model, &self.config, runtime)?) as usize
            }
            None => usize::MAX,
        };
        let images = IMAGES.min(data.dataset().train.len()).min(affordable);
        Ok((images >= MIN_IMAGES).then_some(images))
    }

    /// How well a head recognizes held-out images, by cross-validation on about `images` training images; `None` if no image
    /// could be held out, or the user asked to stop.
    ///
    /// # Errors
    /// If the images cannot be loaded, or a feature is not finite.
    pub fn judgment(&self, data: &RunData, images: usize, runtime: Runtime<'_>) -> Result<Option<Judgment>> {
        Probing::new(data).cross_validated(images, &self.model, &self.config, runtime)
    }
}
