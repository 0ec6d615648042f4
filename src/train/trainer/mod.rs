//! The trainer: one run in memory, from its first or next epoch to its end.

mod epoch;
mod epoch_end;
mod restart;

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, anyhow};
use vitrine_datasets::{ClassSizes, Dataset, Sample};

use super::at_chance::AtChance;
use super::measuring::{payable, reserve};
use super::phase::{Ingredients, Phase};
use super::pixel_copies::PixelCopies;
use super::restarts;
use super::schedule::{Length, Steps};
use super::session::Session;
use super::start::Start;
use super::state::{self, Kept, Progress, State};
use super::validation::ValidationSplit;
use crate::evaluate::Predicted;
use crate::events::Event;
use crate::model_file::TrainedOn;
use crate::recipe::{AskedLength, Recipe};
use crate::run_folder::{BadFiles, RunConfig, RunData, RunFolder};
use crate::runtime::Runtime;

/// How a run came to its end.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All epochs are done, or the time is up.
    Finished,
    /// Validation did not improve for as many epochs as the recipe's `patience`.
    StoppedEarly,
    /// The user asked to stop; the state is saved.
    Interrupted,
}

/// The beginning of a session of training.
pub struct Beginning {
    /// The parameters.
    pub start: Start,
    /// When the command began. The time of the run counts from then on, so that planning is part of it.
    pub begun: Instant,
}

/// A run in memory: model, data, optimizer, and the folder that it writes to.
pub struct Trainer<'a> {
    config: RunConfig,
    folder: RunFolder,
    runtime: Runtime<'a>,
    phase: Phase,
    training: TrainingData,
    validation: ValidationSplit,
    /// Number of test images, which are measured after training and whose time is set aside.
    test_images: usize,
    state: State,
    best: BestModel,
    bad_files: BadFiles,
    session: Session,
}

/// Facts about the training images.
struct TrainingData {
    class_sizes: ClassSizes,
    /// Written into the model file, so that no image that was trained on counts as held out later.
    trained_on: TrainedOn,
    /// Keys of the images' pixels, until they have been compared with those of the validation images.
    pixel_copies: Option<PixelCopies>,
}

/// The best model of this session.
#[derive(Default)]
struct BestModel {
    /// The model, until the next checkpoint writes it.
    kept: Option<Kept>,
    /// Its predictions for the validation images, which the report uses again.
    validated: Option<Predicted>,
}

/// What remains when training is over.
pub struct Trained {
    /// The progress record of the run.
    pub progress: Progress,
    /// What the user was told of unreadable images.
    pub bad_files: BadFiles,
    /// The predictions of the run's best model for the validation images, if this session has made them.
    pub validated: Option<Predicted>,
    /// How many test images the rest of the time allows to measure, if not all.
    pub test_images: Option<usize>,
}

/// How an epoch ended.
enum EpochOutcome {
    /// All of its batches are done, or the time is up.
    Done,
    /// The user asked to stop; the state is saved.
    Interrupted,
    /// The attempt learns nothing.
    AtChance(AtChance),
}

impl<'a> Trainer<'a> {
    /// A new run, or the one whose state is saved in `folder`.
    ///
    /// # Errors
    /// When the model cannot be built, the loaders do not start, or the saved state cannot be read.
    pub fn new(
        config: RunConfig,
        folder: RunFolder,
        data: &RunData,
        start: Beginning,
        runtime: Runtime<'a>,
    ) -> Result<Self> {
        let Beginning { start, begun } = start;
        let Dataset { train, val, test, .. } = data.dataset();
        let (images, val_images): (Arc<[Sample]>, Arc<[Sample]>) = (train.into(), val.into());
        let Runtime { device, threads, events } = runtime;
        let training = TrainingData {
            class_sizes: ClassSizes::of(&images, config.classes.len()),
            trained_on: data.trained_on.clone(),
            pixel_copies: Some(PixelCopies::new(images.len())),
        };
        let is_new = start.is_new();
        let mut state = start.state(&config, &folder, &device.device)?;
        events.emit_notice(state.progress.set_threads(threads));
        let recipe = restarts::recipe_after(state.progress.given_up.len(), &config.recipe);
        let ingredients = Ingredients { config: &config, class_sizes: &training.class_sizes, threads };
        let measured = state.progress.validation_images;
        let mut trainer = Self {
            session: Session::new(begun, state.progress.seconds),
            phase: Phase::first(ingredients, recipe, images)?,
            validation: ValidationSplit::new(&config, val_images, measured, (device, threads))?,
            training,
            test_images: test.len(),
            config,
            folder,
            runtime,
            best: BestModel::default(),
            bad_files: BadFiles::default(),
            state,
        };
        trainer.session.done_before = trainer.done();
        if is_new {
            trainer.checkpoint()?;
        } else {
            // Rows that were written after the last checkpoint are not part of this run any more.
            trainer.folder.write_metrics(&trainer.state.progress.history)?;
        }
        Ok(trainer)
    }

