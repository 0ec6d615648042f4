//! What changes over a run: the learning rate, with a linear warm-up and then half a cosine (Loshchilov & Hutter 2017), and mixing.

use crate::recipe::Recipe;

/// How much of a run is done, from 0 to 1: by its place, by the clock, or by whichever is ahead.
#[derive(Clone, Copy, Debug)]
pub struct Length {
    /// Steps of the whole run, where the recipe counts epochs: the updates of all its epochs, if every one of them had an image.
    pub steps: Option<usize>,
    /// Seconds of training, where the recipe has a time budget; measuring at the end is already taken off.
    pub seconds: Option<f64>,
}

impl Length {
    /// The share of the run that is done at the place `steps` and after `seconds` seconds.
    pub fn done(&self, steps: usize, seconds: f64) -> f64 {
        let by_place = self.steps.map_or(0.0, |total| steps as f64 / total.max(1) as f64);
        let by_clock = self.seconds.map_or(0.0, |total| if total > 0.0 { seconds / total } else { 1.0 });
        by_place.max(by_clock).min(1.0)
    }
}

/// How epochs are divided: where a run is, counted in the steps that its updates would be if no image were unreadable and no epoch were
/// cut short by the clock. Counting updates instead would make up for those that were not, with more epochs than were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Batches of an epoch.
    pub batches: usize,
    /// Batches whose gradients are averaged for one update.
    pub accumulate: usize,
}

impl Steps {
    /// Steps of so many epochs.
    pub fn of_epochs(self, epochs: usize) -> usize {
        epochs * self.batches.div_ceil(self.accumulate)
    }

    /// Steps before the place after `batch` batches of the epoch that comes after `epoch` whole ones.
    pub fn until(self, epoch: usize, batch: usize) -> usize {
        self.of_epochs(epoch) + batch.div_ceil(self.accumulate)
    }
}

/// The share of the rest of a run that is done, where the rest began after the share `before` of the whole.
pub fn rest(done: f64, before: f64) -> f64 {
    ((done - before) / (1.0 - before).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0)
}

/// The learning rate when `done` of the run (0 to 1) lies behind.
pub fn learning_rate(recipe: &Recipe, done: f64) -> f64 {
    if done < recipe.warmup {
        // Never 0: the first update already learns, however short the warm-up.
        return recipe.learning_rate * (done / recipe.warmup).max(1e-3);
    }
    let rest = ((done - recipe.warmup) / (1.0 - recipe.warmup)).min(1.0);
    let cosine = 0.5 * (1.0 + (std::f64::consts::PI * rest).cos());
    recipe.learning_rate * (recipe.final_learning_rate + (1.0 - recipe.final_learning_rate) * cosine)
}

/// How many of an epoch's batches, from the first on, are mixed by mixup and CutMix, as far as the number of epochs decides.
pub fn mixed_batches(recipe: &Recipe, epoch: usize, batches: usize) -> usize {
    let until = recipe.augmentation.mix_until;
    let Some(epochs) = recipe.epochs.filter(|_| until < 1.0) else { return batches };
    let mixed = (until * epochs as f64 - epoch as f64) * batches as f64;
    mixed.round().clamp(0.0, batches as f64) as usize
}

/// Whether batches are still mixed after so many seconds, as far as the clock decides.
pub fn mixes_after(recipe: &Recipe, seconds: f64) -> bool {
    let until = recipe.augmentation.mix_until;
    until >= 1.0 || recipe.time_seconds.is_none_or(|total| seconds < until * total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_to_the_peak_and_falls_to_the_last_rate() {
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
    fn the_rest_of_a_run_goes_from_0_to_1_and_that_of_a_whole_run_is_the_run() {
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
        assert_eq!([29.0, 30.0].map(|seconds| mixes_after(&by_clock, seconds)), [true, false]);
        assert_eq!(mixed_batches(&by_clock, 7, 10), 10);
        assert!(mixes_after(&by_epochs, 1e9) && mixes_after(&recipe(1.0, None, Some(60.0)), 60.0));
    }

    #[test]
    fn a_place_in_a_run_does_not_depend_on_what_was_unreadable() {
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
    }
}
