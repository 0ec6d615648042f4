//! `vitrine inspect`: a description of a data set, a model file, or an architecture.

mod print;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use burn::module::Module;
use burn::tensor::Device;
use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use vitrine_datasets::Inspection;
use vitrine_models::{Complexity, ImageSize, ModelConfig, preset};

use super::console::Log;
use super::data::{DataArgs, check_val_fraction};
use super::model::named_preset;
use super::{Status, ThreadArgs};
use crate::bounds;
use crate::cli::aliases;
use crate::cli::output::{note, out, outln};
use crate::cli::within::within;
use crate::files::has_extension;
use crate::flags::size_hint;
use crate::hub::published::BACKBONES;
use crate::model_file;
use crate::plan::read_model;
use crate::recipe::NamedRecipe;
use crate::run::default_val_fraction;
use crate::run_folder::{self, Review};
use crate::text::{printable_lines, shell_word};
use crate::train::pixel_remarks;
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
    /// Share split off for validation if the data set has no validation split; by default 0.2 and at most
    /// about 5000 images, or 0.1 and 2000 if it has a test split.
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
        if let Some(config) = named_preset(&self.what) {
            return self.architecture(config);
        }
        if has_extension(path, "toml") && path.exists() {
            return self.architecture(read_model(path)?);
        }
        if self.image_size.is_some() {
            usage!(
                "--image-size: this works only for presets and architecture files, and {} is neither",
                self.what
            );
        }
        let is_model = has_extension(path, "safetensors")
            || [model_file::FILE_NAME, model_file::SERIES_FILE_NAME]
                .iter()
                .any(|name| path.join(name).is_file())
            || run_folder::is_run(path);
        if is_model { self.model(path) } else { self.data() }
    }

    /// Describes a data set, and says why `train` refuses it or what `train` warns about.
    fn data(&self) -> Result<Status> {
        self.check_is_data()?;
        self.data_args.check(&self.what, false)?;
        let dataset = self.data_args.open(&self.what, &Log::text())?;
        let val_fraction = self.val_fraction.unwrap_or_else(|| default_val_fraction(&dataset));
        check_val_fraction(self.val_fraction, &dataset.info)?;
        let limits = self.data_args.file_size.limits();
        let Review { images, inspection, problems, mut warnings } =
            Review::of(dataset, &self.what, (val_fraction, 0), &limits)?;
        warnings.extend(pixel_remarks(&inspection.duplicates));
        if self.json {
            let faults = images.left_out.faults();
            let warnings = images.warnings.iter().chain(&faults).chain(&warnings);
            let warnings = warnings.map(String::as_str).collect();
            let described = Described { inspection: &inspection, problems: &problems, warnings };
            outln!("{}", serde_json::to_string(&described)?)?;
        } else {
            print::data(&inspection)?;
        }
        for problem in &problems {
            note!("problem: {problem}");
        }
        for warning in &warnings {
            note!("warning: {warning}");
        }
        if inspection.corrupt.iter().any(|image| image.is_too_large) {
            note!("{}", size_hint());
        }
        let is_sound = problems.is_empty() && !inspection.has_faults();
        Ok(if is_sound { Status::Done } else { Status::Partial })
    }

    /// Checks that there is a data set of this name or path.
    ///
    /// # Errors
    /// If there is none; the message says what has this name instead, or what has a similar one.
    fn check_is_data(&self) -> Result<()> {
        if Path::new(&self.what).exists() || vitrine_datasets::names().contains(&self.what.as_str()) {
            return Ok(());
        }
        if let Some(backbone) = BACKBONES.iter().find(|backbone| backbone.name == self.what) {
            usage!(
                "{}: these are published weights ({}), which are not downloaded to inspect them: `vitrine import hf:{} --output \
                 FILE` makes a model file of them",
                self.what,
                backbone.repository,
                backbone.repository
            );
        }
        if NamedRecipe::find(&self.what).is_some() {
            usage!("{}: this is a recipe: `vitrine presets --show {}` prints it", self.what, self.what);
        }
        let presets = preset::all().into_iter().map(|entry| entry.name);
        bail!(
            "{}: not a file, a folder, or a known name; names are {} and those that `vitrine presets` lists{}",
            self.what,
            vitrine_datasets::names().join(", "),
            did_you_mean(&self.what, vitrine_datasets::names().into_iter().chain(presets))
        );
    }

    /// Describes an architecture, and counts its cost.
    fn architecture(&self, mut config: ModelConfig) -> Result<Status> {
        self.refuse_data_options()?;
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
            print::summary(&config, parameters)?;
            out!("{}", toml::to_string(&config)?)?;
        }
        Ok(Status::Done)
    }

    /// Refuses options that only have an effect for data sets.
    fn refuse_data_options(&self) -> Result<()> {
        let of_data = [
            ("--val-fraction", self.val_fraction.is_some()),
            ("--label-separator", self.data_args.label_separator.is_some()),
            ("--max-file-size", self.data_args.file_size.max_file_size.is_some()),
        ];
        if let Some((option, _)) = of_data.into_iter().find(|(_, is_given)| *is_given) {
            usage!("{option} has no effect for {}, which is not a data set", self.what);
        }
        self.data_args.check(&self.what, false)
    }

    /// Describes a model file, after checking that its tensors fit its description.
    fn model(&self, path: &Path) -> Result<Status> {
        self.refuse_data_options()?;
        let (card, model) = model_file::load(path, &Device::default())?;
        let (card, parameters) = (card.summary(), model.num_params());
        if self.json {
            outln!("{}", json!({ "card": card, "parameters": parameters, "cost": cost(&card.model) }))?;
        } else {
            print::summary(&card.model, parameters)?;
            if !card.has_classifier() {
                let model = shell_word(path.display());
                outln!("no classifier: train one with `vitrine train DATA --pretrained {model}`")?;
            }
            out!("{}", printable_lines(&toml::to_string(&card)?))?;
        }
        Ok(Status::Done)
    }
}

/// The object that `--json` prints for a data set.
#[derive(Serialize)]
struct Described<'a> {
    #[serde(flatten)]
    inspection: &'a Inspection,
    /// Each reason for which `train` refuses the data set.
    problems: &'a [String],
    /// Each warning that `train` would give about the images.
    warnings: Vec<&'a str>,
}

/// The cost of a forward pass of one image.
fn cost(config: &ModelConfig) -> Value {
    let complexity = Complexity::of(config);
    json!({
        "tokens": config.num_tokens(),
        "multiply_adds": complexity.total(),
        "by_kind": complexity.by_kind().into_iter().collect::<BTreeMap<_, _>>(),
        "attention_map_bytes": complexity.attention_bytes(),
    })
}
