//! `vitrine evaluate`: how good a model is on a data set.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use vitrine_datasets::{Dataset, DecodeLimits, Loader, LoaderConfig, Sample, Split};

use super::data::DataArgs;
use super::{DeviceArgs, Status, ThreadArgs, aliases};
use crate::bounds::{self, within};
use crate::evaluate::{Metrics, NOT_FINITE, predict, table};
use crate::model_file::{self, HeldOut, ModelCard};
use crate::output::{note, outln};

/// Measure a model on a data set.
#[derive(Args)]
#[command(after_help = "Example:\n  vitrine evaluate runs/mnist-vit_pico_patch4_28-1 mnist --split test")]
pub(super) struct Evaluate {
    /// Model file or run folder.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Data set: a name or a path, as `vitrine train` takes it.
    #[arg(value_name = "DATA")]
    data: String,
    /// Which part: train, val or test; by default test where there is one, else val.
    #[arg(long, value_name = "SPLIT")]
    split: Option<Split>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Pictures a forward pass.
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true, value_parser = within(bounds::BATCH_SIZE), aliases = aliases::BATCH_SIZE)]
    batch_size: usize,
    /// Share of the training pictures to measure on, where the data set has no validation split; by default those
    /// that were kept from this model's training.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = within(bounds::PART), aliases = aliases::VAL_FRACTION)]
    val_fraction: Option<f64>,
    /// Seed of that choice.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    data_args: DataArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

impl Evaluate {
    pub(super) fn run(&self) -> Result<Status> {
        let threads = self.threads.apply()?;
        let device = self.device.select()?.device;
        let (card, model) = model_file::load(&self.model, &device)?;
        let held_out = card.held_out.unwrap_or(HeldOut { val_fraction: 0.2, seed: 0 });
        let val_fraction = self.val_fraction.unwrap_or(held_out.val_fraction);
        self.data_args.check(&self.data, false)?;
        let dataset = self.data_args.open(&self.data, val_fraction, self.seed.unwrap_or(held_out.seed))?;
        let split = self.split.unwrap_or(if dataset.test.is_empty() { Split::Val } else { Split::Test });
        let samples = align(&dataset, split, &card, &self.data)?;
        let loader = Loader::new(
            samples.clone(),
            LoaderConfig {
                batch_size: self.batch_size,
                seed: 0,
                threads,
                prefetch: 4,
                preprocessing: card.preprocessing.clone(),
                augmentation: None,
                label_smoothing: 0.0,
                classes: card.classes.len(),
                limits: DecodeLimits::default(),
                cache_bytes: 0,
            },
        )?;
        let predicted = predict(&model, &loader, &card.preprocessing, card.classes.len(), &device)?;
        let broken = predicted.predictions.not_finite();
        if let Some(&first) = broken.first() {
            bail!(
                "{}: {NOT_FINITE} (so for {} of {} images)",
                samples[predicted.indices[first]].picture.name(),
                broken.len(),
                predicted.indices.len()
            );
        }
        let metrics = Metrics::compute(&predicted.predictions, &card.classes);
        if self.json {
            outln!("{}", serde_json::to_string(&metrics)?)?;
        } else {
            outln!("{} split of {}, {} pictures\n", split, self.data, metrics.samples)?;
            outln!("{}", table(&metrics))?;
        }
        for bad in &predicted.bad {
            note!("error: {}: {}", bad.name, bad.message);
        }
        Ok(if predicted.bad.is_empty() { Status::Done } else { Status::Partial })
    }
}

/// A split's samples with labels in the order of the model's classes, matched by name.
fn align(dataset: &Dataset, split: Split, card: &ModelCard, data: &str) -> Result<Arc<[Sample]>> {
    let samples = dataset.split(split);
    if samples.is_empty() {
        bail!("--split {split}: `{data}` has no such split");
    }
    let places = dataset
        .info
        .classes
        .iter()
        .map(|class| match card.classes.iter().position(|known| known == class) {
            Some(place) => Ok(place),
            None => bail!(
                "{data}: its class `{class}` is unknown to the model, which has {}",
                card.classes.join(", ")
            ),
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(samples.iter().map(|sample| Sample { label: places[sample.label], ..sample.clone() }).collect())
}
