//! The folder of a run: what it was asked to do, what it measured, and its models.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vitrine_datasets::{DecodeLimits, Preprocessing, Split};
use vitrine_models::{ModelConfig, VisionTransformer};

use super::checkpoint::{self, AskedLength, FOLDER, checksum};
use super::file_names::{CONFIG, IMAGES, METRICS, REPORT, RESULTS, TRAINED_ON};
use super::history::EpochRow;
use super::leftovers::{is_unsaved_run, remove_begun, remove_temporary};
use super::lock::RunLock;
use super::place::outside;
use crate::evaluate::Metrics;
use crate::files::{read_text, write_atomically};
use crate::model_file::{self, FILE_NAME, ModelCard};
use crate::output::note;
use crate::recipe::Recipe;
use crate::weights_file::Precision;

/// Everything a run was decided to be: `config.toml`, from which it can be repeated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The program that wrote it, with its version.
    pub program: String,
    /// Data set name or path, as `vitrine train` took it.
    pub data: String,
    /// The same path from the root on, where it is a path: the run can be resumed from any folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_path: Option<PathBuf>,
    /// Where named data sets are kept.
    pub data_dir: PathBuf,
    /// Share of the training images that is split off where the data set has no validation split.
    pub val_fraction: f64,
    /// From which everything random comes.
    pub seed: u64,
    /// The `--model` that was chosen, for titles.
    pub model_name: String,
    /// The weights that training began with, as `--pretrained` named them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pretrained: Option<String>,
    /// The most bytes of an image file, where it is not the usual number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_file_size: Option<u64>,
    /// Class names, in the order of the logits.
    pub classes: Vec<String>,
    /// The architecture.
    pub model: ModelConfig,
    /// What is done to every image.
    pub preprocessing: Preprocessing,
    /// How it is trained.
    pub recipe: Recipe,
}

impl RunConfig {
    /// Checks every number and what belongs together, before anything is made of it.
    ///
    /// # Errors
    /// Names the key, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        model_file::check_together(&self.model, &self.classes, &self.preprocessing)?;
        self.recipe.validate()
    }

    /// What decoding an image may cost.
    pub fn limits(&self) -> DecodeLimits {
        DecodeLimits::default().with_max_file_bytes(self.max_file_size)
    }
}

/// The paths of a run, and what may be done with them. No other program writes into it meanwhile.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
    _lock: Arc<RunLock>,
}

impl RunFolder {
    /// Makes the folder of a new run: `output`, or the first free `runs/DATA-MODEL-N`.
    ///
    /// # Errors
    /// When `output` is there and not empty, or cannot be made.
    pub fn create(output: Option<&Path>, config: &RunConfig, data_name: &str) -> Result<Self> {
        config.validate()?;
        let folder = match output {
            Some(path) => {
                outside(&config.data, path)?;
                Self::chosen(path)?
            }
            None => {
                let stem = Path::new("runs").join(format!("{data_name}-{}", config.model_name));
                outside(&config.data, &stem)?;
                Self::first_free(&stem)?
            }
        };
        if let Err(error) = folder.write_config(config) {
            folder.discard_unsaved();
            return Err(error);
        }
        Ok(folder)
    }

    /// The folder that `--output` names: a new or an empty one.
    fn chosen(path: &Path) -> Result<Self> {
        if path.is_file() {
            bail!("--output {}: a file is in the way", path.display());
        }
        fs::create_dir_all(path)
            .with_context(|| format!("--output {}: cannot be created", path.display()))?;
        let is_taken = |folder: &Path| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        if is_taken(path) && is_unsaved_run(path) {
            let folder = Self::locked(path).context("--output")?;
            remove_begun(path).with_context(|| format!("--output {}: cannot be emptied", path.display()))?;
            note!("{}: the run that was started there saved nothing: it starts over", path.display());
            return Ok(folder);
        }
        if is_taken(path) {
            bail!(
                "--output {}: the folder is not empty; choose another one, or continue with `vitrine train --resume {}`",
                path.display(),
                path.display()
            );
        }
        Self::locked(path)
    }

