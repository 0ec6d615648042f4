//! The images of a split whose features a head is fitted to, or that it is measured on.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::Result;
use vitrine_datasets::{ContentKey, KeySet, Sample, Split, epoch_order};
use vitrine_models::VisionTransformer;
use vitrine_models::linear_probe::{LinearHead, Samples};

use super::{class_weights, features_of};
use crate::evaluate::{Metrics, Predicted, Predictions};
use crate::features::Features;
use crate::predict::Views;
use crate::probe::{self, Fitted, Judgment, Stops};
use crate::run_folder::{RunConfig, RunData};
use crate::runtime::Runtime;
use crate::seed::{Stream, stream};
use crate::train::best_epoch::{score_of, standard_error};
use crate::train::interrupt;

/// The images of a split, and the key of each.
pub(in crate::train) struct SplitImages {
    pub(super) split: Split,
    pub(in crate::train) samples: Arc<[Sample]>,
    pub(super) keys: Vec<ContentKey>,
}

impl SplitImages {
    pub(super) fn new(data: &RunData, split: Split) -> Self {
        Self { split, samples: data.dataset().split(split).into(), keys: data.keys(split) }
    }

    /// The images at these indices.
    pub(super) fn part(&self, indices: &[usize]) -> Self {
        Self {
            split: self.split,
            samples: indices.iter().map(|&index| self.samples[index].clone()).collect(),
            keys: indices.iter().map(|&index| self.keys[index]).collect(),
        }
    }

    /// The indices of a random part of each class: about `images` images in all, and at least one of each.
    pub(super) fn part_of_each_class(&self, images: usize, seed: u64) -> Vec<usize> {
        let all = self.samples.len();
        let mut classes: BTreeMap<Option<usize>, Vec<usize>> = BTreeMap::new();
        for index in epoch_order(all, stream(seed, Stream::Measuring, 1), 0) {
            classes.entry(self.samples[index].labels.only()).or_default().push(index);
        }
        let part = |of_class: Vec<usize>| {
            let count = (of_class.len() * images).div_ceil(all.max(1));
            of_class.into_iter().take(count)
        };
        let mut chosen: Vec<usize> = classes.into_values().flat_map(part).collect();
        chosen.sort_unstable();
        chosen
    }

    /// The content keys of the images.
    pub(in crate::train) fn key_set(&self) -> KeySet {
        self.keys.iter().copied().collect()
    }

    /// The labels of the images that have features.
    pub(super) fn labels(&self, features: &Features) -> Vec<usize> {
        let label = |&index: &usize| self.samples[index].labels.only().unwrap_or_default();
        features.indices.iter().map(label).collect()
    }

    /// For each image that has features, the place among these of the first one with the same content.
    pub(super) fn originals(&self, features: &Features) -> Vec<usize> {
        let mut first = HashMap::new();
        let of_place = |(place, &index): (usize, &usize)| *first.entry(self.keys[index]).or_insert(place);
        features.indices.iter().enumerate().map(of_place).collect()
    }

    /// The predictions of a head for the images that have features.
    pub(super) fn predicted(&self, features: Features, head: &LinearHead) -> Predicted {
        let predictions = probe::predictions(head, &features.values, &self.labels(&features));
        let Features { indices, pixel_keys, bad, .. } = features;
        Predicted { predictions, indices, pixel_keys, bad }
    }
}

impl SplitImages {
    /// A random part of the training images: about `images`, and at least one of each class.
    pub(in crate::train) fn part_of_training(data: &RunData, images: usize, seed: u64) -> Self {
        let all = Self::new(data, Split::Train);
        all.part(&all.part_of_each_class(images, seed))
    }

    /// How well a head recognizes held-out images, by cross-validation among these; `None` if none could be held out, or the user
    /// asked to stop.
    ///
    /// # Errors
    /// If the loader or the device fails.
    pub(in crate::train) fn cross_validated(
        &self,
        model: &VisionTransformer,
        config: &RunConfig,
        runtime: Runtime<'_>,
    ) -> Result<Option<Judgment>> {
        let features = features_of(&[self], model, config, Views::One, runtime)?;
        let features = features.and_then(|(mut features, _)| features.pop());
        let features = features.filter(|features| !features.indices.is_empty());
        let Some(features) = features else { return Ok(None) };
        let labels = self.labels(&features);
        let samples = Samples::new(&features.values, &labels, config.classes.len());
        let (originals, weights) = (self.originals(&features), class_weights(&self.samples, config));
        let judge = |predictions: &Predictions| judgment(predictions, config);
        let choice = probe::choose(&samples, &originals, &weights, &judge, &interrupt::requested);
        Ok(choice.held_out.filter(|_| !interrupt::requested()))
    }

    /// Fits the head to the features of the images.
    pub(super) fn fit(&self, features: &Features, config: &RunConfig, stops: Stops<'_>) -> Fitted {
        let labels = self.labels(features);
        let samples = Samples::new(&features.values, &labels, config.classes.len());
        let (originals, weights) = (self.originals(features), class_weights(&self.samples, config));
        probe::fit(&samples, &originals, &weights, &|predictions| judgment(predictions, config), stops)
    }
}

/// The judgment of held-out predictions by the metric of the recipe.
fn judgment(predictions: &Predictions, RunConfig { classes, recipe, .. }: &RunConfig) -> Judgment {
    let metrics = Metrics::compute(predictions, classes);
    let score = score_of(recipe.metric(), &metrics);
    let error = standard_error(recipe.metric(), score, metrics.samples);
    Judgment { score, error, loss: metrics.loss, top1: metrics.top1 }
}
