//! The updates of one epoch: takes batches, sums gradients, updates parameters, and reads losses back from the device.

use anyhow::{Context, Result};
use burn::tensor::{Int, Tensor, TensorData, Transaction};
use vitrine_datasets::{BadFile, Batch, Labels};
use vitrine_models::ImageSize;

use super::{EpochOutcome, Trainer, diverged};
use crate::events::Event;
use crate::learner::BatchResult;
use crate::learner::micro_batch::MicroBatch;
use crate::predict::image_tensor;
use crate::seed::{Stream, stream};
use crate::train::at_chance::{AtChance, Moment, dominant_classes};
use crate::train::interrupt;
use crate::train::phase::PhaseKind;
use crate::train::schedule::{mixed_batches, rate_of_update};
use crate::train::state::Progress;

/// Losses are read back from the device after this many batches, or after every update if the event sink shows steps.
const READ_BACK: usize = 16;

/// Results of batches that are still on the device.
#[derive(Default)]
struct Pending {
    losses: Vec<Tensor<1>>,
    answers: Vec<Tensor<1, Int>>,
    /// For each batch, the classes of each image that count as right: the one with the largest target, or its labels if
    /// it may have several.
    right: Vec<Vec<Labels>>,
}

impl Pending {
    fn add(&mut self, BatchResult { loss, answers }: BatchResult) {
        self.losses.push(loss);
        self.answers.push(answers);
    }
}

