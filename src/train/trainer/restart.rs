//! The restart of a run after an attempt that did not learn.

use anyhow::Result;

use super::Trainer;
use crate::events::Event;
use crate::train::at_chance::{AtChance, ChanceWatch};
use crate::train::initial_state::Start;
use crate::train::restarts::{self, GivenUp};
use crate::train::state::{Progress, Running};

impl Trainer<'_> {
    /// Starts another attempt with new parameters and a gentler recipe. If the maximum number of attempts is reached or
    /// the parameters cannot be loaded, the present attempt continues.
    pub(super) fn start_over(
        &mut self,
        found: AtChance,
        start_again: &dyn Fn() -> Result<Start>,
    ) -> Result<()> {
        let Progress { epoch, batch, updates, given_up, .. } = &self.state.progress;
        let seconds = self.session.run_seconds();
        let attempt = GivenUp { epoch: *epoch, batch: *batch, updates: *updates, seconds, found };
        self.emit(Event::NotLearning { message: attempt.to_string() });
        let attempts = given_up.len() + 1;
        let start = if attempts < restarts::MAX_ATTEMPTS { start_again().map(Some) } else { Ok(None) };
        let start = start.unwrap_or_else(|error| {
            let message = format!("the weights that the run began with cannot be read again: {error:#}");
            self.emit(Event::warning(message));
            None
        });
        let Some(start) = start else {
            self.emit(Event::notice(
                "the run goes on as it is; are the labels right, and can the classes be told apart in these images?",
            ));
            self.state.progress.watch.settled = true;
            return self.save_after_epoch();
        };
        let stated_learning_rate = self.config.recipe.learning_rate;
        self.phase.recipe = restarts::recipe_after(attempts, &self.config.recipe);
        self.emit(Event::StartOver { learning_rate: self.recipe().learning_rate, stated_learning_rate });
        self.state.learner = start.learner(&self.config, attempts, &self.phase.batches, self.runtime)?;
        // What a model that has not learned said of flips.
        let flips = &mut self.state.progress.flips;
        *flips = flips.take().filter(|verdict| verdict.is_sure);
        self.change_phase()?;
        let progress = &mut self.state.progress;
        progress.given_up.push(attempt);
        progress.stale_epochs = 0;
        progress.watch = ChanceWatch::default();
        progress.running = Running { bad: std::mem::take(&mut progress.running.bad), ..Running::default() };
        self.checkpoint()
    }

    /// The share of the present attempt that is done, from 0 to 1. It began after the attempt or the probe before it.
    pub(super) fn attempt_done(&self) -> f64 {
        let (steps, progress) = (self.steps(), &self.state.progress);
        let before = match (progress.given_up.last(), &progress.probe) {
            (Some(before), _) => (steps.until(before.epoch, before.batch), before.seconds),
            (None, Some(_)) => (0, progress.history.first().map_or(0.0, |probe| probe.seconds)),
            (None, None) => return self.done(),
        };
        let now = (steps.until(progress.epoch, progress.batch), self.session.run_seconds());
        self.length().done_since(before, now)
    }
}
