//! The folder of a run: configuration, image list, checkpoints, metrics, models, and report.

mod bad_files;
mod checksums;
mod config;
mod duplicates;
mod file_names;
mod hold_out;
mod images;
mod leftovers;
mod location;
mod lock;
mod origin;
pub mod states;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use vitrine_datasets::Split;
use vitrine_models::VisionTransformer;

pub use bad_files::BadFiles;
pub use checksums::check_fixed;
pub use config::RunConfig;
pub(crate) use file_names::{CONFIG, IMAGES};
pub use hold_out::HoldOut;
pub use images::{Purpose, RunData};
pub use location::{data_path, first_free, outside};
pub use origin::{Origin, checksum as weights_checksum};

use checksums::fixed_files;
use file_names::{METRICS, REPORT, RESULTS};
use leftovers::{is_unsaved_run, remove_begun, remove_folders, remove_temporary};
use lock::RunLock;

use crate::evaluate::Metrics;
use crate::events::{EpochRow, Event, EventSink};
use crate::files::{read_text, write_atomically};
use crate::model_file::{self, FILE_NAME, ModelCard};
use crate::recipe::{AskedLength, Recipe};
use crate::weights_file::Precision;

/// A run folder and the lock on it: no other program writes into the folder while this value exists.
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
    pub fn create(
        output: Option<&Path>,
        config: &RunConfig,
        data_name: &str,
        events: &dyn EventSink,
    ) -> Result<Self> {
        config.validate()?;
        // Both, as a run may be repeated from another folder than the one in which its data set was named.
        let path = config.data_path.as_ref().map(|path| path.display().to_string());
        let check = |run: &Path| {
            [Some(&config.data), path.as_ref()].into_iter().flatten().try_for_each(|data| outside(data, run))
        };
        let folder = match output {
            Some(path) => {
                check(path)?;
                Self::chosen(path, events)?
            }
            None => {
                let stem = Path::new("runs").join(format!("{data_name}-{}", config.model_name));
                check(&stem)?;
                Self::locked(&first_free(&stem)?)?
            }
        };
        if let Err(error) = folder.write_config(config) {
            folder.discard_unsaved();
            return Err(error);
        }
        Ok(folder)
    }

    /// The folder that `--output` names: a new or an empty one.
    fn chosen(path: &Path, events: &dyn EventSink) -> Result<Self> {
        if path.is_file() {
            bail!("--output {}: a file is in the way", path.display());
        }
        fs::create_dir_all(path)
            .with_context(|| format!("--output {}: cannot be created", path.display()))?;
        let is_taken = |folder: &Path| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
        if is_taken(path) && is_unsaved_run(path) {
            let folder = Self::locked(path).context("--output")?;
            remove_begun(path).with_context(|| format!("--output {}: cannot be emptied", path.display()))?;
            let message =
                format!("{}: the run that was started there saved nothing: it starts over", path.display());
            events.emit(Event::notice(message));
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

    fn locked(path: &Path) -> Result<Self> {
        let folder = Self { path: path.to_owned(), _lock: Arc::new(RunLock::take(path)?) };
        remove_temporary(path)?;
        Ok(folder)
    }

    /// Takes away what was made of a run of which nothing is saved: it failed to begin. The folder goes, too, unless it holds other files.
    pub fn discard_unsaved(&self) {
        if !states::is_saved(&self.path) {
            // What cannot be removed stays, and is taken over by the next run that begins here.
            let _ = remove_begun(&self.path).and_then(|()| remove_folders(&self.path));
        }
    }

    /// What the run is begun with and keeps: checksums by file.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn fixed(&self) -> Result<BTreeMap<String, String>> {
        fixed_files(&self.path)
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
        states::locate(path)?;
        let folder = Self::locked(path).context("--resume")?;
        for name in [METRICS, RESULTS, REPORT, FILE_NAME] {
            let file = path.join(name);
            if file.is_dir() {
                bail!("{}: a folder is where the run writes a file: move it away", file.display());
            }
        }
        let config = RunConfig::read(&file)?;
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

    /// The result of each split, where the run is finished.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn results(path: &Path) -> Result<BTreeMap<Split, Metrics>> {
        let file = path.join(RESULTS);
        let read = || -> Result<_> { Ok(serde_json::from_slice(&fs::read(&file)?)?) };
        read().with_context(|| format!("{}: cannot be read", file.display()))
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
        let number = |key: &str| stated.get(key).cloned();
        let before = [number("epochs"), number("time_seconds")];
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
        if before != [stated.get("epochs").cloned(), stated.get("time_seconds").cloned()] {
            config.insert("lengthened".to_owned(), true.into());
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
        check_fixed(folder.path(), &before).unwrap();
        assert_eq!(config["lengthened"].as_bool(), Some(true));
    }

    mod crashes;
    mod images;
    mod opening;
}
