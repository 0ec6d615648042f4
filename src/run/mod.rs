//! A training run from its plan to its report: new, resumed, or repeated, alone or as one of a series.
//!
//! Both `vitrine train` and the library's [`train`](crate::train()) use this module.

mod image_size;
mod initial_weights;
mod new;
mod repeat;
mod resume;
pub mod series;
mod summary;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use vitrine_datasets::{Dataset, Split};

pub use new::{NewRun, PlannedRun, default_val_fraction};
pub use repeat::{Earlier, Repetition};
pub use resume::Changes;
pub use summary::{Kind, Member, Scores, Summary};

use initial_weights::reread_start;
use resume::{Resumption, resume};
use series::Series;

use crate::events::{Event, EventSink};
use crate::memory::{self, Work};
use crate::recipe::{AskedLength, Recipe};
use crate::report::{self, RunReport};
use crate::run_folder::{BadFiles, Purpose, RunConfig, RunData, RunFolder};
use crate::runtime::Runtime;
use crate::train::{Beginning, HeadFit, Outcome, Progress, Start, Trained, Trainer};
use crate::usage::usage;

/// The name and version of this program, which `config.toml` records.
const PROGRAM: &str = concat!("vitrine ", env!("CARGO_PKG_VERSION"));

/// A run that is ready to train: its configuration is complete, and its folder exists and is locked.
pub struct Run {
    config: RunConfig,
    folder: RunFolder,
    data: RunData,
    start: Start,
    bad_files: BadFiles,
    /// See [`Beginning::usual_epochs`].
    usual_epochs: Option<f64>,
    /// When the command began; see [`Beginning::begun`].
    begun: Instant,
}

/// A run whose training has ended or was interrupted.
pub struct FinishedRun {
    /// Why training ended.
    pub outcome: Outcome,
    /// The configuration of the run.
    pub config: RunConfig,
    /// The run folder.
    pub folder: RunFolder,
    /// Epochs, updates, and seconds done, with the history of the metrics.
    pub progress: Progress,
    /// The measured result; `None` after an interruption.
    pub report: Option<RunReport>,
}

/// The result of [`Run::resume`].
pub enum Resumed {
    /// The run is complete, so there is nothing left to train.
    Finished(Box<Progress>),
    /// The run can continue.
    Ready(Box<Run>),
}

impl Run {
    /// Checks that a planned run fits the memory and that its images can be read, then creates its folder: `output`, or
    /// the first free folder in `runs`.
    ///
    /// # Errors
    /// If too many images cannot be read, the memory does not suffice, or the folder cannot be created.
    pub fn begin(planned: PlannedRun, output: Option<&Path>, runtime: Runtime<'_>) -> Result<Self> {
        let Runtime { device, events, .. } = runtime;
        let PlannedRun { config, data, start, reasons, usual_epochs, begun } = planned;
        let dataset = data.dataset();
        events.emit_warning(memory::check(&config.model, work(&config.recipe, &dataset), device)?);
        let bad_files = check_unreadable(&data, &config, events)?;
        let folder = RunFolder::create(output, &config, &dataset.info.name, events)?;
        data.write(&folder).inspect_err(|_| folder.discard_unsaved())?;
        announce(&dataset, reasons, &config, &folder, events);
        Ok(Self { config, folder, data, start, bad_files, usual_epochs, begun })
    }

    /// Opens an existing run, to continue it. `open` opens the data set of the configuration.
    ///
    /// # Errors
    /// If there is no such run, another program trains it, its images are gone, it is already longer than asked for, or
    /// another length is asked for one run of a series.
    pub fn resume(
        run: &Path,
        changes: Changes<'_>,
        Runtime { device, events, .. }: Runtime<'_>,
        open: impl FnOnce(&RunConfig) -> Result<Dataset>,
    ) -> Result<Resumed> {
        let begun = Instant::now();
        if changes.length != AskedLength::default() && Series::includes(run) {
            usage!(
                "--resume {}: this is one run of a series, whose runs have the same length: leave --epochs and --time out, or \
                 train a new series with more of them",
                run.display()
            );
        }
        let (folder, mut config, undecodable) = match resume(run, changes)? {
            Resumption::Unfinished(folder, config, undecodable) => (folder, *config, undecodable),
            Resumption::Finished(progress) => return Ok(Resumed::Finished(progress)),
        };
        let (dataset, again) = (open(&config)?, (folder.path(), Purpose::Resume));
        let data = RunData::reopen(dataset, &config, again, &undecodable)?;
        let (precision, warning) = device.precision_or_float32(config.recipe.precision);
        config.recipe.precision = precision;
        events.emit_warning(warning);
        events.emit_warning(memory::check(&config.model, work(&config.recipe, &data.dataset()), device)?);
        if changes.length != AskedLength::default() {
            folder.write_length(&config.recipe)?;
        }
        if changes.data.is_some() || changes.data_dir.is_some() {
            folder.write_data(&config)?;
        }
        let bad_files = BadFiles::default();
        let (start, usual_epochs) = (Start::Resumed, None);
        Ok(Resumed::Ready(Box::new(Self { config, folder, data, start, bad_files, usual_epochs, begun })))
    }

