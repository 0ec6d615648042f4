//! Several runs that differ in one thing, the seed or the images that are kept for validation, and what they have in common.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vitrine_datasets::{Dataset, Fold};

use crate::device::FoundDevice;
use crate::files::{read_text, write_atomically};
use crate::output::note;
use crate::pretrained::Pretrained;
use crate::run::{PlannedRun, Repetition, Resumed, Run};
use crate::train::{AskedLength, RunConfig, RunFolder, first_free, interrupt, is_saved, outside};
use crate::usage::usage;

mod summary;

pub use summary::{Member, Scores, Summary};

/// What a series is, in its folder.
const SERIES: &str = "series.toml";
/// What came out of it.
const SUMMARY: &str = "summary.json";

/// What the runs of a series differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The seed, and with it everything random but the validation split.
    Seeds,
    /// The part of the training images that is kept for validation.
    Folds,
}

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
        device: &FoundDevice,
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
            Run::begin(first, Some(&series.folder.join(series.name(0))), device)
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
        device: &FoundDevice,
        threads: usize,
    ) -> Result<Option<Summary>> {
        let mut members = Vec::new();
        for index in 0..self.plan.runs {
            if interrupt::requested() {
                return Ok(None);
            }
            let name = self.name(index);
            note!("run {} of {}: {name}", index + 1, self.plan.runs);
            let run = match first.take() {
                Some(run) => Some(run),
                None => self.next(index, sources, device, threads).with_context(|| name.clone())?,
            };
            let is_finished = run.map_or(Ok(true), |run| train(run, device, threads));
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
    fn next(
        &self,
        index: usize,
        sources: &Sources<'_>,
        device: &FoundDevice,
        threads: usize,
    ) -> Result<Option<Run>> {
        let path = self.folder.join(self.name(index));
        if is_saved(&path) {
            return Ok(match Run::resume(&path, AskedLength::default(), device, sources.dataset)? {
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
        let planned = PlannedRun::again(again, &device.name, threads)?;
        Run::begin(planned, Some(&path), device).map(Some)
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

/// Trains a run; false if the user stopped it.
fn train(run: Run, device: &FoundDevice, threads: usize) -> Result<bool> {
    let Some(report) = run.train(device, threads)?.report else { return Ok(false) };
    note!("{}", report.line);
    for caveat in &report.caveats {
        note!("{caveat}");
    }
    Ok(true)
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
