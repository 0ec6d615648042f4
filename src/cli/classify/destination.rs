//! Where `vitrine classify` writes results: standard output, a file, or a part in the folder of a job of several shards, on the
//! disk or in an object store.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::print::Format;
use crate::cli::inputs::{InputArgs, Shard, ShardArg};
use crate::cli::output;
use crate::cli::output_file;
use crate::files::{AtomicFile, Unfinished, is_temporary, read_text, write_atomically};
use crate::store::{self, Object};
use crate::usage::usage;

/// The file of a folder of parts that says what they are results of.
const JOB: &str = "job.json";
/// The largest such file in an object store, in bytes: it has the paths of the command line.
const LARGEST_JOB: u64 = 16 << 20;

/// Extensions that promise a format which results do not have, and other than text.
const OTHER_FORMATS: [&str; 3] = ["json", "ndjson", "tsv"];

/// How often a description is looked for that another task writes, and the pause before the next time.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// The options that say where results go, and of which inputs.
#[derive(Args)]
pub(super) struct DestinationArgs {
    /// Write the results to this file, whole or not at all, instead of to standard output. With --shard: to the file
    /// part-IIIII-of-NNNNN of this folder; if it is there, nothing is left to do. In a vitrine built with `--features bulk`, a URL
    /// (s3://, gs://, az://) is possible, too.
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

/// Where results go.
#[derive(Clone)]
pub(super) enum Target {
    StandardOutput,
    File(PathBuf),
    Object(Object),
}

/// Results on their way.
pub(super) enum Destination {
    StandardOutput,
    File(AtomicFile),
    /// Collected on the disk until all are there.
    Object(tempfile::NamedTempFile, Unfinished, Object),
}

impl DestinationArgs {
    /// The shard, if one was asked for.
    ///
    /// # Errors
    /// If the environment does not say which.
    pub(super) fn shard(&self) -> Result<Option<Shard>> {
        self.shard.map(|shard| shard.resolve(|name| std::env::var(name).ok())).transpose()
    }

    /// The format of the results: the `stated` one, the one that the name of `--output` says, or text.
    ///
    /// # Errors
    /// If the name says another one than is stated, or one that results do not have.
    pub(super) fn format(&self, stated: Option<Format>) -> Result<Format> {
        // Parts have names of their own.
        let Some(output) = self.output.as_deref().filter(|_| self.shard.is_none()) else {
            return Ok(stated.unwrap_or(Format::Text));
        };
        if let Some(format) = output_file::format(output, stated)? {
            return Ok(format);
        }
        let extension = output.extension().unwrap_or_default();
        if OTHER_FORMATS.iter().any(|other| extension.eq_ignore_ascii_case(other)) {
            let known = Format::value_variants().iter().map(|format| format!(".{}", format.extension()));
            usage!(
                "--output {}: its name says none of the formats of results ({}); choose another name, or say the format with --format",
                output.display(),
                known.collect::<Vec<_>>().join(", ")
            );
        }
        Ok(Format::Text)
    }

    /// Checks that results can be written there, before anything is computed.
    ///
    /// # Errors
    /// If not, or if they would replace a file that is none of results.
    pub(super) fn check(&self, format: Format, model: &Path, inputs: &InputArgs) -> Result<()> {
        let Some(path) = &self.output else {
            if format == Format::Parquet {
                usage!("--format parquet: give --output; standard output has the other formats");
            }
            return Ok(());
        };
        output_file::check_results(path)?;
        if let Some(url) = store::url(path) {
            return self.check_object(url, format, inputs);
        }
        if self.shard.is_none() {
            return output_file::check(("--output", path), &[format.extension()], model, inputs);
        }
        if path.exists() && !path.is_dir() {
            usage!("--output {}: this is a file; with --shard, give a folder for all parts", path.display());
        }
        Ok(())
    }

    /// [`Self::check`] of an object.
    fn check_object(&self, url: &str, format: Format, inputs: &InputArgs) -> Result<()> {
        if url.starts_with("http") {
            usage!(
                "--output {url}: results cannot be written to web servers, only to s3://, gs://, and az://"
            );
        }
        let object = store::object(url)?;
        if self.shard.is_some() {
            return Ok(());
        }
        if url.ends_with('/') || object.is_root() {
            usage!("--output {url}: this is a folder; give a name for the results, or --shard");
        }
        if inputs.stated().iter().any(|input| input == Path::new(url)) {
            usage!("--output {url}: this is one of the inputs; choose another name");
        }
        let extension = format.extension();
        let exists = || object.exists().with_context(|| format!("--output {url}"));
        if !url.to_ascii_lowercase().ends_with(&format!(".{extension}")) && exists()? {
            usage!(
                "--output {url}: it exists, and only what ends in .{extension} is replaced; delete it, or choose another name"
            );
        }
        Ok(())
    }

