//! A probe: the head is fitted to the features of the backbone, after each image has gone through it once.

mod affordable;
mod fit_ends;
mod images;
mod speed;
mod views;

pub(super) use images::SplitImages;
pub(super) use speed::measured_speed;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use vitrine_datasets::{ClassSizes, ContentKey, Sample, Split};
use vitrine_models::linear_probe::{Convergence, LinearHead, Samples, Stop};
use vitrine_models::weights::{self, is_head};
use vitrine_models::{Pool, VisionTransformer};

use super::best_epoch;
use super::interrupt;
use super::measuring::chosen;
use super::pixel_copies::PixelCopies;
use crate::evaluate::{Metrics, Predicted, percent};
use crate::events::{EpochRow, Event, EventSink};
use crate::features::{Extractor, FeatureCache, FeatureStore, Features, identity};
use crate::import;
use crate::predict::{Predictor, Views};
use crate::probe::{Choice, Fitted, Method, Stops};
use crate::run_folder::{BadFiles, RunConfig, RunData};
use crate::runtime::Runtime;
use fit_ends::FitEnds;
use views::ViewFeatures;

/// The images whose features a head is fitted to, and those on which it is measured.
pub(super) struct Probing {
    pub(super) training: SplitImages,
    pub(super) validation: SplitImages,
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
    pub(super) validated: Validated,
}

/// The predictions for the validation images of a head that has not seen them.
pub(super) struct Validated {
    /// For the images as they are.
    pub(super) one: Predicted,
    /// For each together with its mirror image, if the head learned from mirror images.
    pub(super) mirrored: Option<Predicted>,
}

impl Validated {
    fn new(images: &SplitImages, features: ViewFeatures, head: &LinearHead) -> Self {
        let mirrored = features.mean().map(|mean| images.predicted(mean, head));
        Self { one: images.predicted(features.one, head), mirrored }
    }
}

impl Probe {
    /// The metrics on the training and on the validation images.
    pub(super) fn metrics(&self, classes: &[String]) -> [Metrics; 2] {
        [&self.trained, &self.validated.one].map(|of| Metrics::compute(&of.predictions, classes))
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
        let chosen = description(&self.fitted.choice);
        match self.refitted {
            Some(_) => format!(
                "{chosen}; then fitted once more, to training and validation images together, as test images measure it"
            ),
            None => chosen,
        }
    }
}

