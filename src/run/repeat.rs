//! Repeating an earlier run from its `config.toml` (`--config`), bit for bit where the conditions are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use vitrine_datasets::{ContentKey, Dataset, Fingerprint, Split};

use super::initial_weights::{adapted_start, check_weights};
use super::{PROGRAM, PlannedRun};
use crate::events::clock;
use crate::hub;
use crate::model_file;
use crate::pretrained::Pretrained;
use crate::run_folder::{
    CONFIG, IMAGES, Purpose, RunConfig, RunData, check_fixed, data_path, existing_path, states,
};
use crate::runtime::Runtime;
use crate::train::{Start, progress};

/// An earlier run, as its `config.toml` describes it.
pub struct Earlier {
    /// The configuration of the earlier run.
    pub config: RunConfig,
    /// The path that the user gave.
    path: PathBuf,
    /// The run folder, if it is known and holds the run's image list.
    listed: Option<PathBuf>,
}

/// The inputs of a repeated run.
pub struct Repetition<'a> {
    /// The configuration of the run.
    pub config: RunConfig,
    /// The folder of the earlier run with its image list. If `None`, the images are chosen anew, and must have the same
    /// fingerprints as those of the configuration.
    pub listed: Option<&'a Path>,
    /// The name of the configuration in error messages.
    pub name: String,
    /// The data set.
    pub dataset: Dataset,
    /// The pretrained weights; `None` for random initialization.
    pub pretrained: Option<Pretrained>,
    /// When the command, or this run of a series, began. The time of the run counts from here, so it includes the opening of the
    /// data set and of the weights.
    pub begun: Instant,
}

impl Earlier {
    /// Reads the argument of `--config`: a run folder, or a `config.toml`, which may have been copied elsewhere.
    ///
    /// # Errors
    /// If it does not exist, is a folder of several runs, or cannot be read, or if the run folder has a checkpoint whose
    /// checksums show that the configuration or the image list was edited.
    pub fn open(path: &Path) -> Result<Self> {
        ensure!(path.exists(), "--config {}: there is no such file or run folder", path.display());
        model_file::refuse_series(path).context("--config")?;
        let (config, listed) = read_config(path)?;
        Ok(Self { config, path: path.to_owned(), listed })
    }

    /// The reasons why a repetition on `device` with `threads` threads cannot give the same bits, one per entry.
    pub fn differences(&self, device: &str, threads: usize) -> Vec<String> {
        let RunConfig { program, recipe, lengthened, origin, .. } = &self.config;
        let mut found = Vec::new();
        let mut add = |reason: String| {
            found.push(format!("{} cannot be repeated bit for bit: {reason}", self.path.display()));
        };
        if let Some(seconds) = recipe.time_seconds {
            add(format!("its learning rate followed the clock (--time, {})", clock(seconds)));
        }
        if *lengthened {
            add("it was given another length after it had begun".to_owned());
        }
        if program != PROGRAM {
            add(format!("it was made by {program}, and this is {PROGRAM}"));
        }
        match &origin.device {
            Some(before) if before != device => add(format!("it ran on {before}, and this is {device}")),
            _ => {}
        }
        match origin.threads {
            Some(before) if before != threads => {
                add(format!("it used {before} threads; --threads {before} avoids this"));
            }
            None => add("the number of threads that it used is not known".to_owned()),
            _ => {}
        }
        found
    }

    /// The inputs with which this run is repeated by a command that began at `begun`.
    pub fn repetition(
        &self,
        dataset: Dataset,
        pretrained: Option<Pretrained>,
        begun: Instant,
    ) -> Repetition<'_> {
        Repetition {
            config: self.config.clone(),
            listed: self.listed.as_deref(),
            name: format!("--config {}", self.path.display()),
            dataset,
            pretrained,
            begun,
        }
    }
}

