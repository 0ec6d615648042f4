//! A probe: the head is fitted to the features of the backbone, after each image has gone through it once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use vitrine_datasets::{ClassSizes, ContentKey, KeySet, Sample, Split, epoch_order};
use vitrine_models::linear_probe::{Convergence, LinearHead, Samples, Stop};
use vitrine_models::weights::{self, is_head};
use vitrine_models::{Pool, VisionTransformer};

use super::best_epoch::{self, score_of, standard_error};
use super::interrupt;
use super::measuring::chosen;
use super::pixel_copies::PixelCopies;
use crate::evaluate::{Metrics, Predicted, Predictions, percent};
use crate::events::{EpochRow, Event, EventSink};
use crate::features::{Extractor, FeatureCache, FeatureStore, Features, identity};
use crate::import;
use crate::predict::{LabeledAnswers, Output, Predictor};
use crate::probe::{self, Fitted, Judgment, Method, Stops};
use crate::run_folder::{BadFiles, RunConfig, RunData};
use crate::runtime::Runtime;
use crate::seed::{Stream, stream};

/// Images of a batch by which the speed of the backbone is measured, and the number of these batches.
const MEASURED_BATCH: usize = 8;
const MEASURED_BATCHES: usize = 3;
/// The least share of a run's time that a fit may take, and the least number of seconds.
const MIN_FIT: (f64, f64) = (0.05, 1.0);
/// The least number of images to which a head is fitted, however little time there is.
const MIN_IMAGES: usize = 100;

/// The images whose features a head is fitted to, and those on which it is measured.
pub(super) struct Probing {
    pub(super) training: SplitImages,
    pub(super) validation: SplitImages,
}

/// The images of a split, and the key of each.
pub(super) struct SplitImages {
    split: Split,
    pub(super) samples: Arc<[Sample]>,
    keys: Vec<ContentKey>,
}

/// A fitted head with its results.
pub(super) struct Probe {
    /// The head that was fitted to the training images, and how it was chosen.
    pub(super) fitted: Fitted,
    /// The head that the same method makes of training and validation images together, and how its fit ended, if it is wanted.
    pub(super) refitted: Option<(LinearHead, Convergence)>,
    /// The predictions for the training images.
    pub(super) trained: Predicted,
    /// The predictions for the validation images.
    pub(super) validated: Predicted,
}

impl Probe {
    /// The metrics on the training and on the validation images.
    pub(super) fn metrics(&self, classes: &[String]) -> [Metrics; 2] {
        [&self.trained, &self.validated].map(|of| Metrics::compute(&of.predictions, classes))
    }

    /// The row of the metrics file for a probe, in place of epoch number `epoch`, after `seconds` seconds of the run.
    pub(super) fn row(&self, [training, validation]: &[Metrics; 2], epoch: usize, seconds: f64) -> EpochRow {
        EpochRow {
            step: self.fitted.convergence.steps,
            seconds,
            train_loss: training.loss,
            train_top1: Some(training.top1),
            kept: true,
            ..best_epoch::row(&best_epoch::validation(epoch, validation))
        }
    }

    /// The event that reports a probe.
    pub(super) fn event(&self, [training, validation]: &[Metrics; 2]) -> Event {
        Event::HeadFitted {
            train_loss: training.loss,
            train_top1: training.top1,
            val_loss: validation.loss,
            val_top1: validation.top1,
            message: self.description(),
        }
    }

    /// The method of the fit in words, how it was chosen, and whether there was a second fit.
    pub(super) fn description(&self) -> String {
        let chosen = description(&self.fitted);
        match self.refitted {
            Some(_) => format!(
                "{chosen}; then fitted once more, to training and validation images together, as test images measure it"
            ),
            None => chosen,
        }
    }
}

impl SplitImages {
    fn new(data: &RunData, split: Split) -> Self {
        Self { split, samples: data.dataset().split(split).into(), keys: data.keys(split) }
    }

    /// The images at these indices.
    fn part(&self, indices: &[usize]) -> Self {
        Self {
            split: self.split,
            samples: indices.iter().map(|&index| self.samples[index].clone()).collect(),
            keys: indices.iter().map(|&index| self.keys[index]).collect(),
        }
    }

