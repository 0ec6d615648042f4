//! Another attempt within a run.

use anyhow::Result;

use super::Trainer;
use crate::output::note;
use crate::train::at_chance::AtChance;
use crate::train::attempt::{self, GivenUp};
use crate::train::checkpoint::Progress;
use crate::train::schedule::rest;
use crate::train::start::Start;

impl Trainer {
    /// Begins another attempt, if there may be one: new weights and a gentler recipe for the rest of the run.
    pub(super) fn begin_again(&mut self, found: AtChance, again: &dyn Fn() -> Result<Start>) -> Result<()> {
        let Progress { epoch, batch, updates, given_up, .. } = &self.state.progress;
        let seconds = self.session.run_seconds();
        let attempt = GivenUp { epoch: *epoch, batch: *batch, updates: *updates, seconds, found };
        note!("not learning: {attempt}");
        let before = given_up.len() + 1;
        let start = if before < attempt::MOST { again().map(Some) } else { Ok(None) };
        let start = start.unwrap_or_else(|error| {
            note!("the weights that the run began with cannot be read again: {error:#}");
            None
        });
        let Some(start) = start else {
            note!(
                "the run goes on as it is; are the labels right, and can the classes be told apart in these images?"
            );
            self.state.progress.watch.settled = true;
            return Ok(());
        };
        self.recipe = attempt::recipe_after(before, &self.config.recipe);
        note!(
            "it starts over for the rest of its length: learning rate {:.3e} in place of {:.3e}, and of the augmentation crop and flips \
             alone",
            self.recipe.learning_rate,
            self.config.recipe.learning_rate,
        );
        self.state.learner = start.learner(&self.config, before, &self.device)?;
        self.load(self.phase_now())?;
        let progress = &mut self.state.progress;
        progress.given_up.push(attempt);
        progress.stale_epochs = 0;
        self.checkpoint()
    }

    /// The share of the present attempt that is done.
    pub(super) fn attempt_done(&self) -> f64 {
        let (length, steps) = (self.length(), self.steps());
        let before = self.state.progress.given_up.last();
        let before =
            before.map_or(0.0, |before| length.done(steps.until(before.epoch, before.batch), before.seconds));
        rest(self.done(), before)
    }
}
