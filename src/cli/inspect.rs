//! `vitrine inspect`: what a data set, a model file or a preset is.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use burn::module::Module;
use burn::tensor::Device;
use clap::Args;
use serde_json::{Value, json};
use vitrine_datasets::{DecodeLimits, Inspection, Split};
use vitrine_models::{Complexity, ImageSize, ModelConfig, preset};

use super::data::DataArgs;
use super::{Status, ThreadArgs};
use crate::model_file::{self, ModelCard};
use crate::output::{out, outln};

/// Describe a data set (with its faults), a model file, a run folder or a preset.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine inspect photos/\n  vitrine inspect runs/shapes-vit_pico_patch4_32-1\n  \
    vitrine inspect vit_tiny_patch16_224"
)]
pub(super) struct Inspect {
    /// Data set, model file, run folder or preset.
    #[arg(value_name = "DATA|MODEL|PRESET")]
    what: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Share split off for validation, where the data set has no validation split.
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, allow_negative_numbers = true)]
    val_fraction: f64,
    /// Count a preset's costs at this image side in pixels.
    #[arg(long, value_name = "PIXELS")]
    image_size: Option<usize>,
    #[command(flatten)]
    data_args: DataArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

impl Inspect {
    pub(super) fn run(&self) -> Result<Status> {
        self.threads.apply()?;
        let path = Path::new(&self.what);
        if let Some(config) = preset::find(&self.what) {
            return self.preset(config);
        }
        if self.image_size.is_some() {
            bail!("--image-size: this is for presets alone, and {} is none", self.what);
        }
        let is_model = path.extension().is_some_and(|extension| extension == "safetensors")
            || path.join(model_file::FILE_NAME).is_file();
        if is_model {
            return self.model(&model_file::read_card(path)?);
        }
        if !path.exists() && !vitrine_datasets::names().contains(&self.what.as_str()) {
            bail!(
                "{}: neither a file or folder nor a name; names are {} and what `vitrine presets` lists",
                self.what,
                vitrine_datasets::names().join(", ")
            );
        }
        let dataset = self.data_args.open(&self.what, self.val_fraction, 0)?;
        let inspection = vitrine_datasets::inspect(&dataset, &DecodeLimits::default());
        if self.json {
            outln!("{}", serde_json::to_string(&inspection)?)?;
        } else {
            print_data(&inspection)?;
        }
        Ok(if inspection.has_faults() { Status::Partial } else { Status::Done })
    }

    fn preset(&self, mut config: ModelConfig) -> Result<Status> {
        if let Some(side) = self.image_size {
            config.image_size = ImageSize::square(side);
            config.validate().context("--image-size")?;
        }
        let parameters = config.init(&Device::default())?.num_params();
        if self.json {
            outln!("{}", json!({ "model": config, "parameters": parameters, "cost": cost(&config) }))?;
        } else {
            print_summary(&config, parameters)?;
            out!("{}", toml::to_string(&config)?)?;
        }
        Ok(Status::Done)
    }

    fn model(&self, card: &ModelCard) -> Result<Status> {
        let parameters = card.model.init(&Device::default())?.num_params();
        if self.json {
            outln!("{}", json!({ "card": card, "parameters": parameters, "cost": cost(&card.model) }))?;
        } else {
            print_summary(&card.model, parameters)?;
            out!("{}", toml::to_string(card)?)?;
        }
        Ok(Status::Done)
    }
}

/// What a forward pass of one image costs.
fn cost(config: &ModelConfig) -> Value {
    let complexity = Complexity::of(config);
    json!({
        "tokens": config.num_tokens(),
        "multiply_adds": complexity.total(),
        "by_kind": complexity.by_kind().into_iter().collect::<BTreeMap<_, _>>(),
        "attention_map_bytes": complexity.attention_bytes(),
    })
}

