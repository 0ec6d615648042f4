//! What `--resume` makes of a run: nothing more, the rest of it, or a longer one.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::events::clock;
use crate::recipe::AskedLength;
use crate::run_folder::{RunConfig, RunFolder, check_fixed};
use crate::train::{Progress, progress};
use crate::usage::usage;

/// A run that was begun earlier.
pub(super) enum Resumption {
    /// It has ended, and its report is made: there is nothing to do.
    Finished(Box<Progress>),
    /// It goes on, as long as its configuration now says.
    Unfinished(RunFolder, Box<RunConfig>),
}

/// Opens the run folder `run`. `asked`, where it says anything, is the length of the whole run in place of the one it was begun
/// with; nothing of it is written yet.
///
/// # Errors
/// When there is no such run, another program trains in it, or it is longer already than what is asked for.
pub(super) fn resume(run: &Path, asked: AskedLength) -> Result<Resumption> {
    let (folder, mut config) = RunFolder::open(run)?;
    let progress = progress(run)?;
    check_fixed(folder.path(), &progress.fixed)?;
    if asked != AskedLength::default() {
        check(asked, &progress, AskedLength::from(&config.recipe))?;
        (config.recipe.epochs, config.recipe.time_seconds) = (asked.epochs, asked.seconds);
    }
    let is_whole = progress.finished && progress.length == AskedLength::from(&config.recipe);
    if is_whole && folder.report().is_file() {
        return Ok(Resumption::Finished(Box::new(progress)));
    }
    Ok(Resumption::Unfinished(folder, Box::new(config)))
}

/// Refuses a length that lies behind the run.
fn check(asked: AskedLength, progress: &Progress, before: AskedLength) -> Result<()> {
    let done = if progress.batch > 0 {
        format!("{} epochs and part of another are done", progress.epoch)
    } else {
        format!("{} epochs are done", progress.epoch)
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
