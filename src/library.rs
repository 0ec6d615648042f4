//! The front door for programs: [`train`] and [`evaluate`] with everything that the command line would have chosen.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use vitrine_datasets::{Dataset, DecodeLimits, OpenOptions};

use crate::device::{self, FoundDevice};
use crate::evaluate::{Evaluation, EvaluationSettings, Part, Views};
use crate::output::note;
use crate::run::{FinishedRun, NewRun, PlannedRun, Run};
use crate::train::Overrides;
use crate::{bounds, pretrained, threads};

/// What a training is asked for; the default leaves everything open.
#[derive(Clone, Debug, Default)]
pub struct TrainOptions {
    /// Architecture, recipe, length and whatever else is not to be chosen from the data.
    pub overrides: Overrides,
    /// Weights to start from: a model file, a run folder, another library's file or folder, or `hf:OWNER/NAME`.
    pub pretrained: Option<String>,
    /// Share of the training images kept for validation, where the data set has no validation split: above 0 and below 1. By default a
    /// fifth, or a tenth where it has a test split.
    pub val_fraction: Option<f64>,
    /// Random seed; by default 0.
    pub seed: u64,
    /// Run folder to create; by default the first unused `runs/DATA-MODEL-N`.
    pub output: Option<PathBuf>,
    /// Where to compute, as `--device` names it; by default the best device of this build.
    pub device: Option<String>,
    /// Threads that decode images; by default one for each physical core.
    pub threads: Option<usize>,
}

/// Trains a classifier on a data set, a name or a path as `vitrine train` takes it, and measures it on images that it has not seen.
/// Progress and messages go to standard error.
///
/// # Errors
///
/// As `vitrine train`: the message names the file or the option, and the way out.
///
/// # Examples
///
/// A model for two colors, in a moment:
///
/// ```
/// use vitrine::recipe::LengthArgs;
/// use vitrine::train::Overrides;
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
/// # let photos = photos.to_str().expect("a name");
/// let overrides = Overrides { length: LengthArgs { epochs: Some(2), time: None }, ..Overrides::default() };
/// let options = TrainOptions { overrides, output: Some(place.path().join("run")), ..TrainOptions::default() };
/// let run = vitrine::train(photos, &options)?;
///
/// let classifier = Classifier::load(run.folder.path(), &burn::tensor::Device::default())?;
/// let best = &classifier.predict(&place.path().join("photos/red/0.png"))?[0];
/// println!("{} with {:.0}%", best.label, 100.0 * best.probability);
/// # assert_eq!(best.label, "red");
/// # Ok(())
/// # }
/// ```
pub fn train(data: &str, options: &TrainOptions) -> Result<FinishedRun> {
    let begun = Instant::now();
    let threads = options.threads.unwrap_or_else(threads::by_default);
    ensure!(bounds::THREADS.contain(threads), "threads is {threads}: it must be {}", bounds::THREADS);
    threads::check()?;
    let device = chosen(options.device.as_deref())?;
    let new = NewRun {
        data,
        dataset: opened(data)?,
        data_dir: OpenOptions::default().data_dir,
        max_file_size: None,
        overrides: &options.overrides,
        pretrained: options.pretrained.as_ref().map(|source| pretrained::open(source, false)).transpose()?,
        val_fraction: options.val_fraction,
        seed: options.seed,
        fold: None,
        threads,
        begun,
    };
    let planned = PlannedRun::new(new, &device)?;
    Run::begin(planned, options.output.as_deref(), &device)?.train(&device, threads)
}

/// Measures a model file or the best model of a run on a data set: on its test split if there is one, else on its validation split,
/// else on all of it, without the images that the model was trained on; or on the part that is named.
///
/// # Errors
///
/// As `vitrine evaluate`.
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
    let device = chosen(None)?;
    let settings = EvaluationSettings {
        part,
        views: Views::One,
        batch_size: 64,
        threads: threads::by_default(),
        limits: DecodeLimits::default(),
    };
    Evaluation::new(model, data, || opened(data), &settings, &device)
}

/// The device of this name, or the best one; says so where it may surprise.
fn chosen(name: Option<&str>) -> Result<FoundDevice> {
    let (device, message) = device::select(name)?;
    if let Some(message) = message {
        note!("{message}");
    }
    Ok(device)
}

/// A data set, with what the user should know of it on standard error.
fn opened(data: &str) -> Result<Dataset> {
    let dataset = vitrine_datasets::open(data, &OpenOptions::default())?;
    warn(&dataset);
    Ok(dataset)
}

/// Says what was found next to the images or is odd about them.
pub(crate) fn warn(dataset: &Dataset) {
    for warning in dataset.warnings.iter().cloned().chain(dataset.left_out.faults()) {
        note!("warning: {warning}");
    }
}
