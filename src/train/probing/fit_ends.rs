//! The ends of the parts of a fit of a run with a time limit.

use std::time::{Duration, Instant};

use crate::run_folder::RunConfig;
use crate::train::interrupt;

/// The least share of a run's time that a fit may take, and the least number of seconds.
const MIN_FIT: (f64, f64) = (0.05, 1.0);

/// The ends of the parts of a fit: the choice of a method, the fit to the training images, and that to the validation images, too.
pub(super) struct FitEnds(Option<[Instant; 3]>);

impl FitEnds {
    /// Until `deadline`, but not within less than [`MIN_FIT`]: reading images may take longer than was measured.
    pub(super) fn new(deadline: Option<Instant>, config: &RunConfig) -> Self {
        let now = Instant::now();
        Self(deadline.zip(config.recipe.time_seconds).map(|(deadline, seconds)| {
            let least = (MIN_FIT.0 * seconds).max(MIN_FIT.1);
            let left = deadline.saturating_duration_since(now).as_secs_f64().max(least);
            [0.6, 0.8, 1.0].map(|share| now + Duration::from_secs_f64(share * left))
        }))
    }

    /// Whether each part should end, because its time is over or the user asked to stop.
    pub(super) fn stops(&self) -> [impl Fn() -> bool + Sync; 3] {
        [0, 1, 2].map(|part| {
            let end = self.0.map(|ends| ends[part]);
            move || interrupt::requested() || end.is_some_and(|end| Instant::now() >= end)
        })
    }

    /// Whether the time of the fit to the training images is over.
    pub(super) fn are_over(&self) -> bool {
        self.0.is_some_and(|[_, end, _]| Instant::now() >= end)
    }
}
