//! The trainer: the loop over the epochs of one run, from a fresh or a saved state to the end of the run.

mod epoch;
mod epoch_end;
mod probe_first;
mod restart;
mod shared;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow};
use vitrine_datasets::{ClassSizes, Dataset, Sample};

use self::shared::SharedUpdates;
use super::at_chance::AtChance;
use super::expectation;
use super::initial_state::Start;
use super::measuring::{
    affordable_embedded, affordable_images, affordable_maps, affordable_views, extra_passes, reserved_seconds,
};
use super::phase::{Ingredients, Phase};
use super::pixel_copies::PixelCopies;
use super::probing::Probing;
use super::restarts;
use super::schedule::{Length, Steps};
use super::session::Session;
use super::state::{self, Kept, Progress, State};
use super::validation::ValidationSplit;
use crate::evaluate::Predicted;
use crate::events::Event;
use crate::model_file::TrainedOn;
use crate::predict::Views;
use crate::recipe::{AskedLength, Recipe};
use crate::run_folder::{BadFiles, RunConfig, RunData, RunFolder};
use crate::runtime::Runtime;

/// How a session of training ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All epochs are done, or the time is up.
    Finished,
    /// Validation did not improve for as many epochs as the recipe's `patience`.
    StoppedEarly,
    /// The user asked to stop; the state is saved.
    Interrupted,
}

/// The starting point of a session.
pub struct Beginning {
    /// The parameters, or the saved state, to start from.
    pub start: Start,
    /// About the number of epochs of a new run with default settings, whose accuracy can be expected.
    pub usual_epochs: Option<f64>,
    /// When the command started. Planning before training counts towards the time limit of the run.
    pub begun: Instant,
}

/// A run in memory: model, data, and optimizer, with the folder that it writes to.
pub struct Trainer<'a> {
    config: RunConfig,
    folder: RunFolder,
    runtime: Runtime<'a>,
    phase: Phase,
    training: TrainingData,
    validation: ValidationSplit,
    /// The images of the probe with which the run begins, until it is made.
    probing: Option<Probing>,
    /// Number of test images. Time is set aside for measuring them after training.
    test_images: usize,
    state: State,
    best: BestModel,
    bad_files: BadFiles,
    session: Session,
    /// Updates that workers take part in.
    shared: Option<SharedUpdates<'a>>,
}

/// Class sizes, content keys, and pixel hashes of the training images.
struct TrainingData {
    class_sizes: ClassSizes,
    /// Content keys of the training images. The model file stores them, so that later evaluations do not count these
    /// images as held out.
    trained_on: TrainedOn,
    /// Pixel hashes of the training images, for the comparison with the validation images and, after the run, with the test
    /// images.
    pixel_copies: PixelCopies,
    /// Whether pixels are hashed, which ends with the first of these comparisons.
    hashes_pixels: bool,
}

/// The best model of this session.
#[derive(Default)]
struct BestModel {
    /// The model, until the next checkpoint writes it.
    kept: Option<Kept>,
    /// Its predictions for the validation images, which the report uses again.
    validated: Option<Predicted>,
}

/// The results of a session.
pub struct Trained {
    /// The progress record of the run.
    pub progress: Progress,
    /// Unreadable images that the user has been warned about.
    pub bad_files: BadFiles,
    /// The predictions of the best model for the validation images, if this session has made them.
    pub validated: Option<Predicted>,
    /// Those for each validation image together with its mirror image, if a fitted head has learned from mirror images: the model
    /// may have seen the validation images since.
    pub mirrored: Option<Predicted>,
    /// Pixel hashes of the training images that this session has decoded.
    pub(crate) pixel_copies: PixelCopies,
    /// Number of test images that the time limit allows to measure; `None` if all.
    pub test_images: Option<usize>,
    /// The views that the recipe wants to ask the finished model about, if they pay, as far as the time limit allows.
    pub views: Views,
    /// Number of maps of mistakes in the report, at most, that the time limit allows.
    pub maps: usize,
    /// Number of images in the report's map of embeddings, at most, that the time limit allows; 0 for no map.
    pub embedded: usize,
}

/// How an epoch ended.
enum EpochOutcome {
    /// All of its batches are done, or the time is up.
    Done,
    /// The user asked to stop; the state is saved.
    Interrupted,
    /// The attempt does not learn.
    AtChance(AtChance),
}

