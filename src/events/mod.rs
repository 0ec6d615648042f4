//! Typed events of long-running work, and the sink that receives them.
//!
//! The library never writes to a terminal: whoever calls it passes an [`EventSink`] and decides whether events are
//! printed, logged, or dropped ([`Quiet`]). `Display` gives the line for people, `Serialize` the object for programs.

mod epoch;

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use vitrine_datasets::{BadFile, Split};

use crate::flags::described;

pub use epoch::{EpochEnd, EpochRow, clock};

pub(crate) use epoch::of_all;

/// Receives events, possibly from several threads.
pub trait EventSink: Send + Sync {
    /// Handles one event. Must not fail: the work goes on whether or not anyone listens.
    fn emit(&self, event: Event);

    /// Whether the sink shows progress within an epoch. Training then reads the loss back after every update and emits
    /// [`Event::Step`]; otherwise it reads it back less often, which keeps a GPU busier.
    fn shows_steps(&self) -> bool {
        false
    }
}

impl dyn EventSink + '_ {
    /// Emits a [warning](Event::Warning), if there is one.
    pub fn emit_warning(&self, message: Option<String>) {
        if let Some(message) = message {
            self.emit(Event::Warning { message });
        }
    }

    /// Emits a [notice](Event::Notice), if there is one.
    pub fn emit_notice(&self, message: Option<String>) {
        if let Some(message) = message {
            self.emit(Event::Notice { message });
        }
    }
}

/// A sink that drops every event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quiet;

impl EventSink for Quiet {
    fn emit(&self, _event: Event) {}
}

/// Something that happened during training, evaluation, or a download.
///
/// Serialized as an object with the kind under `event`, in snake case: `{"event":"step","epoch":1,…}`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// Something the user should know of, such as files that were left out. The work goes on.
    Warning {
        /// The warning, without a prefix.
        message: String,
    },
    /// A fact about the work for which there is no event of its own.
    Notice {
        /// One line, or several.
        message: String,
    },
    /// The data set of a new run was read and split.
    Data {
        /// Name of the data set.
        name: String,
        /// Number of classes.
        classes: usize,
        /// Number of training images.
        training: usize,
        /// Number of validation images.
        validation: usize,
        /// Number of test images; 0 without a test split.
        test: usize,
    },
    /// One setting that the program chose because the user left it open, such as the architecture.
    Choice {
        /// The setting, its value, and the reason.
        message: String,
    },
    /// The folder of a new run was created.
    RunFolder {
        /// Its path, as the user gave it or as it was chosen.
        path: PathBuf,
    },
    /// A run of a series (`--seeds`, `--folds`) begins or continues.
    SeriesRun {
        /// Its number, from 1.
        number: usize,
        /// The number of runs in the series.
        runs: usize,
        /// Its folder within that of the series.
        name: String,
    },
    /// Some images of a split cannot be read and are left out.
    UnreadableImages {
        /// The split.
        split: Split,
        /// How many cannot be read.
        unreadable: usize,
        /// How many the split has, those included.
        images: usize,
        /// The first of them, and why it cannot be read.
        first: BadFile,
    },
    /// An epoch begins, or continues after an interruption.
    EpochStart {
        /// Its number, from 1.
        epoch: usize,
        /// The number of epochs of the run; none where the clock ends it.
        epochs: Option<usize>,
        /// Images in the epoch.
        images: usize,
        /// Images of the epoch that were trained on before the interruption.
        seen: usize,
    },
    /// An update of the parameters. Only emitted for a sink that [shows steps](EventSink::shows_steps).
    Step {
        /// Number of the epoch, from 1.
        epoch: usize,
        /// Images of this update.
        images: usize,
        /// Mean training loss of the epoch so far.
        loss: f64,
        /// Training images per second in this epoch.
        images_per_second: f64,
        /// Share of the run that is done, 0 to 1.
        done: f64,
        /// Estimated seconds until the run ends; none before an estimate is possible.
        seconds_left: Option<f64>,
        /// Seconds that the whole run may take; none without a time limit.
        time_limit: Option<f64>,
    },
    /// The updates of an epoch are done or were interrupted; validation comes next, unless it was an interruption.
    UpdatesEnd,
    /// The images of training become larger and the whole augmentation begins: the second phase of progressive learning.
    FullSize {
        /// Updates done so far.
        updates: usize,
        /// Width of the images in pixels.
        width: usize,
        /// Height of the images in pixels.
        height: usize,
    },
    /// An epoch ended with its validation.
    EpochEnd(EpochEnd),
    /// Validation measures only part of the images, because the time limit does not allow for all.
    PartialValidation {
        /// Images that are measured.
        measured: usize,
        /// Images of the validation split.
        images: usize,
    },
    /// Validation showed whether mirror images keep their class, which decides about flips in training.
    Flips {
        /// Whether training flips images from now on.
        flips: bool,
        /// The decision with its evidence.
        message: String,
    },
    /// Training was no better than chance; the message tells what was measured.
    NotLearning {
        /// The measured and the chance figures.
        message: String,
    },
    /// Training starts over with fresh parameters and a gentler recipe, after [`Event::NotLearning`].
    StartOver {
        /// The new peak learning rate.
        learning_rate: f64,
        /// The recipe's peak learning rate.
        stated_learning_rate: f64,
    },
    /// Validation has not improved for as long as the recipe allows, so the run ends.
    EarlyStop {
        /// The metric that was watched.
        metric: String,
        /// Epochs without an improvement.
        patience: usize,
    },
    /// The best model of a finished run was measured.
    Result {
        /// The result in one line.
        message: String,
        /// Reasons not to trust the result, or not to stop at it, one paragraph each.
        caveats: Vec<String>,
    },
    /// A download begins.
    DownloadStart {
        /// The file and where it is from.
        label: String,
        /// Its length; none where the server does not tell.
        bytes: Option<u64>,
    },
    /// More of a download has arrived.
    DownloadProgress {
        /// Bytes that are there.
        bytes: u64,
    },
    /// A download ended, or was interrupted.
    DownloadEnd,
}

