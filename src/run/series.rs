//! Several runs that differ in one thing, the seed or the images that are kept for validation, and what they have in common.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vitrine_datasets::{Dataset, Fold};

use super::{Kind, Member, PlannedRun, Repetition, Resumed, Run, Summary};
use crate::events::Event;
use crate::files::{read_text, write_atomically};
use crate::pretrained::Pretrained;
use crate::recipe::AskedLength;
use crate::run_folder::{RunConfig, RunFolder, first_free, outside, states::is_saved};
use crate::runtime::Runtime;
use crate::train::interrupt;
use crate::usage::usage;

/// What a series is, in its folder.
const SERIES: &str = "series.toml";
/// What came out of it.
const SUMMARY: &str = "summary.json";

/// Several runs in a folder.
#[derive(Debug)]
pub struct Series {
    folder: PathBuf,
    plan: Plan,
}

/// `series.toml`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    kind: Kind,
    runs: usize,
    /// The first run.
    config: RunConfig,
}

/// What every run of a series opens.
pub struct Sources<'a> {
    /// The data set of a run.
    pub dataset: &'a dyn Fn(&RunConfig) -> Result<Dataset>,
    /// The weights that it begins with.
    pub pretrained: &'a dyn Fn(&RunConfig) -> Result<Option<Pretrained>>,
}

impl Series {
    /// Begins a series of so many runs: makes its folder `output`, or the first free one in `runs`, and in it the first run.
    ///
    /// # Errors
    /// When there are not so many seeds, the folder is not empty, or the first run cannot begin.
    pub fn begin(
        (kind, runs): (Kind, usize),
        first: PlannedRun,
        output: Option<&Path>,
        runtime: Runtime<'_>,
    ) -> Result<(Self, Run)> {
        let plan = Plan { kind, runs, config: first.config().clone() };
        if kind == Kind::Seeds && plan.config.seed.checked_add(runs as u64 - 1).is_none() {
            usage!("--seeds {runs}: there are not so many numbers from --seed {} on", plan.config.seed);
        }
        let folder = create(output, &plan, &first.data_name())?;
        let series = Self { folder, plan };
        let begin = || -> Result<Run> {
            // First, so that a series that is killed at once can be resumed.
            write_atomically(&series.folder.join(SERIES), toml::to_string(&series.plan)?.as_bytes())?;
            Run::begin(first, Some(&series.folder.join(series.name(0))), runtime)
        };
        let run = begin().inspect_err(|_| {
            let _ = fs::remove_file(series.folder.join(SERIES));
            // Only where nothing else is in it.
            let _ = fs::remove_dir(&series.folder);
        })?;
        Ok((series, run))
    }

    /// The series in a folder; nothing where there is none.
    ///
    /// # Errors
    /// When what is there cannot be read.
    pub fn open(folder: &Path) -> Result<Option<Self>> {
        let file = folder.join(SERIES);
        if !file.is_file() {
            return Ok(None);
        }
        let read = || -> Result<Plan> {
            let plan: Plan = toml::from_str(&read_text(&file)?)?;
            plan.config.validate()?;
            Ok(plan)
        };
        let plan = read().with_context(|| file.display().to_string())?;
        Ok(Some(Self { folder: folder.to_owned(), plan }))
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What its first run is.
    pub fn config(&self) -> &RunConfig {
        &self.plan.config
    }

    /// Where its result is, once it has one.
    pub fn summary(&self) -> PathBuf {
        self.folder.join(SUMMARY)
    }

    /// Trains what is left of all runs, beginning with `first` where it has just begun, and writes the summary. Nothing if the user stopped
    /// it.
    ///
    /// # Errors
    /// As a run; the message names it. The runs before it are kept.
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
            let name = self.name(index);
            let (number, runs) = (index + 1, self.plan.runs);
            runtime.events.emit(Event::SeriesRun { number, runs, name: name.clone() });
            let run = match first.take() {
                Some(run) => Some(run),
                None => self.next(index, sources, runtime).with_context(|| name.clone())?,
            };
            let is_finished = run.map_or(Ok(true), |run| train(run, runtime));
            if !is_finished.with_context(|| name.clone())? {
                return Ok(None);
            }
            let config = self.config_of(index);
            let results = RunFolder::results(&self.folder.join(&name))?;
            members.push(Member::new(name, &config, &results));
        }
        let summary = Summary::of(self.plan.kind, &self.plan.config, members);
        write_atomically(&self.summary(), &serde_json::to_vec_pretty(&summary)?)?;
        Ok(Some(summary))
    }

    /// A run that goes on or begins; nothing if it is finished.
    fn next(&self, index: usize, sources: &Sources<'_>, runtime: Runtime<'_>) -> Result<Option<Run>> {
        let path = self.folder.join(self.name(index));
        if is_saved(&path) {
            return Ok(match Run::resume(&path, AskedLength::default(), runtime, sources.dataset)? {
                Resumed::Finished(_) => None,
                Resumed::Ready(run) => Some(*run),
            });
        }
        let config = self.config_of(index);
        let again = Repetition {
            dataset: (sources.dataset)(&config)?,
            pretrained: (sources.pretrained)(&config)?,
            config,
            listed: None,
            name: self.folder.display().to_string(),
        };
        let planned = PlannedRun::again(again, runtime)?;
        Run::begin(planned, Some(&path), runtime).map(Some)
    }

    /// The folder of a run, inside that of the series.
    fn name(&self, index: usize) -> String {
        match self.plan.kind {
            Kind::Seeds => format!("seed-{}", self.config_of(index).seed),
            Kind::Folds => format!("fold-{}", index + 1),
        }
    }

    /// What a run is.
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
fn train(run: Run, runtime: Runtime<'_>) -> Result<bool> {
    Ok(run.train(runtime)?.report.is_some())
}

