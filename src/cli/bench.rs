//! `vitrine bench`: the speed of training and inference, and the peak memory, of a model on random images.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use burn::module::Module;
use burn::tensor::{Device, Distribution, Tensor};
use clap::Args;
use serde::Serialize;
use vitrine_models::{ModelConfig, VisionTransformer};

use super::console::Log;
use super::{DeviceArgs, Status, ThreadArgs};
use crate::bounds;
use crate::cli::aliases;
use crate::cli::model::named_preset;
use crate::cli::output::{note, outln};
use crate::cli::within::within;
use crate::events::EventSink;
use crate::hub;
use crate::learner::Learner;
use crate::memory::{self, Work};
use crate::model_file;
use crate::named_model::{self, NamedModel};
use crate::plan;
use crate::recipe::{Precision, Recipe};
use crate::usage::usage;

/// Measure training and inference speed on random images.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine bench --model vit_tiny_patch16_224 --batch-size 16 --json\n  vitrine bench --model runs/photos-1"
)]
pub(super) struct Bench {
    /// Preset, TOML file, or model (as `classify` takes it) to measure.
    #[arg(long, value_name = "NAME|FILE|MODEL", default_value = "vit_tiny_patch16_224", aliases = aliases::MODEL)]
    model: String,
    /// Images per step.
    #[arg(long, value_name = "N", default_value_t = 16, allow_negative_numbers = true, value_parser = within(bounds::BATCH_SIZE), aliases = aliases::BATCH_SIZE)]
    batch_size: usize,
    /// Steps to time after warm-up; the median counts.
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true, value_parser = within(bounds::EPOCHS))]
    steps: usize,
    /// Train with gradient checkpointing, to see what it saves.
    #[arg(long, conflicts_with = "inference_only")]
    gradient_checkpointing: bool,
    /// Numbers that products multiply in training: bf16 rounds them to bfloat16.
    #[arg(
        long,
        value_enum,
        value_name = "NAME",
        conflicts_with = "inference_only",
        default_value = "f32",
        hide_default_value = true
    )]
    precision: Precision,
    /// Do not train, which takes more time and memory than inference.
    #[arg(long)]
    inference_only: bool,
    /// Also ask the model with weights of eight bits (`vitrine quantize`), in turn with those of 32.
    #[arg(long)]
    int8: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// The results, as `--json` prints them.
#[derive(Serialize)]
struct Figures {
    model: String,
    device: String,
    batch_size: usize,
    /// The precision of training; absent with `--inference-only`.
    #[serde(skip_serializing_if = "Option::is_none")]
    precision: Option<Precision>,
    /// Number of the model's parameters.
    parameters: usize,
    /// Absent with `--inference-only`.
    #[serde(skip_serializing_if = "Option::is_none")]
    train_images_per_second: Option<f64>,
    infer_images_per_second: f64,
    latency_ms_batch1: f64,
    /// The duration of every timed step in order, which shows whether other programs slowed some steps down.
    step_ms: StepTimes,
    /// The same model with weights of eight bits, with `--int8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    int8: Option<Int8Figures>,
    /// Peak resident memory in MiB; null if the system does not report it.
    peak_rss_mb: Option<f64>,
}

/// The results for weights of eight bits, each measured in turn with weights of 32 bits.
#[derive(Serialize)]
struct Int8Figures {
    infer_images_per_second: f64,
    latency_ms_batch1: f64,
    /// The medians of how many times as fast each step was as the one before it, with weights of 32 bits.
    infer_speedup: f64,
    batch1_speedup: f64,
}

/// Duration of each timed step in milliseconds.
#[derive(Serialize)]
struct StepTimes {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    train: Vec<f64>,
    infer: Vec<f64>,
    infer_batch1: Vec<f64>,
}

/// The model to measure.
struct Measured {
    name: String,
    source: Source,
}

enum Source {
    /// With random weights.
    Architecture(Box<ModelConfig>),
    /// With these weights, which lie in memory as its file has them.
    Stored(Box<VisionTransformer>),
}