impl Event {
    /// A [warning](Self::Warning).
    pub fn warning(message: impl Into<String>) -> Self {
        Self::Warning { message: message.into() }
    }

    /// A [notice](Self::Notice).
    pub fn notice(message: impl Into<String>) -> Self {
        Self::Notice { message: message.into() }
    }

    /// Whether the event is one of many that a progress bar shows, and that have no line of their own in a log.
    pub fn is_progress(&self) -> bool {
        matches!(
            self,
            Self::EpochStart { .. }
                | Self::Step { .. }
                | Self::UpdatesEnd
                | Self::DownloadProgress { .. }
                | Self::DownloadEnd
        )
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Warning { message } => write!(f, "warning: {message}"),
            Self::Notice { message } | Self::Choice { message } | Self::Flips { message, .. } => {
                f.write_str(message)
            }
            Self::Data { name, classes, training, validation, test } => {
                write!(
                    f,
                    "data: {name}, {classes} classes, {training} training and {validation} validation images"
                )?;
                if *test > 0 { write!(f, ", {test} test images") } else { Ok(()) }
            }
            Self::RunFolder { path } => write!(f, "run folder: {}", path.display()),
            Self::SeriesRun { number, runs, name } => write!(f, "run {number} of {runs}: {name}"),
            Self::UnreadableImages { split, unreadable, images, first } => {
                let verb = if *split == Split::Train { "used" } else { "measured" };
                let rest = images.saturating_sub(*unreadable);
                let adjective = adjective(*split);
                write!(
                    f,
                    "warning: {unreadable} of {images} {adjective} images cannot be read, the first one being {}; \
                     {rest} are {verb}",
                    described(first)
                )
            }
            Self::EpochStart { epoch, images, .. } => write!(f, "epoch {epoch}: {images} images"),
            Self::Step { epoch, loss, done, .. } => {
                write!(f, "epoch {epoch}: loss {loss:.3}, {:.0}% of the run", 100.0 * done)
            }
            Self::UpdatesEnd => f.write_str("the updates of the epoch are done"),
            Self::FullSize { updates, width, height } => {
                write!(
                    f,
                    "after {updates} updates: images of {width}x{height} pixels and the whole augmentation"
                )
            }
            Self::EpochEnd(end) => write!(f, "{end}"),
            Self::PartialValidation { measured, images } => {
                write!(f, "validation: {measured} of {images} images, as the time pays for no more")
            }
            Self::NotLearning { message } => write!(f, "not learning: {message}"),
            Self::StartOver { learning_rate, stated_learning_rate } => write!(
                f,
                "it starts over for the rest of its length: learning rate {learning_rate:.3e} in place of \
                 {stated_learning_rate:.3e}, and of the augmentation crop and flips alone"
            ),
            Self::EarlyStop { metric, patience } => {
                write!(f, "stopped early: no better validation {metric} for {patience} epochs")
            }
            Self::Result { message, caveats } => {
                f.write_str(message)?;
                caveats.iter().try_for_each(|caveat| write!(f, "\n{caveat}"))
            }
            Self::DownloadStart { label, bytes: None } => write!(f, "downloading {label}"),
            Self::DownloadStart { label, bytes: Some(bytes) } => {
                write!(f, "downloading {label} ({})", indicatif::HumanBytes(*bytes))
            }
            Self::DownloadProgress { bytes } => write!(f, "{} arrived", indicatif::HumanBytes(*bytes)),
            Self::DownloadEnd => f.write_str("the download ended"),
        }
    }
}

/// The word for the images of a split in a sentence.
pub(crate) fn adjective(split: Split) -> &'static str {
    match split {
        Split::Train => "training",
        Split::Val => "validation",
        Split::Test => "test",
    }
}

#[cfg(test)]
mod tests {
    use vitrine_datasets::Fault;

    use super::*;

    #[test]
    fn events_are_lines_for_people_and_objects_for_programs() {
        let data = Event::Data { name: "photos".to_owned(), classes: 2, training: 8, validation: 2, test: 0 };
        assert_eq!(data.to_string(), "data: photos, 2 classes, 8 training and 2 validation images");
        let object = serde_json::to_value(&data).expect("it is serializable");
        assert_eq!((&object["event"], &object["training"]), (&"data".into(), &8.into()));
        let bad = Event::UnreadableImages {
            split: Split::Train,
            unreadable: 1,
            images: 20,
            first: BadFile::new("a.png", &Fault::Other("cut short".to_owned())),
        };
        let line = "warning: 1 of 20 training images cannot be read, the first one being a.png: cut short; 19 are used";
        assert_eq!(bad.to_string(), line);
        assert_eq!(Event::warning("careful").to_string(), "warning: careful");
    }
}