/// The folder of a new series.
fn create(output: Option<&Path>, Plan { kind, config, .. }: &Plan, data_name: &str) -> Result<PathBuf> {
    let word = match kind {
        Kind::Seeds => "seeds",
        Kind::Folds => "folds",
    };
    let Some(path) = output else {
        let stem = Path::new("runs").join(format!("{data_name}-{}-{word}", config.model_name));
        outside(&config.data, &stem)?;
        return first_free(&stem);
    };
    outside(&config.data, path)?;
    let shown = path.display();
    if path.join(SERIES).is_file() {
        bail!(
            "--output {shown}: holds a series of runs already; continue it with `vitrine train --resume {shown}`"
        );
    }
    fs::create_dir_all(path).with_context(|| format!("--output {shown}: cannot be created"))?;
    if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
        bail!("--output {shown}: the folder is not empty; choose another one");
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::run_folder::testing::config;

    fn plan(kind: Kind, runs: usize) -> Plan {
        Plan { kind, runs, config: config(&["a", "b"]) }
    }

    fn series(kind: Kind, runs: usize) -> Series {
        Series { folder: "series".into(), plan: plan(kind, runs) }
    }

    #[test]
    fn seeds_count_up_and_keep_the_validation_images_of_the_first() {
        let series = series(Kind::Seeds, 3);
        assert_eq!([0, 1, 2].map(|index| series.name(index)), ["seed-7", "seed-8", "seed-9"]);
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
        assert_eq!([0, 3].map(|index| series.name(index)), ["fold-1", "fold-4"]);
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
        let file = place.path().join(SERIES);
        fs::write(&file, toml::to_string(&plan(Kind::Folds, 4)).unwrap()).unwrap();
        let series = Series::open(place.path()).unwrap().unwrap();
        assert_eq!((series.plan.kind, series.plan.runs), (Kind::Folds, 4));
        assert_eq!((series.config(), series.folder()), (&config(&["a", "b"]), place.path()));
        assert_eq!(series.summary(), place.path().join("summary.json"));
        let mut invalid = plan(Kind::Folds, 4);
        invalid.config.recipe.batch_size = 0;
        fs::write(&file, toml::to_string(&invalid).unwrap()).unwrap();
        let message = format!("{:#}", Series::open(place.path()).unwrap_err());
        assert!(message.contains(SERIES) && message.contains("batch_size"), "{message}");
    }

    #[test]
    fn a_series_needs_a_folder_of_its_own() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("series");
        assert_eq!(create(Some(&path), &plan(Kind::Seeds, 2), "data").unwrap(), path);
        assert_eq!(create(Some(&path), &plan(Kind::Seeds, 2), "data").unwrap(), path, "it is still empty");
        fs::write(path.join("notes.txt"), "").unwrap();
        let refused = || create(Some(&path), &plan(Kind::Seeds, 2), "data").unwrap_err().to_string();
        assert!(refused().contains("not empty"));
        fs::write(path.join(SERIES), "").unwrap();
        assert!(refused().contains("vitrine train --resume"));
    }
}
