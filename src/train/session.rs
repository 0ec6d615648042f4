//! The clocks of a run in this start of the program: how long it has taken, how fast it is, when to save.

use std::time::{Duration, Instant};

/// A checkpoint is written at the end of an epoch when the last one is older than this,
const EPOCH_CHECKPOINT: Duration = Duration::from_secs(10);
/// and within an epoch when it is older than this.
const STEP_CHECKPOINT: Duration = Duration::from_secs(60);

/// What begins anew with every start of the program.
pub(super) struct Session {
    start: Instant,
    /// Seconds of the sessions before.
    seconds_before: f64,
    /// The share of the run (0 to 1) that was done when this session began.
    pub(super) done_before: f64,
    last_checkpoint: Instant,
    /// Images that the last validation measured in a second.
    measured_per_second: Option<f64>,
    epoch_start: Instant,
    epoch_images: u64,
}

impl Session {
    /// One that began at `start`, after `seconds_before` seconds of earlier sessions.
    pub(super) fn new(start: Instant, seconds_before: f64) -> Self {
        let now = Instant::now();
        Self {
            start,
            seconds_before,
            done_before: 0.0,
            last_checkpoint: now,
            measured_per_second: None,
            epoch_start: now,
            epoch_images: 0,
        }
    }

    /// An epoch begins, or goes on where an earlier session left it.
    pub(super) fn begin_epoch(&mut self) {
        (self.epoch_start, self.epoch_images) = (Instant::now(), 0);
    }

    /// So many images were trained on.
    pub(super) fn trained_on(&mut self, images: usize) {
        self.epoch_images += images as u64;
    }

    /// A validation of so many images that began at `start` is done.
    pub(super) fn validated(&mut self, images: usize, start: Instant) {
        self.measured_per_second = Some(images as f64 / start.elapsed().as_secs_f64().max(1e-9));
    }

    /// Whether this session has validated the model.
    pub(super) fn has_validated(&self) -> bool {
        self.measured_per_second.is_some()
    }

    /// The state of the run is saved.
    pub(super) fn saved(&mut self) {
        self.last_checkpoint = Instant::now();
    }

    /// Whether a checkpoint is due between two updates.
    pub(super) fn is_due_within_epoch(&self) -> bool {
        self.last_checkpoint.elapsed() > STEP_CHECKPOINT
    }

    /// Whether a checkpoint is due at the end of an epoch.
    pub(super) fn is_due_after_epoch(&self) -> bool {
        self.last_checkpoint.elapsed() > EPOCH_CHECKPOINT
    }

    /// The time of this session.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Seconds of the whole run, all sessions together.
    pub(super) fn run_seconds(&self) -> f64 {
        self.seconds_before + self.elapsed().as_secs_f64()
    }

    /// Estimated seconds until the run ends, of which the share `done` is over. None before this session has made progress.
    pub(super) fn seconds_left(&self, done: f64) -> Option<f64> {
        let share = done - self.done_before;
        (share > 0.0).then(|| self.elapsed().as_secs_f64() * (1.0 - done) / share)
    }

    /// Training images per second in this epoch.
    pub(super) fn images_per_second(&self) -> f64 {
        self.epoch_images as f64 / self.epoch_start.elapsed().as_secs_f64().max(1e-9)
    }

    /// Images that can be measured in a second: as many as the last validation did, or judged by the training speed. Nothing is known
    /// before the first batch.
    pub(super) fn measured_per_second(&self) -> Option<f64> {
        // A forward pass costs about a third of a training step.
        let by_training = (self.epoch_images > 0).then(|| 2.5 * self.images_per_second());
        self.measured_per_second.or(by_training)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that began so many seconds ago.
    fn begun(seconds: u64, before: f64) -> Session {
        let mut session = Session::new(Instant::now(), before);
        for moment in [&mut session.start, &mut session.last_checkpoint, &mut session.epoch_start] {
            *moment =
                moment.checked_sub(Duration::from_secs(seconds)).expect("the clock has run for so long");
        }
        session
    }

    #[test]
    fn a_run_takes_the_time_of_all_its_sessions() {
        let session = begun(20, 100.0);
        assert!((119.0..200.0).contains(&session.run_seconds()));
        assert!(session.elapsed() >= Duration::from_secs(20));
    }

    #[test]
    fn the_rest_of_a_run_is_estimated_from_this_session() {
        let fresh = begun(60, 0.0);
        assert_eq!(fresh.seconds_left(0.0), None);
        let left =
            |session: &Session, done| session.seconds_left(done).map_or(0.0, |seconds| seconds.round());
        assert_eq!(left(&fresh, 0.25), 180.0);
        let resumed = Session { done_before: 0.5, ..begun(420, 600.0) };
        assert_eq!(left(&resumed, 0.75), 420.0);
    }

    #[test]
    fn checkpoints_are_due_sooner_at_the_end_of_an_epoch() {
        for (age, within, after) in [(0, false, false), (20, false, true), (100, true, true)] {
            let mut session = begun(age, 0.0);
            assert_eq!(
                (session.is_due_within_epoch(), session.is_due_after_epoch()),
                (within, after),
                "{age}"
            );
            session.saved();
            assert!(!session.is_due_after_epoch());
        }
    }

    #[test]
    fn the_speed_of_measuring_is_that_of_the_last_validation_or_judged_by_training() {
        let mut session = begun(10, 0.0);
        assert_eq!(session.measured_per_second(), None, "nothing is known yet");
        session.trained_on(1000); // about 100 images a second, so 250 without a backward pass
        assert!((150.0..=250.0).contains(&session.measured_per_second().unwrap_or(0.0)));
        session
            .validated(3000, Instant::now().checked_sub(Duration::from_secs(2)).expect("the clock has run"));
        assert!((1000.0..=1500.0).contains(&session.measured_per_second().unwrap_or(0.0)));
        session.begin_epoch();
        assert_eq!(session.epoch_images, 0);
    }
}