impl<'a> Trainer<'a> {
    /// Prepares a new run, or resumes the one whose state is saved in `folder`.
    ///
    /// # Errors
    /// When the model cannot be built, a loader does not start, or the saved state cannot be read.
    pub fn new(
        config: RunConfig,
        folder: RunFolder,
        data: &RunData,
        start: Beginning,
        runtime: Runtime<'a>,
    ) -> Result<Self> {
        let Beginning { start, usual_epochs, begun } = start;
        let Dataset { train, val, test, .. } = data.dataset();
        let (images, val_images): (Arc<[Sample]>, Arc<[Sample]>) = (train.into(), val.into());
        let Runtime { device, threads, events, .. } = runtime;
        let is_new = start.is_new();
        let training = TrainingData {
            class_sizes: ClassSizes::of(&images, config.classes.len()),
            trained_on: data.trained_on.clone(),
            pixel_copies: PixelCopies::new(Arc::clone(&images)),
            hashes_pixels: true,
        };
        let ingredients = Ingredients { config: &config, class_sizes: &training.class_sizes, threads };
        let mut phase = Phase::first(ingredients, config.recipe.clone(), images)?;
        let mut state = start.state(&config, &folder, &phase.batches, runtime)?;
        let given_up = state.progress.given_up.len();
        if given_up > 0 {
            phase.recipe = restarts::recipe_after(given_up, &config.recipe);
            phase.change(ingredients, phase.kind, training.hashes_pixels)?;
        }
        events.emit_notice(state.progress.set_threads(threads));
        if let Some(epochs) = usual_epochs {
            expectation::announce(&phase.batches, epochs, &config, events)?;
        }
        // Chance is judged by classes that exclude each other.
        state.progress.watch.settled |= config.multi_label;
        let measured = state.progress.validation_images;
        let mut trainer = Self {
            session: Session::new(begun, state.progress.seconds),
            phase,
            validation: ValidationSplit::new(&config, val_images, measured, (device, threads))?,
            training,
            probing: (config.recipe.probe_first && state.progress.probe.is_none())
                .then(|| Probing::new(data)),
            test_images: test.len(),
            config,
            folder,
            runtime,
            best: BestModel::default(),
            bad_files: BadFiles::default(),
            shared: runtime.workers.map(|pool| SharedUpdates::new(pool, &device.device)),
            state,
        };
        trainer.session.begin_training(trainer.done());
        if is_new {
            trainer.checkpoint()?;
        } else {
            // The metrics file may have rows that are newer than the checkpoint; the resumed run trains those epochs
            // again.
            trainer.folder.write_metrics(&trainer.state.progress.history)?;
        }
        Ok(trainer)
    }

    /// Sets the unreadable images that the user has already been warned about.
    pub fn set_bad_files(&mut self, bad_files: BadFiles) {
        self.bad_files = bad_files;
    }

    /// Ends the session and returns its results.
    pub fn finish(self) -> Trained {
        let (limit, speed) = (self.time_limit(), self.measured_per_second());
        let test = affordable_images(self.test_images, limit, speed);
        Trained {
            views: self.views(),
            maps: affordable_maps(limit, speed),
            embedded: affordable_embedded(limit, speed),
            test_images: (test < self.test_images).then_some(test),
            progress: self.state.progress,
            bad_files: self.bad_files,
            validated: self.best.validated,
            mirrored: None,
            pixel_copies: self.training.pixel_copies,
        }
    }

    /// Trains until the run ends or the user stops it. `start_again` returns the parameters that the run started from,
    /// for another attempt.
    ///
    /// # Errors
    /// When the loss is not finite, too many images are unreadable, or a file cannot be written.
    pub fn run(&mut self, start_again: &dyn Fn() -> Result<Start>) -> Result<Outcome> {
        let outcome = self.run_to_the_end(start_again);
        // No checkpoint follows that would write the best model. The error to end with is the first.
        if let (Err(_), Some(kept)) = (&outcome, self.best.kept.take())
            && let Err(error) = kept.write(&self.folder.model())
        {
            let message = format!("the best model since the last checkpoint is lost: {error:#}");
            self.emit(Event::warning(message));
        }
        if let (Err(_), Some(best)) = (&outcome, &self.state.progress.best)
            && best.epoch == 0
            && self.folder.model().is_file()
        {
            let message = format!("the probe stays as a model: {}", self.folder.model().display());
            self.emit(Event::notice(message));
        }
        outcome
    }

    fn run_to_the_end(&mut self, start_again: &dyn Fn() -> Result<Start>) -> Result<Outcome> {
        if !self.probe_first()? {
            return Ok(Outcome::Interrupted);
        }
        loop {
            // First, as the session before may have ended between its last epoch and the end of the run.
            if self.is_stale() {
                self.finish_run()?;
                return Ok(Outcome::StoppedEarly);
            }
            if self.is_over() {
                break;
            }
            match self.epoch()? {
                EpochOutcome::Done => {}
                EpochOutcome::Interrupted => return Ok(Outcome::Interrupted),
                EpochOutcome::AtChance(found) => self.start_over(found, start_again)?,
            }
        }
        self.finish_run()?;
        Ok(Outcome::Finished)
    }

