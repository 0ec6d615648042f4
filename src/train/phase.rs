//! The phases of a run: what its images go through changes with the share of the run that is done, within an epoch, too.

use super::flips::FlipVerdict;
use super::schedule::mixes_after;
use crate::recipe::Recipe;

/// What the images of training go through at a moment of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    /// Whether images are small and lightly augmented: the first part of `progressive_learning`.
    pub(super) is_easy: bool,
    /// Whether images are mirrored, where the recipe mirrors them.
    pub(super) flips: bool,
    /// Whether the clock still allows mixup and CutMix.
    pub(super) mixes: bool,
}

impl Phase {
    /// The phase of the next update: after the share `done` of the attempt and `seconds` of the run, by what is known of flips.
    pub(super) fn at(recipe: &Recipe, done: f64, seconds: f64, flips: Option<&FlipVerdict>) -> Self {
        let is_easy =
            recipe.progressive_learning.as_ref().is_some_and(|progressive| done < progressive.until);
        let flips = !recipe.judge_flips || flips.is_some_and(|verdict| verdict.flips);
        Self { is_easy, flips, mixes: mixes_after(recipe, seconds) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::ProgressiveLearning;
    use vitrine_datasets::Augmentation;

    fn verdict(flips: bool) -> FlipVerdict {
        FlipVerdict { epoch: 1, flips, is_sure: true, recognized: 9, lost: 0, gained: 0, classes: Vec::new() }
    }

    #[test]
    fn phases_end_at_their_share_of_the_run_wherever_an_epoch_is() {
        let progressive_learning = Some(ProgressiveLearning { until: 0.4, scale: 0.5 });
        let augmentation = Augmentation { mix_until: 0.5, ..Augmentation::none() };
        let recipe =
            Recipe { progressive_learning, augmentation, time_seconds: Some(10.0), ..Recipe::default() };
        let at = |done: f64| {
            let Phase { is_easy, flips, mixes } = Phase::at(&recipe, done, 10.0 * done, None);
            assert!(flips, "they are not judged");
            (is_easy, mixes)
        };
        assert_eq!(
            [0.0, 0.39, 0.4, 0.5].map(at),
            [(true, true), (true, true), (false, true), (false, false)]
        );
    }

    #[test]
    fn flips_that_are_judged_wait_for_the_verdict() {
        let judged = Recipe { judge_flips: true, ..Recipe::default() };
        let flips = |verdict: Option<&FlipVerdict>| Phase::at(&judged, 0.5, 0.0, verdict).flips;
        assert_eq!(
            [flips(None), flips(Some(&verdict(false))), flips(Some(&verdict(true)))],
            [false, false, true]
        );
    }
}
