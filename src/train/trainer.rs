//! The training loop.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use burn::tensor::{Device, Int, Tensor, TensorData, Transaction};
use vitrine_datasets::{BadFile, Batch, ClassSizes, Dataset, Loader, LoaderConfig, Preprocessing, Sample};

use super::at_chance::{AtChance, Moment, dominant_classes};
use super::attempt;
use super::bad_files::BadFiles;
use super::checkpoint::{self, Kept, Progress, State};
use super::loaders;
use super::measuring::{self, payable, reserve};
use super::phase::Phase;
use super::pixel_copies::PixelCopies;
use super::progress::{EpochBar, RunClock};
use super::run_config::RunConfig;
use super::run_data::RunData;
use super::run_folder::RunFolder;
use super::schedule::{Length, Steps, learning_rate, mixed_batches};
use super::session::Session;
use super::start::Start;
use super::{interrupt, threads as run_threads};
use crate::evaluate::{self, Predicted};
use crate::output::note;
use crate::recipe::Recipe;
use crate::seed::{Stream, stream};
use crate::trained_on::TrainedOn;

mod again;
mod epoch_end;

/// Losses are read back from the device after this many batches, or sooner where somebody watches.
const READ_BACK: usize = 16;

/// How a run came to its end.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All epochs are done, or the time is up.
    Finished,
    /// Validation got no better for as many epochs as the recipe's `patience`.
    StoppedEarly,
    /// The user asked to stop; the state is saved.
    Interrupted,
}

/// A run in memory: model, data, optimizer, and the folder it writes to.
pub struct Trainer {
    config: RunConfig,
    /// That of the configuration, or a gentler one after attempts that learned nothing.
    recipe: Recipe,
    folder: RunFolder,
    device: Device,
    class_sizes: ClassSizes,
    threads: usize,
    /// The batches of `phase`, and what their images go through.
    train: Loader,
    phase: Phase,
    train_preprocessing: Preprocessing,
    /// All validation images; `val` loads those that the clock pays for.
    val_images: Arc<[Sample]>,
    val: Loader,
    test_images: usize,
    trained_on: TrainedOn,
    /// The pixels of training images, until they were compared with those of validation images.
    pixel_copies: Option<PixelCopies>,
    state: State,
    /// The best model, until it is written with the next checkpoint.
    kept: Option<Kept>,
    /// The validation of the model that is kept, if this session has made it.
    validated: Option<Predicted>,
    bad_files: BadFiles,
    session: Session,
}

/// What a session of training computes with.
#[derive(Clone, Copy, Debug)]
pub struct Resources<'a> {
    /// Where tensors are.
    pub device: &'a Device,
    /// Threads that decode and compute.
    pub threads: usize,
    /// When the session began: the time of the run counts from then on, and the choice of everything is a part of it.
    pub begun: Instant,
}

/// What is left when training is over.
pub struct Trained {
    /// Where the run stands.
    pub progress: Progress,
    /// What the user was told of unreadable images.
    pub bad_files: BadFiles,
    /// The validation of the model of the run's file, where this session has made it.
    pub validated: Option<Predicted>,
    /// Of the test images, how many the rest of the time pays for, where it is not all.
    pub test_images: Option<usize>,
}

/// How an epoch ended.
enum Epoch {
    /// All of its batches are done, or the time is up.
    Done,
    /// The user asked to stop; the state is saved.
    Interrupted,
    /// The attempt learns nothing.
    AtChance(AtChance),
}

/// Results still on the device.
#[derive(Default)]
struct Pending {
    losses: Vec<Tensor<1>>,
    answers: Vec<Tensor<1, Int>>,
    /// The classes that dominate the targets of each batch.
    dominant: Vec<Vec<usize>>,
}