impl Trainer<'_> {
    /// Trains from the present position to the end of the epoch, then validates. Returns [`EpochOutcome::AtChance`] of a whole epoch
    /// only if the validation images are not recognized either.
    pub(super) fn epoch(&mut self) -> Result<EpochOutcome> {
        let (epoch, images, seen) = (self.state.progress.epoch, self.phase.batches.len(), self.seen());
        self.emit(Event::EpochStart { epoch: epoch + 1, epochs: self.recipe().epochs, images, seen });
        self.session.begin_epoch();
        let mut pending = Pending::default();
        let outcome = loop {
            self.enter_phase()?;
            if let Some(outcome) = self.train_in_phase(&mut pending)? {
                break outcome;
            }
        };
        self.read_back(&mut pending)?;
        self.emit(Event::UpdatesEnd);
        if let Some(shared) = &mut self.shared {
            shared.report(self.runtime.events);
        }
        self.conclude(outcome)
    }

    /// Number of images of the epoch that were trained on so far.
    pub(super) fn seen(&self) -> usize {
        (self.state.progress.batch * self.recipe().batch_size).min(self.phase.batches.len())
    }

    /// Trains until the epoch ends. Returns `None` if another phase begins before that.
    fn train_in_phase(&mut self, pending: &mut Pending) -> Result<Option<EpochOutcome>> {
        let Progress { epoch, batch: first_batch, .. } = self.state.progress;
        let batches = self.steps().batches;
        let (mut waiting_batches, mut waiting_images) = (0, 0);
        let mixed = if self.phase.kind.mixes { mixed_batches(self.recipe(), epoch, batches) } else { 0 };
        for batch in self.phase.batches.epoch_mixing(epoch, first_batch, mixed) {
            waiting_images += self.process(batch?, pending);
            waiting_batches += 1;
            let is_last = self.state.progress.batch >= batches;
            if !is_last && waiting_batches < self.recipe().accumulate {
                continue;
            }
            waiting_batches = 0;
            let found = self.update(pending)?;
            self.report_step(std::mem::take(&mut waiting_images), pending, is_last)?;
            if let Some(found) = found {
                return Ok(Some(EpochOutcome::AtChance(found)));
            }
            if !self.after_update(pending)? {
                return Ok(Some(EpochOutcome::Interrupted));
            }
            if self.time_limit().is_some() && self.done() >= 1.0 {
                break;
            }
            if !is_last && self.phase_now() != self.phase.kind {
                return Ok(None);
            }
        }
        Ok(Some(EpochOutcome::Done))
    }

    /// Adds the gradients of one batch, and records its pixel hashes and unreadable files. Returns its number of
    /// images.
    fn process(&mut self, mut batch: Batch, pending: &mut Pending) -> usize {
        self.state.progress.batch += 1;
        add_new(&mut self.state.progress.running.bad, std::mem::take(&mut batch.skipped));
        self.training.pixel_copies.add(&batch.indices, &batch.pixel_keys);
        let images = batch.size;
        if images > 0 {
            self.backward(batch, pending);
        }
        images
    }

    /// The kind of phase that the next update belongs to.
    pub(super) fn phase_now(&self) -> PhaseKind {
        let flips = self.state.progress.flips.as_ref();
        PhaseKind::at(self.recipe(), self.attempt_done(), self.done(), flips)
    }

    /// Changes the loader if another phase begins.
    fn enter_phase(&mut self) -> Result<()> {
        let (before, now) = (self.phase.kind, self.phase_now());
        if now == before {
            return Ok(());
        }
        self.change_phase()?;
        if before.is_easy && !self.phase.kind.is_easy {
            let [height, width] = self.phase.preprocessing.image_size;
            self.emit(Event::FullSize { updates: self.state.progress.updates, width, height });
        }
        Ok(())
    }

    /// Saves a checkpoint between two updates if one is due or the user asked to stop. Returns false if the user asked
    /// to stop.
    fn after_update(&mut self, pending: &mut Pending) -> Result<bool> {
        let stop = interrupt::requested();
        if stop || self.session.is_checkpoint_due_within_epoch() {
            self.read_back(pending)?;
            self.checkpoint()?;
        }
        Ok(!stop)
    }

    /// Adds the gradients of one batch, summed over its images.
    fn backward(&mut self, batch: Batch, pending: &mut Pending) {
        let progress = &self.state.progress;
        let moment = (progress.epoch as u64) << 32 | progress.batch as u64;
        let seed = stream(self.config.seed, Stream::Dropout, moment);
        let classes = self.config.classes.len();
        let dominant = dominant_classes(&batch.targets, classes);
        self.state.progress.watch.add_targets(&batch.targets, classes, &dominant);
        pending.right.push(match self.config.multi_label {
            true => batch.labels,
            false => dominant.into_iter().map(Labels::from).collect(),
        });
        if let Some(shared) = &mut self.shared {
            let [height, width] = self.phase.preprocessing.image_size;
            let Batch { size, images, targets, .. } = batch;
            let image_size = ImageSize { height, width };
            let batch = MicroBatch { size, image_size, images, targets, seed };
            shared.submit(&self.state.learner, (&self.phase.recipe, &self.config), batch);
            return;
        }
        let device = self.runtime.device.device.clone().autodiff();
        let size = batch.size;
        let images = image_tensor(batch.images, size, &self.phase.preprocessing, &device);
        let targets = Tensor::<2>::from_data(TensorData::new(batch.targets, [size, classes]), &device);
        pending.add(self.state.learner.backward(&self.phase.recipe, images, targets, seed));
        self.session.trained_on(size);
    }

    /// Updates the parameters with the gradients since the last update, unless none of the batches had images. Returns
    /// the comparison with chance if it shows that the attempt does not learn.
    fn update(&mut self, pending: &mut Pending) -> Result<Option<AtChance>> {
        if let Some(shared) = &mut self.shared {
            let results = shared.finish(&mut self.state.learner, self.runtime.events)?;
            self.session.trained_on(results.iter().map(|result| result.answers.dims()[0]).sum());
            results.into_iter().for_each(|result| pending.add(result));
        }
        let recipe = &self.phase.recipe;
        let rate = rate_of_update(recipe, self.state.progress.updates + 1, self.attempt_done());
        let updates = self.state.progress.attempt_updates() + 1;
        if !self.state.learner.update(recipe, rate, updates) {
            return Ok(None);
        }
        let warmup = recipe.warmup;
        self.state.progress.updates += 1;
        self.state.progress.learning_rate = rate;
        let moment = Moment { updates, attempt: self.attempt_done(), run: self.done(), warmup };
        if !self.state.progress.watch.count_update(moment) {
            return Ok(None);
        }
        self.read_back(pending)?;
        Ok(self.state.progress.watch.judge(moment))
    }

    /// Reads pending results back from the device and adds them to the sums of the epoch.
    fn read_back(&mut self, pending: &mut Pending) -> Result<()> {
        let Pending { losses, answers, right } = std::mem::take(pending);
        if losses.is_empty() {
            return Ok(());
        }
        let data = Transaction::default()
            .register(Tensor::cat(losses, 0))
            .register(Tensor::cat(answers, 0))
            .execute();
        let [losses, answers]: [TensorData; 2] =
            data.try_into().ok().context("the device gave back too few results")?;
        let progress = &mut self.state.progress;
        let mut answers = answers.iter::<i64>().map(|answer| answer as usize);
        for (loss, right) in losses.iter::<f32>().map(f64::from).zip(right) {
            if !loss.is_finite() {
                return Err(diverged(progress.epoch + 1, "loss", loss, &self.phase.recipe));
            }
            let answers: Vec<usize> = answers.by_ref().take(right.len()).collect();
            progress.watch.add_results(loss, &right, &answers);
            progress.running.add(loss, &right, &answers);
        }
        Ok(())
    }

    /// Reads pending results back if enough have accumulated, and reports an update of `images` images to a sink that
    /// shows steps.
    fn report_step(&mut self, images: usize, pending: &mut Pending, is_last: bool) -> Result<()> {
        let shows_steps = self.runtime.events.shows_steps();
        if !(shows_steps || pending.losses.len() >= READ_BACK || is_last) {
            return Ok(());
        }
        self.read_back(pending)?;
        if shows_steps {
            let done = self.done();
            self.emit(Event::Step {
                epoch: self.state.progress.epoch + 1,
                images,
                loss: self.state.progress.running.mean_loss(),
                images_per_second: self.session.images_per_second(),
                done,
                seconds_left: self.session.seconds_left(done),
                time_limit: self.time_limit(),
            });
        }
        Ok(())
    }
}

/// Adds the files in `found` that are not known yet. An epoch with balanced sampling draws some images repeatedly.
fn add_new(known: &mut Vec<BadFile>, found: Vec<BadFile>) {
    for bad in found {
        if !known.contains(&bad) {
            known.push(bad);
        }
    }
}
