//! Typed events of training, evaluation, and downloads, and the sink that receives them.
//!
//! The library never writes to a terminal. Its caller passes an [`EventSink`] that prints, logs, or drops ([`Quiet`])
//! the events. `Display` formats an event as text for people, and `Serialize` as an object for programs.

mod epoch;
#[cfg(test)]
pub(crate) mod testing;

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;
use vitrine_datasets::{BadFile, Split};

use crate::flags::described;
use crate::serialized::shown_path;
use crate::text::{count, printable};

pub use epoch::{EpochEnd, EpochRow, clock};

pub(crate) use epoch::of_all;

/// Receives events, possibly from several threads.
pub trait EventSink: Send + Sync {
    /// Handles one event. An implementation cannot report failure, since the work does not depend on its events.
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
    /// A problem that does not stop the work, such as files that were left out.
    Warning {
        /// The warning, without a prefix.
        message: String,
    },
    /// Information about the work that has no event type of its own.
    Notice {
        /// The text, which may have several lines.
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
    /// The accuracy that a run with default settings may be expected to reach, from a look at some of its images.
    Expectation {
        /// The expected accuracy on new images, from 0 to 1; `None` if no measured run has had such images.
        #[serde(skip_serializing_if = "Option::is_none")]
        top1: Option<f64>,
        /// The accuracy below which one of ten such runs stays...
        #[serde(skip_serializing_if = "Option::is_none")]
        low: Option<f64>,
        /// ... and that which one of ten exceeds.
        #[serde(skip_serializing_if = "Option::is_none")]
        high: Option<f64>,
        /// Number of training images that were looked at.
        images: usize,
        /// Accuracy, from 0 to 1, of a linear classifier of random features for held-out images among these.
        linear_top1: f64,
        /// Its mean cross-entropy, in nats.
        linear_loss: f64,
        /// About the number of epochs of the run.
        epochs: f64,
        /// The expectation in one line.
        message: String,
    },
    /// The folder of a new run was created.
    RunFolder {
        /// The path of the folder, as the user gave it or the program chose it.
        #[serde(serialize_with = "shown_path::serialize")]
        path: PathBuf,
    },
    /// A run of a series (`--seeds`, `--folds`) begins or continues.
    SeriesRun {
        /// The number of the run in the series, from 1.
        number: usize,
        /// The number of runs in the series.
        runs: usize,
        /// The name of the run's folder within that of the series.
        name: String,
    },
    /// Some images of a split cannot be read and are left out.
    UnreadableImages {
        /// The split.
        split: Split,
        /// Number of images that cannot be read.
        unreadable: usize,
        /// Number of images in the split, including the unreadable ones.
        images: usize,
        /// The first unreadable image, with the reason.
        first: BadFile,
    },
    /// An epoch begins, or continues after an interruption.
    EpochStart {
        /// Number of the epoch, from 1.
        epoch: usize,
        /// Number of epochs of the run; `None` if a time limit ends it.
        epochs: Option<usize>,
        /// Number of images in the epoch.
        images: usize,
        /// Number of images of the epoch that were trained on before the interruption.
        seen: usize,
    },
    /// The parameters were updated. Only emitted for a sink that [shows steps](EventSink::shows_steps).
    Step {
        /// Number of the epoch, from 1.
        epoch: usize,
        /// Number of images in this update.
        images: usize,
        /// Mean training loss of the epoch so far.
        loss: f64,
        /// Training images per second in this epoch.
        images_per_second: f64,
        /// Share of the run that is done, from 0 to 1.
        done: f64,
        /// Estimated seconds until the run ends; `None` before an estimate is possible.
        seconds_left: Option<f64>,
        /// Seconds that the whole run may take; `None` without a time limit.
        time_limit: Option<f64>,
    },
    /// The updates of an epoch are done, and validation follows, or they were interrupted.
    UpdatesEnd,
    /// The second phase of progressive learning begins: training images of full size with the whole augmentation.
    FullSize {
        /// Updates done so far.
        updates: usize,
        /// Width of the images in pixels.
        width: usize,
        /// Height of the images in pixels.
        height: usize,
    },
    /// An epoch ended, including its validation.
    EpochEnd(EpochEnd),
    /// Validation will measure only some of the images, because the time limit does not allow for all.
    PartialValidation {
        /// Number of images that are measured.
        measured: usize,
        /// Number of images in the validation split.
        images: usize,
    },
    /// Validation has decided whether training flips images, by whether the model recognizes mirror images as their
    /// class.
    Flips {
        /// Whether training flips images from now on.
        flips: bool,
        /// The decision with the numbers of validation images on which it is based.
        message: String,
    },
    /// Validation has decided about which views of each image the finished model is asked.
    Views {
        /// Whether it is asked about mirror images too.
        mirrored: bool,
        /// Whether it is asked about two shifts of these in place of each.
        shifted: bool,
        /// The decision with the scores on which it is based.
        message: String,
    },
    /// The features of images begin to be computed.
    FeaturesStart {
        /// Number of images.
        images: usize,
    },
    /// The features of more images were computed.
    FeaturesProgress {
        /// Number of images, including unreadable ones.
        images: usize,
    },
    /// No more features are computed for now.
    FeaturesEnd,
    /// The features of the training and validation images are known.
    Features {
        /// Number of images whose features were computed.
        computed: usize,
        /// Number of images whose features were in the cache.
        cached: usize,
    },
    /// An epoch's updates are done, and workers took part.
    Shares {
        /// What each worker has computed.
        workers: Vec<Share>,
        /// The number of micro-batches that the trainer has computed.
        own: usize,
    },
    /// The head was fitted to the features of the training images.
    HeadFitted {
        /// Mean loss on the training images.
        train_loss: f64,
        /// Accuracy on the training images, from 0 to 1.
        train_top1: f64,
        /// Mean loss on the validation images.
        val_loss: f64,
        /// Accuracy on the validation images, from 0 to 1.
        val_top1: f64,
        /// The method, and how it was chosen.
        message: String,
    },
    /// The model predicts no better than chance after a part of the training.
    NotLearning {
        /// The measured accuracy, compared with that of chance.
        message: String,
    },
    /// Training starts over with fresh parameters and a gentler recipe, after [`Event::NotLearning`].
    StartOver {
        /// The new peak learning rate.
        learning_rate: f64,
        /// The recipe's peak learning rate.
        stated_learning_rate: f64,
    },
    /// The run ends because validation has not improved for the number of epochs that the recipe allows.
    EarlyStop {
        /// The metric that was watched.
        metric: String,
        /// Number of epochs without an improvement.
        patience: usize,
    },
    /// The best model of a finished run was measured.
    Result {
        /// The split that was measured.
        split: Split,
        /// Number of images that were measured.
        images: usize,
        /// Accuracy, from 0 to 1.
        top1: f64,
        /// F1 averaged over the classes, from 0 to 1.
        macro_f1: f64,
        /// Mean average precision, from 0 to 1, with several labels an image.
        #[serde(skip_serializing_if = "Option::is_none")]
        mean_average_precision: Option<f64>,
        /// The result in one line.
        message: String,
        /// Reasons to doubt the result or to train further, one paragraph each.
        caveats: Vec<String>,
    },
    /// A download begins.
    DownloadStart {
        /// The name of the file and its origin.
        label: String,
        /// Size of the file in bytes; `None` if the server does not state it.
        bytes: Option<u64>,
    },
    /// Another part of a download was received.
    DownloadProgress {
        /// Number of bytes received so far.
        bytes: u64,
    },
    /// A download ended, or was interrupted.
    DownloadEnd,
    /// The server answers requests from now on.
    Serving {
        /// Address and port.
        address: String,
        /// Number of models.
        models: usize,
    },
    /// The server has answered a request.
    Request {
        /// The address that asked.
        client: String,
        /// The method of HTTP.
        method: String,
        /// The path, without the query.
        path: String,
        /// The status of the answer.
        status: u16,
        /// Time from the header of the request to its answer.
        milliseconds: f64,
    },
}

/// The part of a worker in an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Share {
    /// The worker.
    pub name: String,
    /// The number of micro-batches that it has computed.
    pub micro_batches: usize,
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

