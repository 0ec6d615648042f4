//! A series of runs that differ only in the seed (`--seeds`) or in the fold used for validation (`--folds`), with a
//! summary of their results.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use vitrine_datasets::{Dataset, Fold};

use super::{Changes, Kind, Member, PlannedRun, Repetition, Resumed, Run, Summary};
use crate::bounds;
use crate::events::Event;
use crate::files::{read_text, write_atomically};
use crate::model_file::SERIES_FILE_NAME;
use crate::pretrained::Pretrained;
use crate::run_folder::{RUNS, RunConfig, RunFolder, check_local, first_free, outside, states::is_saved};
use crate::runtime::Runtime;
use crate::text::shell_word;
use crate::train::{interrupt, progress};
use crate::usage::usage;

/// The file with the results of a series.
const SUMMARY: &str = "summary.json";

/// A series of runs, each in its own folder within that of the series.
#[derive(Debug)]
pub struct Series {
    folder: PathBuf,
    plan: SeriesPlan,
    /// The place where the images are now, if the user states one.
    data: Option<String>,
    /// The folder of named data sets, if the user states one.
    data_dir: Option<PathBuf>,
    /// The limit on unreadable images of the runs that are not complete, if the user states one.
    bad_file_limit: Option<f64>,
}

/// The content of `series.toml`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesPlan {
    kind: Kind,
    /// Number of runs.
    runs: usize,
    /// The configuration of the first run.
    config: RunConfig,
}

/// Functions that open the inputs of a run from its configuration.
pub struct Sources<'a> {
    /// Opens the data set.
    pub dataset: &'a dyn Fn(&RunConfig) -> Result<Dataset>,
    /// Opens the pretrained weights, if the run has any.
    pub pretrained: &'a dyn Fn(&RunConfig) -> Result<Option<Pretrained>>,
}

