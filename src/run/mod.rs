//! A run as a whole: planned, begun, trained, measured, and reported. Both `vitrine train` and [`train`](crate::train())
//! stand on it; so do resumed and repeated runs and the runs of a series.

mod new;
mod repeat;
mod resume;
pub mod series;
mod start;
mod summary;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use vitrine_datasets::{Dataset, Split};

pub use new::{NewRun, PlannedRun, default_val_fraction};
pub use repeat::{Earlier, Repetition};
pub use summary::{Kind, Member, Scores, Summary};

use resume::{Resumption, resume};
use start::start_again;

use crate::events::{Event, EventSink};
use crate::memory::{self, Work};
use crate::recipe::{AskedLength, Recipe};
use crate::report::{self, RunReport};
use crate::run_folder::{BadFiles, Purpose, RunConfig, RunData, RunFolder};
use crate::runtime::Runtime;
use crate::train::{Beginning, Outcome, Progress, Start, Trainer};

/// The name and version of this program, as runs record it.
const PROGRAM: &str = concat!("vitrine ", env!("CARGO_PKG_VERSION"));

/// A run that is ready to train: everything is decided, and its folder is there.
pub struct Run {
    config: RunConfig,
    folder: RunFolder,
    data: RunData,
    start: Start,
    bad_files: BadFiles,
    begun: Instant,
}

/// A run that has come to its end, or to an interruption.
pub struct FinishedRun {
    /// How it ended.
    pub outcome: Outcome,
    /// What it was.
    pub config: RunConfig,
    /// Where its files are.
    pub folder: RunFolder,
    /// Where it stands.
    pub progress: Progress,
    /// The measured result; none after an interruption.
    pub report: Option<RunReport>,
}

/// What `resume` found.
pub enum Resumed {
    /// There is nothing left to do.
    Finished(Box<Progress>),
    /// It goes on.
    Ready(Box<Run>),
}

impl Run {
    /// Checks that what was planned can be done, and makes the run folder `output`, or the first free one in `runs`.
    ///
    /// # Errors
    /// When too many images cannot be read, the memory does not suffice, or the folder cannot be made.
    pub fn begin(planned: PlannedRun, output: Option<&Path>, runtime: Runtime<'_>) -> Result<Self> {
        let Runtime { device, events, .. } = runtime;
        let PlannedRun { config, data, start, reasons, begun } = planned;
        let dataset = data.dataset();
        let work = Work::Training(&config.recipe, dataset.train.len());
        events.emit_warning(memory::check(&config.model, work, device)?);
        let bad_files = judge_files(&data, &dataset, &config, events)?;
        let folder = RunFolder::create(output, &config, &dataset.info.name, events)?;
        data.write(&folder).inspect_err(|_| folder.discard_unsaved())?;
        announce(&dataset, reasons, &config, &folder, events);
        Ok(Self { config, folder, data, start, bad_files, begun })
    }

    /// Opens a run that was begun earlier. `asked` is its new length, where it says anything; `open` opens the data set that the
    /// configuration names.
    ///
    /// # Errors
    /// When there is no such run, it is in use, its images are gone, or it is longer already than what is asked for.
    pub fn resume(
        run: &Path,
        asked: AskedLength,
        Runtime { device, events, .. }: Runtime<'_>,
        open: impl FnOnce(&RunConfig) -> Result<Dataset>,
    ) -> Result<Resumed> {
        let begun = Instant::now();
        let (folder, config) = match resume(run, asked)? {
            Resumption::Unfinished(folder, config) => (folder, *config),
            Resumption::Finished(progress) => return Ok(Resumed::Finished(progress)),
        };
        let data = RunData::reopen(open(&config)?, &config, folder.path(), Purpose::Resume)?;
        let images = data.dataset().train.len();
        events.emit_warning(memory::check(&config.model, Work::Training(&config.recipe, images), device)?);
        if asked != AskedLength::default() {
            folder.write_length(&config.recipe)?;
        }
        let bad_files = BadFiles::default();
        Ok(Resumed::Ready(Box::new(Self { config, folder, data, start: Start::Resumed, bad_files, begun })))
    }

    /// Trains to the end, or until the user stops it, and measures and reports the result.
    ///
    /// # Errors
    /// When training diverges, too many images cannot be read, or the disk refuses.
    pub fn train(self, runtime: Runtime<'_>) -> Result<FinishedRun> {
        let events = runtime.events;
        let Self { config, folder, data, start, bad_files, begun } = self;
        for remark in &data.remarks {
            events.emit(Event::notice(remark));
        }
        let beginning = Beginning { start, begun };
        let trained = Trainer::new(config.clone(), folder.clone(), &data, beginning, runtime).and_then(
            |mut trainer| {
                trainer.set_bad_files(bad_files);
                Ok((trainer.run(&|| start_again(&config))?, trainer))
            },
        );
        let (outcome, trainer) = trained.inspect_err(|_| folder.discard_unsaved())?;
        let trained = trainer.finish();
        let progress = trained.progress.clone();
        if outcome == Outcome::StoppedEarly {
            let Recipe { metric, patience, .. } = &config.recipe;
            events.emit(Event::EarlyStop { metric: metric.to_string(), patience: *patience });
        }
        let report = match outcome {
            Outcome::Interrupted => None,
            Outcome::Finished | Outcome::StoppedEarly => {
                let report = report::of_run((&folder, &config), &data.dataset(), trained, runtime)
                    .context("the finished run cannot be measured and reported")?;
                let caveats = report.caveats.iter().map(ToString::to_string).collect();
                events.emit(Event::Result { message: report.line.clone(), caveats });
                Some(report)
            }
        };
        Ok(FinishedRun { outcome, config, folder, progress, report })
    }
}

/// Reports the data, the choices, and the run folder.
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

/// Refuses a data set of which too much cannot be read, before anything is made of it.
fn judge_files(
    data: &RunData,
    dataset: &Dataset,
    config: &RunConfig,
    events: &dyn EventSink,
) -> Result<BadFiles> {
    let mut bad_files = BadFiles::default();
    for split in Split::ALL {
        let mut bad = data.bad(split);
        let mut total = dataset.split(split).len();
        if split == Split::Train {
            // The split of files that cannot even be listed is unknown: they count as training images.
            bad.extend(dataset.left_out.unreadable.iter().cloned());
            total += dataset.left_out.unreadable.len();
        }
        bad_files.judge(config.recipe.bad_file_limit, split, (&bad, total), events)?;
    }
    Ok(bad_files)
}
