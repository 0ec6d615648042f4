//! The training loop.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use burn::tensor::{Device, Int, Tensor, TensorData, Transaction};
use vitrine_datasets::{BadFile, Batch, Dataset, Loader, Preprocessing, Sample, Split};

use super::at_chance::{AtChance, Moment};
use super::attempt;
use super::bad_files::BadFiles;
use super::best;
use super::checkpoint::{self, Progress, State};
use super::history::EpochRow;
use super::loaders;
use super::progress::{EpochBar, RunClock, epoch_line};
use super::run_config::RunConfig;
use super::run_data::RunData;
use super::run_folder::RunFolder;
use super::schedule::{Length, learning_rate, mixed_batches};
use super::session::Session;
use super::start::Start;
use super::{interrupt, threads as run_threads};
use crate::evaluate::{self, Metrics};
use crate::model_file::{ModelCard, Validation};
use crate::output::note;
use crate::recipe::Recipe;
use crate::seed::{Stream, stream};
use crate::trained_on::TrainedOn;

mod again;

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
    images: Arc<[Sample]>,
    threads: usize,
    train: Loader,
    /// Whether `train` is that of the easy phase, and what its images go through.
    train_is_easy: bool,
    train_preprocessing: Preprocessing,
    val: Loader,
    train_samples: usize,
    trained_on: TrainedOn,
    state: State,
    bad_files: BadFiles,
    session: Session,
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
    correct: Vec<Tensor<1, Int>>,
    sizes: Vec<usize>,
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
        device: &Device,
        threads: usize,
        start: Start,
    ) -> Result<Self> {
        let Dataset { train, val, .. } = data.dataset();
        let images: Arc<[Sample]> = train.into();
        let is_new = start.is_new();
        let mut state = start.state(&config, &folder, device)?;
        run_threads::change(&mut state.progress, threads);
        let recipe = attempt::recipe_after(state.progress.given_up.len(), &config.recipe);
        let is_easy = state.progress.is_easy;
        let mut trainer = Self {
            session: Session::new(state.progress.seconds),
            train: loaders::training(&config, Arc::clone(&images), &recipe, threads, is_easy)?,
            train_is_easy: is_easy,
            train_preprocessing: loaders::preprocessing(&config, is_easy),
            val: loaders::validation(&config, val.into(), threads)?,
            config,
            recipe,
            folder,
            device: device.clone(),
            train_samples: images.len(),
            images,
            threads,
            trained_on: data.trained_on.clone(),
            bad_files: BadFiles::default(),
            state,
        };
        trainer.session.done_before = trainer.done();
        if is_new {
            trainer.checkpoint()?;
        }
        Ok(trainer)
    }

    /// Makes known what the user was told of unreadable images.
    pub fn set_bad_files(&mut self, bad_files: BadFiles) {
        self.bad_files = bad_files;
    }

    /// What the user was told of unreadable images.
    pub fn bad_files(&self) -> BadFiles {
        self.bad_files.clone()
    }

    /// Where the run stands.
    pub fn progress(&self) -> &Progress {
        &self.state.progress
    }

    /// Trains until the run ends or the user stops it. `again` gives the start once more, for another attempt.
    ///
    /// # Errors
    /// When the loss is no longer a number, too many images are unreadable, or the disk refuses.
    pub fn run(&mut self, again: &dyn Fn() -> Result<Start>) -> Result<Outcome> {
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
                self.finish()?;
                return Ok(Outcome::StoppedEarly);
            }
        }
        self.finish()?;
        Ok(Outcome::Finished)
    }

    fn finish(&mut self) -> Result<()> {
        if !self.state.progress.finished {
            // A report is that of the whole run, or not there: a finished run without one is given one when it is resumed.
            self.folder.remove_report()?;
            self.state.progress.finished = true;
            self.checkpoint()?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.state.progress.finished || (self.done() >= 1.0 && self.state.progress.batch == 0)
    }

    /// One epoch from where it stands, with validation at its end.
    fn epoch(&mut self) -> Result<Epoch> {
        self.choose_phase()?;
        let (epoch, first_batch) = (self.state.progress.epoch, self.state.progress.batch);
        let seen = (first_batch * self.config.recipe.batch_size).min(self.train_samples);
        let bar = EpochBar::new(epoch + 1, self.train_samples, seen, self.run_clock());
        self.session.begin_epoch();
        let batches = self.train_samples.div_ceil(self.config.recipe.batch_size);
        let (mut waiting_batches, mut waiting_samples) = (0, 0);
        let mut pending = Pending::default();
        let mixed = mixed_batches(&self.config.recipe, epoch, batches, self.session.run_seconds());
        for batch in self.train.epoch_mixing(epoch, first_batch, mixed) {
            let mut batch = batch?;
            self.state.progress.batch += 1;
            note_new(&mut self.state.progress.running.bad, std::mem::take(&mut batch.skipped));
            let last = self.state.progress.batch >= batches;
            if batch.size > 0 {
                waiting_samples += batch.size;
                self.backward(batch, &mut pending);
            }
            waiting_batches += 1;
            if !last && waiting_batches < self.config.recipe.accumulate {
                continue;
            }
            let found = self.update(&mut pending)?;
            let samples = std::mem::take(&mut waiting_samples);
            waiting_batches = 0;
            if bar.is_visible() || pending.losses.len() >= READ_BACK || last {
                self.read_back(&mut pending)?;
                self.show(&bar, samples);
            }
            if let Some(found) = found {
                bar.finish();
                return Ok(Epoch::AtChance(found));
            }
            if !self.after_update(&mut pending)? {
                bar.finish();
                return Ok(Epoch::Interrupted);
            }
            if self.config.recipe.time_seconds.is_some() && self.done() >= 1.0 {
                break;
            }
        }
        self.read_back(&mut pending)?;
        bar.finish();
        self.end_epoch()?;
        Ok(Epoch::Done)
    }

    /// Whether an epoch is easy is decided where it begins, and kept where it is taken up again.
    fn choose_phase(&mut self) -> Result<()> {
        if let (Some(progressive), 0) = (&self.recipe.progressive_learning, self.state.progress.batch) {
            self.state.progress.is_easy = self.attempt_done(self.state.progress.updates) < progressive.until;
        }
        if self.state.progress.is_easy == self.train_is_easy { Ok(()) } else { self.load() }
    }

    /// Makes the batches of training anew, by the present recipe and phase.
    fn load(&mut self) -> Result<()> {
        let (images, is_easy) = (Arc::clone(&self.images), self.state.progress.is_easy);
        self.train = loaders::training(&self.config, images, &self.recipe, self.threads, is_easy)?;
        self.train_preprocessing = loaders::preprocessing(&self.config, is_easy);
        self.train_is_easy = is_easy;
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
        self.state.progress.watch.saw_targets(&batch.targets, classes);
        let targets = Tensor::<2>::from_data(TensorData::new(batch.targets, [batch.size, classes]), &device);
        let result = self.state.learner.backward(&self.recipe, images, targets, seed);
        pending.losses.push(result.loss);
        pending.correct.push(result.correct);
        pending.sizes.push(batch.size);
        self.session.trained_on(batch.size);
    }

    /// One update with the gradients of the batches since the last one, if any of them had images. Says something if the attempt is found
    /// to learn nothing.
    fn update(&mut self, pending: &mut Pending) -> Result<Option<AtChance>> {
        let updates = self.state.progress.updates + 1;
        let rate = learning_rate(&self.recipe, self.attempt_done(updates));
        let of_attempt = self.state.progress.attempt_updates() + 1;
        if !self.state.learner.update(&self.recipe, rate, of_attempt) {
            return Ok(None);
        }
        self.state.progress.updates = updates;
        if !self.state.progress.watch.saw_update(of_attempt) {
            return Ok(None);
        }
        self.read_back(pending)?;
        let moment = Moment {
            updates: of_attempt,
            attempt: self.attempt_done(updates),
            run: self.done(),
            warmup: self.recipe.warmup,
        };
        Ok(self.state.progress.watch.judge(moment))
    }

    /// Adds what the device has computed to the sums of the epoch.
    fn read_back(&mut self, pending: &mut Pending) -> Result<()> {
        let pending = std::mem::take(pending);
        if pending.losses.is_empty() {
            return Ok(());
        }
        let data = Transaction::default()
            .register(Tensor::cat(pending.losses, 0))
            .register(Tensor::cat(pending.correct, 0))
            .execute();
        let [losses, correct]: [TensorData; 2] =
            data.try_into().ok().context("the device gave back too few results")?;
        let running = &mut self.state.progress.running;
        let pairs = losses.iter::<f32>().zip(correct.iter::<i64>()).zip(pending.sizes);
        for ((loss, correct), size) in pairs {
            if !loss.is_finite() {
                return Err(diverged(
                    self.state.progress.epoch + 1,
                    "loss",
                    f64::from(loss),
                    &self.config.recipe,
                ));
            }
            self.state.progress.watch.saw_result(f64::from(loss), correct as u64, size);
            running.loss += f64::from(loss) * size as f64;
            running.correct += correct as u64;
            running.samples += size as u64;
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

    /// Validates, writes the row, the best model and a checkpoint.
    fn end_epoch(&mut self) -> Result<()> {
        let images_per_second = self.session.images_per_second();
        let running = std::mem::take(&mut self.state.progress.running);
        let limit = self.config.recipe.bad_file_limit;
        self.bad_files.judge(limit, Split::Train, &running.bad, self.train_samples)?;
        let start = Instant::now();
        let model = self.state.learner.evaluated();
        let classes = &self.config.classes;
        let predicted =
            evaluate::predict(&model, &self.val, &self.config.preprocessing, classes.len(), &self.device)?;
        self.bad_files.judge(limit, Split::Val, &predicted.bad, self.val.len())?;
        self.session.validated_since(start);
        let metrics = Metrics::compute(&predicted.predictions, classes);
        let (val_loss, val_top1) = (metrics.loss, metrics.top1);
        let (macro_f1, balanced_accuracy) = (Some(metrics.macro_f1), Some(metrics.balanced_accuracy()));
        if !val_loss.is_finite() {
            let epoch = self.state.progress.epoch + 1;
            return Err(diverged(epoch, "validation loss", val_loss, &self.config.recipe));
        }
        let progress = &mut self.state.progress;
        progress.epoch += 1;
        progress.batch = 0;
        let validation = Validation {
            epoch: progress.epoch,
            samples: metrics.samples,
            loss: val_loss,
            top1: val_top1,
            macro_f1,
            balanced_accuracy,
        };
        let metric = self.recipe.metric;
        let before = progress.best.as_ref().map(|kept| best::score(metric, kept));
        progress.highest = progress.highest.or(before);
        let verdict = best::judge(metric, &validation, progress.highest);
        if verdict.is_highest {
            (progress.stale_epochs, progress.highest) = (0, Some(best::score(metric, &validation)));
        } else {
            progress.stale_epochs += 1;
        }
        let is_best = verdict.is_kept;
        if is_best {
            progress.best = Some(validation.clone());
        }
        let row = EpochRow {
            epoch: progress.epoch,
            step: progress.updates,
            seconds: self.session.run_seconds(),
            learning_rate: 0.0,
            train_loss: running.loss / running.samples.max(1) as f64,
            train_top1: Some(running.correct as f64 / running.samples.max(1) as f64),
            val_loss: Some(val_loss),
            val_top1: Some(val_top1),
            images_per_second,
            val_macro_f1: macro_f1,
            val_balanced_accuracy: balanced_accuracy,
        };
        let rate = learning_rate(&self.recipe, self.attempt_done(self.state.progress.updates));
        self.state.progress.history.push(EpochRow { learning_rate: rate, ..row });
        if let Some(row) = self.state.progress.history.last() {
            note!("{}", epoch_line(row, &self.recipe, verdict));
        }
        if is_best {
            self.folder.write_model(&self.card(validation), &model)?;
        }
        self.folder.write_metrics(&self.state.progress.history)?;
        if self.session.is_due_after_epoch() || interrupt::requested() {
            self.checkpoint()?;
        }
        Ok(())
    }

    fn card(&self, validation: Validation) -> ModelCard {
        let config = &self.config;
        let mut card =
            ModelCard::new(config.model.clone(), config.classes.clone(), config.preprocessing.clone());
        card.pretrained.clone_from(&config.pretrained);
        card.data = Some(config.data.clone());
        card.trained_on = Some(self.trained_on.clone());
        card.recipe = Some(self.recipe.clone());
        card.validation = Some(validation);
        card
    }

    fn checkpoint(&mut self) -> Result<()> {
        self.state.progress.seconds = self.session.run_seconds();
        checkpoint::save(self.folder.path(), &self.state)?;
        self.session.saved();
        Ok(())
    }

    /// The share of the run that is done.
    fn done(&self) -> f64 {
        self.length().done(self.state.progress.updates, self.session.run_seconds())
    }

    fn length(&self) -> Length {
        let recipe = &self.config.recipe;
        let batches = self.train_samples.div_ceil(recipe.batch_size);
        Length {
            updates: recipe.epochs.map(|epochs| epochs * batches.div_ceil(recipe.accumulate)),
            seconds: recipe
                .time_seconds
                .map(|seconds| (seconds - self.session.validation_reserve(self.val.len())).max(0.0)),
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
