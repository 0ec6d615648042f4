//! `vitrine embed`: the embeddings of images, in a file or on standard output, and a map of them.

mod results;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

use self::results::{Lines, Results};
use super::Status;
use super::inputs::InputArgs;
use super::model::{ForwardArgs, ModelArgs};
use super::output_file;
use crate::cli::aliases;
use crate::cli::output::{note, outln};
use crate::embed::{Description, Embeddings, ImageClasses, Map, StoredEmbeddings, normalize, paths_beside};
use crate::files::write_atomically;
use crate::model_file;
use crate::named_model::NamedModel;
use crate::predict::{Classifier, Output};
use crate::text;
use crate::usage::usage;

/// Write the embeddings of images: what a model makes of an image before its head, pooled to one vector.
///
/// An embedding is that of the image itself (timm's `forward_head(x, pre_logits=True)`). Rows come in the order of the
/// input, with the path of each image: FILE.npy holds a float32 array [images, dim], and FILE.paths.json next to it the
/// paths; FILE.safetensors has the tensor `embeddings`, and the paths as a JSON list in its header; .jsonl and .csv have a line
/// per image. An image that cannot be read gives a message on standard error and status 1 at the end, and has no row.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine embed runs/photos-hybrid_nano_patch8_64-1 photos/ --output photos.npy --html map.html\n  \
    find . -name '*.jpg' | vitrine embed model.safetensors - --format csv --normalize"
)]
pub(super) struct Embed {
    #[command(flatten)]
    model: ModelArgs,
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
    /// Write a map of the images: their first two principal components, colored by the folder of each image.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    forward: ForwardArgs,
}

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
}

impl Format {
    /// The extension of files in this format.
    fn extension(self) -> &'static str {
        match self {
            Self::Npy => "npy",
            Self::Safetensors => "safetensors",
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
        }
    }
}

impl Embed {
    pub(super) fn run(&self) -> Result<Status> {
        self.model.check()?;
        self.inputs.check()?;
        let format = self.checked_format()?;
        let (log, device) = self.forward.begin()?;
        let NamedModel { card, model, files, .. } = self.model.load(&device, &log)?;
        let classifier = Classifier::new(card, model, &device).with_limits(self.forward.limits());
        let mut results = self.results(format, classifier.card().model.embedding_dim())?;
        let batches = self.inputs.batches(self.forward.batch_size)?;
        classifier.predictor().ask_stream(Output::Embedding, batches, &log, |batch| {
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
        })?;
        self.finish(results, format, &files)
    }

    /// The format of the embeddings; `None` if only a map is wanted.
    ///
    /// # Errors
    /// If the format is unknown or not for standard output, or a file cannot be written where it shall be.
    fn checked_format(&self) -> Result<Option<Format>> {
        if let Some(html) = &self.html {
            output_file::check(("--html", html), &["html", "htm"], &self.model.model, &self.inputs)?;
        }
        if self.output.is_some() && self.output == self.html {
            usage!("--output and --html name the same file");
        }
        if let Some(output) = &self.output {
            output_file::check_folder("--output", output)?;
        }
        let Some(output) = &self.output else {
            return match self.format {
                Some(Format::Npy | Format::Safetensors) => {
                    usage!(
                        "--format npy and safetensors are no text for standard output: name a file with --output"
                    )
                }
                None if self.html.is_some() => Ok(None),
                format => Ok(Some(format.unwrap_or(Format::Jsonl))),
            };
        };
        let extension = output.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let named = Format::from_str(extension, true).ok();
        if let (Some(stated), Some(named)) = (self.format, named)
            && stated != named
        {
            usage!(
                "--output {}: its name says {}, and --format says {}; leave out --format, or choose another name",
                output.display(),
                named.extension(),
                stated.extension()
            );
        }
        let Some(format) = self.format.or(named) else {
            usage!(
                "--output {}: its name does not tell the format (.npy, .safetensors, .jsonl, or .csv); say it with --format",
                output.display()
            );
        };
        let check = |path: &Path, extension: &str| {
            output_file::check(("--output", path), &[extension], &self.model.model, &self.inputs)
        };
        check(output, format.extension())?;
        let paths = paths_beside(output);
        if format == Format::Npy && paths.exists() && !output.exists() {
            usage!(
                "--output {}: the paths would replace {}, which is not beside such a file; choose another name",
                output.display(),
                paths.display()
            );
        }
        Ok(Some(format))
    }

    /// An empty collection of results: lines to print or to write, and rows for an array or a map.
    fn results(&self, format: Option<Format>, dim: usize) -> Result<Results> {
        let lines = match format {
            Some(format @ (Format::Jsonl | Format::Csv)) => {
                Some(Lines::new(format == Format::Jsonl, dim, self.output.as_deref())?)
            }
            Some(Format::Npy | Format::Safetensors) | None => None,
        };
        let has_rows = lines.is_none() || self.html.is_some();
        Ok(Results::new(lines, has_rows.then(|| Embeddings::new(dim)), dim))
    }

    /// Writes the files, and says what was written.
    fn finish(&self, results: Results, format: Option<Format>, model: &[PathBuf]) -> Result<Status> {
        let Results { lines, rows, dim, count, unreadable } = results;
        if count == 0 && (self.output.is_some() || self.html.is_some()) {
            bail!("no image could be embedded, so nothing is written");
        }
        if let Some(lines) = lines {
            lines.finish()?;
        }
        let mut embeddings = rows.unwrap_or_else(|| Embeddings::new(dim));
        if let (Some(output), Some(format @ (Format::Npy | Format::Safetensors))) = (&self.output, format) {
            let description = Description::new(&self.name(), model_file::checksum(model)?, self.normalize);
            let stored = StoredEmbeddings { description, embeddings };
            match format {
                Format::Npy => stored.save_npy(output)?,
                _ => stored.save_safetensors(output)?,
            }
            embeddings = stored.embeddings;
        }
        if let Some(html) = &self.html {
            write_atomically(html, self.map(&embeddings).as_bytes())?;
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
        Ok(if unreadable == 0 { Status::Done } else { Status::Partial })
    }

    /// The model as it was named.
    fn name(&self) -> String {
        self.model.model.display().to_string()
    }

    /// The page with the map.
    fn map(&self, embeddings: &Embeddings) -> String {
        let limits = self.forward.limits();
        let classes = ImageClasses::by_folder(embeddings.paths.iter().map(String::as_str));
        let map = Map::new(embeddings, classes.as_ref(), |row| {
            super::similar::image(&embeddings.paths[row], &limits)
        });
        let mut facts = vec![("model", self.name()), ("images", embeddings.len().to_string())];
        if classes.is_some() {
            facts.push(("colored by", "folder".to_owned()));
        }
        map.page(&facts)
    }
}