    /// The indices of a random part of each class: about `images` images in all, and at least one of each.
    fn part_of_each_class(&self, images: usize, seed: u64) -> Vec<usize> {
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
    pub(super) fn key_set(&self) -> KeySet {
        self.keys.iter().copied().collect()
    }

    /// The labels of the images that have features.
    fn labels(&self, features: &Features) -> Vec<usize> {
        let label = |&index: &usize| self.samples[index].labels.only().unwrap_or_default();
        features.indices.iter().map(label).collect()
    }

    /// For each image that has features, the place among these of the first one with the same content.
    fn originals(&self, features: &Features) -> Vec<usize> {
        let mut first = HashMap::new();
        let of_place = |(place, &index): (usize, &usize)| *first.entry(self.keys[index]).or_insert(place);
        features.indices.iter().enumerate().map(of_place).collect()
    }

    /// The predictions of a head for the images that have features.
    fn predicted(&self, features: Features, head: &LinearHead) -> Predicted {
        let predictions = probe::predictions(head, &features.values, &self.labels(&features));
        let Features { indices, pixel_keys, bad, .. } = features;
        Predicted { predictions, indices, pixel_keys, bad }
    }
}

impl Probing {
    pub(super) fn new(data: &RunData) -> Self {
        Self {
            training: SplitImages::new(data, Split::Train),
            validation: SplitImages::new(data, Split::Val),
        }
    }

    /// The largest part of the images whose features `images` forward passes give, next to those that are kept, with `validation`
    /// validation images. A notice says so if it has not all training images.
    ///
    /// # Errors
    /// When the backbone cannot be identified.
    pub(super) fn affordable(
        &self,
        [images, validation]: [usize; 2],
        model: &VisionTransformer,
        config: &RunConfig,
        runtime: Runtime<'_>,
    ) -> Result<(Self, usize)> {
        let all = self.training.samples.len();
        let kept = self.kept(model, config, runtime)?;
        let missing = |training: usize| {
            let validated = chosen(self.validation.samples.len(), Some(validation), config.seed);
            let trained = self.training.part_of_each_class(training, config.seed);
            let keys = trained.iter().map(|&index| &self.training.keys[index]);
            let keys = keys.chain(validated.iter().map(|&index| &self.validation.keys[index]));
            keys.filter(|key| !kept.contains(key)).count()
        };
        // Smaller parts are parts of larger ones, so that they miss no more.
        let (mut enough, mut too_many) = (MIN_IMAGES.min(all), all + 1);
        while enough + 1 < too_many {
            let middle = enough.midpoint(too_many);
            if missing(middle) <= images { enough = middle } else { too_many = middle }
        }
        let part = self.part([enough, validation], config.seed);
        let training = part.training.samples.len();
        if training < all {
            runtime.events.emit(Event::notice(format!(
                "the head is fitted to {training} of {all} training images, as the time pays for no more"
            )));
        }
        Ok((part, enough))
    }

    /// The same with a random part of each class for training, about `training` images in all, and with the `validation` images
    /// that [`part`](super::measuring::part) chooses.
    pub(super) fn part(&self, [training, validation]: [usize; 2], seed: u64) -> Self {
        let validated = chosen(self.validation.samples.len(), Some(validation), seed);
        Self {
            training: self.training.part(&self.training.part_of_each_class(training, seed)),
            validation: self.validation.part(&validated),
        }
    }

    /// The keys of the images whose features are kept.
    ///
    /// # Errors
    /// When the backbone cannot be identified.
    fn kept(
        &self,
        model: &VisionTransformer,
        config: &RunConfig,
        runtime: Runtime<'_>,
    ) -> Result<HashSet<ContentKey>> {
        let Some(store) = runtime.cache else { return Ok(HashSet::new()) };
        let keys = [&self.training.keys[..], &self.validation.keys].concat();
        let predictor = Predictor::new(model.clone(), config.preprocessing.clone(), runtime.device);
        let folder = store.of_backbone(&identity(&predictor)?);
        let width = model.config().embedding_dim();
        let cache = FeatureCache::open(&folder, width, &keys, &about(config), runtime.events);
        Ok(keys.into_iter().filter(|key| cache.get(*key).is_some()).collect())
    }

