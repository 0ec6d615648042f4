//! Opening a run for `--resume`: whether anything is left to train, and whether a new length is possible.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use vitrine_datasets::ContentKey;

use crate::events::clock;
use crate::recipe::AskedLength;
use crate::run_folder::{RunConfig, RunFolder, check_fixed};
use crate::text::count;
use crate::train::{Progress, progress};
use crate::usage::usage;

/// What the user changes of a run to be continued; the default is nothing.
#[derive(Clone, Copy, Default)]
pub struct Changes<'a> {
    /// The length of the whole run.
    pub length: AskedLength,
    /// The place where the images are now, a name or a path.
    pub data: Option<&'a str>,
    /// The folder of named data sets, if it is another one now.
    pub data_dir: Option<&'a Path>,
}

/// An existing run that was opened to be resumed.
pub(super) enum Resumption {
    /// The run has ended and its report exists, so there is nothing left to do.
    Finished(Box<Progress>),
    /// Training continues for the length in the configuration, which is the new length if one was asked for. The keys are those of
    /// images that could not be decoded.
    Unfinished(RunFolder, Box<RunConfig>, BTreeSet<ContentKey>),
}

/// Opens the run folder `run`. The changes are in the returned configuration, but not yet in `config.toml`.
///
/// # Errors
/// If there is no such run, another program trains it, one of its fixed files was edited, or it is already longer than
/// asked for.
pub(super) fn resume(run: &Path, changes: Changes<'_>) -> Result<Resumption> {
    let asked = changes.length;
    let (folder, mut config) = RunFolder::open(run)?;
    let progress = progress(run)?;
    check_fixed(folder.path(), &progress.fixed)?;
    if asked != AskedLength::default() && config.recipe.fit_head {
        usage!(
            "--resume {}: the head of this run is fitted to features, so there is no length to change: leave --epochs and \
             --time out, or train it by steps in a new run (--freeze backbone with --epochs)",
            run.display()
        );
    }
    if asked != AskedLength::default() {
        check_length(asked, &progress, AskedLength::from(&config.recipe))?;
        (config.recipe.epochs, config.recipe.time_seconds) = (asked.epochs, asked.seconds);
    }
    config.move_data(changes.data, changes.data_dir);
    let is_whole = progress.finished && progress.length == AskedLength::from(&config.recipe);
    if is_whole && folder.report().is_file() {
        return Ok(Resumption::Finished(Box::new(progress)));
    }
    Ok(Resumption::Unfinished(folder, Box::new(config), progress.undecodable))
}

/// Refuses a length that the run has already passed.
fn check_length(asked: AskedLength, progress: &Progress, before: AskedLength) -> Result<()> {
    let done = if progress.batch > 0 {
        format!("{} and part of another are done", count(progress.epoch, "epoch"))
    } else {
        format!("{} {} done", count(progress.epoch, "epoch"), if progress.epoch == 1 { "is" } else { "are" })
    };
    if progress.finished && asked == before {
        return Ok(());
    }
    match asked {
        AskedLength { epochs: Some(epochs), .. }
            if epochs < progress.epoch
                || (epochs == progress.epoch && (progress.finished || progress.batch > 0)) =>
        {
            usage!("--epochs {epochs}: {done} already; give more to train longer")
        }
        AskedLength { seconds: Some(seconds), .. } if seconds <= progress.seconds => usage!(
            "--time {}: the run has already taken {} ({done}); give a longer time for the whole run",
            humantime::format_duration(Duration::from_secs_f64(seconds)),
            clock(progress.seconds)
        ),
        _ => Ok(()),
    }
}
