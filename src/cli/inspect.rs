//! `vitrine inspect`: what a data set, a model file or a preset is.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use burn::module::Module;
use burn::tensor::Device;
use clap::Args;
use serde_json::{Value, json};
use vitrine_datasets::{Inspection, Inventory, Split};
use vitrine_models::{Complexity, ImageSize, ModelConfig, preset};

use super::console::Log;
use super::data::{DataArgs, check_val_fraction};
use super::{Status, ThreadArgs};
use crate::bounds;
use crate::cli::aliases;
use crate::cli::output::{note, out, outln};
use crate::cli::within::within;
use crate::flags::size_hint;
use crate::model_file;
use crate::plan::read_model;
use crate::run::default_val_fraction;
use crate::text::{printable, printable_lines};
use crate::usage::{did_you_mean, usage};

/// Describe a data set (and its problems), a model file, a run folder, a preset, or an architecture file.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine inspect photos/\n  vitrine inspect runs/shapes-vit_pico_patch4_32-1\n  \
    vitrine inspect vit_tiny_patch16_224\n  vitrine inspect my_model.toml --image-size 64"
)]
pub(super) struct Inspect {
    /// Data set, model file, run folder, preset, or architecture file (TOML).
    #[arg(value_name = "DATA|MODEL|PRESET|FILE.toml")]
    what: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Share split off for validation if the data set has no validation split; by default 0.2, or 0.1 if it has a test split.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, value_parser = within(bounds::PART), aliases = aliases::VAL_FRACTION)]
    val_fraction: Option<f64>,
    /// Count the cost of a preset or architecture file for images of this height and width in pixels.
    #[arg(long, value_name = "PIXELS", allow_negative_numbers = true, value_parser = within(bounds::IMAGE_SIZE), aliases = aliases::IMAGE_SIZE)]
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
            return self.architecture(config);
        }
        if path.extension().is_some_and(|extension| extension == "toml") && path.exists() {
            return self.architecture(read_model(path)?);
        }
        if self.image_size.is_some() {
            usage!(
                "--image-size: this works only for presets and architecture files, and {} is neither",
                self.what
            );
        }
        let is_model = path.extension().is_some_and(|extension| extension == "safetensors")
            || path.join(model_file::FILE_NAME).is_file();
        if is_model {
            return self.model(path);
        }
        if !path.exists() && !vitrine_datasets::names().contains(&self.what.as_str()) {
            bail!(
                "{}: not a file, a folder, or a known name; names are {} and those that `vitrine presets` lists{}",
                self.what,
                vitrine_datasets::names().join(", "),
                did_you_mean(
                    &self.what,
                    vitrine_datasets::names()
                        .into_iter()
                        .chain(preset::all().into_iter().map(|entry| entry.name))
                )
            );
        }
        self.data_args.check(&self.what, false)?;
        let dataset = self.data_args.open(&self.what, &Log::text())?;
        let val_fraction = self.val_fraction.unwrap_or_else(|| default_val_fraction(&dataset));
        check_val_fraction(self.val_fraction, &dataset.info)?;
        let limits = self.data_args.file_size.limits();
        let mut images = Inventory::of(dataset, &limits);
        images.hold_out(val_fraction, 0)?;
        let inspection = vitrine_datasets::inspect(&images.into_dataset(), &limits);
        if self.json {
            outln!("{}", serde_json::to_string(&inspection)?)?;
        } else {
            print_data(&inspection)?;
        }
        if inspection.corrupt.iter().any(|image| image.is_too_large) {
            note!("{}", size_hint());
        }
        Ok(if inspection.has_faults() { Status::Partial } else { Status::Done })
    }

    fn architecture(&self, mut config: ModelConfig) -> Result<Status> {
        self.only_for_data()?;
        if let Some(side) = self.image_size {
            config.image_size = ImageSize::square(side);
            if let Err(error) = config.validate() {
                usage!("--image-size {side}: {error}");
            }
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

    /// Refuses options that have an effect for data sets alone.
    fn only_for_data(&self) -> Result<()> {
        if self.val_fraction.is_some() {
            usage!("--val-fraction has no effect for {}, which is not a data set", self.what);
        }
        self.data_args.check(&self.what, false)
    }

    /// Describes a model file, if its tensors are those of its description.
    fn model(&self, path: &Path) -> Result<Status> {
        self.only_for_data()?;
        let (card, model) = model_file::load(path, &Device::default())?;
        let (card, parameters) = (card.summary(), model.num_params());
        if self.json {
            outln!("{}", json!({ "card": card, "parameters": parameters, "cost": cost(&card.model) }))?;
        } else {
            print_summary(&card.model, parameters)?;
            out!("{}", printable_lines(&toml::to_string(&card)?))?;
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
    outln!("# {:20} {:>12} multiply-adds per image", "all", count(total))?;
    for (kind, cost) in complexity.by_kind().into_iter().filter(|(_, cost)| *cost > 0) {
        outln!("# {kind:20} {:>12} {:5.1}%", count(cost), cost as f64 / total as f64 * 100.0)?;
    }
    outln!("# {:20} {:>12}B per image, all blocks", "attention maps", count(complexity.attention_bytes()))?;
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
    outln!("color: {} images, gray: {}", inspection.color, inspection.gray)?;
    outln!("mean {:.4?}, std {:.4?} (of values from 0 to 1)", inspection.mean, inspection.std)?;
    outln!("largest class / smallest class: {:.2}", inspection.imbalance)?;
    let classes: Vec<_> = info.classes.iter().map(|class| printable(class)).collect();
    let width = classes.iter().map(|class| class.chars().count()).max().unwrap_or(0).max(8);
    out!("\n{:width$}", "class")?;
    for counts in &inspection.splits {
        out!(" {:>9}", counts.split.to_string())?;
    }
    outln!()?;
    for (index, class) in classes.iter().enumerate() {
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
        outln!("\nunreadable ({}): {}: {}", fault.split, printable(&fault.image), printable(&fault.reason))?;
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
        "\nunreadable images: {}; images that occur more than once: {} ({leaks} in several splits, \
         {conflicts} under several classes)",
        inspection.corrupt.len(),
        inspection.duplicates.len()
    )?;
    for group in inspection.duplicates.iter().filter(|g| g.across_splits || g.conflicting_labels).take(20) {
        let images: Vec<String> = group
            .images
            .iter()
            .map(|copy| format!("{} ({}, {})", printable(&copy.image), copy.split, printable(&copy.class)))
            .collect();
        outln!("the same image: {}", images.join(" = "))?;
    }
    if inspection.splits.iter().all(|counts| counts.split != Split::Test || counts.samples == 0) {
        outln!(
            "there is no test split: `vitrine evaluate` measures the images that a model was not trained on"
        )?;
    }
    Ok(())
}
