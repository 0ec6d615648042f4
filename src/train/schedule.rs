//! Schedules of a run: the learning rate, with linear warm-up and cosine decay (Loshchilov & Hutter 2017), and the
//! share of the run in which batches are mixed.

use crate::recipe::Recipe;

/// The length of a run in steps, in seconds, or both; the limit that is reached first ends it.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// Number of steps in all epochs that the recipe asks for (see [`Steps`]).
    pub steps: Option<usize>,
    /// Seconds of training that the time limit allows, without the time for measuring at the end.
    pub seconds: Option<f64>,
}

impl Length {
    /// The share of the run, from 0 to 1, that is done after `steps` steps and `seconds` seconds.
    pub fn done(&self, steps: usize, seconds: f64) -> f64 {
        let [by_place, by_clock] = self.shares((steps, seconds));
        by_place.max(by_clock).min(1.0)
    }

    /// The share, from 0 to 1, of the part of the run that began after `before`, that is done `now`; both are steps and seconds.
    pub fn done_since(&self, before: (usize, f64), now: (usize, f64)) -> f64 {
        let ([place, clock], [from, since]) = (self.shares(now), self.shares(before));
        rest(place, from).max(rest(clock, since))
    }

    /// The share of the steps and the share of the seconds.
    fn shares(&self, (steps, seconds): (usize, f64)) -> [f64; 2] {
        let by_place = self.steps.map_or(0.0, |total| steps as f64 / total.max(1) as f64);
        let by_clock = self.seconds.map_or(0.0, |total| if total > 0.0 { seconds / total } else { 1.0 });
        [by_place, by_clock]
    }
}

/// Conversion of epochs and batches to steps, which measure the position in a run. A step is `accumulate` batches, even
/// if their images were unreadable and no update followed. Actual updates are not counted, because a run with
/// unreadable images would then get more epochs than the recipe asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Batches per epoch.
    pub batches: usize,
    /// Batches whose gradients are averaged for one update.
    pub accumulate: usize,
}

impl Steps {
    /// Steps in `epochs` epochs.
    pub fn of_epochs(self, epochs: usize) -> usize {
        epochs * self.batches.div_ceil(self.accumulate)
    }

    /// Steps before the position after `epoch` whole epochs and `batch` batches of the next one.
    pub fn until(self, epoch: usize, batch: usize) -> usize {
        self.of_epochs(epoch) + batch.div_ceil(self.accumulate)
    }
}

