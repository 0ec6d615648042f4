//! The clocks of a session, which is one start of the program on a run: elapsed time, speed, and when a checkpoint is
//! due.

use std::time::{Duration, Instant};

/// Age of the last checkpoint above which the end of an epoch writes a new one.
const EPOCH_CHECKPOINT: Duration = Duration::from_secs(10);
/// Age of the last checkpoint above which a new one is written within an epoch.
const STEP_CHECKPOINT: Duration = Duration::from_secs(60);

/// The time of a training step in that of a forward pass: about three, estimated with a margin.
const PASSES_PER_STEP: f64 = 2.5;

/// Times and speeds of one session.
pub(super) struct Session {
    start: Instant,
    /// Seconds that earlier sessions of the run took.
    seconds_before: f64,
    /// The share of the run (0 to 1) that was done when this session began to train...
    done_before: f64,
    /// ... and when that was.
    training_start: Instant,
    last_checkpoint: Instant,
    /// Images per second in the last validation.
    measured_per_second: Option<f64>,
    epoch_start: Instant,
    epoch_images: u64,
    /// The images of the epoch's first batch, and when they were done. It may be slow: memory is allocated, kernels are
    /// compiled or chosen, and files are not in memory yet.
    first_batch: Option<(u64, Instant)>,
}

impl Session {
    /// A session that began at `start`; earlier sessions of the run took `seconds_before` seconds.
    pub(super) fn new(start: Instant, seconds_before: f64) -> Self {
        let now = Instant::now();
        Self {
            start,
            seconds_before,
            done_before: 0.0,
            training_start: start,
            last_checkpoint: now,
            measured_per_second: None,
            epoch_start: now,
            epoch_images: 0,
            first_batch: None,
        }
    }

    /// Notes that training goes on from the share `done` (0 to 1) of the run.
    pub(super) fn begin_training(&mut self, done: f64) {
        (self.done_before, self.training_start) = (done, Instant::now());
    }

    /// Restarts the clock of the epoch, when an epoch begins or a session resumes one.
    pub(super) fn begin_epoch(&mut self) {
        (self.epoch_start, self.epoch_images, self.first_batch) = (Instant::now(), 0, None);
    }

    /// Adds `images` to the images trained on in this epoch.
    pub(super) fn trained_on(&mut self, images: usize) {
        self.epoch_images += images as u64;
        self.first_batch.get_or_insert_with(|| (images as u64, Instant::now()));
    }

    /// Records the speed of a validation of `images` images that began at `start` and has just ended. The slowest counts: later ones
    /// find their images decoded, unlike the measurements for which the speed is needed. On a GPU it is the last, as the first one
    /// compiles kernels.
    pub(super) fn validated(&mut self, images: usize, start: Instant, is_gpu: bool) {
        let speed = images as f64 / start.elapsed().as_secs_f64().max(1e-9);
        let slowest = self.measured_per_second.filter(|_| !is_gpu);
        self.measured_per_second = Some(slowest.map_or(speed, |slowest| slowest.min(speed)));
    }

    /// Records a measured speed of forward passes, in images per second.
    pub(super) fn measured(&mut self, per_second: f64) {
        self.measured_per_second = Some(per_second);
    }

    /// Whether this session has validated the model, or knows how fast it would.
    pub(super) fn has_validated(&self) -> bool {
        self.measured_per_second.is_some()
    }

    /// Restarts the clock of checkpoints, after one has been written.
    pub(super) fn saved(&mut self) {
        self.last_checkpoint = Instant::now();
    }

    /// Whether a checkpoint is due between two updates.
    pub(super) fn is_checkpoint_due_within_epoch(&self) -> bool {
        self.last_checkpoint.elapsed() > STEP_CHECKPOINT
    }

    /// Whether a checkpoint is due at the end of an epoch.
    pub(super) fn is_checkpoint_due_after_epoch(&self) -> bool {
        self.last_checkpoint.elapsed() > EPOCH_CHECKPOINT
    }