impl Series {
    /// Checks that the folder of `--output` can become that of a new series with the data set `data`.
    ///
    /// # Errors
    /// If it is in an object store, a file, inside the data set, or not empty.
    pub fn check_output(path: &Path, data: &str) -> Result<()> {
        check_local(path)?;
        outside(data, path)?;
        let shown = path.display();
        if path.exists() && !path.is_dir() {
            usage!("--output {shown}: a file is in the way");
        }
        if path.join(SERIES_FILE_NAME).is_file() {
            usage!(
                "--output {shown}: holds a series of runs already; continue it with `vitrine train --resume {}`",
                shell_word(&shown)
            );
        }
        if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
            usage!("--output {shown}: the folder is not empty; choose another one");
        }
        Ok(())
    }

    /// Begins a series of `runs` runs: creates its folder (`output`, or the first free folder in `runs`) and begins the
    /// first run within it.
    ///
    /// # Errors
    /// If the last seed would exceed [`bounds::SEED`], the folder is not empty, or the first run cannot begin.
    pub fn begin(
        (kind, runs): (Kind, usize),
        first: PlannedRun,
        output: Option<&Path>,
        runtime: Runtime<'_>,
    ) -> Result<(Self, Run)> {
        // The others do without a look at the images, too: their time must be the same.
        let first = PlannedRun { usual_epochs: None, ..first };
        let plan = SeriesPlan { kind, runs, config: first.config().clone() };
        let last = plan.config.seed.saturating_add(runs as u64 - 1);
        if kind == Kind::Seeds && !bounds::SEED.contain(last) {
            usage!("--seeds {runs}: there are not so many numbers from --seed {} on", plan.config.seed);
        }
        let folder = create_folder(output, &plan, &first.data_name())?;
        let series = Self::of(folder, plan);
        let begin = || -> Result<Run> {
            // `series.toml` is written before the first run begins, so that a series killed right after can be resumed.
            series.write()?;
            Run::begin(first, Some(&series.folder.join(series.folder_name(0))), runtime)
        };
        let run = begin().inspect_err(|_| {
            let _ = fs::remove_file(series.folder.join(SERIES_FILE_NAME));
            // Fails if the folder holds anything else, which is then kept.
            let _ = fs::remove_dir(&series.folder);
        })?;
        Ok((series, run))
    }

    fn of(folder: PathBuf, plan: SeriesPlan) -> Self {
        Self { folder, plan, data: None, data_dir: None, bad_file_limit: None }
    }

    /// Opens the series in `folder`; `None` if the folder holds no `series.toml`.
    ///
    /// # Errors
    /// If `series.toml` cannot be read or is invalid.
    pub fn open(folder: &Path) -> Result<Option<Self>> {
        let file = folder.join(SERIES_FILE_NAME);
        if !file.is_file() {
            return Ok(None);
        }
        let read = || -> Result<SeriesPlan> {
            let plan: SeriesPlan = toml::from_str(&read_text(&file)?)?;
            plan.config.validate()?;
            Ok(plan)
        };
        let plan = read().with_context(|| file.display().to_string())?;
        Ok(Some(Self::of(folder.to_owned(), plan)))
    }

    /// Whether the folder `run` is that of one run of a series.
    pub fn includes(run: &Path) -> bool {
        // The name of `.`, and that of a link, are not those of the folder.
        let Ok(run) = run.canonicalize() else { return false };
        let (Some(folder), Some(name)) = (run.parent(), run.file_name()) else { return false };
        let Ok(Some(series)) = Self::open(folder) else { return false };
        (0..series.plan.runs).any(|index| name == series.folder_name(index).as_str())
    }

    /// States a new place of the data set, a name or a path, and a new folder of named data sets, as far as there is one, for all
    /// runs.
    pub fn move_data(&mut self, data: Option<&str>, data_dir: Option<&Path>) {
        self.plan.config.move_data(data, data_dir);
        (self.data, self.data_dir) = (data.map(str::to_owned), data_dir.map(Path::to_owned));
    }

    /// States another limit on unreadable images, if there is one, for the runs that are not complete.
    pub fn set_bad_file_limit(&mut self, limit: Option<f64>) {
        self.bad_file_limit = limit;
    }

    /// Writes `series.toml`.
    fn write(&self) -> Result<()> {
        write_atomically(&self.folder.join(SERIES_FILE_NAME), toml::to_string(&self.plan)?.as_bytes())
    }

    /// The folder of the series.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The configuration of the first run.
    pub fn config(&self) -> &RunConfig {
        &self.plan.config
    }

    /// The path of `summary.json`, which exists once the series is complete.
    pub fn summary(&self) -> PathBuf {
        self.folder.join(SUMMARY)
    }

    /// Trains all runs that are not complete and writes the summary. `first` is the first run if [`begin`](Self::begin)
    /// has just begun it. Returns `None` if the user stopped the series.
    ///
    /// # Errors
    /// If a run fails; the message names the run. The results of the runs before it are kept.
    pub fn train(
        &self,
        mut first: Option<Run>,
        sources: &Sources<'_>,
        runtime: Runtime<'_>,
    ) -> Result<Option<Summary>> {
        let mut members = Vec::new();
        for index in 0..self.plan.runs {
            if interrupt::requested() {
                return Ok(None);
            }
            let name = self.folder_name(index);
            let (number, runs) = (index + 1, self.plan.runs);
            runtime.events.emit(Event::SeriesRun { number, runs, name: name.clone() });
            let run = match first.take() {
                Some(run) => Some(run),
                None => self.resume_or_begin(index, sources, runtime).with_context(|| name.clone())?,
            };
            // The new place has proved to hold the images.
            if run.is_some() && (self.data.is_some() || self.data_dir.is_some()) {
                self.write()?;
            }
            let is_finished = run.map_or(Ok(true), |run| train_to_end(run, runtime));
            if !is_finished.with_context(|| name.clone())? {
                return Ok(None);
            }
            let (config, folder) = (self.config_of(index), self.folder.join(&name));
            let (length, results) = (progress(&folder)?.length, RunFolder::results(&folder)?);
            members.push(Member::new(name, &config, length, &results));
        }
        let summary = Summary::of(self.plan.kind, &self.plan.config, members);
        write_atomically(&self.summary(), &serde_json::to_vec_pretty(&summary)?)?;
        Ok(Some(summary))
    }

    /// Resumes the run with this index, or begins it; `None` if it is complete.
    fn resume_or_begin(
        &self,
        index: usize,
        sources: &Sources<'_>,
        runtime: Runtime<'_>,
    ) -> Result<Option<Run>> {
        let begun = Instant::now();
        let path = self.folder.join(self.folder_name(index));
        if is_saved(&path) {
            let (data, data_dir) = (self.data.as_deref(), self.data_dir.as_deref());
            let changes = Changes { data, data_dir, ..Changes::default() };
            return Ok(match Run::resume(&path, changes, runtime, sources.dataset)? {
                Resumed::Finished(_) => None,
                Resumed::Ready(run) => Some(run.with_bad_file_limit(self.bad_file_limit)),
            });
        }
        let mut config = self.config_of(index);
        config.recipe.bad_file_limit = self.bad_file_limit.unwrap_or(config.recipe.bad_file_limit);
        let again = Repetition {
            dataset: (sources.dataset)(&config)?,
            pretrained: (sources.pretrained)(&config)?,
            config,
            listed: None,
            name: self.folder.display().to_string(),
            begun,
        };
        let planned = PlannedRun::again(again, runtime)?;
        Run::begin(planned, Some(&path), runtime).map(Some)
    }

    /// The name of a run's folder within that of the series.
    fn folder_name(&self, index: usize) -> String {
        match self.plan.kind {
            Kind::Seeds => format!("seed-{}", self.config_of(index).seed),
            Kind::Folds => format!("fold-{}", index + 1),
        }
    }

    /// The configuration of the run with this index. Runs that differ in the seed all keep the validation split of the
    /// first run.
    fn config_of(&self, index: usize) -> RunConfig {
        let mut config = self.plan.config.clone();
        match self.plan.kind {
            Kind::Seeds if index > 0 => {
                config.split_seed = Some(config.seed);
                config.seed += index as u64;
            }
            Kind::Seeds => {}
            Kind::Folds => config.fold = Some(Fold { number: index + 1, of: self.plan.runs }),
        }
        config
    }
}

