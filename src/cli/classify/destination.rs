//! Where `vitrine classify` writes results: standard output, a file, or a part in the folder of a job of several shards.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::print::Format;
use crate::cli::inputs::{InputArgs, Shard, ShardArg};
use crate::cli::output;
use crate::cli::output_file;
use crate::files::{AtomicFile, is_temporary, read_text, write_atomically};
use crate::usage::usage;

/// The file of a folder of parts that says what they are results of.
const JOB: &str = "job.json";

/// The options that say where results go, and of which inputs.
#[derive(Args)]
pub(super) struct DestinationArgs {
    /// Write the results to this file, whole or not at all, instead of to standard output. With --shard: to the file
    /// part-IIIII-of-NNNNN of this folder; if it is there, nothing is left to do.
    #[arg(long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Classify the images of shard I of N, numbered from 0. An image's path decides about its shard. `auto` takes both numbers from
    /// Slurm (SLURM_ARRAY_TASK_ID, SLURM_ARRAY_TASK_COUNT), and `auto/N` takes I from Kubernetes, too (JOB_COMPLETION_INDEX).
    #[arg(long, value_name = "I/N")]
    shard: Option<ShardArg>,
}

/// What all parts of a folder have in common.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Job {
    /// The SHA-256 of the model's files.
    pub(super) model: String,
    /// The number of shards.
    pub(super) shards: u32,
    /// The inputs, as they were given.
    pub(super) inputs: Vec<PathBuf>,
    /// The options that change results, as they were given.
    pub(super) options: Vec<String>,
}

/// Results on their way.
pub(super) enum Destination {
    StandardOutput,
    File(AtomicFile),
}

impl DestinationArgs {
    /// The shard, if one was asked for.
    ///
    /// # Errors
    /// If the environment does not say which.
    pub(super) fn shard(&self) -> Result<Option<Shard>> {
        self.shard.map(|shard| shard.resolve(|name| std::env::var(name).ok())).transpose()
    }

    /// Checks that results can be written there, before anything is computed.
    ///
    /// # Errors
    /// If not, or if they would replace a file that is none of results.
    pub(super) fn check(&self, format: Format, model: &Path, inputs: &InputArgs) -> Result<()> {
        let Some(path) = &self.output else { return Ok(()) };
        if self.shard.is_none() {
            return output_file::check(("--output", path), &[format.extension()], model, inputs);
        }
        if path.exists() && !path.is_dir() {
            usage!("--output {}: this is a file; with --shard, give a folder for all parts", path.display());
        }
        Ok(())
    }

    /// The path of the results, unless they go to standard output.
    pub(super) fn path(&self, shard: Option<Shard>, format: Format) -> Option<PathBuf> {
        let part =
            |Shard { index, count }: Shard| format!("part-{index:05}-of-{count:05}.{}", format.extension());
        let path = self.output.as_ref()?;
        Some(shard.map_or_else(|| path.clone(), |shard| path.join(part(shard))))
    }

    /// Creates the folder of a job that has several shards, or checks that it is of the same job.
    ///
    /// # Errors
    /// If it cannot be written, or is of another job.
    pub(super) fn join(&self, job: &Job) -> Result<()> {
        let Some(folder) = &self.output else { return Ok(()) };
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{}: cannot be created", folder.display()))?;
        let path = folder.join(JOB);
        if !path.exists() {
            if !is_empty(folder)? {
                usage!(
                    "--output {}: the folder is not empty, and its files are no parts of results; choose another one",
                    folder.display()
                );
            }
            return write_atomically(&path, format!("{}\n", serde_json::to_string_pretty(job)?).as_bytes());
        }
        let read = || -> Result<Job> { Ok(serde_json::from_str(&read_text(&path)?)?) };
        let there =
            read().with_context(|| format!("{}: it does not describe a job of parts", path.display()))?;
        let differs = [
            ("model", there.model != job.model),
            ("number of shards", there.shards != job.shards),
            ("inputs", there.inputs != job.inputs),
            ("options", there.options != job.options),
        ];
        if let Some((what, _)) = differs.into_iter().find(|(_, differs)| *differs) {
            usage!(
                "--output {}: its parts are results of a job whose {what} differ{}; choose another folder",
                folder.display(),
                if what == "inputs" || what == "options" { "" } else { "s" }
            );
        }
        Ok(())
    }
}

/// Whether a folder has no files but temporary ones, which other shards may be writing.
fn is_empty(folder: &Path) -> Result<bool> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("{}: cannot be read", folder.display()))?;
    for entry in entries {
        let name = entry.with_context(|| format!("{}: cannot be read", folder.display()))?.file_name();
        if !is_temporary(&name) && name != JOB {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Destination {
    /// The file at `path`, or standard output.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub(super) fn open(path: Option<&Path>) -> Result<Self> {
        path.map_or(Ok(Self::StandardOutput), |path| AtomicFile::create(path).map(Self::File))
    }

    /// Writes formatted results.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::StandardOutput => Ok(output::write(bytes)?),
            Self::File(file) => file.write(bytes),
        }
    }

    /// Gives a file its name.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn finish(self) -> Result<()> {
        match self {
            Self::StandardOutput => Ok(()),
            Self::File(file) => file.finish(),
        }
    }
}