    /// Time since the session began.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Seconds of the run, all sessions together.
    pub(super) fn run_seconds(&self) -> f64 {
        self.seconds_before + self.elapsed().as_secs_f64()
    }

    /// Estimated seconds until the end of the run, of which the share `done` is over. `None` before this session has
    /// made progress.
    pub(super) fn seconds_left(&self, done: f64) -> Option<f64> {
        let share = done - self.done_before;
        (share > 0.0).then(|| self.training_start.elapsed().as_secs_f64() * (1.0 - done) / share)
    }

    /// Training images per second in the part of this epoch that this session has trained.
    pub(super) fn images_per_second(&self) -> f64 {
        self.epoch_images as f64 / self.epoch_start.elapsed().as_secs_f64().max(1e-9)
    }

    /// The same, after the first batch. `None` before the second batch.
    pub(super) fn epoch_speed(&self) -> Option<f64> {
        let (images, done) = self.first_batch?;
        let later = self.epoch_images - images;
        (later > 0).then(|| later as f64 / done.elapsed().as_secs_f64().max(1e-9))
    }

    /// Images per second that measuring is expected to reach: the speed of the slowest validation, or an estimate from the
    /// speed of training after the first batch of the epoch. `None` before the second batch.
    pub(super) fn measured_per_second(&self) -> Option<f64> {
        self.measured_per_second.or(self.epoch_speed().map(|speed| PASSES_PER_STEP * speed))
    }

    /// The same, after a single batch by its speed. `None` before the first batch.
    pub(super) fn measured_or_first_per_second(&self) -> Option<f64> {
        let by_first = (self.epoch_images > 0).then(|| PASSES_PER_STEP * self.images_per_second());
        self.measured_per_second().or(by_first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that began `seconds` seconds ago, after `before` seconds of earlier sessions.
    fn begun(seconds: u64, before: f64) -> Session {
        let mut session = Session::new(Instant::now(), before);
        let Session { start, training_start, last_checkpoint, epoch_start, .. } = &mut session;
        for moment in [start, training_start, last_checkpoint, epoch_start] {
            *moment = moment.checked_sub(Duration::from_secs(seconds)).expect("the machine started earlier");
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
    fn the_remaining_time_is_estimated_from_this_session() {
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
                (session.is_checkpoint_due_within_epoch(), session.is_checkpoint_due_after_epoch()),
                (within, after),
                "{age}"
            );
            session.saved();
            assert!(!session.is_checkpoint_due_after_epoch());
        }
    }

    #[test]
    fn the_measuring_speed_comes_from_the_slowest_validation_or_else_from_training() {
        let mut session = begun(10, 0.0);
        assert_eq!(session.measured_per_second(), None, "there is no speed before the first batch");
        // A slow first batch says little: 2 images per second.
        session.trained_on(20);
        assert_eq!(session.measured_per_second(), None);
        assert!((3.0..=5.0).contains(&session.measured_or_first_per_second().unwrap_or(0.0)));
        // After it, training reaches about 100 images per second, so measuring is estimated at 250.
        let (_, done) = session.first_batch.as_mut().expect("the first batch is done");
        *done = done.checked_sub(Duration::from_secs(10)).expect("the machine started earlier");
        session.trained_on(1000);
        for speed in [session.measured_per_second(), session.measured_or_first_per_second()] {
            assert!((150.0..=250.0).contains(&speed.unwrap_or(0.0)));
        }
        session.validated(
            3000,
            Instant::now().checked_sub(Duration::from_secs(2)).expect("the machine started earlier"),
            false,
        );
        let slowest = session.measured_per_second();
        assert!((1000.0..=1500.0).contains(&slowest.unwrap_or(0.0)));
        session.validated(3000, Instant::now(), false);
        assert_eq!(session.measured_per_second(), slowest, "the images were in the cache");
        session.validated(3000, Instant::now(), true);
        assert!(session.measured_per_second() > slowest, "the kernels are compiled");
        session.begin_epoch();
        assert_eq!(session.epoch_images, 0);
    }
}