impl Trainer {
    /// A new run, or the one whose state is saved in `folder`.
    ///
    /// # Errors
    /// When the model cannot be built, the loaders do not start, or the saved state cannot be read.
    pub fn new(
        config: RunConfig,
        folder: RunFolder,
        data: &RunData,
        start: Start,
        Resources { device, threads, begun }: Resources<'_>,
    ) -> Result<Self> {
        let Dataset { train, val, test, .. } = data.dataset();
        let (images, val_images): (Arc<[Sample]>, Arc<[Sample]>) = (train.into(), val.into());
        let class_sizes = ClassSizes::of(&images, config.classes.len());
        let is_new = start.is_new();
        let mut state = start.state(&config, &folder, device)?;
        run_threads::change(&mut state.progress, threads);
        let recipe = attempt::recipe_after(state.progress.given_up.len(), &config.recipe);
        let phase = Phase { is_easy: false, flips: true, mixes: true };
        let loading = loaders::training(&config, &class_sizes, &recipe, threads, phase);
        let measured = measuring::part(&val_images, state.progress.validation_images, config.seed);
        let mut trainer = Self {
            session: Session::new(begun, state.progress.seconds),
            pixel_copies: Some(PixelCopies::new(images.len())),
            train: Loader::new(images, loading)?,
            phase,
            train_preprocessing: loaders::preprocessing(&config, phase),
            val: loaders::validation(&config, measured, threads)?,
            val_images,
            test_images: test.len(),
            config,
            recipe,
            folder,
            device: device.clone(),
            class_sizes,
            threads,
            trained_on: data.trained_on.clone(),
            kept: None,
            validated: None,
            bad_files: BadFiles::default(),
            state,
        };
        trainer.session.done_before = trainer.done();
        if is_new {
            trainer.checkpoint()?;
        } else {
            // What was written after the last checkpoint is not of this run any more.
            trainer.folder.write_metrics(&trainer.state.progress.history)?;
        }
        Ok(trainer)
    }

