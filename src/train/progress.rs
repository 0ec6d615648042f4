//! What a person sees while a model trains: a bar on a terminal, a line an epoch everywhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::report::EpochRow;

/// The bar of one epoch. It draws on standard error, and only where that is a terminal.
pub struct EpochBar {
    bar: ProgressBar,
    done_before: f64,
}

impl EpochBar {
    /// A bar for `samples` pictures of which `seen` are done; `done_before` of the run (0 to 1) lies behind.
    pub fn new(epoch: usize, samples: usize, seen: usize, done_before: f64) -> Self {
        let bar = ProgressBar::new(samples as u64).with_position(seen as u64);
        let style = "epoch {prefix} {bar:30} {pos}/{len}  {msg}";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style.progress_chars("━╸ "));
        }
        bar.set_prefix(epoch.to_string());
        bar.reset_elapsed();
        Self { bar, done_before }
    }

    /// Whether anybody sees it.
    pub fn is_visible(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Moves on by `samples`; `done` of the run (0 to 1) is over after `elapsed` of this sitting.
    pub fn advance(&self, samples: usize, loss: f64, images_per_second: f64, done: f64, elapsed: Duration) {
        self.bar.inc(samples as u64);
        let share = done - self.done_before;
        let left = if share > 0.0 {
            let seconds = elapsed.as_secs_f64() * (1.0 - done) / share;
            format!("{} left", clock(seconds))
        } else {
            String::new()
        };
        self.bar.set_message(format!("loss {loss:.3}  {images_per_second:.0} images/s  {left}"));
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The line that an epoch leaves behind.
pub fn epoch_line(row: &EpochRow, epochs: Option<usize>, is_best: bool) -> String {
    let of = epochs.map_or(String::new(), |epochs| format!("/{epochs}"));
    format!(
        "epoch {}{of}  train loss {:.4}  top-1 {:.2}%  |  val loss {:.4}  top-1 {:.2}%{}  |  {:.0} images/s  {}",
        row.epoch,
        row.train_loss,
        100.0 * row.train_top1.unwrap_or(f64::NAN),
        row.val_loss.unwrap_or(f64::NAN),
        100.0 * row.val_top1.unwrap_or(f64::NAN),
        if is_best { " (best)" } else { "" },
        row.images_per_second,
        clock(row.seconds),
    )
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