/// Rescales a share of the whole run, `done`, to a share of the part that began at `before`.
fn rest(done: f64, before: f64) -> f64 {
    ((done - before) / (1.0 - before).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
}

/// The learning rate of the last of the first `updates` updates of a run, with which the share `done` (0 to 1) of it is over. The
/// only update of a run has the highest rate, as the first one has in PyTorch and timm without warm-up: the rate at which
/// longer runs end would teach it next to nothing.
pub fn rate_of_update(recipe: &Recipe, updates: usize, done: f64) -> f64 {
    if updates <= 1 && done >= 1.0 { recipe.learning_rate } else { learning_rate(recipe, done) }
}

/// The learning rate at the share `done` (0 to 1) of the run.
fn learning_rate(recipe: &Recipe, done: f64) -> f64 {
    if done < recipe.warmup {
        // Never 0, so that even the first update learns.
        return recipe.learning_rate * (done / recipe.warmup).max(1e-3);
    }
    let rest = ((done - recipe.warmup) / (1.0 - recipe.warmup)).min(1.0);
    let cosine = 0.5 * (1.0 + (std::f64::consts::PI * rest).cos());
    recipe.learning_rate * (recipe.final_learning_rate + (1.0 - recipe.final_learning_rate) * cosine)
}

/// Number of batches, from the beginning of an epoch, that mixup and CutMix may mix. If the recipe states epochs,
/// mixing ends after their share `mix_until`; otherwise all batches may be mixed.
pub fn mixed_batches(recipe: &Recipe, epoch: usize, batches: usize) -> usize {
    let until = recipe.augmentation.mix_until;
    let Some(epochs) = recipe.epochs.filter(|_| until < 1.0) else { return batches };
    let mixed = (until * epochs as f64 - epoch as f64) * batches as f64;
    mixed.round().clamp(0.0, batches as f64) as usize
}

/// Whether mixup and CutMix may mix batches when the share `done` (0 to 1) of the training is over. If the recipe has a time
/// limit, mixing ends after the share `mix_until`; otherwise [`mixed_batches`] decides.
pub fn mixes_after(recipe: &Recipe, done: f64) -> bool {
    let until = recipe.augmentation.mix_until;
    until >= 1.0 || recipe.time_seconds.is_none() || done < until
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_warms_up_and_decays_to_its_final_value() {
        let recipe =
            Recipe { learning_rate: 0.1, final_learning_rate: 0.01, warmup: 0.2, ..Recipe::default() };
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(learning_rate(&recipe, 0.1), 0.05);
        close(learning_rate(&recipe, 0.2), 0.1);
        close(learning_rate(&recipe, 0.6), 0.1 * (0.01 + 0.99 * 0.5));
        close(learning_rate(&recipe, 1.0), 0.001);
        assert!(learning_rate(&recipe, 0.0) > 0.0);
    }

    #[test]
    fn the_only_update_of_a_run_has_the_highest_learning_rate() {
        for warmup in [0.0, 0.2] {
            let recipe = Recipe { learning_rate: 0.1, final_learning_rate: 0.0, warmup, ..Recipe::default() };
            assert_eq!(rate_of_update(&recipe, 1, 1.0), 0.1);
            for (updates, done) in [(1, 0.1), (1, 0.5), (2, 0.5), (2, 1.0)] {
                assert_eq!(rate_of_update(&recipe, updates, done), learning_rate(&recipe, done));
            }
        }
    }

    #[test]
    fn the_rest_of_a_run_is_rescaled_to_0_to_1() {
        assert_eq!([0.25, 0.625, 1.0].map(|done| rest(done, 0.25)), [0.0, 0.5, 1.0]);
        assert_eq!(rest(0.1 + 0.2, 0.0), 0.1 + 0.2);
        assert_eq!(rest(1.0, 1.0), 0.0);
    }

    #[test]
    fn mixing_stops_at_its_share_of_the_run() {
        let recipe = |mix_until, epochs, time_seconds| {
            let augmentation = vitrine_datasets::Augmentation { mix_until, ..Default::default() };
            Recipe { epochs, time_seconds, augmentation, ..Recipe::default() }
        };
        let by_epochs = recipe(0.9, Some(5), None);
        let mixed = |epoch| mixed_batches(&by_epochs, epoch, 10);
        assert_eq!([0, 3, 4, 5].map(mixed), [10, 10, 5, 0]);
        assert_eq!(mixed_batches(&recipe(1.0, Some(5), None), 4, 10), 10);
        let by_clock = recipe(0.5, None, Some(60.0));
        assert_eq!([0.49, 0.5].map(|done| mixes_after(&by_clock, done)), [true, false]);
        assert_eq!(mixed_batches(&by_clock, 7, 10), 10);
        assert!(mixes_after(&by_epochs, 1.0) && mixes_after(&recipe(1.0, None, Some(60.0)), 1.0));
    }

    #[test]
    fn steps_count_batches_even_if_their_images_are_unreadable() {
        let steps = Steps { batches: 5, accumulate: 2 };
        assert_eq!([0, 1, 2, 3, 5].map(|batch| steps.until(2, batch)), [6, 7, 7, 8, 9]);
        assert_eq!((steps.until(3, 0), steps.of_epochs(3)), (9, 9));
    }

    #[test]
    fn the_limit_that_is_reached_first_counts() {
        let both = Length { steps: Some(100), seconds: Some(10.0) };
        assert_eq!(both.done(50, 1.0), 0.5);
        assert_eq!(both.done(10, 9.0), 0.9);
        assert_eq!(Length { steps: None, seconds: Some(0.0) }.done(0, 0.0), 1.0);
        // A probe took five seconds, after which the steps begin.
        let after_probe = |steps, seconds| both.done_since((0, 5.0), (steps, seconds));
        assert_eq!([after_probe(0, 5.0), after_probe(25, 6.0), after_probe(25, 7.5)], [0.0, 0.25, 0.5]);
    }
}