impl Probing {
    pub(super) fn new(data: &RunData) -> Self {
        Self {
            training: SplitImages::new(data, Split::Train),
            validation: SplitImages::new(data, Split::Val),
        }
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

    /// The hashes of the pixels of the training images.
    pub(super) fn pixel_copies(&self, Probe { trained, .. }: &Probe) -> PixelCopies {
        let mut copies = PixelCopies::new(Arc::clone(&self.training.samples));
        copies.add(&trained.indices, &trained.pixel_keys);
        copies
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
        let learned = training.learned();
        let fitted = self.training.fit(&learned, config, stops);
        let wants_another = refits && !interrupt::requested();
        let refit = || self.refitted([&learned, &validation.learned()], &fitted.choice, config, &refitting);
        let refitted = wants_another.then(refit);
        if interrupt::requested() {
            return Ok(None);
        }
        if !fitted.choice.is_complete {
            let compared = fitted.choice.compared.len();
            runtime.events.emit(Event::notice(format!(
                "the comparison of strengths of the fit ended at number {compared}, as the time is over (--time)"
            )));
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
            trained: self.training.predicted(training.one, &fitted.head),
            validated: Validated::new(&self.validation, validation, &fitted.head),
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
    ) -> Result<Option<[ViewFeatures; 2]>> {
        let splits = [&self.training, &self.validation];
        let Some((features, folder)) = features_of(&splits, model, config, Views::One, runtime)? else {
            return Ok(None);
        };
        let mut used = Vec::from_iter(folder);
        for (split, features) in splits.into_iter().zip(&features) {
            let bad = (&features.bad[..], split.samples.len());
            bad_files.judge(config.recipe.bad_file_limit, split.split, bad, runtime.events)?;
            bad_files.note(&split.samples, &features.bad, &config.limits());
            ensure!(!features.indices.is_empty(), "none of the {} images can be read", split.split.as_str());
        }
        let mut mirrored = Vec::new();
        if config.recipe.fits_mirror_images() {
            let Some((features, folder)) = features_of(&splits, model, config, Views::MirrorImage, runtime)?
            else {
                return Ok(None);
            };
            mirrored = features;
            used.extend(folder);
        }
        if let Some(store) = runtime.cache {
            shrink(store, &used, runtime.events);
        }
        let mut mirrored = mirrored.into_iter();
        let both = features.into_iter().map(|one| ViewFeatures::new(one, mirrored.next()));
        Ok(both.collect::<Result<Vec<_>>>()?.try_into().ok())
    }

    /// The predictions for the validation images of a head that `method` makes of the training images; `None` if the user asked to
    /// stop.
    ///
    /// # Errors
    /// As for [`Self::probe`].
    pub(super) fn validated(
        &self,
        method: Method,
        model: &VisionTransformer,
        config: &RunConfig,
        bad_files: &mut BadFiles,
        runtime: Runtime<'_>,
    ) -> Result<Option<Validated>> {
        let Some([training, validation]) = self.features(model, config, bad_files, runtime)? else {
            return Ok(None);
        };
        let training = training.learned();
        let labels = self.training.labels(&training);
        let samples = Samples::new(&training.values, &labels, config.classes.len());
        let weights = class_weights(&self.training.samples, config);
        let (head, _) = method.fit(&samples, &weights, None, &interrupt::requested);
        Ok((!interrupt::requested()).then(|| Validated::new(&self.validation, validation, &head)))
    }

    /// The head that the chosen method makes of the training and the validation images, which have these features.
    fn refitted(
        &self,
        [training, validation]: [&Features; 2],
        choice: &Choice,
        config: &RunConfig,
        stop: Stop<'_>,
    ) -> (LinearHead, Convergence) {
        let values = [&training.values[..], &validation.values].concat();
        let labels = [self.training.labels(training), self.validation.labels(validation)].concat();
        let images = [&self.training.samples[..], &self.validation.samples].concat();
        let samples = Samples::new(&values, &labels, config.classes.len());
        let weights = class_weights(&images, config);
        choice.method.fit(&samples, &weights, choice.start.as_ref(), stop)
    }
}

/// The features of the images of some splits, in these `views`, of which `model` computes those that are not kept, and the folder
/// where they are kept, if they are; `None` if the user asked to stop.
fn features_of(
    splits: &[&SplitImages],
    model: &VisionTransformer,
    config: &RunConfig,
    views: Views,
    runtime: Runtime<'_>,
) -> Result<Option<(Vec<Features>, Option<PathBuf>)>> {
    let events = runtime.events;
    // Before the predictor packs the weights.
    let folder = match runtime.cache {
        Some(store) => {
            Some(store.of_backbone(&identity(model, &config.preprocessing, views, runtime.device)?))
        }
        None => None,
    };
    let predictor = Predictor::new(model.clone(), config.preprocessing.clone(), runtime.device)
        .with_limits(config.limits())
        .with_views(views);
    let keys: Vec<ContentKey> = splits.iter().flat_map(|split| split.keys.iter().copied()).collect();
    let width = model.config().embedding_dim();
    let about = format!("{}{}", about(config), views.described());
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
    Ok(Some((all, folder)))
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

/// Keeps the features of all backbones within their limit, but for those in the folders `used`. A failure is a warning.
fn shrink(store: &FeatureStore, used: &[PathBuf], events: &dyn EventSink) {
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
fn description(Choice { method, held_out, folds, compared, is_complete, .. }: &Choice) -> String {
    let strength = |method: &Method| match method {
        Method::Logistic(strength) => Some(strength.to_string()),
        Method::NearestMean(_) => None,
    };
    let mut strengths = compared.iter().filter_map(strength).collect::<Vec<_>>().join(", ");
    if !is_complete {
        strengths.push_str("; the time allowed no more");
    }
    let method = match method {
        Method::Logistic(strength) => format!("logistic regression with C = {strength} (of {strengths})"),
        Method::NearestMean(_) if held_out.is_some() => {
            format!("nearest class mean (or logistic regression with C of {strengths})")
        }
        Method::NearestMean(_) => "nearest class mean".to_owned(),
    };
    match held_out {
        Some(judgment) => format!(
            "{method}, chosen by {} the training images: top-1 {}, loss {:.4}",
            match folds {
                1 => "holding out a fifth of".to_owned(),
                folds => format!("{folds}-fold cross-validation on"),
            },
            percent(judgment.top1),
            judgment.loss
        ),
        None => format!("{method}, as no class has two training images"),
    }
}
