//! The end of an epoch: validation, the choice of the best model, the metrics file, and a checkpoint.

use std::time::Instant;

use anyhow::Result;
use vitrine_datasets::{BadFile, LoaderConfig, Split};
use vitrine_models::VisionTransformer;

use super::{EpochOutcome, Trainer, diverged};
use crate::evaluate::{Metrics, Predicted};
use crate::events::{EpochEnd, EpochRow, Event};
use crate::model_file::{self, ModelCard, Validation};
use crate::predict::Views;
use crate::recipe::Recipe;
use crate::train::card::card;
use crate::train::measuring::affordable_images;
use crate::train::state::{Kept, Progress, Running};
use crate::train::{best_epoch, flips, interrupt};

impl Trainer<'_> {
    /// Ends an epoch that is over. An attempt that is given up after the last batch has trained all of it, so its model is validated
    /// before another one takes its place.
    pub(super) fn conclude(&mut self, outcome: EpochOutcome) -> Result<EpochOutcome> {
        let is_whole = self.state.progress.batch >= self.steps().batches;
        match outcome {
            EpochOutcome::Done => self.end_epoch()?,
            EpochOutcome::AtChance(_) if is_whole => {
                self.end_epoch()?;
                if !self.state.progress.watch.settled {
                    // The next attempt saves the row with its first state: between both, a resumed run would not start over.
                    return Ok(outcome);
                }
            }
            EpochOutcome::AtChance(_) | EpochOutcome::Interrupted => return Ok(outcome),
        }
        self.save_after_epoch()?;
        Ok(EpochOutcome::Done)
    }

    /// Validates the model, decides whether to keep it, and writes the metrics of the epoch.
    fn end_epoch(&mut self) -> Result<()> {
        let (images_per_second, seen) = (self.session.images_per_second(), self.seen());
        let running = std::mem::take(&mut self.state.progress.running);
        self.judge_bad_files(Split::Train, &running.bad, self.phase.batches.len())?;
        let model = self.state.learner.evaluated();
        let (predicted, metrics) = self.validate(&model)?;
        self.state.progress.watch.add_validation(metrics.errors_above_chance());
        self.judge_flips(&model, &predicted)?;
        self.compare_pixels(&predicted, running.bad.len())?;
        let progress = &mut self.state.progress;
        (progress.epoch, progress.batch) = (progress.epoch + 1, 0);
        let validation = best_epoch::validation(progress.epoch, &metrics);
        let verdict = best_epoch::judge_next(progress, self.phase.recipe.metric(), &validation);
        progress.validated_on = Some(self.validation.loader.len());
        let row = EpochRow {
            step: progress.updates,
            seconds: self.session.run_seconds(),
            learning_rate: progress.learning_rate,
            images_per_second,
            kept: verdict.is_kept,
            ..row(&running, &validation)
        };
        self.record(row, verdict.is_highest && verdict.is_kept, seen);
        if verdict.is_kept {
            self.keep(model, validation, predicted);
        }
        self.folder.write_metrics(&self.state.progress.history)
    }

    /// Saves a checkpoint if one is due or the user asked to stop.
    pub(super) fn save_after_epoch(&mut self) -> Result<()> {
        if self.session.is_checkpoint_due_after_epoch() || self.keeps_first_model() || interrupt::requested()
        {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Whether the next checkpoint writes the first model of the run. It is written at once, so that a run whose first epoch is done
    /// can be used.
    fn keeps_first_model(&self) -> bool {
        self.best.kept.is_some() && !self.folder.model().is_file()
    }

    /// Reports the results of the epoch, in which `seen` images were trained on, and adds them to the history.
    fn record(&mut self, row: EpochRow, best: bool, seen: usize) {
        let (epochs, metric, images) =
            (self.recipe().epochs, self.recipe().metric(), self.phase.batches.len());
        self.emit(Event::EpochEnd(EpochEnd { row: row.clone(), epochs, images, seen, metric, best }));
        self.state.progress.history.push(row);
    }

    /// Records the unreadable files `bad` of a split of `total` images. Returns an error if there are too many.
    fn judge_bad_files(&mut self, split: Split, bad: &[BadFile], total: usize) -> Result<()> {
        let limit = self.phase.recipe.bad_file_limit;
        self.bad_files.judge(limit, split, (bad, total), self.runtime.events)?;
        let loader = match split {
            Split::Train => &self.phase.batches,
            Split::Val | Split::Test => &self.validation.loader,
        };
        self.bad_files.note(loader.samples(), bad, &self.config.limits());
        Ok(())
    }

    /// Restricts validation to as many images as the time limit allows.
    pub(super) fn restrict_validation(&mut self) -> Result<()> {
        let images = self.validation.loader.len();
        let measured =
            affordable_images(images, self.time_limit(), self.session.measured_or_first_per_second());
        if measured < images {
            self.emit(Event::PartialValidation { measured, images: self.validation.len() });
            self.state.progress.validation_images = Some(measured);
            self.validation.restrict(&self.config, measured)?;
        }
        Ok(())
    }

    /// Measures the model on the validation images, or on as many as the time limit allows.
    fn validate(&mut self, model: &VisionTransformer) -> Result<(Predicted, Metrics)> {
        // The subset is chosen once per session, so that the epochs are measured on the same images and compare; with a probe, once
        // per run.
        if !self.session.has_validated() && self.state.progress.probe.is_none() {
            self.restrict_validation()?;
            self.measure_best_again()?;
        }
        let start = Instant::now();
        let predicted = self.validation.predict(model, Views::One)?;
        let images = self.validation.loader.len();
        self.judge_bad_files(Split::Val, &predicted.bad, images)?;
        self.session.validated(images, start, self.runtime.device.is_gpu);
        let metrics = Metrics::compute(&predicted.predictions, &self.config.classes);
        if !metrics.loss.is_finite() {
            let epoch = self.state.progress.epoch + 1;
            return Err(diverged(epoch, "validation loss", metrics.loss, self.recipe()));
        }
        Ok((predicted, metrics))
    }

    /// Measures the best model of the sessions before on the images of this one, if they are others: scores on different images do
    /// not compare.
    fn measure_best_again(&mut self) -> Result<()> {
        let Progress { best, validated_on, .. } = &self.state.progress;
        let (Some(best), Some(before)) = (best, validated_on) else { return Ok(()) };
        if *before == self.validation.loader.len() {
            return Ok(());
        }
        let epoch = best.epoch;
        let (_, model) = model_file::load(&self.folder.model(), &self.runtime.device.device)?;
        let predicted = self.validation.predict(&model, Views::One)?;
        let metrics = Metrics::compute(&predicted.predictions, &self.config.classes);
        let metric = self.recipe().metric();
        let progress = &mut self.state.progress;
        progress.highest = Some(best_epoch::score_of(metric, &metrics));
        progress.best = Some(best_epoch::validation(epoch, &metrics));
        Ok(())
    }

    /// Judges flips by the validation images, once per run, if the recipe has `judge_flips`.
    fn judge_flips(&mut self, model: &VisionTransformer, plain: &Predicted) -> Result<()> {
        let done = self.attempt_done();
        if !self.recipe().judge_flips
            || self.state.progress.flips.is_some()
            || !(flips::JUDGE_FROM..1.0).contains(&done)
        {
            return Ok(());
        }
        let mirrored = self.validation.predict(model, Views::MirrorImage)?;
        let moment = (self.state.progress.epoch + 1, done);
        let verdict = flips::judge(plain, &mirrored, &self.config.classes, moment);
        if let Some(verdict) = &verdict {
            self.emit(Event::Flips { flips: verdict.flips, message: verdict.to_string() });
        }
        self.state.progress.flips = verdict;
        Ok(())
    }

    /// Reports images with equal pixels, once: when all training images have been decoded, or at the end of the run.
    fn compare_pixels(&mut self, predicted: &Predicted, unreadable: usize) -> Result<()> {
        let copies = &self.training.pixel_copies;
        let is_due = copies.is_complete(unreadable) || self.done() >= 1.0;
        if !self.training.hashes_pixels || !is_due {
            return Ok(());
        }
        for remark in copies.remarks(self.validation.loader.samples(), predicted) {
            self.emit(Event::notice(remark));
        }
        self.stop_hashing_pixels()
    }

    /// Turns off the hashing of pixels, after they were compared.
    pub(super) fn stop_hashing_pixels(&mut self) -> Result<()> {
        self.training.hashes_pixels = false;
        let config = LoaderConfig { hash_pixels: false, ..self.phase.batches.config().clone() };
        self.phase.batches = self.phase.batches.reconfigured(config)?;
        self.validation.stop_hashing()
    }

    /// Keeps the model until the next checkpoint writes it, and its predictions for the report.
    fn keep(&mut self, model: VisionTransformer, validation: Validation, predicted: Predicted) {
        let card = self.card(validation.clone());
        self.keep_with(card, model, validation, predicted);
    }

    /// The same for a model with the given card.
    pub(super) fn keep_with(
        &mut self,
        card: ModelCard,
        model: VisionTransformer,
        validation: Validation,
        predicted: Predicted,
    ) {
        self.state.progress.best = Some(validation);
        self.best.kept = Some(Kept { card, model });
        self.best.validated = Some(predicted);
    }

    fn card(&self, validation: Validation) -> ModelCard {
        let recipe = self.recipe();
        let augmentation = match self.phase.kind.flips {
            true => recipe.augmentation.clone(),
            false => recipe.augmentation.without_flips(),
        };
        let recipe = Recipe { augmentation, ..recipe.clone() };
        card(&self.config, &self.training.trained_on, recipe, validation)
    }
}

/// The columns of the metrics file that follow from the training batches and the validation.
fn row(running: &Running, validation: &Validation) -> EpochRow {
    EpochRow {
        train_loss: running.mean_loss(),
        train_top1: Some(running.accuracy()),
        ..best_epoch::row(validation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::Predictions;

    #[test]
    fn a_row_has_the_means_of_the_batches_and_the_metrics_of_the_validation() {
        let mut running = Running::default();
        running.add(1.0, &[0.into(), 0.into()], &[0, 1]);
        running.add(4.0, &[1.into()], &[1]);
        let mut predictions = Predictions::new(2);
        predictions.push(&[0, 1, 1], &[2.0, 0.0, 0.0, 2.0, 2.0, 0.0]);
        let metrics = Metrics::compute(&predictions, &["a".to_owned(), "b".to_owned()]);
        let row = row(&running, &best_epoch::validation(3, &metrics));
        assert_eq!((row.epoch, row.train_loss, row.train_top1), (3, 2.0, Some(2.0 / 3.0)));
        assert_eq!((row.val_loss, row.val_top1), (Some(metrics.loss), Some(2.0 / 3.0)));
        assert_eq!(row.val_balanced_accuracy, Some(0.75), "the mean of the recalls 1 and 1/2");
    }

    #[test]
    fn an_epoch_without_readable_images_has_finite_means() {
        let running = Running::default();
        assert_eq!((running.mean_loss(), running.accuracy()), (0.0, 0.0));
    }
}
