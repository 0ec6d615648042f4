//! The entry points for programs that use vitrine as a library: [`load`], [`train`] and [`evaluate`], with the defaults of the
//! command line.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use vitrine_datasets::{Dataset, DecodeLimits, OpenOptions};
use vitrine_models::ModelConfig;

use crate::device::{self, FoundDevice};
use crate::evaluate::{Evaluation, EvaluationSettings, Part};
use crate::events::{Event, EventSink, Quiet};
use crate::features::FeatureStore;
use crate::flags::size_hint;
use crate::named_model::{self, NamedModel};
use crate::plan::Overrides;
use crate::predict::Classifier;
use crate::run::{FinishedRun, NewRun, PlannedRun, Run};
use crate::run_folder::RunFolder;
use crate::runtime::Runtime;
use crate::{bounds, pretrained, threads};

/// The options of [`load`].
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// Name of the device, as for `--device`; by default a GPU that works, or else the CPU.
    pub device: Option<String>,
    /// Whether only models are used that are on this machine already.
    pub offline: bool,
}

/// Loads a model as `vitrine classify MODEL` does: a model file, a run folder, another library's weights, `hf:OWNER/NAME`, or the
/// name of a published backbone. A model without a classifier can be asked for embeddings. Nothing is printed;
/// [`load_with_events`] also gives the warnings.
///
/// # Errors
///
/// The same as those of `vitrine classify`, whose message names the file and says what to do.
pub fn load(model: impl AsRef<Path>, options: &LoadOptions) -> Result<Classifier> {
    load_with_events(model, options, &Quiet)
}

/// [`load`], with warnings about what was assumed of another library's weights, and the progress of a download.
///
/// # Errors
///
/// As for [`load`].
pub fn load_with_events(
    model: impl AsRef<Path>,
    options: &LoadOptions,
    events: &dyn EventSink,
) -> Result<Classifier> {
    let (device, notice) = device::select(options.device.as_deref())?;
    events.emit_notice(notice);
    let change = ModelConfig::clone;
    let named = named_model::load(model.as_ref(), options.offline, &device.device, change, events)?;
    named.warn_of_head(events);
    let NamedModel { card, model, .. } = named;
    Ok(Classifier::new(card, model, &device))
}

/// The options of [`train`]. By default, architecture, recipe, and length are chosen from the data.
#[derive(Clone, Debug, Default)]
pub struct TrainOptions {
    /// Values that replace the choices made from the data, such as the architecture, the recipe, and the length.
    pub overrides: Overrides,
    /// Weights to start from: a model file, a run folder, another library's file or folder, or `hf:OWNER/NAME`.
    pub pretrained: Option<String>,
    /// Share of the training images that is kept for validation if the data set has no validation split, above 0 and
    /// below 1. By default 0.2, or 0.1 if the data set has a test split.
    pub val_fraction: Option<f64>,
    /// The character between the labels of an image in a manifest whose images have several labels each.
    pub label_separator: Option<char>,
    /// Random seed; by default 0.
    pub seed: u64,
    /// Run folder to create; by default the first unused `runs/DATA-MODEL-N`.
    pub output: Option<PathBuf>,
    /// Name of the device, as for `--device`; by default a GPU that works, or else the CPU.
    pub device: Option<String>,
    /// Threads that decode images; by default one for each physical core.
    pub threads: Option<usize>,
    /// The folder in which the features of images are kept, if a head is fitted to them: see
    /// [`features::default_folder`](crate::features::default_folder). By default none are kept.
    pub cache: Option<PathBuf>,
}

/// Trains a classifier on a data set, and evaluates it on images that it was not trained on. `data` is a name or a
/// path, as for `vitrine train`. Nothing is printed; [`train_with_events`] reports the progress.
///
/// # Errors
///
/// The same as those of `vitrine train`. The message names the file or the option, and says what to do.
///
/// # Examples
///
/// A model that tells two colors apart:
///
/// ```
/// use vitrine::plan::Overrides;
/// use vitrine::recipe::AskedLength;
/// use vitrine::{Classifier, TrainOptions};
///
/// # fn main() -> anyhow::Result<()> {
/// # let place = tempfile::tempdir()?;
/// # let photos = place.path().join("photos");
/// # for (class, color) in [("red", [200, 30, 30]), ("blue", [30, 30, 200])] {
/// #     std::fs::create_dir_all(photos.join(class))?;
/// #     for number in 0..24u8 {
/// #         let shade = color.map(|value: u8| value - number);
/// #         let image = image::RgbImage::from_pixel(16, 16, image::Rgb(shade));
/// #         image.save(photos.join(class).join(format!("{number}.png")))?;
/// #     }
/// # }
/// # let photos = photos.to_str().expect("the path is UTF-8");
/// let overrides = Overrides { length: AskedLength { epochs: Some(2), seconds: None }, ..Overrides::default() };
/// let options = TrainOptions { overrides, output: Some(place.path().join("run")), ..TrainOptions::default() };
/// let run = vitrine::train(photos, &options)?;
///
/// let classifier = Classifier::load(run.folder.path())?;
/// let best = &classifier.predict(&place.path().join("photos/red/0.png"))?[0];
/// println!("{} with {:.0}%", best.label, 100.0 * best.probability);
/// # assert_eq!(best.label, "red");
/// # Ok(())
/// # }
/// ```
pub fn train(data: &str, options: &TrainOptions) -> Result<FinishedRun> {
    train_with_events(data, options, &Quiet)
}

