//! A run that fits the head: each image goes through the frozen backbone once, and the head is computed from the features.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use vitrine_datasets::{ClassSizes, ContentKey, Sample, Split};
use vitrine_models::VisionTransformer;
use vitrine_models::weights::{self, is_head};

use super::best_epoch::{self, score_of, standard_error};
use super::card::card;
use super::initial_state::{Start, with_parameters};
use super::interrupt;
use super::measuring::affordable_maps;
use super::pixel_copies::PixelCopies;
use super::session::Session;
use super::state::{self, Kept, Progress};
use super::trainer::{Beginning, Outcome, Trained};
use crate::evaluate::{Metrics, Predicted, Predictions, percent};
use crate::events::{EpochRow, Event};
use crate::features::{Extractor, FeatureCache, Features, identity};
use crate::model_file::TrainedOn;
use crate::predict::Predictor;
use crate::probe::{self, Fitted, Judgment, LinearHead, Method, Samples};
use crate::recipe::Recipe;
use crate::run_folder::{BadFiles, RunConfig, RunData, RunFolder, states};
use crate::runtime::Runtime;

/// A run whose head is fitted, in place of the epochs of a [`Trainer`](super::Trainer).
pub struct HeadFit<'a> {
    config: RunConfig,
    folder: RunFolder,
    runtime: Runtime<'a>,
    training: SplitImages,
    validation: SplitImages,
    trained_on: TrainedOn,
    start: Start,
    progress: Progress,
    session: Session,
    bad_files: BadFiles,
    /// The predictions for the validation images, which the report uses again.
    validated: Option<Predicted>,
}

/// The images of a split, and the key of each.
struct SplitImages {
    split: Split,
    samples: Arc<[Sample]>,
    keys: Vec<ContentKey>,
}

impl SplitImages {
    fn new(data: &RunData, split: Split) -> Self {
        Self { split, samples: data.dataset().split(split).into(), keys: data.keys(split) }
    }

    /// The labels of the images that have features.
    fn labels(&self, features: &Features) -> Vec<usize> {
        let label = |&index: &usize| self.samples[index].labels.only().unwrap_or_default();
        features.indices.iter().map(label).collect()
    }
}

impl<'a> HeadFit<'a> {
    /// Prepares a new run, or resumes the one whose state is saved in `folder`.
    ///
    /// # Errors
    /// When the saved state cannot be read, or none can be written.
    pub fn new(
        config: RunConfig,
        folder: RunFolder,
        data: &RunData,
        Beginning { start, begun }: Beginning,
        runtime: Runtime<'a>,
    ) -> Result<Self> {
        let is_new = start.is_new();
        let mut progress = if is_new {
            Progress { fixed: folder.fixed()?, ..Progress::default() }
        } else {
            states::open(folder.path())?;
            state::progress(folder.path())?
        };
        progress.set_length(&config.recipe);
        progress.set_threads(runtime.threads);
        let fit = Self {
            training: SplitImages::new(data, Split::Train),
            validation: SplitImages::new(data, Split::Val),
            trained_on: data.trained_on.clone(),
            session: Session::new(begun, progress.seconds),
            config,
            folder,
            runtime,
            start,
            progress,
            bad_files: BadFiles::default(),
            validated: None,
        };
        if is_new {
            state::save_progress(fit.folder.path(), &fit.progress, None)?;
        }
        Ok(fit)
    }

    /// Sets the unreadable images that the user has already been warned about.
    pub fn set_bad_files(&mut self, bad_files: BadFiles) {
        self.bad_files = bad_files;
    }

    /// Ends the session and returns its results.
    pub fn finish(self) -> Trained {
        Trained {
            maps: affordable_maps(None, None),
            // A map would pass images through the backbone once more.
            embedded: 0,
            test_images: None,
            progress: self.progress,
            bad_files: self.bad_files,
            validated: self.validated,
        }
    }

    /// Computes the features, fits the head, and writes the model. `reread` returns the parameters that the run started
    /// from, for a resumed run.
    ///
    /// # Errors
    /// When too many images are unreadable, the weights cannot be read, or a file cannot be written.
    pub fn run(&mut self, reread: &dyn Fn() -> Result<Start>) -> Result<Outcome> {
        if self.progress.finished {
            return Ok(Outcome::Finished);
        }
        let model = self.backbone(reread)?;
        let Some([training, validation]) = self.features(&model)? else {
            self.progress.seconds = self.session.run_seconds();
            state::save_progress(self.folder.path(), &self.progress, None)?;
            return Ok(Outcome::Interrupted);
        };
        let labels = self.training.labels(&training);
        let fitted = self.fit(&training, &labels);
        let trained = self.predictions(&self.training, &training, &fitted.head);
        let validated = self.predictions(&self.validation, &validation, &fitted.head);
        self.compare_pixels(&training, &validated);
        self.keep(with_head(model, &fitted.head)?, &fitted, [trained, validated])?;
        Ok(Outcome::Finished)
    }

    /// The model with the parameters that the run starts from.
    fn backbone(&mut self, reread: &dyn Fn() -> Result<Start>) -> Result<VisionTransformer> {
        let start = match std::mem::replace(&mut self.start, Start::Resumed) {
            Start::Resumed => reread()?,
            start => start,
        };
        let Start::Pretrained(tensors) = start else {
            bail!(
                "`fit_head` needs --pretrained: there are no weights whose features a head could be fitted to"
            );
        };
        let model = self.config.model.init(&self.runtime.device.device)?;
        with_parameters(model, tensors)
    }

