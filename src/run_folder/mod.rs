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
mod review;
pub mod states;
#[cfg(test)]
pub(crate) mod testing;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use vitrine_datasets::{Split, shown};
use vitrine_models::VisionTransformer;

pub use bad_files::BadFiles;
pub use checksums::check_fixed;
pub use config::RunConfig;
pub(crate) use file_names::{CONFIG, IMAGES};
pub use hold_out::HoldOut;
pub use images::{Purpose, RunData};
pub use location::{RUNS, check_local, data_path, existing_path, first_free, outside};
pub use origin::Origin;
pub use review::Review;

use checksums::fixed_files;
use file_names::{METRICS, REPORT, RESULTS};
use leftovers::{is_unsaved_run, remove_folders, remove_temporary, remove_unsaved_run};
use lock::RunLock;

use crate::evaluate::Metrics;
use crate::events::{EpochRow, Event, EventSink};
use crate::files::{read_text, write_atomically};
use crate::model_file::{self, FILE_NAME, ModelCard};
use crate::recipe::{AskedLength, Recipe};
use crate::text::shell_word;
use crate::usage::usage;
use crate::weights_file::Precision;

/// A run folder and the lock on it: no other program writes into the folder while this value exists.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
    _lock: Arc<RunLock>,
}

/// Whether a folder is that of a run.
pub fn is_run(folder: &Path) -> bool {
    [CONFIG, IMAGES].iter().all(|name| folder.join(name).is_file())
}

impl RunFolder {
    /// Creates the folder of a new run, `output` or the first free `runs/DATA-MODEL-N`, and writes `config.toml` into
    /// it.
    ///
    /// # Errors
    /// If the configuration is invalid, the folder would be inside the data set, it is not empty, or it cannot be
    /// created.
    pub fn create(
        output: Option<&Path>,
        config: &RunConfig,
        data_name: &str,
        events: &dyn EventSink,
    ) -> Result<Self> {
        config.validate()?;
        // Both the name and the absolute path of the data set are checked: if a run is repeated from another working
        // folder, a relative name no longer leads to the data.
        let path = config.data_path.as_ref().map(|path| path.display().to_string());
        let check = |run: &Path| {
            [Some(&config.data), path.as_ref()].into_iter().flatten().try_for_each(|data| outside(data, run))
        };
        let folder = match output {
            Some(path) => {
                check(path)?;
                Self::check_output(Some(path), &config.data)?;
                Self::create_output(path, events)?
            }
            None => {
                let stem = Path::new(RUNS).join(format!("{data_name}-{}", config.model_name));
                check(&stem)?;
                Self::lock(&first_free(&stem)?)?
            }
        };
        if let Err(error) = folder.write_config(config) {
            folder.discard_unsaved();
            return Err(error);
        }
        Ok(folder)
    }

    /// Creates or takes over the folder of `--output`: a new or an empty one, or one whose run saved no state.
    fn create_output(path: &Path, events: &dyn EventSink) -> Result<Self> {
        fs::create_dir_all(path)
            .with_context(|| format!("--output {}: cannot be created", path.display()))?;
        if is_unsaved_run(path) {
            let folder = Self::lock(path).context("--output")?;
            remove_unsaved_run(path)
                .with_context(|| format!("--output {}: cannot be emptied", path.display()))?;
            let message =
                format!("{}: the run that was started there saved nothing: it starts over", path.display());
            events.emit(Event::notice(message));
            return Ok(folder);
        }
        Self::lock(path)
    }

    /// Checks that the folder of `--output`, or the one that is chosen without, can become that of a new run with the data set
    /// `data`.
    ///
    /// # Errors
    /// If it is in an object store, a file, inside the data set, or holds other files than those of a run that saved no state.
    pub fn check_output(output: Option<&Path>, data: &str) -> Result<()> {
        let Some(path) = output else { return outside(data, Path::new(RUNS)) };
        check_local(path)?;
        outside(data, path)?;
        let path_shown = path.display();
        if path.exists() && !path.is_dir() {
            usage!("--output {path_shown}: a file is in the way");
        }
        let is_taken = fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
        if is_taken && !is_unsaved_run(path) {
            usage!(
                "--output {path_shown}: the folder is not empty; choose another one, or continue with `vitrine train --resume {}`",
                shell_word(&path_shown)
            );
        }
        Ok(())
    }

    /// Takes the lock of the folder and removes leftover temporary files.
    fn lock(path: &Path) -> Result<Self> {
        let folder = Self { path: path.to_owned(), _lock: Arc::new(RunLock::take(path)?) };
        remove_temporary(path)?;
        Ok(folder)
    }