    /// Whether the event belongs in a progress bar, and would be noise in a log.
    pub fn is_progress(&self) -> bool {
        matches!(
            self,
            Self::EpochStart { .. }
                | Self::Step { .. }
                | Self::UpdatesEnd
                | Self::FeaturesProgress { .. }
                | Self::FeaturesEnd
                | Self::DownloadProgress { .. }
                | Self::DownloadEnd
        )
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Warning { message } => write!(f, "warning: {message}"),
            Self::Notice { message }
            | Self::Choice { message }
            | Self::Expectation { message, .. }
            | Self::Flips { message, .. }
            | Self::Views { message, .. } => f.write_str(message),
            Self::Data { name, classes, training, validation, test } => {
                write!(
                    f,
                    "data: {name}, {}, {training} training and {validation} validation images",
                    count(*classes, "class")
                )?;
                if *test > 0 { write!(f, ", {test} test images") } else { Ok(()) }
            }
            Self::Shares { workers, own } => {
                let of_workers =
                    workers.iter().map(|share| format!("{} by {}, ", share.micro_batches, share.name));
                write!(f, "micro-batches: {}{own} here", of_workers.collect::<String>())
            }
            Self::RunFolder { path } => write!(f, "run folder: {}", path.display()),
            Self::SeriesRun { number, runs, name } => write!(f, "run {number} of {runs}: {name}"),
            Self::UnreadableImages { split, unreadable, images, first } => {
                let described = described(first);
                write!(f, "warning: {}", unreadable_images(*split, *unreadable, *images, &described))
            }
            Self::EpochStart { epoch, images, .. } => write!(f, "epoch {epoch}: {}", count(*images, "image")),
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
            Self::FeaturesStart { images } => {
                write!(f, "computing the features of {}", count(*images, "image"))
            }
            Self::FeaturesProgress { images } => write!(f, "features of {images} more images"),
            Self::FeaturesEnd => f.write_str("no more features are to be computed"),
            Self::Features { computed, cached } => {
                write!(f, "features: {} computed, {cached} from the cache", count(*computed, "image"))
            }
            Self::HeadFitted { train_loss, train_top1, val_loss, val_top1, message } => write!(
                f,
                "head: {message}\ntrain loss {train_loss:.4}  top-1 {:.2}%  |  val loss {val_loss:.4}  top-1 {:.2}%",
                100.0 * train_top1,
                100.0 * val_top1
            ),
            Self::NotLearning { message } => write!(f, "not learning: {message}"),
            Self::StartOver { learning_rate, stated_learning_rate } => write!(
                f,
                "it starts over for the rest of its length: learning rate {learning_rate:.3e} in place of \
                 {stated_learning_rate:.3e}, and of the augmentation crop and flips alone"
            ),
            Self::EarlyStop { metric, patience } => {
                write!(f, "stopped early: no better validation {metric} for {patience} epochs")
            }
            Self::Result { message, caveats, .. } => {
                f.write_str(message)?;
                caveats.iter().try_for_each(|caveat| write!(f, "\n{caveat}"))
            }
            Self::DownloadStart { label, bytes: None } => write!(f, "downloading {label}"),
            Self::DownloadStart { label, bytes: Some(bytes) } => {
                write!(f, "downloading {label} ({})", indicatif::HumanBytes(*bytes))
            }
            Self::DownloadProgress { bytes } => write!(f, "{} arrived", indicatif::HumanBytes(*bytes)),
            Self::DownloadEnd => f.write_str("the download ended"),
            Self::Serving { address, models: 1 } => write!(f, "serving a model on http://{address}/"),
            Self::Serving { address, models } => write!(f, "serving {models} models on http://{address}/"),
            Self::Request { client, method, path, status, milliseconds } => {
                write!(f, "{client} {method} {} {status} {milliseconds} ms", printable(path))
            }
        }
    }
}

/// The message about images that cannot be read, `unreadable` of `images`. `first` describes the first of them.
fn unreadable_images(split: Split, unreadable: usize, images: usize, first: &str) -> String {
    let verb = if split == Split::Train { "used" } else { "measured" };
    let (adjective, rest) = (adjective(split), images.saturating_sub(unreadable));
    format!(
        "{unreadable} of {images} {adjective} images cannot be read, the first one being {first}; {rest} are {verb}"
    )
}

/// The adjective for the images of a split, as in "training images".
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
        let object = serde_json::to_value(&data).expect("events are serializable");
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