    fn finish_run(&mut self) -> Result<()> {
        if !self.state.progress.finished {
            // The report describes a finished run and is out of date now. Resuming a finished run without a report
            // writes one.
            self.folder.remove_report()?;
            self.state.progress.finished = true;
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Whether no epoch of the last ones was better than those before, for as many as the patience allows.
    fn is_stale(&self) -> bool {
        let patience = self.recipe().patience;
        patience > 0 && self.state.progress.stale_epochs >= patience
    }

    /// Whether all epochs are done or the time is up. At least one epoch is completed however little time there is,
    /// because a run must result in a model.
    fn is_over(&self) -> bool {
        let Progress { finished, batch, history, .. } = &self.state.progress;
        *finished || (self.done() >= 1.0 && *batch == 0 && !history.is_empty())
    }

    /// Saves the state, and with it the best model since the last checkpoint.
    fn checkpoint(&mut self) -> Result<()> {
        let progress = &mut self.state.progress;
        progress.seconds = self.session.run_seconds();
        progress.measured_per_second = self.session.measured_per_second().or(progress.measured_per_second);
        self.bad_files.note(self.phase.batches.samples(), &progress.running.bad, &self.config.limits());
        progress.undecodable.append(&mut self.bad_files.take_noted());
        state::save(self.folder.path(), &self.state, self.best.kept.as_ref())?;
        self.best.kept = None;
        self.session.saved();
        Ok(())
    }

    /// The recipe of the present attempt.
    fn recipe(&self) -> &Recipe {
        &self.phase.recipe
    }

    /// Changes the loader after the recipe or the kind of phase has changed.
    fn change_phase(&mut self) -> Result<()> {
        let kind = self.phase_now();
        let (config, class_sizes) = (&self.config, &self.training.class_sizes);
        let ingredients = Ingredients { config, class_sizes, threads: self.runtime.threads };
        self.phase.change(ingredients, kind, self.training.hashes_pixels)
    }

    /// The share of the run that is done, from 0 to 1.
    fn done(&self) -> f64 {
        let Progress { epoch, batch, .. } = self.state.progress;
        self.length().done(self.steps().until(epoch, batch), self.session.run_seconds())
    }

    /// The conversion of epochs and batches to steps.
    fn steps(&self) -> Steps {
        let Recipe { batch_size, accumulate, .. } = *self.recipe();
        Steps { batches: self.phase.batches.len().div_ceil(batch_size), accumulate }
    }

    /// The time limit of the run in seconds, if it has one.
    fn time_limit(&self) -> Option<f64> {
        AskedLength::from(self.recipe()).seconds
    }

    /// The length of training: the time limit, if there is one, is reduced by the time for measuring at the end.
    fn length(&self) -> Length {
        let speed = self.session.measured_per_second();
        let images @ [validated, tested] = self.measured_images();
        let measured = validated + tested + extra_passes(self.views(), images);
        let training = |seconds: f64| (seconds - reserved_seconds(measured, seconds, speed)).max(0.0);
        Length {
            steps: self.recipe().epochs.map(|epochs| self.steps().of_epochs(epochs)),
            seconds: self.time_limit().map(training),
        }
    }

    /// Images per second of measuring, if it is known; of a finished run, what it was.
    fn measured_per_second(&self) -> Option<f64> {
        let progress = &self.state.progress;
        self.session.measured_per_second().or(progress.measured_per_second.filter(|_| progress.finished))
    }

    /// The number of validation images and of test images that the time limit allows to measure.
    fn measured_images(&self) -> [usize; 2] {
        let (limit, speed) = (self.time_limit(), self.measured_per_second());
        [self.validation.loader.len(), self.test_images].map(|images| affordable_images(images, limit, speed))
    }

    /// The views that the finished model may be asked about, as far as the time limit allows.
    fn views(&self) -> Views {
        let flips = match &self.state.progress.flips {
            Some(verdict) => verdict.flips,
            // The end of an epoch judges them.
            None => !self.recipe().judge_flips || self.ends_epoch_in_time(),
        };
        let wanted = Views::new(self.recipe().mirror_views && flips, self.recipe().shifted_views);
        affordable_views(wanted, self.measured_images(), self.time_limit(), self.measured_per_second())
    }

    /// Whether the present epoch is likely to end before the time limit.
    fn ends_epoch_in_time(&self) -> bool {
        let (Some(limit), Some(speed)) = (self.time_limit(), self.session.epoch_speed()) else { return true };
        let left = self.phase.batches.len() - self.seen();
        (left as f64) < speed * (limit - self.session.run_seconds())
    }

    fn emit(&self, event: Event) {
        self.runtime.events.emit(event);
    }
}

/// The error for a loss that is NaN or infinite.
fn diverged(epoch: usize, what: &str, value: f64, recipe: &Recipe) -> anyhow::Error {
    anyhow!(
        "training diverged: the {what} is {value} in epoch {epoch}; lower --learning-rate (now {}) or --weight-decay (now {}) \
         and start again",
        recipe.learning_rate,
        recipe.weight_decay
    )
}