    /// Where the results go.
    ///
    /// # Errors
    /// If it is in an object store that cannot be reached.
    pub(super) fn target(&self, shard: Option<Shard>, format: Format) -> Result<Target> {
        let part =
            |Shard { index, count }: Shard| format!("part-{index:05}-of-{count:05}.{}", format.extension());
        let Some(path) = &self.output else { return Ok(Target::StandardOutput) };
        if let Some(url) = store::url(path) {
            let object = store::object(url)?;
            return Ok(Target::Object(shard.map_or(object.clone(), |shard| object.join(&part(shard)))));
        }
        Ok(Target::File(shard.map_or_else(|| path.clone(), |shard| path.join(part(shard)))))
    }

    /// Creates the folder of a job that has several shards, or checks that it is of the same job.
    ///
    /// # Errors
    /// If it cannot be written, or is of another job.
    pub(super) fn join(&self, job: &Job) -> Result<()> {
        let Some(folder) = &self.output else { return Ok(()) };
        let there = match store::url(folder) {
            Some(url) => join_objects(&store::object(url)?, job)?,
            None => join_files(folder, job)?,
        };
        let Some(there) = there else { return Ok(()) };
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

/// Writes what all parts have in common to a folder that is new or empty, or reads it.
fn join_files(folder: &Path, job: &Job) -> Result<Option<Job>> {
    std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    let path = folder.join(JOB);
    if path.exists() {
        return described(&path.display(), read_text(&path).map(String::into_bytes)).map(Some);
    }
    if !is_empty(folder)? {
        refuse_others(&folder.display())?;
    }
    write_atomically(&path, &job.description()?)?;
    Ok(None)
}

/// [`join_files`] in an object store.
fn join_objects(folder: &Object, job: &Job) -> Result<Option<Job>> {
    let object = folder.join(JOB);
    let there = || object.read(LARGEST_JOB).with_context(|| object.url().to_owned());
    if let Some(there) = there()? {
        return described(&object.url(), Ok(there)).map(Some);
    }
    if let Some(first) = folder.list().next() {
        let first = first.with_context(|| folder.url().to_owned())?;
        if first.url() != object.url() {
            refuse_others(&folder.url())?;
        }
    }
    if object.create(&job.description()?)? {
        return Ok(None);
    }
    // Another task of the job was faster, or is about to be.
    for _ in 0..ATTEMPTS {
        if let Some(there) = there()? {
            return described(&object.url(), Ok(there)).map(Some);
        }
        std::thread::sleep(PAUSE);
    }
    bail!("{}: another task writes it, and does not come to an end", object.url())
}

fn refuse_others(folder: &dyn fmt::Display) -> Result<()> {
    usage!(
        "--output {folder}: the folder is not empty, and its files are no parts of results; choose another one"
    )
}

/// What is in a file that describes a job.
fn described(name: &dyn fmt::Display, text: Result<Vec<u8>>) -> Result<Job> {
    let read = || -> Result<Job> { Ok(serde_json::from_slice(&text?)?) };
    read().with_context(|| format!("{name}: it does not describe a job of parts"))
}

impl Job {
    /// The text of the file that describes the job.
    fn description(&self) -> Result<Vec<u8>> {
        Ok(format!("{}\n", serde_json::to_string_pretty(self)?).into_bytes())
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

impl Target {
    /// Whether a file or an object is there.
    ///
    /// # Errors
    /// If the object store cannot be asked.
    pub(super) fn exists(&self) -> Result<bool> {
        match self {
            Self::StandardOutput => Ok(false),
            Self::File(path) => Ok(path.exists()),
            Self::Object(object) => object.exists().with_context(|| object.url().to_owned()),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StandardOutput => f.write_str("standard output"),
            Self::File(path) => path.display().fmt(f),
            Self::Object(object) => f.write_str(object.url()),
        }
    }
}

/// The error for results that wait on the disk for their upload.
const NOT_COLLECTED: &str =
    "the results cannot be written to a temporary file; set TMPDIR to a folder with more space";

impl Destination {
    /// What takes the results for a target.
    ///
    /// # Errors
    /// If a file cannot be created.
    pub(super) fn open(target: &Target) -> Result<Self> {
        match target {
            Target::StandardOutput => Ok(Self::StandardOutput),
            Target::File(path) => AtomicFile::create(path).map(Self::File),
            Target::Object(object) => {
                let file = tempfile::NamedTempFile::new().context(NOT_COLLECTED)?;
                let unfinished = Unfinished::note(file.path());
                Ok(Self::Object(file, unfinished, object.clone()))
            }
        }
    }

    /// Writes formatted results.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::StandardOutput => Ok(output::write(bytes)?),
            Self::File(file) => file.write(bytes),
            Self::Object(file, _, _) => file.write_all(bytes).context(NOT_COLLECTED),
        }
    }

    /// Gives a file its name, or uploads the results.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn finish(self) -> Result<()> {
        match self {
            Self::StandardOutput => Ok(()),
            Self::File(file) => file.finish(),
            Self::Object(file, unfinished, object) => {
                let Err(error) = object.upload(file.path()) else { return Ok(()) };
                // The file stays, also if a signal ends the program.
                drop(unfinished);
                let (_, path) = file.keep().context(NOT_COLLECTED)?;
                Err(error.context(format!("the results are kept in {}", path.display())))
            }
        }
    }
}
