//! A run that fits the head: each image goes through the frozen backbone once, and the head is computed from the features.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use vitrine_datasets::{KeySet, Split};
use vitrine_models::VisionTransformer;

use super::best_epoch;
use super::card::card;
use super::initial_state::{Start, with_parameters};
use super::measuring::{affordable_images, affordable_maps, affordable_views, reserved_seconds};
use super::pixel_copies::PixelCopies;
use super::probing::{Probe, Probing, Validated, measured_speed, with_head};
use super::session::Session;
use super::state::{self, Kept, Progress};
use super::trainer::{Beginning, Outcome, Trained};
use crate::events::Event;
use crate::model_file::{self, TrainedOn};
use crate::predict::Views;
use crate::recipe::Recipe;
use crate::run_folder::{BadFiles, RunConfig, RunData, RunFolder, states};
use crate::runtime::Runtime;

/// The share of the time before the last measurement that features take at most; the rest is for the fit.
const FEATURES_SHARE: f64 = 0.9;

/// A run whose head is fitted, in place of the epochs of a [`Trainer`](super::Trainer).
pub struct HeadFit<'a> {
    config: RunConfig,
    folder: RunFolder,
    runtime: Runtime<'a>,
    probing: Probing,
    /// Number of test images, which are measured after the fit.
    test_images: usize,
    trained_on: TrainedOn,
    /// Whether the model's head is fitted to the validation images, too: only where test images measure it, and where the
    /// validation images were taken from the training images by this program.
    refits: bool,
    start: Start,
    progress: Progress,
    session: Session,
    bad_files: BadFiles,
    /// The predictions for the validation images, which the report uses again.
    validated: Option<Validated>,
    /// Pixel hashes of the training images; none if this session has not fitted the head.
    pixel_copies: PixelCopies,
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
        Beginning { start, begun, .. }: Beginning,
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
            refits: may_refit(&config, data),
            probing: Probing::new(data),
            test_images: data.dataset().test.len(),
            trained_on: data.trained_on.clone(),
            session: Session::new(begun, progress.seconds),
            config,
            folder,
            runtime,
            start,
            progress,
            bad_files: BadFiles::default(),
            validated: None,
            pixel_copies: PixelCopies::default(),
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
        let wanted = self.wanted_views();
        let (one, mirrored) = self.validated.map(|of| (of.one, of.mirrored)).unzip();
        let (limit, speed) = (self.config.recipe.time_seconds, self.progress.measured_per_second);
        let [validated, tested] = [self.probing.validation.samples.len(), self.test_images]
            .map(|images| affordable_images(images, limit, speed));
        Trained {
            maps: affordable_maps(limit, speed),
            // A map would pass images through the backbone once more.
            embedded: 0,
            test_images: (tested < self.test_images).then_some(tested),
            views: affordable_views(wanted, [validated, tested], limit, speed),
            progress: self.progress,
            bad_files: self.bad_files,
            validated: one,
            mirrored: mirrored.flatten(),
            pixel_copies: self.pixel_copies,
        }
    }

    /// The views that the recipe wants to ask the model about, if they pay.
    fn wanted_views(&self) -> Views {
        let recipe = &self.config.recipe;
        Views::new(recipe.mirror_views && recipe.fits_mirror_images(), false)
    }

    /// Computes the features, fits the head, and writes the model. `reread` returns the parameters that the run started
    /// from, for a resumed run.
    ///
    /// # Errors
    /// When too many images are unreadable, the weights cannot be read, or a file cannot be written.
    pub fn run(&mut self, reread: &dyn Fn() -> Result<Start>) -> Result<Outcome> {
        if self.progress.finished {
            return self.validate_again();
        }
        let model = self.backbone(reread)?;
        let mut deadline = None;
        if let Some(seconds) = self.config.recipe.time_seconds {
            deadline = Some(self.restrict(&model, seconds)?);
        }
        let wanted = (&self.config, self.refits, deadline);
        let probe = self.probing.probe(&model, wanted, &mut self.bad_files, self.runtime)?;
        let Some(probe) = probe else {
            self.progress.seconds = self.session.run_seconds();
            self.progress.undecodable.append(&mut self.bad_files.take_noted());
            state::save_progress(self.folder.path(), &self.progress, None)?;
            return Ok(Outcome::Interrupted);
        };
        self.pixel_copies = self.probing.pixel_copies(&probe);
        for remark in self.pixel_copies.remarks(&self.probing.validation.samples, &probe.validated.one) {
            self.runtime.events.emit(Event::notice(remark));
        }
        let head = probe.refitted.as_ref().map_or(&probe.fitted.head, |(head, _)| head);
        self.keep(with_head(model, head)?, probe)?;
        Ok(Outcome::Finished)
    }

    /// Restricts the images to those whose features a run of `seconds` seconds pays for, with the measurement that follows, and returns
    /// when that begins.
    fn restrict(&mut self, model: &VisionTransformer, seconds: f64) -> Result<Instant> {
        let speed = measured_speed(&self.probing.training, model, &self.config, self.runtime)?;
        self.session.measured(speed);
        self.progress.measured_per_second = Some(speed);
        let images = self.probing.validation.samples.len();
        let [validated, tested] =
            [images, self.test_images].map(|images| affordable_images(images, Some(seconds), Some(speed)));
        // A session before this one may have measured another speed.
        self.progress.validation_images = (validated < images).then_some(validated);
        if validated < images {
            self.runtime.events.emit(Event::PartialValidation { measured: validated, images });
        }
        let views = affordable_views(self.wanted_views(), [validated, tested], Some(seconds), Some(speed));
        let reserved = reserved_seconds(views.list().len() * tested, seconds, Some(speed));
        let until = |end: f64| (end - self.session.run_seconds()).max(0.0);
        let left = until(FEATURES_SHARE * (seconds - reserved));
        let deadline = Instant::now() + Duration::from_secs_f64(until(seconds - reserved));
        let passes = if self.config.recipe.fits_mirror_images() { 2.0 } else { 1.0 };
        let affordable = [(left * speed / passes) as usize, validated];
        let all = self.probing.training.samples.len();
        let found = self.probing.affordable(affordable, model, &self.config, self.runtime)?;
        let spent = self.session.run_seconds();
        self.runtime.events.emit_notice(found.shortfall([seconds, spent], [speed, passes], tested));
        self.probing = found.part;
        self.progress.fitted_images = (found.training < all).then_some(found.training);
        Ok(deadline)
    }

    /// For a finished run without a report: the head in its model may have seen the validation images, so that the report needs
    /// the predictions of the one before it, which is fitted again, by the method that was chosen.
    fn validate_again(&mut self) -> Result<Outcome> {
        if !self.refits {
            return Ok(Outcome::Finished);
        }
        let (_, model) = model_file::load(&self.folder.model(), &self.runtime.device.device)?;
        let Progress { fitted_images, validation_images, method, .. } = self.progress;
        let all = [&self.probing.training, &self.probing.validation].map(|split| split.samples.len());
        let part = [fitted_images.unwrap_or(all[0]), validation_images.unwrap_or(all[1])];
        let part = self.probing.part(part, self.config.seed);
        let (config, bad_files, runtime) = (&self.config, &mut self.bad_files, self.runtime);
        self.validated = match method.filter(|_| config.recipe.time_seconds.is_some()) {
            // The comparison may end later than it did.
            Some(method) => part.validated(method, &model, config, bad_files, runtime)?,
            // The same comparison gives the same bits.
            None => {
                let probe = part.probe(&model, (config, false, None), bad_files, runtime)?;
                probe.map(|probe| probe.validated)
            }
        };
        Ok(if self.validated.is_some() { Outcome::Finished } else { Outcome::Interrupted })
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

    /// Writes the model, its metrics, and the state of the finished run.
    fn keep(&mut self, model: VisionTransformer, probe: Probe) -> Result<()> {
        let Self { config, progress, bad_files, .. } = self;
        let metrics = probe.metrics(&config.classes);
        let validation = best_epoch::validation(1, &metrics[1]);
        progress.seconds = self.session.run_seconds();
        progress.undecodable.append(&mut bad_files.take_noted());
        progress.history = vec![probe.row(&metrics, 1, progress.seconds)];
        (progress.epoch, progress.updates, progress.finished) = (1, probe.fitted.convergence.steps, true);
        progress.best = Some(validation.clone());
        (progress.fitted, progress.method) = (Some(probe.description()), Some(probe.fitted.choice.method));
        self.runtime.events.emit(probe.event(&metrics));
        let recipe: Recipe = config.recipe.clone();
        let trained_on = match probe.refitted {
            Some(_) => self.trained_on.clone().with_head_images(self.probing.validation.key_set()),
            None => self.trained_on.clone(),
        };
        let kept = Kept { card: card(config, &trained_on, recipe, validation), model };
        // The report of an interrupted attempt to finish is out of date.
        self.folder.remove_report()?;
        self.folder.write_metrics(&progress.history)?;
        state::save_progress(self.folder.path(), progress, Some(&kept))?;
        self.validated = Some(probe.validated);
        Ok(())
    }
}

/// Whether the head may learn from the validation images after they have judged it: if test images, none of which is among them,
/// measure the result, and if the user has not set them aside, nor are they the fold of a cross-validation.
fn may_refit(config: &RunConfig, data: &RunData) -> bool {
    let is_chosen = config.fold.is_none() && !data.trained_on.splits.contains_key(&Split::Val);
    let tested: KeySet = data.keys(Split::Test).into_iter().collect();
    is_chosen && !tested.is_empty() && !data.keys(Split::Val).into_iter().any(|key| tested.contains(key))
}