    /// Remarks about images with equal pixels.
    pub(super) fn remarks(&self, Probe { trained, validated, .. }: &Probe) -> Vec<String> {
        let training = &self.training.samples;
        let mut copies = PixelCopies::new(training.len());
        copies.add(training, &trained.indices, &trained.pixel_keys);
        copies.remarks(training, &self.validation.samples, validated)
    }

    /// Computes the features of the images with `model`, and fits a head to those of the training images; with `refits`, another
    /// one to all. `None` if the user asked to stop. Fits that have not converged end at `deadline`, which a warning says.
    ///
    /// # Errors
    /// When too many images are unreadable, or the loader or the device fails.
    pub(super) fn probe(
        &self,
        model: &VisionTransformer,
        (config, refits, deadline): (&RunConfig, bool, Option<Instant>),
        bad_files: &mut BadFiles,
        runtime: Runtime<'_>,
    ) -> Result<Option<Probe>> {
        let Some([training, validation]) = self.features(model, config, bad_files, runtime)? else {
            return Ok(None);
        };
        let ends = FitEnds::new(deadline, config);
        let [choosing, fitting, refitting] = ends.stops();
        let stops = Stops { choosing: &choosing, fitting: &fitting };
        let fitted = self.training.fit(&training, config, stops);
        let refitted = refits.then(|| self.refitted([&training, &validation], &fitted, config, &refitting));
        if interrupt::requested() {
            return Ok(None);
        }
        let fits = [Some(fitted.convergence), refitted.as_ref().map(|(_, convergence)| *convergence)];
        if let Some(fit) = fits.into_iter().flatten().find(|fit| !fit.converged) {
            let steps = fit.steps;
            runtime.events.emit(match ends.are_over() {
                true => Event::notice(format!(
                    "the fit of the head ended after {steps} steps, before it converged, as the time is over (--time)"
                )),
                false => Event::warning(format!(
                    "the fit of the head has not converged after {steps} steps; its features may be of very different scales"
                )),
            });
        }
        Ok(Some(Probe {
            refitted,
            trained: self.training.predicted(training, &fitted.head),
            validated: self.validation.predicted(validation, &fitted.head),
            fitted,
        }))
    }

    /// The features of the training and of the validation images; `None` if the user asked to stop.
    fn features(
        &self,
        model: &VisionTransformer,
        config: &RunConfig,
        bad_files: &mut BadFiles,
        runtime: Runtime<'_>,
    ) -> Result<Option<[Features; 2]>> {
        let splits = [&self.training, &self.validation];
        let Some(features) = features_of(&splits, model, config, runtime)? else { return Ok(None) };
        for (split, features) in splits.into_iter().zip(&features) {
            let bad = (&features.bad[..], split.samples.len());
            bad_files.judge(config.recipe.bad_file_limit, split.split, bad, runtime.events)?;
            ensure!(!features.indices.is_empty(), "none of the {} images can be read", split.split.as_str());
        }
        Ok(features.try_into().ok())
    }

    /// The head that the method of `fitted` makes of the training and the validation images, which have these features.
    fn refitted(
        &self,
        [training, validation]: [&Features; 2],
        fitted: &Fitted,
        config: &RunConfig,
        stop: Stop<'_>,
    ) -> (LinearHead, Convergence) {
        let values = [&training.values[..], &validation.values].concat();
        let labels = [self.training.labels(training), self.validation.labels(validation)].concat();
        let images = [&self.training.samples[..], &self.validation.samples].concat();
        let samples = Samples::new(&values, &labels, config.classes.len());
        let weights = class_weights(&images, config);
        fitted.method.fit(&samples, &weights, fitted.start.as_ref(), stop)
    }
}

/// The features of the images of some splits, of which `model` computes those that are not kept; `None` if the user asked to stop.
fn features_of(
    splits: &[&SplitImages],
    model: &VisionTransformer,
    config: &RunConfig,
    runtime: Runtime<'_>,
) -> Result<Option<Vec<Features>>> {
    let events = runtime.events;
    let predictor = Predictor::new(model.clone(), config.preprocessing.clone(), runtime.device)
        .with_limits(config.limits());
    let keys: Vec<ContentKey> = splits.iter().flat_map(|split| split.keys.iter().copied()).collect();
    let width = model.config().embedding_dim();
    let folder = match runtime.cache {
        Some(store) => Some(store.of_backbone(&identity(&predictor)?)),
        None => None,
    };
    let about = about(config);
    let cache = folder.as_deref().map(|folder| FeatureCache::open(folder, width, &keys, &about, events));
    let mut extractor = Extractor {
        batch_size: predictor.largest_batch(config.recipe.batch_size),
        predictor: &predictor,
        cache,
        threads: runtime.threads,
        events,
    };
    let mut all = Vec::new();
    for split in splits {
        let images = (&split.samples[..], &split.keys[..]);
        let Some(features) = extractor.features(images, &interrupt::requested)? else { return Ok(None) };
        all.push(features);
    }
    let computed: usize = all.iter().map(|features| features.computed).sum();
    let cached = all.iter().map(|features| features.indices.len()).sum::<usize>() - computed;
    events.emit(Event::Features { computed, cached });
    if let (Some(store), Some(folder)) = (runtime.cache, &folder) {
        shrink(store, folder, events);
    }
    Ok(Some(all))
}

impl SplitImages {
    /// A random part of the training images: about `images`, and at least one of each class.
    pub(super) fn part_of_training(data: &RunData, images: usize, seed: u64) -> Self {
        let all = Self::new(data, Split::Train);
        all.part(&all.part_of_each_class(images, seed))
    }

