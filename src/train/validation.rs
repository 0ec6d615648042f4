//! Validation during a run: on all images of the validation split, or on as many as the time limit allows.

use std::sync::Arc;

use anyhow::Result;
use vitrine_datasets::{Loader, LoaderConfig, Preprocessing, Sample};
use vitrine_models::VisionTransformer;

use super::loaders::in_order;
use super::measuring::part;
use crate::device::FoundDevice;
use crate::evaluate::{self, Predicted};
use crate::predict::{Predictor, Views};
use crate::run_folder::RunConfig;

/// The validation images of a run.
pub(super) struct ValidationSplit {
    /// All images of the split.
    images: Arc<[Sample]>,
    /// Batches of the images that are measured, with a cache of decoded images that lasts over epochs.
    pub(super) loader: Loader,
    preprocessing: Preprocessing,
    threads: usize,
    device: FoundDevice,
}

impl ValidationSplit {
    /// Measures a random subset of `measured` images, which depends on the run's seed, or all images if `measured` is
    /// `None`.
    ///
    /// # Errors
    /// When the loader's threads cannot be started.
    pub(super) fn new(
        config: &RunConfig,
        images: Arc<[Sample]>,
        measured: Option<usize>,
        (device, threads): (&FoundDevice, usize),
    ) -> Result<Self> {
        let loader = validation_loader(config, part(&images, measured, config.seed), threads)?;
        let preprocessing = config.preprocessing.clone();
        Ok(Self { images, loader, preprocessing, threads, device: device.clone() })
    }

    /// Number of images in the split.
    pub(super) fn len(&self) -> usize {
        self.images.len()
    }

    /// Restricts later validations to a random subset of `measured` images.
    pub(super) fn restrict(&mut self, config: &RunConfig, measured: usize) -> Result<()> {
        let images = part(&self.images, Some(measured), config.seed);
        self.loader = validation_loader(config, images, self.threads)?;
        Ok(())
    }

    /// Turns off the hashing of pixels in later validations.
    pub(super) fn stop_hashing(&mut self) -> Result<()> {
        let config = LoaderConfig { hash_pixels: false, ..self.loader.config().clone() };
        self.loader = self.loader.reconfigured(config)?;
        Ok(())
    }

    /// Predicts the images that are measured, in the given `views` of each image.
    pub(super) fn predict(&self, model: &VisionTransformer, views: Views) -> Result<Predicted> {
        let predictor = Predictor::new(model.clone(), self.preprocessing.clone(), &self.device);
        evaluate::predict(&predictor.with_views(views), &self.loader)
    }
}

fn validation_loader(config: &RunConfig, images: Arc<[Sample]>, threads: usize) -> Result<Loader> {
    Ok(Loader::new(images, in_order(config, &config.preprocessing, threads))?)
}
