//! The folder of a run: what it was asked to do, what it measured, and its models.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vitrine_datasets::Preprocessing;
use vitrine_models::{ModelConfig, VisionTransformer};

use super::checkpoint;
use crate::files::write_atomically;
use crate::model_file::{self, FILE_NAME, ModelCard};
use crate::recipe::Recipe;
use crate::report::EpochRow;
use crate::weights_file::Precision;

const CONFIG: &str = "config.toml";
const METRICS: &str = "metrics.csv";
const REPORT: &str = "report.html";

/// Everything a run was decided to be: `config.toml`, from which it can be repeated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The program that wrote it, with its version.
    pub program: String,
    /// Data set name or path, as `vitrine train` took it.
    pub data: String,
    /// Where named data sets are kept.
    pub data_dir: PathBuf,
    /// Share of the training pictures that is split off where the data set has no validation split.
    pub val_fraction: f64,
    /// From which everything random comes.
    pub seed: u64,
    /// The `--model` that was chosen, for titles.
    pub model_name: String,
    /// The weights that training began with, as `--pretrained` named them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrained: Option<String>,
    /// Class names, in the order of the logits.
    pub classes: Vec<String>,
    /// The architecture.
    pub model: ModelConfig,
    /// What is done to every picture.
    pub preprocessing: Preprocessing,
    /// How it is trained.
    pub recipe: Recipe,
}

/// The paths of a run, and what may be done with them.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Makes the folder of a new run: `output`, or the first free `runs/DATA-MODEL-N`.
    ///
    /// # Errors
    /// When `output` is there and not empty, or cannot be made.
    pub fn create(output: Option<&Path>, config: &RunConfig, data_name: &str) -> Result<Self> {
        let path = match output {
            Some(path) => path.to_owned(),
            None => first_free(&Path::new("runs").join(format!("{data_name}-{}", config.model_name))),
        };
        if path.is_file() {
            bail!("--output {}: a file is in the way", path.display());
        }
        if path.is_dir() && fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!(
                "--output {}: the folder is not empty; choose another one, or go on with `vitrine train --resume {}`",
                path.display(),
                path.display()
            );
        }
        fs::create_dir_all(&path).with_context(|| format!("--output {}: cannot be made", path.display()))?;
        let folder = Self { path };
        folder.write_config(config)?;
        Ok(folder)
    }

    /// The folder of a run that was begun, and its configuration.
    ///
    /// # Errors
    /// When `path` is no run folder.
    pub fn open(path: &Path) -> Result<(Self, RunConfig)> {
        if !path.is_dir() {
            bail!("--resume {}: there is no such run folder", path.display());
        }
        let file = path.join(CONFIG);
        let Ok(text) = fs::read_to_string(&file) else {
            bail!("--resume {}: no run folder: it holds no {CONFIG}", path.display());
        };
        let config = toml::from_str(&text).with_context(|| format!("{}", file.display()))?;
        checkpoint::locate(path)?;
        Ok((Self { path: path.to_owned() }, config))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The best model so far.
    pub fn model(&self) -> PathBuf {
        self.path.join(FILE_NAME)
    }

    /// The report.
    pub fn report(&self) -> PathBuf {
        self.path.join(REPORT)
    }

    /// Replaces `config.toml`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_config(&self, config: &RunConfig) -> Result<()> {
        write_atomically(&self.path.join(CONFIG), toml::to_string(config)?.as_bytes())
    }

    /// Replaces `metrics.csv` by one row an epoch.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_metrics(&self, rows: &[EpochRow]) -> Result<()> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        for row in rows {
            writer.serialize(row)?;
        }
        write_atomically(&self.path.join(METRICS), &writer.into_inner()?)
    }

    /// Replaces the best model.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_model(&self, card: &ModelCard, model: &VisionTransformer) -> Result<()> {
        model_file::save(&self.model(), card, model, Precision::F32)
    }

    /// Replaces `report.html`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_report(&self, html: &str) -> Result<()> {
        write_atomically(&self.report(), html.as_bytes())
    }
}

fn first_free(stem: &Path) -> PathBuf {
    (1..)
        .map(|number| PathBuf::from(format!("{}-{number}", stem.display())))
        .find(|path| !path.exists())
        .unwrap_or_else(|| stem.to_owned())
}
