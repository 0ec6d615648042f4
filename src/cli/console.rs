//! The event sink of the command line, which writes lines and progress bars for people, or one JSON object per line for
//! programs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};

use super::output::{self, note};
use crate::events::{Event, EventSink, clock, of_all};

/// The form of messages on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum LogFormat {
    /// Lines for people, and progress bars on a terminal.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Writes events to standard error.
pub(super) struct Log {
    format: LogFormat,
    /// The current progress bar. It is hidden unless standard error is a terminal.
    bar: Mutex<ProgressBar>,
    /// Whether the results of runs are printed as lines. A command that trains a single run prints its result on
    /// standard output instead.
    shows_results: AtomicBool,
}

impl Log {
    /// A log of this format. With JSON, all other messages of the program are JSON objects from now on, too.
    pub(super) fn new(format: LogFormat, shows_results: bool) -> Self {
        if format == LogFormat::Json {
            output::write_json_messages();
        }
        Self { format, bar: Mutex::new(ProgressBar::hidden()), shows_results: AtomicBool::new(shows_results) }
    }

    /// A log as text, without the results of runs.
    pub(super) fn text() -> Self {
        Self::new(LogFormat::Text, false)
    }

    /// Prints the results of runs as lines from now on.
    pub(super) fn show_results(&self) {
        self.shows_results.store(true, Ordering::Relaxed);
    }

    /// Shows progress events on the bar, and prints all others as lines.
    fn print(&self, event: &Event) {
        let Ok(mut bar) = self.bar.lock() else { return };
        match event {
            Event::EpochStart { epoch, epochs, images, seen } => {
                let style = "epoch {prefix} {bar:30} {pos}/{len}  {msg}";
                *bar = styled(Some(*images as u64), style).with_position(*seen as u64);
                bar.set_prefix(of_all(*epoch, *epochs));
                bar.reset_elapsed();
            }
            Event::Step { images, loss, images_per_second, seconds_left, time_limit, .. } => {
                bar.inc(*images as u64);
                let left = time_left(*seconds_left, *time_limit);
                bar.set_message(format!("loss {loss:.3}  {images_per_second:.0} images/s  {left}"));
            }
            Event::DownloadStart { label, bytes } => {
                let style = "{msg} {bar:30} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left";
                *bar = styled(*bytes, style).with_message(label.clone());
                if bar.is_hidden() {
                    note!("{event}");
                }
            }
            Event::FeaturesStart { images } => {
                *bar = styled(Some(*images as u64), "features {bar:30} {pos}/{len}  {per_sec}  {eta} left");
                if bar.is_hidden() {
                    note!("{event}");
                }
            }
            Event::FeaturesProgress { images } => bar.inc(*images as u64),
            Event::DownloadProgress { bytes } => bar.set_position(*bytes),
            Event::UpdatesEnd | Event::FeaturesEnd | Event::DownloadEnd => bar.finish_and_clear(),
            Event::Result { .. } if !self.shows_results.load(Ordering::Relaxed) => {}
            event => note!("{event}"),
        }
    }
}

impl EventSink for Log {
    fn emit(&self, event: Event) {
        match self.format {
            LogFormat::Text => self.print(&event),
            LogFormat::Json if event.is_progress() => {}
            LogFormat::Json => output::event(&event),
        }
    }

    fn shows_steps(&self) -> bool {
        self.format == LogFormat::Text && self.bar.lock().is_ok_and(|bar| !bar.is_hidden())
    }
}

/// A progress bar with a template of indicatif. Without `length`, the end of the bar is unknown.
fn styled(length: Option<u64>, style: &str) -> ProgressBar {
    let bar = length.map_or_else(ProgressBar::no_length, ProgressBar::new);
    match ProgressStyle::with_template(style) {
        Ok(style) => bar.with_style(style.progress_chars("━╸ ")),
        Err(_) => bar,
    }
}

/// The text for the remaining time, and for the time limit if there is one.
fn time_left(seconds_left: Option<f64>, time_limit: Option<f64>) -> String {
    match (seconds_left.map(clock), time_limit.map(clock)) {
        (None, _) => String::new(),
        (Some(left), None) => format!("{left} left"),
        (Some(left), Some(limit)) => format!("{left} left of {limit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_shows_the_remaining_time_and_the_limit() {
        assert_eq!(time_left(None, Some(60.0)), "");
        assert_eq!(time_left(Some(180.0), None), "3:00 left");
        assert_eq!(time_left(Some(1620.0), Some(1800.0)), "27:00 left of 30:00");
    }
}