    /// Removes the files of a run that saved no state because it failed to begin. The folder is removed as well, unless
    /// it holds other files.
    pub fn discard_unsaved(&self) {
        if !states::is_saved(&self.path) {
            // Files that cannot be removed do no harm: the next run with this folder as its output takes them over.
            let _ = remove_unsaved_run(&self.path).and_then(|()| remove_folders(&self.path));
        }
    }

    /// Checksums, by file name, of the files that stay the same throughout the run; see [`check_fixed`].
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn fixed(&self) -> Result<BTreeMap<String, String>> {
        fixed_files(&self.path)
    }

    /// Opens and locks the folder of an existing run, and reads its configuration.
    ///
    /// # Errors
    /// If `path` is not a run folder with a saved state, another program trains in it, or its configuration is invalid.
    pub fn open(path: &Path) -> Result<(Self, RunConfig)> {
        if path.is_file() {
            bail!("--resume {}: this is a file; give the folder of the run", path.display());
        }
        if !path.is_dir() {
            bail!("--resume {}: there is no such run folder", path.display());
        }
        let file = path.join(CONFIG);
        if !file.is_file() {
            bail!("--resume {}: not a run folder: it holds no {CONFIG}", path.display());
        }
        states::locate(path)?;
        let folder = Self::lock(path).context("--resume")?;
        for name in [METRICS, RESULTS, REPORT, FILE_NAME] {
            let file = path.join(name);
            if file.is_dir() {
                bail!("{}: a folder is where the run writes a file: move it away", file.display());
            }
        }
        let config = RunConfig::read(&file)?;
        Ok((folder, config))
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the best model so far.
    pub fn model(&self) -> PathBuf {
        self.path.join(FILE_NAME)
    }

    /// Reads `metrics.json`, the metrics of the best model on each split, which exists once the run has ended. `path`
    /// is the run folder.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn results(path: &Path) -> Result<BTreeMap<Split, Metrics>> {
        let file = path.join(RESULTS);
        let read = || -> Result<_> { Ok(serde_json::from_slice(&fs::read(&file)?)?) };
        read().with_context(|| format!("{}: cannot be read", file.display()))
    }

    /// The path of the report.
    pub fn report(&self) -> PathBuf {
        self.path.join(REPORT)
    }

    fn write_config(&self, config: &RunConfig) -> Result<()> {
        write_atomically(&self.path.join(CONFIG), toml::to_string(config)?.as_bytes())
    }

    /// Replaces the length of the run in `config.toml`, and nothing else: keys that newer versions of the program would
    /// add must not appear, since the checksum of the file would change.
    ///
    /// # Errors
    /// If the file cannot be read or written.
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

    /// Replaces the place of the data set and the folder of named ones in `config.toml`, and nothing else, as
    /// [`write_length`](Self::write_length) does with the length.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn write_data(&self, RunConfig { data, data_path, data_dir, .. }: &RunConfig) -> Result<()> {
        let path = self.path.join(CONFIG);
        let mut config: toml::Table = toml::from_str(&read_text(&path)?)?;
        config.insert("data".to_owned(), data.clone().into());
        config.insert("data_dir".to_owned(), shown(data_dir).into());
        match data_path {
            Some(place) => _ = config.insert("data_path".to_owned(), shown(place).into()),
            None => _ = config.remove("data_path"),
        }
        write_atomically(&path, toml::to_string(&config)?.as_bytes())
    }

    /// Replaces `metrics.csv`, which has one row per epoch.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_metrics(&self, rows: &[EpochRow]) -> Result<()> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        for row in rows {
            writer.serialize(row)?;
        }
        write_atomically(&self.path.join(METRICS), &writer.into_inner()?)
    }

    /// Replaces `metrics.json`: an object with the metrics of each split, in the form of `vitrine evaluate --json`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_results(&self, results: &BTreeMap<Split, &Metrics>) -> Result<()> {
        write_atomically(&self.path.join(RESULTS), &serde_json::to_vec(results)?)
    }

    /// Replaces the model file, which holds the best model.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_model(&self, card: &ModelCard, model: &VisionTransformer) -> Result<()> {
        model_file::save(&self.model(), card, model, Precision::F32)
    }

    /// Replaces `report.html`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_report(&self, html: &str) -> Result<()> {
        write_atomically(&self.report(), html.as_bytes())
    }

    /// Removes `report.html`, if it exists.
    ///
    /// # Errors
    /// If the file cannot be removed.
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
    fn a_new_length_changes_nothing_else_in_the_configuration_of_an_earlier_version() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        fs::create_dir_all(&path).unwrap();
        // A configuration of an earlier version: it lacks keys that were added later, and its keys have another order.
        let written =
            "seed = 7\n[recipe]\nlearning_rate = 0.002\nepochs = 3\n[recipe.augmentation]\nrotation = 5.0\n";
        fs::write(path.join(CONFIG), written).unwrap();
        let folder = RunFolder::lock(&path).unwrap();
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