    /// Hands over which unreadable images the user has been told of.
    pub fn set_bad_files(&mut self, bad_files: BadFiles) {
        self.bad_files = bad_files;
    }

    /// Ends the session.
    pub fn finish(self) -> Trained {
        let test = payable(self.test_images, self.time(), self.session.measured_per_second());
        Trained {
            test_images: (test < self.test_images).then_some(test),
            progress: self.state.progress,
            bad_files: self.bad_files,
            validated: self.best.validated,
        }
    }

    /// Trains until the run ends or the user stops it. `start_again` gives the parameters that the run began with, for
    /// another attempt.
    ///
    /// # Errors
    /// When the loss is not finite, too many images are unreadable, or the disk refuses.
    pub fn run(&mut self, start_again: &dyn Fn() -> Result<Start>) -> Result<Outcome> {
        let outcome = self.run_to_the_end(start_again);
        if let (Err(_), Some(kept)) = (&outcome, self.best.kept.take()) {
            // No checkpoint will write it any more. The first error is the one that the user must see.
            let _ = kept.write(&self.folder.model());
        }
        outcome
    }

    fn run_to_the_end(&mut self, start_again: &dyn Fn() -> Result<Start>) -> Result<Outcome> {
        while !self.is_over() {
            match self.epoch()? {
                EpochOutcome::Done => {}
                EpochOutcome::Interrupted => return Ok(Outcome::Interrupted),
                EpochOutcome::AtChance(found) => {
                    self.start_over(found, start_again)?;
                    continue;
                }
            }
            let patience = self.recipe().patience;
            if patience > 0 && self.state.progress.stale_epochs >= patience {
                self.end()?;
                return Ok(Outcome::StoppedEarly);
            }
        }
        self.end()?;
        Ok(Outcome::Finished)
    }

    fn end(&mut self) -> Result<()> {
        if !self.state.progress.finished {
            // A report describes the whole run. A finished run without one gets it when it is resumed.
            self.folder.remove_report()?;
            self.state.progress.finished = true;
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Whether all epochs are done, or the time is up: never before there is a model, however little time there is.
    fn is_over(&self) -> bool {
        let Progress { finished, batch, history, .. } = &self.state.progress;
        *finished || (self.done() >= 1.0 && *batch == 0 && !history.is_empty())
    }

    /// Saves the state, and with it the best model.
    fn checkpoint(&mut self) -> Result<()> {
        self.state.progress.seconds = self.session.run_seconds();
        state::save(self.folder.path(), &self.state, self.best.kept.as_ref())?;
        self.best.kept = None;
        self.session.saved();
        Ok(())
    }

    /// The recipe of the present attempt.
    fn recipe(&self) -> &Recipe {
        &self.phase.recipe
    }

    /// Makes the batches anew after the recipe or the phase has changed.
    fn change_phase(&mut self) -> Result<()> {
        let kind = self.phase_now();
        let (config, class_sizes) = (&self.config, &self.training.class_sizes);
        let ingredients = Ingredients { config, class_sizes, threads: self.runtime.threads };
        self.phase.change(ingredients, kind, self.training.pixel_copies.is_some())
    }

    /// The share of the run that is done.
    fn done(&self) -> f64 {
        let Progress { epoch, batch, .. } = self.state.progress;
        self.length().done(self.steps().until(epoch, batch), self.session.run_seconds())
    }

    /// The steps of an epoch.
    fn steps(&self) -> Steps {
        let Recipe { batch_size, accumulate, .. } = *self.recipe();
        Steps { batches: self.phase.batches.len().div_ceil(batch_size), accumulate }
    }

    /// Seconds that the run may take, if there is a limit.
    fn time(&self) -> Option<f64> {
        AskedLength::from(self.recipe()).seconds
    }

    /// How long training takes: with a time limit, until the rest suffices to measure the result.
    fn length(&self) -> Length {
        let speed = self.session.measured_per_second();
        let payable = |images: usize| payable(images, self.time(), speed);
        let measured = payable(self.validation.loader.len()) + payable(self.test_images);
        let training = |seconds: f64| (seconds - reserve(measured, seconds, speed)).max(0.0);
        Length {
            steps: self.recipe().epochs.map(|epochs| self.steps().of_epochs(epochs)),
            seconds: self.time().map(training),
        }
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