impl Measured {
    /// The model that `--model` names, if it passes a check, before which the weights of a model file are not read.
    ///
    /// # Errors
    /// If there is no such model, it does not pass the check, or it cannot be read.
    fn named(
        name: &str,
        device: &Device,
        log: &Log,
        check: impl Fn(&ModelConfig) -> Result<()>,
    ) -> Result<Self> {
        let path = Path::new(name);
        let is_file = named_preset(name).is_none() && path.exists() && !name.ends_with(".toml");
        if !is_file && !hub::is_repository(name) {
            let (name, config, _) = plan::named_model(name)?;
            check(&config)?;
            return Ok(Self { name, source: Source::Architecture(Box::new(config)) });
        }
        let card = model_file::read_card(path).ok();
        if let Some(card) = &card {
            check(&card.model)?;
        }
        let NamedModel { name, model, .. } = named_model::load(path, false, device, ModelConfig::clone, log)?;
        if card.is_none() {
            check(model.config())?;
        }
        Ok(Self { name, source: Source::Stored(Box::new(model)) })
    }

    fn config(&self) -> &ModelConfig {
        match &self.source {
            Source::Architecture(config) => config,
            Source::Stored(model) => model.config(),
        }
    }

    fn is_quantized(&self) -> bool {
        match &self.source {
            Source::Architecture(_) => false,
            Source::Stored(model) => model.is_quantized(),
        }
    }

    /// The model for training on a device with autodiff.
    ///
    /// # Errors
    /// If the configuration is not valid.
    fn training(&self, device: &Device) -> Result<VisionTransformer> {
        Ok(match &self.source {
            Source::Architecture(config) => config.init(device)?,
            Source::Stored(model) => model.as_ref().clone().train(),
        })
    }

    /// The model for inference on a device.
    ///
    /// # Errors
    /// If the configuration is not valid.
    fn inference(self, device: &Device) -> Result<VisionTransformer> {
        let model = match self.source {
            Source::Architecture(config) => config.init(device)?,
            Source::Stored(model) => *model,
        };
        Ok(model.packed())
    }
}

/// Number of steps before the timed ones.
const WARM_UP: usize = 2;

impl Bench {
    pub(super) fn run(&self) -> Result<Status> {
        self.threads.apply()?;
        let log = Log::text();
        let found = self.device.select(&log)?;
        if found.is_gpu && self.threads.threads.is_some() {
            usage!("--threads has no effect on {}: random images need no decoding", found.name);
        }
        found.check_precision(self.precision)?;
        let batch_size = self.batch_size;
        let recipe = Recipe { batch_size, ..self.recipe() };
        let work = match self.inference_only {
            true => Work::Inference(batch_size),
            false => Work::Training(&recipe, batch_size),
        };
        let measured = Measured::named(&self.model, &found.device, &log, |config| {
            (&log as &dyn EventSink).emit_warning(memory::check(config, work, &found)?);
            Ok(())
        })?;
        if self.int8 && measured.is_quantized() {
            usage!(
                "--int8 has no effect for {}, whose weights have eight bits already: leave it out",
                measured.name
            );
        }
        let device = found.device;
        let train = if self.inference_only { Vec::new() } else { self.train(&measured, &device)? };
        let name = measured.name.clone();
        let model = measured.inference(&device)?;
        let config = model.config();
        let infer = self.infer(&model, config, batch_size, &device)?;
        let single = self.infer(&model, config, 1, &device)?;
        let int8 = self.int8.then(|| self.int8_figures(&model, config, &device)).transpose()?;
        let figures = Figures {
            model: name,
            device: found.name,
            batch_size,
            precision: (!self.inference_only).then_some(self.precision),
            parameters: model.num_params(),
            train_images_per_second: (!train.is_empty()).then(|| 1e3 * batch_size as f64 / median(&train)),
            infer_images_per_second: 1e3 * batch_size as f64 / median(&infer),
            latency_ms_batch1: median(&single),
            step_ms: StepTimes { train, infer, infer_batch1: single },
            int8,
            peak_rss_mb: peak_rss_mb(),
        };
        self.print(&figures)
    }

    /// How a model is trained.
    fn recipe(&self) -> Recipe {
        let Self { gradient_checkpointing, precision, .. } = *self;
        Recipe { gradient_checkpointing, precision, ..Recipe::default() }
    }

