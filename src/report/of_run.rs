//! The report of a finished run: its best model measured once more, on images that training did not see.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use burn::module::Module;
use vitrine_datasets::{Dataset, Sample, Split};

use super::{Mistake, Report, Thumbnail, Verdict, render};
use crate::device::FoundDevice;
use crate::evaluate::{Metrics, Predicted, interval, percent, predict, reliability};
use crate::events::clock;
use crate::model_file;
use crate::predict::Predictor;
use crate::recipe::Metric;
use crate::run_folder::{RunConfig, RunFolder};
use crate::runtime::Runtime;
use crate::train::{Progress, Trained, part};

/// How many mistakes are shown as images,
const MISTAKES: usize = 24;
/// and how large.
const THUMBNAIL: u32 = 128;

/// What a finished run has to say in the end.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The result in a line.
    pub line: String,
    /// What is to be said about it before it is believed.
    pub verdicts: Vec<Verdict>,
}

/// A split of a run's data set, or a part of it, through its best model.
struct Measured {
    samples: Arc<[Sample]>,
    predicted: Predicted,
    metrics: Metrics,
}

/// Measures the best model of `folder` on the validation split, unless training has just done so, and on the test split where there is
/// one, writes `metrics.json` and `report.html` and returns the result: that of the last of these splits.
///
/// # Errors
/// When the model cannot be read, more images cannot than the limit allows, or a file cannot be written.
pub fn of_run(
    (folder, config): (&RunFolder, &RunConfig),
    dataset: &Dataset,
    trained: Trained,
    runtime: Runtime<'_>,
) -> Result<RunReport> {
    let device = runtime.device;
    let Trained { progress, mut bad_files, mut validated, test_images } = trained;
    let (card, model) = model_file::load(&folder.model(), &device.device)?;
    let predictor = Predictor::new(model, card.preprocessing, device).with_limits(config.limits());
    let batch = predictor.largest_batch(config.recipe.batch_size);
    let mut measured = BTreeMap::new();
    for split in [Split::Val, Split::Test] {
        let images = match split {
            Split::Test => test_images,
            Split::Val | Split::Train => progress.validation_images,
        };
        let samples = part(dataset.split(split), images, config.seed);
        if samples.is_empty() {
            continue;
        }
        let predicted = match validated.take() {
            Some(predicted) if split == Split::Val => predicted,
            _ => {
                let threads = rayon::current_num_threads();
                predict(&predictor, &predictor.loader(Arc::clone(&samples), batch, threads)?)?
            }
        };
        let metrics = Metrics::compute(&predicted.predictions, &config.classes);
        measured.insert(split, Measured { samples, predicted, metrics });
    }
    folder.write_results(&measured.iter().map(|(split, of)| (*split, &of.metrics)).collect())?;
    let (split, result) = measured.last_key_value().context("there is no split to measure the model on")?;
    let validation_images = progress.best.as_ref().map_or(0, |best| best.samples);
    let verdicts = Verdict::of(&result.metrics, &progress.history, validation_images, *split != Split::Test);
    let split_name = match split {
        Split::Test => "the test split",
        Split::Val | Split::Train => "the validation split, which was also used to choose the best epoch",
    };
    let title = format!("{} on {}", config.model_name, dataset.info.name);
    let html = render(&Report {
        title: &title,
        summary: summary(config, dataset, &progress, device, predictor.model().num_params()),
        history: &progress.history,
        best_epoch: progress.best.as_ref().map(|best| best.epoch),
        metrics: Some(&result.metrics),
        split: split_name,
        verdicts: &verdicts,
        reliability: &reliability(&result.predicted.predictions),
        mistakes: &mistakes(&result.predicted, &result.samples, config),
        config_toml: &toml::to_string(config)?,
    });
    folder.write_report(&html)?;
    for (split, Measured { samples, predicted, .. }) in &measured {
        let bad = (predicted.bad.as_slice(), samples.len());
        bad_files.judge(config.recipe.bad_file_limit, *split, bad, runtime.events)?;
    }
    let by = match config.recipe.metric {
        Metric::Accuracy => String::new(),
        metric => format!(" by {metric}"),
    };
    let line = format!(
        "top-1 {} on {split_name} (95% interval {}, {}), best epoch {}{by}",
        percent(result.metrics.top1),
        interval(result.metrics.top1_interval),
        counted(result, dataset.split(*split).len()),
        progress.best.as_ref().map_or(0, |best| best.epoch),
    );
    Ok(RunReport { line, verdicts })
}

/// How many images were measured.
fn counted(result: &Measured, all: usize) -> String {
    let images = result.metrics.samples;
    if result.samples.len() < all {
        format!("{images} of {all} images, as the time paid for no more: `vitrine evaluate` measures all")
    } else {
        format!("{images} images")
    }
}

/// The facts of a run, as name and value.
fn summary(
    config: &RunConfig,
    dataset: &Dataset,
    progress: &Progress,
    device: &FoundDevice,
    parameters: usize,
) -> Vec<(String, String)> {
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let (train, val, test) = (dataset.train.len(), dataset.val.len(), dataset.test.len());
    let mut facts = vec![
        fact("Data", format!("{}, {} classes", dataset.info.name, config.classes.len())),
        fact("Images", format!("{train} training, {val} validation, and {test} test images")),
        fact("Model", format!("{}, {parameters} parameters", config.model_name)),
        fact("Input", format!("{} pixels, {} channels", config.model.image_size, config.model.channels)),
        fact("Device", format!("{} ({})", device.name, device.hardware())),
        fact("Epochs", progress.epoch.to_string()),
        fact("Best epoch by", config.recipe.metric.to_string()),
        fact("Time", progress.history.last().map_or_else(String::new, |row| clock(row.seconds))),
        fact("Seed", config.seed.to_string()),
        fact("Program", config.program.clone()),
    ];
    facts.extend(progress.flips.as_ref().map(|verdict| fact("Flips", verdict.in_short())));
    facts.extend(progress.given_up.iter().map(|attempt| fact("Started over", attempt.to_string())));
    facts
}

/// The surest mistakes, as images.
fn mistakes(predicted: &Predicted, samples: &[Sample], config: &RunConfig) -> Vec<Mistake> {
    let (classes, limits) = (&config.classes, &config.limits());
    predicted
        .predictions
        .confident_mistakes(MISTAKES)
        .into_iter()
        .filter_map(|mistake| {
            let source = &samples[predicted.indices[mistake.sample]].source;
            let image = source.decode_for_use(limits).ok()?.fit(THUMBNAIL);
            Some(Mistake {
                name: source.name(),
                truth: classes[mistake.truth].clone(),
                predicted: classes[mistake.predicted].clone(),
                confidence: mistake.confidence,
                image: Thumbnail::new(image.width, image.height, usize::from(image.channels), image.pixels),
            })
        })
        .collect()
}
