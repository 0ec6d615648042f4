//! The beginning of a run that fine-tunes pretrained weights: a probe, from whose head the epochs start.

use std::time::{Duration, Instant};

use anyhow::Result;
use vitrine_models::{VisionTransformer, weights};

use super::Trainer;
use crate::evaluate::percent;
use crate::events::{EpochRow, Event};
use crate::recipe::Freeze;
use crate::train::best_epoch;
use crate::train::card::card;
use crate::train::initial_state::Start;
use crate::train::probing::{Probe, Probing, measured_speed, with_head};

/// The largest share of a run's time for the features of the probe.
const MAX_SHARE: f64 = 0.4;
/// The share of a run's time after which the probe ends.
const PROBE_SHARE: f64 = 0.5;
/// The time of a backward pass through all blocks, in forward passes.
const BACKWARD_PASSES: f64 = 2.0;

impl Trainer<'_> {
    /// Fits the head to the features of the backbone, if the run begins with that and it is not done. Returns false if the
    /// user asked to stop.
    pub(super) fn probe_first(&mut self) -> Result<bool> {
        let Some(probing) = self.probing.take() else { return Ok(true) };
        let model = self.state.learner.evaluated();
        let probing = match self.time_limit() {
            Some(seconds) => self.affordable(&probing, &model, seconds)?,
            None => probing,
        };
        let deadline = self.time_limit().map(|seconds| {
            let left = (PROBE_SHARE * seconds - self.session.run_seconds()).max(0.0);
            Instant::now() + Duration::from_secs_f64(left)
        });
        let probe =
            probing.probe(&model, (&self.config, false, deadline), &mut self.bad_files, self.runtime)?;
        let Some(probe) = probe else {
            self.checkpoint()?;
            return Ok(false);
        };
        let model = with_head(model, &probe.fitted.head)?;
        let start = Start::Pretrained(weights::to_timm(&model));
        self.state.learner = start.learner(&self.config, 0, &self.phase.batches, self.runtime)?;
        let copies = probing.pixel_copies(&probe);
        let remarks = copies.remarks(&probing.validation.samples, &probe.validated.one);
        let is_whole = probing.training.samples.len() == self.phase.batches.len();
        self.record_probe(probe, model)?;
        let is_over = self.ends_with_probe();
        if is_whole || is_over {
            remarks.into_iter().for_each(|remark| self.emit(Event::notice(remark)));
            self.training.pixel_copies = copies;
            self.stop_hashing_pixels()?;
        }
        if is_over {
            self.finish_run()?;
        }
        self.session.begin_training(self.done());
        Ok(true)
    }

    /// The part of the images whose features the time limit of `seconds` seconds allows: all if enough of them are kept.
    fn affordable(&mut self, probing: &Probing, model: &VisionTransformer, seconds: f64) -> Result<Probing> {
        let speed = measured_speed(&probing.training, model, &self.config, self.runtime)?;
        self.session.measured(speed);
        self.restrict_validation()?;
        let images = (MAX_SHARE * seconds * speed) as usize;
        let affordable = [images, self.validation.loader.len()];
        let found = probing.affordable(affordable, model, &self.config, self.runtime)?;
        let ([_, tested], spent) = (self.measured_images(), self.session.run_seconds());
        self.runtime.events.emit_notice(found.shortfall([seconds, spent], [speed, 1.0], tested));
        Ok(found.part)
    }

    /// Writes the result and the model of the probe.
    fn record_probe(&mut self, probe: Probe, model: VisionTransformer) -> Result<()> {
        let metrics = probe.metrics(&self.config.classes);
        let validation = best_epoch::validation(0, &metrics[1]);
        self.emit(probe.event(&metrics));
        let seconds = self.session.run_seconds();
        let progress = &mut self.state.progress;
        progress.history = vec![EpochRow { step: 0, ..probe.row(&metrics, 0, seconds) }];
        progress.fitted = Some(probe.description());
        progress.probe = Some(validation.clone());
        // Training begins above chance, and where it fails the probe is kept.
        progress.watch.settled = true;
        let recipe = self.config.recipe.fitting_head();
        let card = card(&self.config, &self.training.trained_on, recipe, validation.clone());
        self.keep_with(card, model, validation, probe.validated.one);
        self.folder.write_metrics(&self.state.progress.history)?;
        self.checkpoint()
    }

    /// Whether the probe is the result, because the time left does not pay for one epoch. A notice then says so.
    fn ends_with_probe(&self) -> bool {
        let (Some(seconds), Some(speed)) = (self.length().seconds, self.session.measured_per_second()) else {
            return false;
        };
        let left = (seconds - self.session.run_seconds()).max(0.0);
        let learning = match self.recipe().freeze {
            None => 1.0,
            Some(Freeze::Backbone) => 0.0,
            Some(Freeze::Blocks(frozen)) => 1.0 - frozen as f64 / self.config.model.depth.sum().max(1) as f64,
        };
        let passes = 1.0 + BACKWARD_PASSES * learning.max(0.0);
        let epochs = left * speed / passes / self.phase.batches.len().max(1) as f64;
        if epochs < 1.0 {
            self.emit(Event::notice(format!(
                "the probe is the result: the time left would pay for {} of an epoch of fine-tuning",
                percent(epochs)
            )));
        }
        epochs < 1.0
    }
}