    fn print(&self, figures: &Figures) -> Result<Status> {
        if self.json {
            outln!("{}", serde_json::to_string(figures)?)?;
            return Ok(Status::Done);
        }
        outln!("{} on {}, batch {}", figures.model, figures.device, figures.batch_size)?;
        let StepTimes { train, infer, infer_batch1 } = &figures.step_ms;
        if let Some(images_per_second) = figures.train_images_per_second {
            outln!("training   {images_per_second:10.1} images/s  ({})", range(train))?;
        }
        outln!("inference  {:10.1} images/s  ({})", figures.infer_images_per_second, range(infer))?;
        outln!("one image  {:10.2} ms        ({})", figures.latency_ms_batch1, range(infer_batch1))?;
        if let Some(int8) = &figures.int8 {
            let Int8Figures { infer_images_per_second, latency_ms_batch1, infer_speedup, batch1_speedup } =
                int8;
            outln!(
                "inference  {infer_images_per_second:10.1} images/s  with weights of 8 bits, {infer_speedup:.2} times as fast"
            )?;
            outln!(
                "one image  {latency_ms_batch1:10.2} ms        with weights of 8 bits, {batch1_speedup:.2} times as fast"
            )?;
        }
        if let Some(memory) = figures.peak_rss_mb {
            outln!("memory     {memory:10.1} MB peak")?;
        }
        Ok(Status::Done)
    }

    /// Durations of training steps (forward pass, loss, backward pass, clipping, AdamW) in milliseconds.
    fn train(&self, measured: &Measured, device: &Device) -> Result<Vec<f64>> {
        let config = measured.config();
        let tracked = device.clone().autodiff();
        let recipe = self.recipe();
        let mut learner = Learner::new(measured.training(&tracked)?, &recipe);
        let images = images(config, self.batch_size, &tracked);
        let classes = config.num_classes;
        let targets = Tensor::<2>::full([self.batch_size, classes], 1.0 / classes as f64, &tracked);
        let mut updates = 0;
        let mut step = || -> Result<()> {
            updates += 1;
            learner.backward(&recipe, images.clone(), targets.clone(), 0);
            learner.update(&recipe, recipe.learning_rate, updates);
            device.sync().context("the device failed")
        };
        times(self.steps, &mut step)
    }

    fn int8_figures(
        &self,
        model: &VisionTransformer,
        config: &ModelConfig,
        device: &Device,
    ) -> Result<Int8Figures> {
        if !vitrine_kernels::multiplies_bytes(device) {
            note!("no products of bytes on this device: weights of 8 bits are multiplied in floating point");
        }
        let rounded = model.clone().quantized();
        let in_turn = |batch| -> Result<(f64, f64)> {
            let images = images(config, batch, device);
            let mut in_turn = [model, &rounded].into_iter().cycle();
            let both = times(2 * self.steps, &mut || {
                let model = in_turn.next().context("a cycle has no end")?;
                let _ = model.forward(images.clone()).into_data();
                Ok(())
            })?;
            let pairs = both.as_chunks::<2>().0;
            let ratios: Vec<f64> = pairs.iter().map(|[exact, rounded]| exact / rounded).collect();
            let rounded: Vec<f64> = pairs.iter().map(|[_, rounded]| *rounded).collect();
            Ok((median(&rounded), median(&ratios)))
        };
        let (infer, infer_speedup) = in_turn(self.batch_size)?;
        let (latency_ms_batch1, batch1_speedup) = in_turn(1)?;
        let infer_images_per_second = 1e3 * self.batch_size as f64 / infer;
        Ok(Int8Figures { infer_images_per_second, latency_ms_batch1, infer_speedup, batch1_speedup })
    }

    /// Durations of forward passes in milliseconds, including the transfer of the logits to the CPU.
    fn infer(
        &self,
        model: &VisionTransformer,
        config: &ModelConfig,
        batch: usize,
        device: &Device,
    ) -> Result<Vec<f64>> {
        let images = images(config, batch, device);
        times(self.steps, &mut || {
            let _ = model.forward(images.clone()).into_data();
            Ok(())
        })
    }
}

fn images(config: &ModelConfig, batch: usize, device: &Device) -> Tensor<4> {
    let size = config.image_size;
    let shape = [batch, config.channels, size.height, size.width];
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

/// Durations of `steps` steps after the warm-up, in milliseconds.
fn times(steps: usize, step: &mut dyn FnMut() -> Result<()>) -> Result<Vec<f64>> {
    for _ in 0..WARM_UP {
        step()?;
    }
    let timed = |_| {
        let start = Instant::now();
        step()?;
        Ok(1e3 * start.elapsed().as_secs_f64())
    };
    (0..steps).map(timed).collect()
}

fn range(times: &[f64]) -> String {
    let fastest = times.iter().copied().fold(f64::INFINITY, f64::min);
    let slowest = times.iter().copied().fold(0.0, f64::max);
    format!("{fastest:.1} to {slowest:.1} ms per step")
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The peak resident memory of this process in MiB; `None` if the system does not report it.
fn peak_rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: f64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kilobytes / 1024.0)
}
