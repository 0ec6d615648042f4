//! `vitrine embed`: the embeddings of images, in a file or on standard output, and a map of them.

mod dataset;
mod results;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use vitrine_datasets::{DatasetError, DecodeLimits, is_archive_name, path_of_shown, shown};
use vitrine_models::ModelConfig;

use self::dataset::DatasetImages;
use self::results::{Lines, Results};
use super::console::Log;
use super::data::DataArgs;
use super::inputs::InputArgs;
use super::output_file;
use super::{DeviceArgs, Status, ThreadArgs};
use crate::bounds;
use crate::cli::aliases;
use crate::cli::output::{self, note, outln};
use crate::cli::within::within;
use crate::embed::{
    Description, Embeddings, HeaderPaths, ImageClasses, Map, StoredEmbeddings, normalize, paths_beside,
};
use crate::events::{Event, EventSink};
use crate::files::{same_place, write_atomically};
use crate::flags::is_wrong_usage;
use crate::hub;
use crate::model_file;
use crate::named_model::{self, NamedModel};
use crate::predict::{Classifier, Output};
use crate::text;
use crate::usage::usage;

/// Write the embeddings of images: what a model makes of an image before its head, pooled to one vector.
///
/// An embedding is that of the image itself (timm's `forward_head(x, pre_logits=True)`). Rows come in the order of the
/// input, with the path of each image: FILE.npy holds a float32 array [images, dim], and FILE.paths.json next to it the
/// paths; FILE.safetensors has the tensor `embeddings`, and the paths as a JSON list in its header; .jsonl, .csv, and .parquet have a
/// row per image. An image that cannot be read gives a message on standard error and status 1 at the end, and has no row.
///
/// In place of images, a data set of another kind than a folder of images may be given, as `vitrine train` takes it: the images of all
/// its splits are embedded, in the order train, val, test, and the map has the colors of their classes.
#[derive(Args)]
#[command(
    mut_arg("paths", |paths| paths.help(INPUTS)),
    after_help = "Examples:\n  vitrine embed runs/photos-hybrid_nano_patch16_128-1 photos/ --output photos.npy --html map.html\n  \
    vitrine embed dinov2-small cifar10 --output cifar10.npy\n  \
    find . -name '*.jpg' | vitrine embed model.safetensors - --format csv --normalize"
)]
pub(super) struct Embed {
    /// Model file or run folder; also another library's weights (a file or folder), hf:OWNER/NAME[@REVISION] on Hugging Face, or
    /// the name of a published backbone (`vitrine presets`).
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    #[command(flatten)]
    inputs: InputArgs,
    /// File to write; by default lines are printed, unless --html is all that is wanted.
    #[arg(long, value_name = "FILE", aliases = aliases::OUTPUT)]
    output: Option<PathBuf>,
    /// Format; by default that of the name of --output, or jsonl.
    #[arg(long, value_enum)]
    format: Option<Format>,
    /// Scale each embedding to a length of 1 (L2).
    #[arg(long)]
    normalize: bool,
    /// Write a map of the images: their first two principal components, colored by the folder of each image, or its class in a
    /// data set.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Images per forward pass.
    #[arg(long, value_name = "N", default_value_t = 16, allow_negative_numbers = true, value_parser = within(bounds::BATCH_SIZE), aliases = aliases::BATCH_SIZE)]
    batch_size: usize,
    #[command(flatten)]
    data_args: DataArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// What the paths may be.
const INPUTS: &str = "Images, folders (searched recursively), glob patterns, or - for a list of paths on standard input; or a single data \
    set: a name (shapes, mnist, fashion-mnist, cifar10, cifar100), a manifest (.csv, .tsv, .jsonl), an archive (.tar, .tar.gz, .zip), or a \
    folder of IDX files or CIFAR batches";

/// The form of the embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// NumPy's float32 array, and a JSON file with the paths.
    Npy,
    /// A safetensors file with the tensor `embeddings`.
    Safetensors,
    /// One JSON object per line.
    Jsonl,
    /// path,e0,e1,...
    Csv,
    /// Columns path and embedding, a list of numbers (cargo feature `bulk`).
    Parquet,
}

impl Format {
    /// The extension of files in this format.
    fn extension(self) -> &'static str {
        match self {
            Self::Npy => "npy",
            Self::Safetensors => "safetensors",
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
        }
    }
}

