//! A data set whose images `vitrine embed` embeds: all of them, split by split, and their classes.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use vitrine_datasets::{Dataset, DatasetInfo, DecodeLimits, Image, ImageSource, LeftOut, Sample};

use super::results::Results;
use crate::cli::inputs::Input;
use crate::embed::ImageClasses;
use crate::flags::described;
use crate::predict::Asked;

/// The images of a data set. A place counts them in the order train, val, test.
pub(super) struct DatasetImages {
    info: DatasetInfo,
    samples: Arc<[Sample]>,
    /// The files that are not used.
    left_out: LeftOut,
}

impl DatasetImages {
    pub(super) fn new(dataset: Dataset) -> Self {
        let Dataset { info, train, val, test, left_out, .. } = dataset;
        Self { info, samples: [train, val, test].into_iter().flatten().collect(), left_out }
    }

    /// Batches of up to `size` images. An image is decoded when its batch is.
    pub(super) fn batches(
        &self,
        size: usize,
    ) -> impl Iterator<Item = Vec<Asked<Input, ImageSource>>> + Send + use<> {
        let samples = Arc::clone(&self.samples);
        let asked = |sample: &Sample| Asked { tag: sample.source.name(), value: Ok(sample.source.clone()) };
        (0..samples.len()).step_by(size).map(move |start| {
            let end = samples.len().min(start + size);
            samples[start..end].iter().map(asked).collect()
        })
    }

    /// The names of the images, by place.
    pub(super) fn names(&self) -> impl Iterator<Item = Input> {
        self.samples.iter().map(|sample| sample.source.name())
    }

    /// Adds the files that the data set left out although they may be images, after the results of all others.
    ///
    /// # Errors
    /// If a line cannot be formatted.
    pub(super) fn add_left_out(&self, results: &mut Results) -> Result<()> {
        for bad in &self.left_out.unreadable {
            results.add(&bad.name, Err(anyhow!(described(bad))))?;
        }
        // A warning has named the first of those of unsupported formats; the names of all are not kept.
        results.unreadable += self.left_out.unsupported.values().map(|group| group.count).sum::<usize>();
        Ok(())
    }

    /// The classes of the images at these places; `None` if there are fewer than two, or an image may have several.
    pub(super) fn classes(&self, places: &[usize]) -> Option<ImageClasses> {
        let DatasetInfo { classes, multi_label, .. } = &self.info;
        let class = |&place: &usize| self.samples[place].labels.only().unwrap_or_default();
        (!multi_label && classes.len() > 1)
            .then(|| ImageClasses { names: classes.clone(), of_images: places.iter().map(class).collect() })
    }

    /// The image at a place; `None` if it cannot be read.
    pub(super) fn image(&self, place: usize, limits: &DecodeLimits) -> Option<Image> {
        self.samples[place].source.decode(limits).ok()
    }
}