    /// The features of the training and of the validation images; `None` if the user asked to stop.
    fn features(&mut self, model: &VisionTransformer) -> Result<Option<[Features; 2]>> {
        let events = self.runtime.events;
        let predictor = Predictor::new(model.clone(), self.config.preprocessing.clone(), self.runtime.device)
            .with_limits(self.config.limits());
        let keys = [&self.training.keys[..], &self.validation.keys].concat();
        let width = model.config().embedding_dim();
        let cache = self.runtime.cache.map(|folder| -> Result<FeatureCache<'_>> {
            let folder = folder.join("features").join(identity(&predictor)?);
            Ok(FeatureCache::open(&folder, width, &keys, events))
        });
        let mut extractor = Extractor {
            batch_size: predictor.largest_batch(self.config.recipe.batch_size),
            predictor: &predictor,
            cache: cache.transpose()?,
            threads: self.runtime.threads,
            events,
        };
        let mut of_split =
            |split: &SplitImages| extractor.features((&split.samples, &split.keys), &interrupt::requested);
        let Some(training) = of_split(&self.training)? else { return Ok(None) };
        let Some(validation) = of_split(&self.validation)? else { return Ok(None) };
        let computed = training.computed + validation.computed;
        let cached = training.indices.len() + validation.indices.len() - computed;
        events.emit(Event::Features { computed, cached });
        let limit = self.config.recipe.bad_file_limit;
        for (split, features) in [(&self.training, &training), (&self.validation, &validation)] {
            let bad = (&features.bad[..], split.samples.len());
            self.bad_files.judge(limit, split.split, bad, events)?;
            ensure!(!features.indices.is_empty(), "none of the {} images can be read", split.split.as_str());
        }
        Ok(Some([training, validation]))
    }

    /// Fits the head to the features of the training images.
    fn fit(&self, features: &Features, labels: &[usize]) -> Fitted {
        let RunConfig { classes, recipe, .. } = &self.config;
        let class_weights = match recipe.class_weights {
            true => ClassSizes::of(&self.training.samples, classes.len()).balanced_weights(),
            false => vec![1.0; classes.len()],
        };
        let class_weights: Vec<f64> = class_weights.into_iter().map(f64::from).collect();
        let judge = |predictions: &Predictions| {
            let metrics = Metrics::compute(predictions, classes);
            let score = score_of(recipe.metric, &metrics);
            let error = standard_error(recipe.metric, score, metrics.samples);
            Judgment { score, error, loss: metrics.loss, top1: metrics.top1 }
        };
        let fitted =
            probe::fit(&Samples::new(&features.values, labels, classes.len()), &class_weights, &judge);
        if !fitted.convergence.converged {
            let message = format!(
                "the fit of the head has not converged after {} steps; its features may be of very different scales",
                fitted.convergence.steps
            );
            self.runtime.events.emit(Event::warning(message));
        }
        fitted
    }

    /// The predictions of the head for the images of a split.
    fn predictions(&self, split: &SplitImages, features: &Features, head: &LinearHead) -> Predicted {
        let mut predictions = Predictions::new(self.config.classes.len());
        predictions.push(&split.labels(features), &head.logits(&features.values));
        let Features { indices, pixel_keys, bad, .. } = features.clone();
        Predicted { predictions, indices, pixel_keys, bad }
    }

    /// Reports images with equal pixels.
    fn compare_pixels(&self, training: &Features, validated: &Predicted) {
        let images = &self.training.samples;
        let mut copies = PixelCopies::new(images.len());
        copies.add(images, &training.indices, &training.pixel_keys);
        for remark in copies.remarks(images, &self.validation.samples, validated) {
            self.runtime.events.emit(Event::notice(remark));
        }
    }

    /// Writes the model, its metrics, and the state of the finished run.
    fn keep(
        &mut self,
        model: VisionTransformer,
        fitted: &Fitted,
        [trained, validated]: [Predicted; 2],
    ) -> Result<()> {
        let Self { config, progress, .. } = self;
        let [of_training, of_validation] =
            [&trained, &validated].map(|of| Metrics::compute(&of.predictions, &config.classes));
        let validation = best_epoch::validation(1, &of_validation);
        progress.seconds = self.session.run_seconds();
        progress.history = vec![EpochRow {
            epoch: 1,
            step: fitted.convergence.steps,
            seconds: progress.seconds,
            train_loss: of_training.loss,
            train_top1: Some(of_training.top1),
            kept: true,
            ..best_epoch::row(&validation)
        }];
        (progress.epoch, progress.updates, progress.finished) = (1, fitted.convergence.steps, true);
        progress.best = Some(validation.clone());
        progress.fitted = Some(description(fitted));
        self.runtime.events.emit(Event::HeadFitted {
            train_loss: of_training.loss,
            train_top1: of_training.top1,
            val_loss: of_validation.loss,
            val_top1: of_validation.top1,
            message: description(fitted),
        });
        let recipe: Recipe = config.recipe.clone();
        let kept = Kept { card: card(config, &self.trained_on, recipe, validation), model };
        // The report of an interrupted attempt to finish is out of date.
        self.folder.remove_report()?;
        self.folder.write_metrics(&progress.history)?;
        state::save_progress(self.folder.path(), progress, Some(&kept))?;
        self.validated = Some(validated);
        Ok(())
    }
}

/// The same model with another head, or with the same for both of its heads: the logits of a model with a distillation token
/// are the mean of both heads', and its embedding is the mean of both tokens.
fn with_head(model: VisionTransformer, head: &LinearHead) -> Result<VisionTransformer> {
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
            "{method}, chosen by {}-fold cross-validation on the training images: top-1 {}, loss {:.4}",
            probe::FOLDS,
            percent(judgment.top1),
            judgment.loss
        ),
        None => format!("{method}, as no class has two training images"),
    }
}
