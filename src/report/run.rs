//! The report of a finished run: its best model measured once more, on pictures that training did not see.

use anyhow::Result;
use burn::module::Module;
use vitrine_datasets::{Dataset, DecodeLimits, Loader, LoaderConfig, Sample, Split};

use super::{Mistake, Report, Thumbnail, render};
use crate::device::FoundDevice;
use crate::evaluate::{Metrics, Predicted, interval, percent, predict, reliability};
use crate::model_file;
use crate::train::{Progress, RunConfig, RunFolder, clock};

/// How many mistakes are shown as pictures,
const MISTAKES: usize = 24;
/// and how large.
const THUMBNAIL: u32 = 128;

/// Measures the best model of `folder` on the test split, or where there is none on the validation split, writes
/// `report.html` and returns the result in a line.
///
/// # Errors
/// When the model cannot be read, no picture can, or the report cannot be written.
pub fn of_run(
    folder: &RunFolder,
    config: &RunConfig,
    dataset: &Dataset,
    progress: &Progress,
    device: &FoundDevice,
) -> Result<String> {
    let (_, model) = model_file::load(&folder.model(), &device.device)?;
    let split = if dataset.test.is_empty() { Split::Val } else { Split::Test };
    let samples = dataset.split(split);
    let loader =
        Loader::new(samples.into(), LoaderConfig::evaluation(&config.preprocessing, config.classes.len()))?;
    let predicted = predict(&model, &loader, &config.preprocessing, config.classes.len(), &device.device)?;
    let metrics = Metrics::compute(&predicted.predictions, &config.classes);
    let (data, name) = (&dataset.info.name, &config.model_name);
    let summary = vec![
        ("Data".to_owned(), format!("{data}, {} classes", config.classes.len())),
        (
            "Pictures".to_owned(),
            format!(
                "{} for training, {} for validation, {} for the test",
                dataset.train.len(),
                dataset.val.len(),
                dataset.test.len()
            ),
        ),
        ("Model".to_owned(), format!("{name}, {} parameters", model.num_params())),
        (
            "Images".to_owned(),
            format!("{} pixels, {} channels", config.model.image_size, config.model.channels),
        ),
        ("Device".to_owned(), format!("{} ({})", device.name, device.hardware())),
        ("Epochs".to_owned(), progress.epoch.to_string()),
        ("Time".to_owned(), progress.history.last().map_or_else(String::new, |row| clock(row.seconds))),
        ("Seed".to_owned(), config.seed.to_string()),
        ("Program".to_owned(), config.program.clone()),
    ];
    let split_name = match split {
        Split::Test => "the test split",
        Split::Val | Split::Train => "the validation split, by which the best epoch was chosen",
    };
    let html = render(&Report {
        title: &format!("{name} on {data}"),
        summary,
        history: &progress.history,
        best_epoch: progress.best.as_ref().map(|best| best.epoch),
        metrics: Some(&metrics),
        split: split_name,
        reliability: &reliability(&predicted.predictions),
        mistakes: &mistakes(&predicted, samples, &config.classes),
        config_toml: &toml::to_string(config)?,
    });
    folder.write_report(&html)?;
    let epoch = progress.best.as_ref().map_or(0, |best| best.epoch);
    Ok(format!(
        "top-1 {} on {split_name} (95 % interval {}, {} pictures), best epoch {epoch}",
        percent(metrics.top1),
        interval(metrics.top1_interval),
        metrics.samples
    ))
}

/// The surest mistakes, as pictures.
fn mistakes(predicted: &Predicted, samples: &[Sample], classes: &[String]) -> Vec<Mistake> {
    let limits = DecodeLimits::default();
    predicted
        .predictions
        .confident_mistakes(MISTAKES)
        .into_iter()
        .filter_map(|mistake| {
            let picture = &samples[predicted.indices[mistake.sample]].picture;
            let image = picture.decode(&limits).ok()?.fit(THUMBNAIL);
            Some(Mistake {
                name: picture.name(),
                truth: classes[mistake.truth].clone(),
                predicted: classes[mistake.predicted].clone(),
                confidence: mistake.confidence,
                image: Thumbnail::new(image.width, image.height, usize::from(image.channels), image.pixels),
            })
        })
        .collect()
}
