//! The end of an epoch: validation, what it says of the model and of mirror images, the row of the history, and what is written.

use std::time::Instant;

use anyhow::Result;
use vitrine_datasets::{LoaderConfig, Split};
use vitrine_models::VisionTransformer;

use super::{Trainer, diverged};
use crate::evaluate::{self, Metrics, Predicted};
use crate::model_file::{ModelCard, Validation};
use crate::output::note;
use crate::recipe::Recipe;
use crate::train::best::{self, Verdict};
use crate::train::checkpoint::{Kept, Running};
use crate::train::history::EpochRow;
use crate::train::measuring::{self, payable};
use crate::train::progress::epoch_line;
use crate::train::schedule::learning_rate;
use crate::train::{flips, interrupt, loaders};

impl Trainer {
    /// Validates, writes the row, and a checkpoint with the best model where one is due.
    pub(super) fn end_epoch(&mut self) -> Result<()> {
        let images_per_second = self.session.images_per_second();
        let learning_rate = learning_rate(&self.recipe, self.attempt_done());
        let running = std::mem::take(&mut self.state.progress.running);
        let limit = self.config.recipe.bad_file_limit;
        self.bad_files.judge(limit, Split::Train, &running.bad, self.train.len())?;
        let model = self.state.learner.evaluated();
        let predicted = self.validate(&model)?;
        let metrics = Metrics::compute(&predicted.predictions, &self.config.classes);
        if !metrics.loss.is_finite() {
            let epoch = self.state.progress.epoch + 1;
            return Err(diverged(epoch, "validation loss", metrics.loss, &self.config.recipe));
        }
        self.state.progress.watch.saw_validation(metrics.errors_above_chance());
        self.judge_flips(&model, &predicted)?;
        self.look_for_copies(&predicted, running.bad.len())?;
        let progress = &mut self.state.progress;
        (progress.epoch, progress.batch) = (progress.epoch + 1, 0);
        let validation = validation(progress.epoch, &metrics);
        let verdict = self.judge(&validation);
        let row = EpochRow {
            epoch: validation.epoch,
            step: self.state.progress.updates,
            seconds: self.session.run_seconds(),
            learning_rate,
            images_per_second,
            kept: verdict.is_kept,
            ..row(&running, &validation)
        };
        note!("{}", epoch_line(&row, &self.recipe, verdict));
        self.state.progress.history.push(row);
        if verdict.is_kept {
            self.keep(model, validation, predicted);
        }
        self.folder.write_metrics(&self.state.progress.history)?;
        if self.session.is_due_after_epoch() || interrupt::requested() {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Measures the model on the validation images, or on as many as the clock pays for.
    fn validate(&mut self, model: &VisionTransformer) -> Result<Predicted> {
        let payable = payable(self.val.len(), self.time(), self.session.measured_per_second());
        // Later epochs are measured on the same images as the first one.
        if payable < self.val.len() && !self.session.has_validated() {
            note!("validation: {payable} of {} images, as the time pays for no more", self.val_images.len());
            self.state.progress.validation_images = Some(payable);
            let part = measuring::part(&self.val_images, Some(payable), self.config.seed);
            self.val = loaders::validation(&self.config, part, self.threads)?;
        }
        let start = Instant::now();
        let (classes, preprocessing) = (self.config.classes.len(), &self.config.preprocessing);
        let predicted = evaluate::predict(model, &self.val, preprocessing, classes, &self.device)?;
        let limit = self.config.recipe.bad_file_limit;
        self.bad_files.judge(limit, Split::Val, &predicted.bad, self.val.len())?;
        self.session.validated(self.val.len(), start);
        Ok(predicted)
    }

    /// Decides about flips once, where the recipe leaves that to the validation images.
    fn judge_flips(&mut self, model: &VisionTransformer, plain: &Predicted) -> Result<()> {
        let done = self.attempt_done();
        let progress = &mut self.state.progress;
        if !self.recipe.judge_flips || progress.flips.is_some() || !(flips::FROM..1.0).contains(&done) {
            return Ok(());
        }
        let (classes, preprocessing) = (&self.config.classes, &self.config.preprocessing);
        let mirrored = evaluate::predict_by(
            |images| model.forward(images.flip([3])),
            &self.val,
            preprocessing,
            classes.len(),
            &self.device,
        )?;
        let moment = (progress.epoch + 1, done);
        progress.flips = flips::judge(&plain.predictions, &mirrored.predictions, classes, moment);
        if let Some(verdict) = &progress.flips {
            note!("{verdict}");
        }
        Ok(())
    }

    /// Says which validation images have the pixels of training images: once, when all of these were seen, or the run is over.
    fn look_for_copies(&mut self, predicted: &Predicted, unreadable: usize) -> Result<()> {
        let is_over = self.done() >= 1.0;
        let Some(copies) = self.pixel_copies.take_if(|copies| copies.is_complete(unreadable) || is_over)
        else {
            return Ok(());
        };
        for remark in copies.remarks(self.train.samples(), self.val.samples(), predicted) {
            note!("{remark}");
        }
        for loader in [&mut self.train, &mut self.val] {
            *loader = loader.reconfigured(LoaderConfig { hash_pixels: false, ..loader.config().clone() })?;
        }
        Ok(())
    }

    /// What the validation is next to those before it.
    fn judge(&mut self, validation: &Validation) -> Verdict {
        let (metric, progress) = (self.recipe.metric, &mut self.state.progress);
        let before = progress.best.as_ref().map(|kept| best::score(metric, kept));
        progress.highest = progress.highest.or(before);
        let verdict = best::judge(metric, validation, progress.highest);
        if verdict.is_highest {
            (progress.stale_epochs, progress.highest) = (0, Some(best::score(metric, validation)));
        } else {
            progress.stale_epochs += 1;
        }
        verdict
    }

    /// Keeps the model for the next checkpoint, and its validation for the report.
    fn keep(&mut self, model: VisionTransformer, validation: Validation, predicted: Predicted) {
        self.state.progress.best = Some(validation.clone());
        self.kept = Some(Kept { card: self.card(validation), model });
        self.validated = Some(predicted);
    }

    fn card(&self, validation: Validation) -> ModelCard {
        let config = &self.config;
        let mut card =
            ModelCard::new(config.model.clone(), config.classes.clone(), config.preprocessing.clone());
        card.pretrained.clone_from(&config.pretrained);
        card.data = Some(config.data.clone());
        card.trained_on = Some(self.trained_on.clone());
        let augmentation = &self.recipe.augmentation;
        let augmentation = if self.phase.flips { augmentation.clone() } else { augmentation.without_flips() };
        card.recipe = Some(Recipe { augmentation, ..self.recipe.clone() });
        card.validation = Some(validation);
        card
    }
}

/// What is kept of the validation after epoch `epoch`.
fn validation(epoch: usize, metrics: &Metrics) -> Validation {
    Validation {
        epoch,
        samples: metrics.samples,
        loss: metrics.loss,
        top1: metrics.top1,
        macro_f1: Some(metrics.macro_f1),
        balanced_accuracy: Some(metrics.balanced_accuracy()),
    }
}

/// What an epoch's batches and its validation say in its row.
fn row(running: &Running, validation: &Validation) -> EpochRow {
    let samples = running.samples.max(1) as f64;
    EpochRow {
        train_loss: running.loss / samples,
        train_top1: Some(running.correct as f64 / samples),
        val_loss: Some(validation.loss),
        val_top1: Some(validation.top1),
        val_macro_f1: validation.macro_f1,
        val_balanced_accuracy: validation.balanced_accuracy,
        ..EpochRow::default()
    }
}