/// Trains a run. Returns false if the user stopped it.
fn train_to_end(run: Run, runtime: Runtime<'_>) -> Result<bool> {
    Ok(run.train(runtime)?.report.is_some())
}

/// Creates the folder of a new series.
fn create_folder(
    output: Option<&Path>,
    SeriesPlan { kind, config, .. }: &SeriesPlan,
    data_name: &str,
) -> Result<PathBuf> {
    let word = match kind {
        Kind::Seeds => "seeds",
        Kind::Folds => "folds",
    };
    let Some(path) = output else {
        let stem = Path::new(RUNS).join(format!("{data_name}-{}-{word}", config.model_name));
        outside(&config.data, &stem)?;
        return first_free(&stem);
    };
    Series::check_output(path, &config.data)?;
    fs::create_dir_all(path).with_context(|| format!("--output {}: cannot be created", path.display()))?;
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::run_folder::testing::config;

    fn plan(kind: Kind, runs: usize) -> SeriesPlan {
        SeriesPlan { kind, runs, config: config(&["a", "b"]) }
    }

    fn series(kind: Kind, runs: usize) -> Series {
        let (folder, plan) = ("series".into(), plan(kind, runs));
        Series { folder, plan, data: None, data_dir: None, bad_file_limit: None }
    }

    #[test]
    fn seeds_count_up_and_keep_the_validation_images_of_the_first() {
        let series = series(Kind::Seeds, 3);
        assert_eq!([0, 1, 2].map(|index| series.folder_name(index)), ["seed-7", "seed-8", "seed-9"]);
        let configs = [0, 1, 2].map(|index| series.config_of(index));
        assert_eq!(configs[0], series.plan.config, "the first run is the one that was planned");
        for (index, config) in configs.iter().enumerate() {
            assert_eq!(config.hold_out(), series.plan.config.hold_out(), "the same validation images");
            let first = RunConfig { seed: 7, split_seed: None, ..config.clone() };
            assert_eq!((config.seed, first), (7 + index as u64, series.plan.config.clone()));
        }
    }

    #[test]
    fn folds_take_turns_and_keep_the_seed() {
        let series = series(Kind::Folds, 4);
        assert_eq!([0, 3].map(|index| series.folder_name(index)), ["fold-1", "fold-4"]);
        for index in 0..4 {
            let config = series.config_of(index);
            config.validate().unwrap();
            assert_eq!(config.fold, Some(Fold { number: index + 1, of: 4 }));
            assert_eq!(RunConfig { fold: None, ..config }, series.plan.config, "nothing else differs");
        }
    }

    #[test]
    fn a_series_is_read_back_and_a_run_is_none() {
        let place = tempfile::tempdir().unwrap();
        assert!(Series::open(place.path()).unwrap().is_none());
        let file = place.path().join(SERIES_FILE_NAME);
        fs::write(&file, toml::to_string(&plan(Kind::Folds, 4)).unwrap()).unwrap();
        let series = Series::open(place.path()).unwrap().unwrap();
        assert_eq!((series.plan.kind, series.plan.runs), (Kind::Folds, 4));
        assert_eq!((series.config(), series.folder()), (&config(&["a", "b"]), place.path()));
        assert_eq!(series.summary(), place.path().join("summary.json"));
        let mut invalid = plan(Kind::Folds, 4);
        invalid.config.recipe.batch_size = 0;
        fs::write(&file, toml::to_string(&invalid).unwrap()).unwrap();
        let message = format!("{:#}", Series::open(place.path()).unwrap_err());
        assert!(message.contains(SERIES_FILE_NAME) && message.contains("batch_size"), "{message}");
    }

    #[test]
    fn a_series_includes_its_runs_and_no_other_folder() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(SERIES_FILE_NAME), toml::to_string(&plan(Kind::Folds, 4)).unwrap())
            .unwrap();
        for (name, is_included) in [("fold-1", true), ("fold-4", true), ("fold-5", false), ("mine", false)] {
            let run = place.path().join(name);
            assert!(!Series::includes(&run), "{name} is not there yet");
            fs::create_dir(&run).unwrap();
            assert_eq!(Series::includes(&run), is_included, "{name}");
        }
        assert!(Series::includes(&place.path().join("mine/../fold-1")), "by any path");
        assert!(!Series::includes(place.path()), "the series itself");
    }

    #[test]
    fn a_series_needs_a_folder_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("series");
        assert_eq!(create_folder(Some(&path), &plan(Kind::Seeds, 2), "data").unwrap(), path);
        assert_eq!(
            create_folder(Some(&path), &plan(Kind::Seeds, 2), "data").unwrap(),
            path,
            "it is still empty"
        );
        fs::write(path.join("notes.txt"), "").unwrap();
        let refused = || create_folder(Some(&path), &plan(Kind::Seeds, 2), "data").unwrap_err().to_string();
        assert!(refused().contains("not empty"));
        fs::write(path.join(SERIES_FILE_NAME), "").unwrap();
        assert!(refused().contains("vitrine train --resume"));
    }
}