impl PlannedRun {
    /// Plans a run with the configuration of an earlier one.
    ///
    /// # Errors
    /// If the data set or the pretrained weights differ from those of the earlier run.
    pub fn again(from: Repetition<'_>, Runtime { device, threads, events, .. }: Runtime<'_>) -> Result<Self> {
        let Repetition { mut config, listed, name, dataset, pretrained, begun } = from;
        let earlier = pretrained.as_ref().and_then(|weights| weights.card.trained_on.as_ref());
        let data = match listed {
            Some(run) => RunData::reopen(dataset, &config, (run, Purpose::Repeat), &undecodable(run)?)?,
            None => {
                let (data, hold_out, limits) = (config.data_now(), config.hold_out(), config.limits());
                let data = RunData::choose(dataset, &data, hold_out, earlier, &limits)?;
                check_images(&name, &config, &data)?;
                data
            }
        };
        let source = config.pretrained_now().unwrap_or_default();
        // Earlier versions did not record the commit of a repository.
        let opened = pretrained.as_ref().map(|weights| weights.source.clone());
        let repository = opened.filter(|source| hub::is_repository(source));
        let start = pretrained.map_or(Ok(Start::Fresh), |weights| adapted_start(weights, &config, events))?;
        if let Start::Pretrained(tensors) = &start {
            check_weights(&config, &source, tensors)?;
        }
        config.data_path = data_path(&config.data_now(), &config.data_dir);
        config.pretrained = repository.or(config.pretrained);
        config.pretrained_path = existing_path(&source).or(config.pretrained_path);
        let (precision, warning) = device.precision_or_float32(config.recipe.precision);
        config.recipe.precision = precision;
        events.emit_warning(warning);
        config.program = PROGRAM.to_owned();
        config.lengthened = false;
        config.origin.threads = Some(threads);
        config.origin.device = Some(device.name.clone());
        config.origin.images.clone_from(&data.trained_on.splits);
        Ok(Self { config, data, start, reasons: Vec::new(), usual_epochs: None, begun })
    }
}

/// The images that the run in this folder could not decode, as far as it has saved a state.
fn undecodable(run: &Path) -> Result<BTreeSet<ContentKey>> {
    if states::is_saved(run) { Ok(progress(run)?.undecodable) } else { Ok(BTreeSet::new()) }
}

/// Refuses a data set whose fingerprints or classes differ from those that the configuration records. Earlier versions
/// recorded no fingerprints.
fn check_images(name: &str, config: &RunConfig, data: &RunData) -> Result<()> {
    let (before, now) = (&config.origin.images, &data.trained_on.splits);
    let classes = &data.dataset().info.classes;
    if (before.is_empty() || before == now) && *classes == config.classes {
        return Ok(());
    }
    bail!(
        "{name}: {} has changed since: {}; put its images back as they were, or start a new run",
        config.data_now(),
        changes(before, now)
    )
}

/// Describes the splits that changed, by their numbers of images before and now.
fn changes(before: &BTreeMap<Split, Fingerprint>, now: &BTreeMap<Split, Fingerprint>) -> String {
    let count = |of: &BTreeMap<Split, Fingerprint>, split| of.get(&split).map_or(0, |print| print.images);
    let changed = Split::ALL.into_iter().filter(|split| before.get(split) != now.get(split));
    let changed: Vec<String> = changed
        .map(|split| match (count(before, split), count(now, split)) {
            (then, now) if then == now => format!("of the {then} images of {split}, some are others"),
            (then, now) => format!("{split} had {then} images and has {now}"),
        })
        .collect();
    if changed.is_empty() { "its classes have other names".to_owned() } else { changed.join(", ") }
}

/// Reads the configuration in `path`, a run folder or a `config.toml`. The second value is the run folder, if it holds
/// the run's image list.
///
/// # Errors
/// If the configuration cannot be read, or a fixed file of the run was changed since the run began.
fn read_config(path: &Path) -> Result<(RunConfig, Option<PathBuf>)> {
    let file = if path.is_dir() { path.join(CONFIG) } else { path.to_owned() };
    let config = RunConfig::read(&file)?;
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if file.file_name().is_none_or(|name| name != CONFIG) || !folder.join(IMAGES).is_file() {
        return Ok((config, None));
    }
    if states::is_saved(folder) {
        check_fixed(folder, &progress(folder)?.fixed)?;
    }
    Ok((config, Some(folder.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::events::Quiet;
    use crate::run_folder::testing;

    #[test]
    fn the_time_of_a_repeated_run_counts_from_the_beginning_of_the_command() {
        let device = device::select(Some("cpu")).unwrap().0;
        let runtime = Runtime { device: &device, threads: 1, events: &Quiet, cache: None, workers: None };
        let begun = Instant::now();
        let repetition = Repetition {
            config: testing::config(&["circle", "ring"]),
            listed: None,
            name: "--config run".to_owned(),
            dataset: testing::drawn([8, 4, 2]),
            pretrained: None,
            begun,
        };
        assert_eq!(PlannedRun::again(repetition, runtime).unwrap().begun, begun);
    }
}