    /// How well a head recognizes held-out images, by cross-validation among these; `None` if none could be held out, or the user
    /// asked to stop.
    ///
    /// # Errors
    /// If the loader or the device fails.
    pub(super) fn cross_validated(
        &self,
        model: &VisionTransformer,
        config: &RunConfig,
        runtime: Runtime<'_>,
    ) -> Result<Option<Judgment>> {
        let features = features_of(&[self], model, config, runtime)?.and_then(|mut of| of.pop());
        let features = features.filter(|features| !features.indices.is_empty());
        let stops = Stops { choosing: &interrupt::requested, fitting: &|| true };
        let judgment = features.and_then(|features| self.fit(&features, config, stops).held_out);
        Ok(judgment.filter(|_| !interrupt::requested()))
    }

    /// Fits the head to the features of the images.
    fn fit(&self, features: &Features, config: &RunConfig, stops: Stops<'_>) -> Fitted {
        let RunConfig { classes, recipe, .. } = config;
        let judge = |predictions: &Predictions| {
            let metrics = Metrics::compute(predictions, classes);
            let score = score_of(recipe.metric(), &metrics);
            let error = standard_error(recipe.metric(), score, metrics.samples);
            Judgment { score, error, loss: metrics.loss, top1: metrics.top1 }
        };
        let labels = self.labels(features);
        let samples = Samples::new(&features.values, &labels, classes.len());
        let originals = self.originals(features);
        probe::fit(&samples, &originals, &class_weights(&self.samples, config), &judge, stops)
    }
}

/// The ends of the parts of a fit: the choice of a method, the fit to the training images, and that to the validation images, too.
struct FitEnds(Option<[Instant; 3]>);

impl FitEnds {
    /// Until `deadline`, but not within less than [`MIN_FIT`]: reading images may take longer than was measured.
    fn new(deadline: Option<Instant>, config: &RunConfig) -> Self {
        let now = Instant::now();
        Self(deadline.zip(config.recipe.time_seconds).map(|(deadline, seconds)| {
            let least = (MIN_FIT.0 * seconds).max(MIN_FIT.1);
            let left = deadline.saturating_duration_since(now).as_secs_f64().max(least);
            [0.6, 0.8, 1.0].map(|share| now + Duration::from_secs_f64(share * left))
        }))
    }

    /// Whether each part should end, because its time is over or the user asked to stop.
    fn stops(&self) -> [impl Fn() -> bool + Sync; 3] {
        [0, 1, 2].map(|part| {
            let end = self.0.map(|ends| ends[part]);
            move || interrupt::requested() || end.is_some_and(|end| Instant::now() >= end)
        })
    }