    /// Makes known what the user was told of unreadable images.
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
            validated: self.validated,
        }
    }

    /// Trains until the run ends or the user stops it. `again` gives the start once more, for another attempt.
    ///
    /// # Errors
    /// When the loss is no longer a number, too many images are unreadable, or the disk refuses.
    pub fn run(&mut self, again: &dyn Fn() -> Result<Start>) -> Result<Outcome> {
        let outcome = self.run_to_the_end(again);
        if let (Err(_), Some(kept)) = (&outcome, self.kept.take()) {
            // There will be no checkpoint to write it with. What went wrong first is what the user must hear of.
            let _ = kept.write(&self.folder.model());
        }
        outcome
    }

    fn run_to_the_end(&mut self, again: &dyn Fn() -> Result<Start>) -> Result<Outcome> {
        while !self.is_over() {
            match self.epoch()? {
                Epoch::Done => {}
                Epoch::Interrupted => return Ok(Outcome::Interrupted),
                Epoch::AtChance(found) => {
                    self.begin_again(found, again)?;
                    continue;
                }
            }
            let patience = self.config.recipe.patience;
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
            // A report is that of the whole run, or not there: a finished run without one is given one when it is resumed.
            self.folder.remove_report()?;
            self.state.progress.finished = true;
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Whether all is done, or the time is up: not before there is a model, however little time there is.
    fn is_over(&self) -> bool {
        let Progress { finished, batch, history, .. } = &self.state.progress;
        *finished || (self.done() >= 1.0 && *batch == 0 && !history.is_empty())
    }

    /// One epoch from where it stands, with validation at its end.
    fn epoch(&mut self) -> Result<Epoch> {
        let Progress { epoch, batch, .. } = self.state.progress;
        let seen = (batch * self.config.recipe.batch_size).min(self.train.len());
        let bar = EpochBar::new(epoch + 1, self.train.len(), seen, self.run_clock());
        self.session.begin_epoch();
        let mut pending = Pending::default();
        let end = loop {
            self.enter_phase()?;
            if let Some(end) = self.train_in_phase(&bar, &mut pending)? {
                break end;
            }
        };
        self.read_back(&mut pending)?;
        bar.finish();
        if let Epoch::Done = end {
            self.end_epoch()?;
        }
        Ok(end)
    }

    /// Trains on the batches of the present phase, until the epoch ends in one way or another; nothing where the next phase begins.
    fn train_in_phase(&mut self, bar: &EpochBar, pending: &mut Pending) -> Result<Option<Epoch>> {
        let Progress { epoch, batch: first_batch, .. } = self.state.progress;
        let batches = self.steps().batches;
        let (mut waiting_batches, mut waiting_samples) = (0, 0);
        let mixed = if self.phase.mixes { mixed_batches(&self.config.recipe, epoch, batches) } else { 0 };
        for batch in self.train.epoch_mixing(epoch, first_batch, mixed) {
            let mut batch = batch?;
            self.state.progress.batch += 1;
            note_new(&mut self.state.progress.running.bad, std::mem::take(&mut batch.skipped));
            let last = self.state.progress.batch >= batches;
            if let Some(copies) = &mut self.pixel_copies {
                copies.saw(self.train.samples(), &batch.indices, &batch.pixel_keys);
            }
            if batch.size > 0 {
                waiting_samples += batch.size;
                self.backward(batch, pending);
            }
            waiting_batches += 1;
            if !last && waiting_batches < self.config.recipe.accumulate {
                continue;
            }
            let found = self.update(pending)?;
            let samples = std::mem::take(&mut waiting_samples);
            waiting_batches = 0;
            if bar.is_visible() || pending.losses.len() >= READ_BACK || last {
                self.read_back(pending)?;
                self.show(bar, samples);
            }
            if let Some(found) = found {
                return Ok(Some(Epoch::AtChance(found)));
            }
            if !self.after_update(pending)? {
                return Ok(Some(Epoch::Interrupted));
            }
            if self.time().is_some() && self.done() >= 1.0 {
                break;
            }
            if !last && self.phase_now() != self.phase {
                return Ok(None);
            }
        }
        Ok(Some(Epoch::Done))
    }

    /// The phase of the next update.
    fn phase_now(&self) -> Phase {
        let flips = self.state.progress.flips.as_ref();
        Phase::at(&self.recipe, self.attempt_done(), self.session.run_seconds(), flips)
    }

    /// Makes the batches of training anew where another phase begins, and says so where the images grow.
    fn enter_phase(&mut self) -> Result<()> {
        let (before, phase) = (self.phase, self.phase_now());
        if phase == before {
            return Ok(());
        }
        self.load(phase)?;
        if before.is_easy && !phase.is_easy {
            let [height, width] = self.train_preprocessing.image_size;
            let updates = self.state.progress.updates;
            note!("after {updates} updates: images of {width}x{height} pixels and the whole augmentation");
        }
        Ok(())
    }

    /// Makes the batches of training anew, by the present recipe.
    fn load(&mut self, phase: Phase) -> Result<()> {
        let loading = loaders::training(&self.config, &self.class_sizes, &self.recipe, self.threads, phase);
        let hash_pixels = self.pixel_copies.is_some();
        self.train = self.train.reconfigured(LoaderConfig { hash_pixels, ..loading })?;
        self.train_preprocessing = loaders::preprocessing(&self.config, phase);
        self.phase = phase;
        Ok(())
    }

    /// Interruption and checkpoints between two updates; false when the user asked to stop.
    fn after_update(&mut self, pending: &mut Pending) -> Result<bool> {
        let stop = interrupt::requested();
        if stop || self.session.is_due_within_epoch() {
            self.read_back(pending)?;
            self.checkpoint()?;
        }
        Ok(!stop)
    }

    /// Adds the gradients of one batch, as a sum over its images.
    fn backward(&mut self, mut batch: Batch, pending: &mut Pending) {
        let progress = &self.state.progress;
        let moment = (progress.epoch as u64) << 32 | progress.batch as u64;
        let seed = stream(self.config.seed, Stream::Dropout, moment);
        let device = self.device.clone().autodiff();
        let images = evaluate::images(&mut batch, &self.train_preprocessing, &device);
        let classes = self.config.classes.len();
        let dominant = dominant_classes(&batch.targets, classes);
        self.state.progress.watch.saw_targets(&batch.targets, classes, &dominant);
        pending.dominant.push(dominant);
        let targets = Tensor::<2>::from_data(TensorData::new(batch.targets, [batch.size, classes]), &device);
        let result = self.state.learner.backward(&self.recipe, images, targets, seed);
        pending.losses.push(result.loss);
        pending.answers.push(result.answers);
        self.session.trained_on(batch.size);
    }

    /// One update with the gradients of the batches since the last one, if any of them had images. Says something if the attempt is found
    /// to learn nothing.
    fn update(&mut self, pending: &mut Pending) -> Result<Option<AtChance>> {
        let rate = learning_rate(&self.recipe, self.attempt_done());
        let updates = self.state.progress.attempt_updates() + 1;
        if !self.state.learner.update(&self.recipe, rate, updates) {
            return Ok(None);
        }
        self.state.progress.updates += 1;
        let moment =
            Moment { updates, attempt: self.attempt_done(), run: self.done(), warmup: self.recipe.warmup };
        if !self.state.progress.watch.saw_update(moment) {
            return Ok(None);
        }
        self.read_back(pending)?;
        Ok(self.state.progress.watch.judge(moment))
    }

    /// Adds what the device has computed to the sums of the epoch.
    fn read_back(&mut self, pending: &mut Pending) -> Result<()> {
        let Pending { losses, answers, dominant } = std::mem::take(pending);
        if losses.is_empty() {
            return Ok(());
        }
        let data = Transaction::default()
            .register(Tensor::cat(losses, 0))
            .register(Tensor::cat(answers, 0))
            .execute();
        let [losses, answers]: [TensorData; 2] =
            data.try_into().ok().context("the device gave back too few results")?;
        let running = &mut self.state.progress.running;
        let mut answers = answers.iter::<i64>().map(|answer| answer as usize);
        for (loss, dominant) in losses.iter::<f32>().map(f64::from).zip(dominant) {
            if !loss.is_finite() {
                return Err(diverged(self.state.progress.epoch + 1, "loss", loss, &self.config.recipe));
            }
            let answers: Vec<usize> = answers.by_ref().take(dominant.len()).collect();
            self.state.progress.watch.saw_result(loss, &dominant, &answers);
            running.loss += loss * dominant.len() as f64;
            running.correct += dominant.iter().zip(&answers).filter(|(a, b)| a == b).count() as u64;
            running.samples += dominant.len() as u64;
        }
        Ok(())
    }

    fn show(&self, bar: &EpochBar, samples: usize) {
        if !bar.is_visible() {
            return;
        }
        let running = &self.state.progress.running;
        let loss = running.loss / running.samples.max(1) as f64;
        bar.advance(samples, loss, self.session.images_per_second(), self.done(), self.session.elapsed());
    }

    fn run_clock(&self) -> RunClock {
        let recipe = &self.config.recipe;
        RunClock {
            epochs: recipe.epochs,
            seconds: recipe.time_seconds,
            done_before: self.session.done_before,
        }
    }

    /// Saves the state, and with it the best model.
    fn checkpoint(&mut self) -> Result<()> {
        self.state.progress.seconds = self.session.run_seconds();
        checkpoint::save(self.folder.path(), &self.state, self.kept.as_ref())?;
        self.kept = None;
        self.session.saved();
        Ok(())
    }

    /// The share of the run that is done.
    fn done(&self) -> f64 {
        let Progress { epoch, batch, .. } = self.state.progress;
        self.length().done(self.steps().until(epoch, batch), self.session.run_seconds())
    }

    /// How its epochs are divided.
    fn steps(&self) -> Steps {
        let Recipe { batch_size, accumulate, .. } = self.config.recipe;
        Steps { batches: self.train.len().div_ceil(batch_size), accumulate }
    }

    /// The seconds that it may take.
    fn time(&self) -> Option<f64> {
        self.config.recipe.time_seconds
    }

    /// How long it trains: until what is left of its time suffices to measure the result.
    fn length(&self) -> Length {
        let speed = self.session.measured_per_second();
        let measured =
            payable(self.val.len(), self.time(), speed) + payable(self.test_images, self.time(), speed);
        let training = |seconds: f64| (seconds - reserve(measured, seconds, speed)).max(0.0);
        Length {
            steps: self.config.recipe.epochs.map(|epochs| self.steps().of_epochs(epochs)),
            seconds: self.time().map(training),
        }
    }
}

/// Adds the files that are not known to be unreadable yet: balanced epochs draw an image more than once.
fn note_new(known: &mut Vec<BadFile>, found: Vec<BadFile>) {
    for bad in found {
        if !known.contains(&bad) {
            known.push(bad);
        }
    }
}

/// What to say of numbers that are none.
fn diverged(epoch: usize, what: &str, value: f64, recipe: &Recipe) -> anyhow::Error {
    anyhow!(
        "training diverged: the {what} is {value} in epoch {epoch}; lower --learning-rate (now {}) or --weight-decay (now {}) \
         and start again",
        recipe.learning_rate,
        recipe.weight_decay
    )
}