    /// The run with another limit on unreadable images, until it is interrupted again.
    pub fn with_bad_file_limit(mut self, limit: Option<f64>) -> Self {
        let recipe = &mut self.config.recipe;
        recipe.bad_file_limit = limit.unwrap_or(recipe.bad_file_limit);
        self
    }

    /// The configuration of the run.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Trains until the run ends or the user stops it. At the end of the run, measures the best model and writes the
    /// report.
    ///
    /// # Errors
    /// If training diverges, too many images cannot be read, or a file cannot be written.
    pub fn train(self, runtime: Runtime<'_>) -> Result<FinishedRun> {
        let events = runtime.events;
        for remark in &self.data.remarks {
            events.emit(Event::notice(remark));
        }
        let Self { config, folder, data, .. } = &self;
        let (config, folder, data) = (config.clone(), folder.clone(), data.dataset());
        let (outcome, trained) = self.trained(runtime).inspect_err(|_| folder.discard_unsaved())?;
        let progress = trained.progress.clone();
        if outcome == Outcome::StoppedEarly {
            let (metric, patience) = (config.recipe.metric().to_string(), config.recipe.patience);
            events.emit(Event::EarlyStop { metric, patience });
        }
        let report = match outcome {
            Outcome::Interrupted => None,
            Outcome::Finished | Outcome::StoppedEarly => {
                let in_series = Series::includes(folder.path());
                let report = report::of_run((&folder, &config), &data, trained, in_series, runtime)
                    .context("the finished run cannot be measured and reported")?;
                let caveats = report.caveats.iter().map(ToString::to_string).collect();
                let RunReport { split, metrics, line, .. } = &report;
                events.emit(Event::Result {
                    split: *split,
                    images: metrics.samples,
                    top1: metrics.top1,
                    macro_f1: metrics.macro_f1,
                    mean_average_precision: metrics.multi_label.as_ref().map(|of| of.mean_average_precision),
                    message: line.clone(),
                    caveats,
                });
                Some(report)
            }
        };
        Ok(FinishedRun { outcome, config, folder, progress, report })
    }

    /// Trains, or fits the head, until the run ends or the user stops it.
    fn trained(self, runtime: Runtime<'_>) -> Result<(Outcome, Trained)> {
        let Self { config, folder, data, start, bad_files, usual_epochs, begun } = self;
        let beginning = Beginning { start, usual_epochs, begun };
        if config.recipe.fit_head {
            let mut fit = HeadFit::new(config.clone(), folder, &data, beginning, runtime)?;
            fit.set_bad_files(bad_files);
            return Ok((fit.run(&|| reread_start(&config))?, fit.finish()));
        }
        let mut trainer = Trainer::new(config.clone(), folder, &data, beginning, runtime)?;
        trainer.set_bad_files(bad_files);
        Ok((trainer.run(&|| reread_start(&config))?, trainer.finish()))
    }
}

/// The work of a run, whose memory is estimated.
fn work<'a>(recipe: &'a Recipe, dataset: &Dataset) -> Work<'a> {
    let images = dataset.train.len() + dataset.val.len();
    match recipe.fit_head {
        // A time limit limits the images whose features are computed.
        true if recipe.time_seconds.is_some() => Work::Inference(1),
        true => Work::Fitting(if recipe.fits_mirror_images() { 2 * images } else { images }),
        false => Work::Training(recipe, if recipe.probe_first { images } else { dataset.train.len() }),
    }
}

/// Emits events about the data, the automatic choices with their reasons, and the run folder.
fn announce(
    dataset: &Dataset,
    reasons: Vec<String>,
    config: &RunConfig,
    folder: &RunFolder,
    events: &dyn EventSink,
) {
    events.emit(Event::Data {
        name: dataset.info.name.clone(),
        classes: dataset.info.classes.len(),
        training: dataset.train.len(),
        validation: dataset.val.len(),
        test: dataset.test.len(),
    });
    for message in reasons.into_iter().chain(config.recipe.freeze.map(|freeze| freeze.to_string())) {
        events.emit(Event::Choice { message });
    }
    events.emit(Event::RunFolder { path: folder.path().to_owned() });
}

/// Refuses a data set with too many unreadable images, before the run folder is created.
fn check_unreadable(data: &RunData, config: &RunConfig, events: &dyn EventSink) -> Result<BadFiles> {
    let mut bad_files = BadFiles::default();
    for split in Split::ALL {
        let (bad, total) = data.unreadable(split);
        bad_files.judge(config.recipe.bad_file_limit, split, (&bad, total), events)?;
    }
    Ok(bad_files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_folder::testing::drawn;

    #[test]
    fn the_memory_of_a_fitted_head_counts_mirror_images() {
        let dataset = drawn([8, 4, 2]);
        let fits = |horizontal_flip, expected| {
            let mut recipe = Recipe { fit_head: true, ..Recipe::default() };
            recipe.augmentation.horizontal_flip = horizontal_flip;
            matches!(work(&recipe, &dataset), Work::Fitting(images) if images == expected)
        };
        assert!(fits(0.0, 12) && fits(0.5, 24));
    }
}