fn print_summary(config: &ModelConfig, parameters: usize) -> Result<()> {
    let complexity = Complexity::of(config);
    let total = complexity.total();
    outln!("# {parameters} parameters, {} tokens, image {}", config.num_tokens(), config.image_size)?;
    outln!("# {:20} {:>12} multiply-adds an image", "all", count(total))?;
    for (kind, cost) in complexity.by_kind().into_iter().filter(|(_, cost)| *cost > 0) {
        outln!("# {kind:20} {:>12} {:5.1} %", count(cost), cost as f64 / total as f64 * 100.0)?;
    }
    outln!("# {:20} {:>12}B an image, all blocks", "attention maps", count(complexity.attention_bytes()))?;
    Ok(())
}

/// A number with three or four digits and its unit.
fn count(number: u64) -> String {
    let number = number as f64;
    match number {
        1e9.. => format!("{:.2} G", number / 1e9),
        1e6.. => format!("{:.2} M", number / 1e6),
        1e3.. => format!("{:.2} k", number / 1e3),
        _ => format!("{number} "),
    }
}

fn print_data(inspection: &Inspection) -> Result<()> {
    let info = &inspection.info;
    outln!("{} ({}), {} classes", info.name, info.source, info.classes.len())?;
    if let Some(sizes) = &inspection.sizes {
        let (w, h) = (sizes.width, sizes.height);
        outln!(
            "size: {}x{} to {}x{}, median {}x{} (width x height)",
            w.min,
            h.min,
            w.max,
            h.max,
            w.median,
            h.median
        )?;
    }
    outln!("colour: {} pictures, grey: {}", inspection.colour, inspection.grey)?;
    outln!("mean {:.4?}, std {:.4?} (of values from 0 to 1)", inspection.mean, inspection.std)?;
    outln!("largest class / smallest class: {:.2}", inspection.imbalance)?;
    let width = info.classes.iter().map(|class| class.chars().count()).max().unwrap_or(0).max(8);
    out!("\n{:width$}", "class")?;
    for counts in &inspection.splits {
        out!(" {:>9}", counts.split.to_string())?;
    }
    outln!()?;
    for (index, class) in info.classes.iter().enumerate() {
        out!("{class:width$}")?;
        for counts in &inspection.splits {
            out!(" {:>9}", counts.classes[index])?;
        }
        outln!()?;
    }
    out!("{:width$}", "all")?;
    for counts in &inspection.splits {
        out!(" {:>9}", counts.samples)?;
    }
    outln!()?;
    print_faults(inspection)
}

fn print_faults(inspection: &Inspection) -> Result<()> {
    for fault in &inspection.corrupt {
        outln!("\nunreadable ({}): {}: {}", fault.split, fault.picture, fault.reason)?;
    }
    for fault in &inspection.left_out.unreadable {
        outln!("\nunreadable: {}: {}", fault.name, fault.message)?;
    }
    for (format, group) in &inspection.left_out.unsupported {
        outln!("\nnot supported: {} {format} ({})", group.count, group.names())?;
    }
    for line in inspection.left_out.others() {
        outln!("\n{line}")?;
    }
    let (leaks, conflicts) = (inspection.leaks().count(), inspection.conflicts().count());
    outln!(
        "\nunreadable pictures: {}; pictures that are there more than once: {}, of these {leaks} in several splits, \
         {conflicts} under several classes",
        inspection.corrupt.len(),
        inspection.duplicates.len()
    )?;
    for group in inspection.duplicates.iter().filter(|g| g.across_splits || g.conflicting_labels).take(20) {
        let pictures: Vec<String> = group
            .pictures
            .iter()
            .map(|copy| format!("{} ({}, {})", copy.picture, copy.split, copy.class))
            .collect();
        outln!("the same picture: {}", pictures.join(" = "))?;
    }
    if inspection.splits.iter().all(|counts| counts.split != Split::Test || counts.samples == 0) {
        outln!("there is no test split: `vitrine evaluate` measures on the validation split")?;
    }
    Ok(())
}