impl Embed {
    pub(super) fn run(&self) -> Result<Status> {
        self.inputs.check()?;
        let data = self.checked_data()?;
        let format = self.checked_format()?;
        self.threads.apply()?;
        let log = Log::text();
        let device = self.device.select(&log)?;
        // Before the data, so that none is downloaded for a model that does not exist.
        let (offline, change) = (self.data_args.offline, ModelConfig::clone);
        let NamedModel { card, model, source, files, .. } =
            named_model::load(&self.model, offline, &device.device, change, &log)?;
        let description = self.description(format, &source, &files)?;
        let classifier = Classifier::new(card, model, &device).with_limits(self.limits());
        let dataset = data.map(|data| self.dataset(data, &log)).transpose()?.flatten();
        let mut results = self.results(format, classifier.card().model.embedding_dim())?;
        self.check_paths(results.header.clone(), dataset.as_ref())?;
        let batches: Box<dyn Iterator<Item = _> + Send> = match &dataset {
            Some(dataset) => Box::new(dataset.batches(self.batch_size)),
            None => Box::new(self.inputs.batches(None, self.batch_size, self.limits())?),
        };
        let asked = classifier.predictor().ask_stream(Output::Embedding, batches, &log, |batch| {
            for entry in batch {
                let embedding = entry.value.map(|mut embedding| {
                    if self.normalize {
                        normalize(&mut embedding);
                    }
                    embedding
                });
                results.add(&entry.tag, embedding)?;
            }
            results.flush()
        });
        match asked {
            Err(error) if output::is_closed(&error) => return Ok(status(results.unreadable)),
            asked => asked?,
        }
        if let Some(dataset) = &dataset {
            dataset.add_left_out(&mut results)?;
        }
        self.finish(results, format, description, dataset.as_ref())
    }

    /// What a file with an array says of the embeddings; `None` for other formats. It names the model that was just loaded: when all
    /// images are embedded, another one may have taken its place, as in the folder of a run that goes on.
    fn description(
        &self,
        format: Option<Format>,
        source: &str,
        files: &[PathBuf],
    ) -> Result<Option<Description>> {
        match format {
            Some(Format::Npy | Format::Safetensors) => {
                Ok(Some(Description::new(source, model_file::checksum(files)?, self.normalize)))
            }
            Some(Format::Jsonl | Format::Csv | Format::Parquet) | None => Ok(None),
        }
    }