    /// The first folder `STEM-N` that nobody else has, not even a program that looks for one at the same moment.
    fn first_free(stem: &Path) -> Result<Self> {
        if let Some(parent) = stem.parent() {
            fs::create_dir_all(parent).with_context(|| format!("{}: cannot be created", parent.display()))?;
        }
        for number in 1.. {
            let path = PathBuf::from(format!("{}-{number}", stem.display()));
            match fs::create_dir(&path) {
                Ok(()) => return Self::locked(&path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("{}: cannot be created", path.display()));
                }
            }
        }
        bail!("{}-N: every number is taken; choose a folder with --output", stem.display())
    }

    fn locked(path: &Path) -> Result<Self> {
        let folder = Self { path: path.to_owned(), _lock: Arc::new(RunLock::take(path)?) };
        remove_temporary(path)?;
        Ok(folder)
    }

    /// Takes away what was made of a run of which nothing is saved: it failed to begin. The folder goes, too, unless it holds other files.
    pub fn discard_unsaved(&self) {
        if !checkpoint::is_saved(&self.path) {
            // What cannot be removed stays, and is taken over by the next run that begins here.
            if remove_begun(&self.path).is_ok() {
                let _ = fs::remove_dir_all(self.path.join(FOLDER)).and_then(|()| fs::remove_dir(&self.path));
            }
        }
    }

    /// Checksums of what a run is begun with and keeps, by file: the images with their splits, what was trained on, and `config.toml`
    /// but for the run's length and the places where its data are.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn fixed(&self) -> Result<BTreeMap<String, String>> {
        let mut config: toml::Table = toml::from_str(&read_text(&self.path.join(CONFIG))?)?;
        for key in ["data", "data_path", "data_dir", "max_file_size"] {
            config.remove(key);
        }
        if let Some(recipe) = config.get_mut("recipe").and_then(toml::Value::as_table_mut) {
            for key in ["epochs", "time_seconds"] {
                recipe.remove(key);
            }
        }
        let mut fixed = BTreeMap::from([(CONFIG.to_owned(), checksum(toml::to_string(&config)?.as_bytes()))]);
        for name in [IMAGES, TRAINED_ON] {
            let path = self.path.join(name);
            match fs::read(&path) {
                Ok(content) => _ = fixed.insert(name.to_owned(), checksum(&content)),
                // Who reads it says that it is missing.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("{}: cannot be read", path.display()));
                }
            }
        }
        Ok(fixed)
    }

    /// Checks that what the run was begun with is still what it was.
    ///
    /// # Errors
    /// Names the file that was changed, and the way out.
    pub fn check_fixed(&self, written: &BTreeMap<String, String>) -> Result<()> {
        if written.is_empty() {
            return Ok(());
        }
        let found = self.fixed()?;
        let changed = |name: &String| found.get(name).is_some_and(|checksum| *checksum != written[name]);
        let Some(name) = written.keys().find(|name| changed(name)) else { return Ok(()) };
        let but = if name == CONFIG {
            "; only its length (--epochs, --time) and the location of its data may change"
        } else {
            ""
        };
        bail!(
            "{file}: was damaged or changed since the run began{but}: put back what was there, or start a new run with \
             --pretrained {run} to keep what its best model has learned",
            file = self.path.join(name).display(),
            run = self.path.display()
        )
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
        if !file.is_file() {
            bail!("--resume {}: not a run folder: it holds no {CONFIG}", path.display());
        }
        checkpoint::locate(path)?;
        let folder = Self::locked(path).context("--resume")?;
        for name in [METRICS, RESULTS, REPORT, FILE_NAME] {
            let file = path.join(name);
            if file.is_dir() {
                bail!("{}: a folder is where the run writes a file: move it away", file.display());
            }
        }
        let read = || -> Result<RunConfig> { Ok(toml::from_str(&read_text(&file)?)?) };
        let config = read().with_context(|| file.display().to_string())?;
        config.validate().with_context(|| file.display().to_string())?;
        Ok((folder, config))
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

    fn write_config(&self, config: &RunConfig) -> Result<()> {
        write_atomically(&self.path.join(CONFIG), toml::to_string(config)?.as_bytes())
    }

    /// Replaces the length of the run in `config.toml`, and nothing else: keys that came after the run was begun stay out of it, as
    /// they are not in its checksum.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub fn write_length(&self, recipe: &Recipe) -> Result<()> {
        let path = self.path.join(CONFIG);
        let mut config: toml::Table = toml::from_str(&read_text(&path)?)?;
        let stated =
            config.get_mut("recipe").and_then(toml::Value::as_table_mut).context("it has no recipe")?;
        let length = AskedLength::from(recipe);
        let numbers = [
            ("epochs", length.epochs.map(toml::Value::try_from).transpose()?),
            ("time_seconds", length.seconds.map(toml::Value::from)),
        ];
        for (key, value) in numbers {
            match value {
                Some(value) => _ = stated.insert(key.to_owned(), value),
                None => _ = stated.remove(key),
            }
        }
        write_atomically(&path, toml::to_string(&config)?.as_bytes())
    }

    /// Replaces `metrics.csv` with one row per epoch.
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

    /// Replaces `metrics.json`: an object with the result of each split, in the form of `vitrine evaluate --json`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_results(&self, results: &BTreeMap<Split, &Metrics>) -> Result<()> {
        write_atomically(&self.path.join(RESULTS), &serde_json::to_vec(results)?)
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

    /// Takes away `report.html`, where there is one.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove_report(&self) -> Result<()> {
        let path = self.report();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("{}: cannot be removed", path.display()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn a_new_length_changes_nothing_else_of_what_an_earlier_version_wrote() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        fs::create_dir_all(&path).unwrap();
        // Without keys that came later, and with the order of its own.
        let written =
            "seed = 7\n[recipe]\nlearning_rate = 0.002\nepochs = 3\n[recipe.augmentation]\nrotation = 5.0\n";
        fs::write(path.join(CONFIG), written).unwrap();
        let folder = RunFolder::locked(&path).unwrap();
        let before = folder.fixed().unwrap();
        folder.write_length(&Recipe { time_seconds: Some(90.0), ..Recipe::default() }).unwrap();
        let config: toml::Table = toml::from_str(&fs::read_to_string(path.join(CONFIG)).unwrap()).unwrap();
        let recipe = config["recipe"].as_table().unwrap();
        assert_eq!(recipe["time_seconds"].as_float(), Some(90.0));
        assert!(!recipe.contains_key("epochs") && !recipe.contains_key("optimizer"), "{recipe:?}");
        assert_eq!(folder.fixed().unwrap(), before);
        folder.check_fixed(&before).unwrap();
    }
}