/// Trains like [`train`], and reports events such as the end of an epoch to `events`.
///
/// # Errors
///
/// The same as those of [`train`].
///
/// # Examples
///
/// The validation accuracy after each epoch:
///
/// ```no_run
/// use vitrine::TrainOptions;
/// use vitrine::events::{Event, EventSink};
///
/// struct Accuracy;
///
/// impl EventSink for Accuracy {
///     fn emit(&self, event: Event) {
///         if let Event::EpochEnd(end) = event {
///             println!("epoch {}: {:?}", end.row.epoch, end.row.val_top1);
///         }
///     }
/// }
///
/// vitrine::train_with_events("photos/", &TrainOptions::default(), &Accuracy)?;
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn train_with_events(data: &str, options: &TrainOptions, events: &dyn EventSink) -> Result<FinishedRun> {
    let begun = Instant::now();
    let threads = options.threads.unwrap_or_else(threads::by_default);
    ensure!(bounds::THREADS.contain(threads), "threads is {threads}: it must be {}", bounds::THREADS);
    RunFolder::check_output(options.output.as_deref(), data)?;
    threads::check()?;
    let device = select_device(options.device.as_deref(), events)?;
    let store = options.cache.as_deref().map(|cache| FeatureStore::new(cache, FeatureStore::LIMIT));
    let runtime = Runtime { device: &device, threads, events, cache: store.as_ref(), workers: None };
    let new = NewRun {
        data,
        dataset: open_dataset(data, options.label_separator, events)?,
        data_dir: OpenOptions::default().data_dir,
        max_file_size: None,
        label_separator: options.label_separator,
        overrides: &options.overrides,
        pretrained: options
            .pretrained
            .as_ref()
            .map(|source| pretrained::open(source, false, events))
            .transpose()?,
        val_fraction: options.val_fraction,
        seed: options.seed,
        fold: None,
        begun,
    };
    let planned = PlannedRun::new(new, runtime)?;
    Run::begin(planned, options.output.as_deref(), runtime)?.train(runtime)
}

/// Evaluates a model, as [`load`] takes it, on the named part of a data set. If `part` is `None`,
/// that is the test split if there is one, or else the validation split, or else the whole data set, and images that
/// the model was trained on are left out.
///
/// # Errors
///
/// The same as those of `vitrine evaluate`.
///
/// # Examples
///
/// ```no_run
/// let evaluation = vitrine::evaluate("runs/shapes-vit_pico_patch4_32-1".as_ref(), "shapes", None)?;
/// println!("{:.1}% of {} images", 100.0 * evaluation.metrics.top1, evaluation.metrics.samples);
/// # Ok::<(), anyhow::Error>(())
/// ```
pub fn evaluate(model: &Path, data: &str, part: Option<Part>) -> Result<Evaluation> {
    threads::check()?;
    let device = select_device(None, &Quiet)?;
    let settings = EvaluationSettings { part, views: None, batch_size: 64, limits: DecodeLimits::default() };
    let runtime = Runtime {
        device: &device,
        threads: threads::by_default(),
        events: &Quiet,
        cache: None,
        workers: None,
    };
    let NamedModel { card, model: loaded, .. } =
        named_model::load(model, false, &device.device, ModelConfig::clone, &Quiet)?;
    card.require_classifier(model.display())?;
    Evaluation::new((card, loaded), data, || open_dataset(data, None, &Quiet), &settings, runtime)
}

/// The device of this name, or the default device. A notice reports a default that may be unexpected.
fn select_device(name: Option<&str>, events: &dyn EventSink) -> Result<FoundDevice> {
    let (device, message) = device::select(name)?;
    events.emit_notice(message);
    Ok(device)
}

/// Opens a data set, and reports its warnings as events.
fn open_dataset(data: &str, label_separator: Option<char>, events: &dyn EventSink) -> Result<Dataset> {
    let dataset = vitrine_datasets::open(data, &OpenOptions { label_separator, ..OpenOptions::default() })?;
    emit_warnings(&dataset, events);
    Ok(dataset)
}

/// Reports the warnings of a data set and its unreadable or unsupported files as events.
pub(crate) fn emit_warnings(dataset: &Dataset, events: &dyn EventSink) {
    for warning in dataset.warnings.iter().cloned().chain(dataset.left_out.faults()) {
        events.emit(Event::warning(warning));
    }
    if dataset.left_out.has_too_large() {
        events.emit(Event::notice(size_hint()));
    }
}
