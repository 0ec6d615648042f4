//! Validation within a run: all images of the validation split, or as many as the time limit allows.

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
    /// Batches of those that are measured. Decoded images stay in its cache from one epoch to the next.
    pub(super) loader: Loader,
    preprocessing: Preprocessing,
    threads: usize,
    device: FoundDevice,
}

impl ValidationSplit {
    /// Batches of the first `measured` images of an order that the run's seed shuffles; of all images if there is no number.
    ///
    /// # Errors
    /// When the threads cannot be started.
    pub(super) fn new(
        config: &RunConfig,
        images: Arc<[Sample]>,
        measured: Option<usize>,
        (device, threads): (&FoundDevice, usize),
    ) -> Result<Self> {
        let loader = reading(config, part(&images, measured, config.seed), threads)?;
        let preprocessing = config.preprocessing.clone();
        Ok(Self { images, loader, preprocessing, threads, device: device.clone() })
    }

    /// Number of images in the split.
    pub(super) fn len(&self) -> usize {
        self.images.len()
    }

    /// From now on, measures only so many images.
    pub(super) fn restrict(&mut self, config: &RunConfig, measured: usize) -> Result<()> {
        let images = part(&self.images, Some(measured), config.seed);
        self.loader = reading(config, images, self.threads)?;
        Ok(())
    }

    /// From now on, no keys of pixels are made.
    pub(super) fn stop_hashing(&mut self) -> Result<()> {
        let config = LoaderConfig { hash_pixels: false, ..self.loader.config().clone() };
        self.loader = self.loader.reconfigured(config)?;
        Ok(())
    }

    /// The predictions of a model for the images that are measured, in one of their views.
    pub(super) fn predict(&self, model: &VisionTransformer, views: Views) -> Result<Predicted> {
        let predictor = Predictor::new(model.clone(), self.preprocessing.clone(), &self.device);
        evaluate::predict(&predictor.with_views(views), &self.loader)
    }
}

fn reading(config: &RunConfig, images: Arc<[Sample]>, threads: usize) -> Result<Loader> {
    Ok(Loader::new(images, in_order(config, &config.preprocessing, threads))?)
}