    /// Whether the time of the fit to the training images is over.
    fn are_over(&self) -> bool {
        self.0.is_some_and(|[_, end, _]| Instant::now() >= end)
    }
}

/// The factor of each class's losses in the fit of a head to these images.
fn class_weights(images: &[Sample], RunConfig { classes, recipe, .. }: &RunConfig) -> Vec<f64> {
    let class_weights = match recipe.class_weights || recipe.balanced_sampling {
        true => ClassSizes::of(images, classes.len()).balanced_weights(),
        false => vec![1.0; classes.len()],
    };
    class_weights.into_iter().map(f64::from).collect()
}

/// The backbone of a run in words, for the list of kept features.
fn about(config: &RunConfig) -> String {
    let depths = match config.model.pool {
        Pool::TwoDepths { early } => format!(", read after block {early} and the last one"),
        _ => String::new(),
    };
    format!("{}: {}{depths}", config.model_name, import::summary(&config.model))
}

/// Keeps the features of all backbones within their limit. A failure is a warning.
fn shrink(store: &FeatureStore, used: &Path, events: &dyn EventSink) {
    match store.shrink(used) {
        Ok(deleted) => {
            for features in deleted {
                events.emit(Event::notice(format!(
                    "the kept features of a backbone that was not used for longest are deleted ({}, {}): --cache-limit allows more",
                    features.described(),
                    indicatif::DecimalBytes(features.bytes)
                )));
            }
        }
        Err(error) => {
            events.emit(Event::warning(format!("the cache is not kept within its limit: {error:#}")))
        }
    }
}

/// Images per second that are read, decoded, and passed through the backbone, from a few training images.
///
/// # Errors
/// When the loader or the device fails.
pub(super) fn measured_speed(
    images: &SplitImages,
    model: &VisionTransformer,
    config: &RunConfig,
    runtime: Runtime<'_>,
) -> Result<f64> {
    let predictor = Predictor::new(model.clone(), config.preprocessing.clone(), runtime.device)
        .with_limits(config.limits());
    let batch = predictor.largest_batch(MEASURED_BATCH.min(config.recipe.batch_size));
    let order = epoch_order(images.samples.len(), stream(config.seed, Stream::Measuring, 2), 0);
    let some = order.into_iter().take(MEASURED_BATCHES * batch);
    let loader = predictor.loader(
        some.map(|index| images.samples[index].clone()).collect(),
        batch,
        runtime.threads,
    )?;
    let mut since = Instant::now();
    let (mut measured, mut answered) = (0, 0);
    for (place, answers) in predictor.ask_labeled(Output::Embedding, &loader).enumerate() {
        let LabeledAnswers { indices, bad, .. } = answers?;
        answered = indices.len() + bad.len();
        measured += answered;
        if place == 0 && loader.batches() > 1 {
            // The first batch allocates memory, and waits for the first images.
            (since, measured) = (Instant::now(), 0);
        }
    }
    Ok(measured.max(answered).max(1) as f64 / since.elapsed().as_secs_f64().max(1e-9))
}

/// The same model with another head, or with the same for both of its heads: the logits of a model with a distillation token
/// are the mean of both heads', and its embedding is the mean of both tokens.
///
/// # Errors
/// When the head does not fit the model.
pub(super) fn with_head(model: VisionTransformer, head: &LinearHead) -> Result<VisionTransformer> {
    let mut tensors = weights::to_timm(&model);
    for tensor in tensors.iter_mut().filter(|tensor| is_head(&tensor.name)) {
        let is_weight = tensor.name.ends_with("weight");
        tensor.values.clone_from(if is_weight { &head.weight } else { &head.bias });
    }
    Ok(weights::from_timm(model, tensors)?)
}

/// The method of a fit in words, and how it was chosen.
fn description(fitted: &Fitted) -> String {
    let strengths: Vec<String> = fitted.strengths.iter().map(f64::to_string).collect();
    let strengths = strengths.join(", ");
    let method = match fitted.method {
        Method::Logistic(strength) => format!("logistic regression with C = {strength} (of {strengths})"),
        Method::NearestMean(_) if fitted.held_out.is_some() => {
            format!("nearest class mean (or logistic regression with C of {strengths})")
        }
        Method::NearestMean(_) => "nearest class mean".to_owned(),
    };
    match fitted.held_out {
        Some(judgment) => format!(
            "{method}, chosen by {} the training images: top-1 {}, loss {:.4}",
            if fitted.folds == 1 {
                "holding out a fifth of".to_owned()
            } else {
                format!("{}-fold cross-validation on", fitted.folds)
            },
            percent(judgment.top1),
            judgment.loss
        ),
        None => format!("{method}, as no class has two training images"),
    }
}
