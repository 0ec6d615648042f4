//! What a person sees while a model trains: a bar on a terminal, a line per epoch everywhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::best::Verdict;
use super::history::EpochRow;
use crate::recipe::{Metric, Recipe};

/// The bar of one epoch. It draws on standard error, and only where that is a terminal.
pub struct EpochBar {
    bar: ProgressBar,
    run: RunClock,
}

/// How long a run takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunClock {
    /// Epochs to do, where they end the run.
    pub epochs: Option<usize>,
    /// Seconds that the whole run may take, where the clock ends it.
    pub seconds: Option<f64>,
    /// The share of the run (0 to 1) that was done when this session began.
    pub done_before: f64,
}

impl RunClock {
    /// The time that is left of the run, and with a time limit the limit; `done` of the run (0 to 1) is over after
    /// `elapsed` of this session. Empty before anything can be said.
    fn left(&self, done: f64, elapsed: Duration) -> String {
        let share = done - self.done_before;
        if share <= 0.0 {
            return String::new();
        }
        let left = clock(elapsed.as_secs_f64() * (1.0 - done) / share);
        match self.seconds {
            Some(seconds) => format!("{left} left of {}", clock(seconds)),
            None => format!("{left} left"),
        }
    }
}

impl EpochBar {
    /// A bar for `samples` images of which `seen` are done.
    pub fn new(epoch: usize, samples: usize, seen: usize, run: RunClock) -> Self {
        let bar = ProgressBar::new(samples as u64).with_position(seen as u64);
        let style = "epoch {prefix} {bar:30} {pos}/{len}  {msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("━╸ "));
        }
        bar.set_prefix(of_all(epoch, run.epochs));
        bar.reset_elapsed();
        Self { bar, run }
    }

    /// Whether anybody sees it.
    pub fn is_visible(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Moves on by `samples`; `done` of the run (0 to 1) is over after `elapsed` of this session.
    pub fn advance(&self, samples: usize, loss: f64, images_per_second: f64, done: f64, elapsed: Duration) {
        self.bar.inc(samples as u64);
        let left = self.run.left(done, elapsed);
        self.bar.set_message(format!("loss {loss:.3}  {images_per_second:.0} images/s  {left}"));
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// An epoch's number, of how many.
fn of_all(epoch: usize, epochs: Option<usize>) -> String {
    epochs.map_or_else(|| epoch.to_string(), |epochs| format!("{epoch}/{epochs}"))
}

/// The line that an epoch of a run of this recipe leaves behind.
pub(super) fn epoch_line(row: &EpochRow, recipe: &Recipe, verdict: Verdict) -> String {
    let mark = match verdict {
        Verdict { is_highest: true, .. } => " (best)",
        Verdict { is_kept: true, .. } => " (kept)",
        Verdict { .. } => "",
    };
    format!(
        "epoch {}  train loss {:.4}  top-1 {:.2}%  |  val loss {:.4}  top-1 {:.2}%{}{}  |  {:.0} images/s  {}",
        of_all(row.epoch, recipe.epochs),
        row.train_loss,
        100.0 * row.train_top1.unwrap_or(f64::NAN),
        row.val_loss.unwrap_or(f64::NAN),
        100.0 * row.val_top1.unwrap_or(f64::NAN),
        score(row, recipe.metric),
        mark,
        row.images_per_second,
        clock(row.seconds),
    )
}

/// What chooses the best epoch, where it is not shown anyway.
fn score(row: &EpochRow, metric: Metric) -> String {
    let value = match metric {
        Metric::Accuracy | Metric::Loss => return String::new(),
        Metric::MacroF1 => row.val_macro_f1,
        Metric::BalancedAccuracy => row.val_balanced_accuracy,
    };
    format!("  {metric} {:.2}%", 100.0 * value.unwrap_or(f64::NAN))
}

/// Seconds as `1:02:03`, `2:03` or `3 s`.
pub fn clock(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    let (hours, minutes, rest) = (whole / 3600, whole / 60 % 60, whole % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{rest:02}")
    } else if minutes > 0 {
        format!("{minutes}:{rest:02}")
    } else {
        format!("{rest} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_says_what_is_left_and_of_how_much() {
        let minute = Duration::from_secs(60);
        let by_epochs = RunClock { epochs: Some(4), seconds: None, done_before: 0.0 };
        assert_eq!(by_epochs.left(0.0, minute), "");
        assert_eq!(by_epochs.left(0.25, minute), "3:00 left");
        let by_time = RunClock { epochs: None, seconds: Some(1800.0), done_before: 0.0 };
        assert_eq!(by_time.left(0.1, 3 * minute), "27:00 left of 30:00");
        let resumed = RunClock { done_before: 0.5, ..by_time };
        assert_eq!(resumed.left(0.75, 7 * minute), "7:00 left of 30:00");
        assert_eq!((of_all(3, Some(7)), of_all(3, None)), ("3/7".to_owned(), "3".to_owned()));
    }
}