    /// Opens a data set; `None` for an archive that is none, and can still be one of images.
    fn dataset(&self, data: &str, events: &dyn EventSink) -> Result<Option<DatasetImages>> {
        match self.data_args.open(data, events) {
            Ok(dataset) => Ok(Some(DatasetImages::new(dataset))),
            Err(error) if is_archive_name(data) && error.is::<DatasetError>() && !is_wrong_usage(&error) => {
                events.emit(Event::notice(format!("no data set, so its images have no classes: {error}")));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The data set that the arguments name, if they name one.
    ///
    /// # Errors
    /// If an option has no effect.
    fn checked_data(&self) -> Result<Option<&str>> {
        let fetches = self.model.to_str().is_some_and(hub::is_repository);
        let data = self.inputs.dataset();
        if data.is_none() && self.data_args.label_separator.is_some() {
            usage!("--label-separator has no effect without a manifest: leave it out");
        }
        let first = self.inputs.stated().first().map(shown).unwrap_or_default();
        self.data_args.check(&first, fetches)?;
        Ok(data)
    }

    /// The format of the embeddings; `None` if only a map is wanted.
    ///
    /// # Errors
    /// If the format is unknown or not for standard output, or a file cannot be written where it shall be.
    fn checked_format(&self) -> Result<Option<Format>> {
        if let Some(html) = &self.html {
            output_file::check(("--html", html), &["html", "htm"], &self.model, &self.inputs)?;
        }
        if let Some(output) = &self.output {
            output_file::check_results(output)?;
            output_file::check_folder("--output", output)?;
        }
        let Some(output) = &self.output else {
            return match self.format {
                Some(Format::Npy | Format::Safetensors | Format::Parquet) => {
                    usage!(
                        "--format npy, safetensors, and parquet are no text for standard output: name a file with --output"
                    )
                }
                None if self.html.is_some() => Ok(None),
                format => Ok(Some(format.unwrap_or(Format::Jsonl))),
            };
        };
        let Some(format) = output_file::format(output, self.format)? else {
            usage!(
                "--output {}: its name does not tell the format (.npy, .safetensors, .jsonl, .csv, or .parquet); say it with --format",
                output.display()
            );
        };
        let check = |path: &Path, extension: &str| {
            output_file::check(("--output", path), &[extension], &self.model, &self.inputs)
        };
        check(output, format.extension())?;
        self.check_files(output, format)?;
        if format == Format::Parquet {
            // Whether the program was built with it.
            Lines::new(format, 0, None)?;
        }
        Ok(Some(format))
    }

    /// Checks that the files of `--output` replace neither the page nor a file that is there by chance.
    ///
    /// # Errors
    /// If they would.
    fn check_files(&self, output: &Path, format: Format) -> Result<()> {
        let is_page = |path: &Path| self.html.as_ref().is_some_and(|html| same_place(html, path));
        if is_page(output) {
            usage!("--output and --html name the same file");
        }
        if format != Format::Npy {
            return Ok(());
        }
        let (shown, paths) = (output.display(), paths_beside(output));
        if is_page(&paths) {
            usage!(
                "--html {}: this file gets the paths of the rows of {shown}; choose another name",
                paths.display()
            );
        }
        if paths.exists() && !output.exists() {
            usage!(
                "--output {shown}: the paths would replace {}, which is not beside such a file; choose another name",
                paths.display()
            );
        }
        Ok(())
    }

    /// An empty collection of results: lines to print or to write, and rows for an array or a map.
    fn results(&self, format: Option<Format>, dim: usize) -> Result<Results> {
        let lines = match format {
            Some(format @ (Format::Jsonl | Format::Csv | Format::Parquet)) => {
                Some(Lines::new(format, dim, self.output.as_deref())?)
            }
            Some(Format::Npy | Format::Safetensors) | None => None,
        };
        let has_rows = lines.is_none() || self.html.is_some();
        let file = self.output.as_deref().filter(|_| format == Some(Format::Safetensors));
        Ok(Results::new(lines, has_rows.then(|| Embeddings::new(dim)), file.map(HeaderPaths::of), dim))
    }

    /// Checks that the paths of all images that can be listed before any is read will fit the header of the file, if it needs them there.
    fn check_paths(&self, header: Option<HeaderPaths>, dataset: Option<&DatasetImages>) -> Result<()> {
        let Some(mut header) = header else { return Ok(()) };
        match dataset {
            Some(dataset) => dataset.names().try_for_each(|name| header.add(&name)),
            None => self.inputs.in_folders().try_for_each(|name| header.add(&name)),
        }
    }

    /// Writes the files, an array with its description, and says what was written.
    fn finish(
        &self,
        results: Results,
        format: Option<Format>,
        description: Option<Description>,
        dataset: Option<&DatasetImages>,
    ) -> Result<Status> {
        let Results { lines, rows, places, dim, count, unreadable, .. } = results;
        if count == 0 && (self.output.is_some() || self.html.is_some()) {
            bail!("no image could be embedded, so nothing is written");
        }
        if let Some(lines) = lines {
            output::unless_closed(lines.finish())?;
        }
        let mut embeddings = rows.unwrap_or_else(|| Embeddings::new(dim));
        if let (Some(output), Some(description)) = (&self.output, description) {
            let stored = StoredEmbeddings { description, embeddings };
            match format {
                Some(Format::Npy) => stored.save_npy(output)?,
                _ => stored.save_safetensors(output)?,
            }
            embeddings = stored.embeddings;
        }
        if let Some(html) = &self.html {
            write_atomically(html, self.map(&embeddings, &places, dataset).as_bytes())?;
        }
        if unreadable > 0 {
            note!(
                "{unreadable} of {} images could not be read and {} no row",
                unreadable + count,
                if unreadable == 1 { "has" } else { "have" }
            );
        }
        if let Some(output) = &self.output {
            outln!("embeddings: {} ({}, {dim} values each)", output.display(), text::count(count, "image"))?;
        }
        if let Some(html) = &self.html {
            note!("map: {}", html.display());
        }
        Ok(status(unreadable))
    }

    /// The limits for decoding images.
    fn limits(&self) -> DecodeLimits {
        self.data_args.file_size.limits()
    }

    /// The page with the map. `places` are those of the rows in the data set, if the images are of one.
    fn map(&self, embeddings: &Embeddings, places: &[usize], dataset: Option<&DatasetImages>) -> String {
        let limits = self.limits();
        let (classes, colored_by) = match dataset {
            Some(dataset) => (dataset.classes(places), "class"),
            None => (ImageClasses::by_folder(embeddings.paths.iter().map(String::as_str)), "folder"),
        };
        if dataset.is_none() {
            super::similar::note_missing_pictures(embeddings.paths.iter().map(|path| path_of_shown(path)));
        }
        let map = Map::new(embeddings, classes.as_ref(), |row| match dataset {
            Some(dataset) => dataset.image(places[row], &limits),
            None => super::similar::image(path_of_shown(&embeddings.paths[row]), &limits),
        });
        let mut facts =
            vec![("model", self.model.display().to_string()), ("images", embeddings.len().to_string())];
        if classes.is_some() {
            facts.push(("colored by", colored_by.to_owned()));
        }
        map.page(&facts)
    }
}

/// The status, by the number of images that could not be read.
fn status(unreadable: usize) -> Status {
    if unreadable == 0 { Status::Done } else { Status::Partial }
}
