//! `vitrine similar`: the images of a folder that are most similar to other images.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rayon::prelude::*;
use serde::Serialize;
use vitrine_datasets::{DecodeLimits, Image, ImageSource, path_of_shown};

use super::Status;
use super::inputs::InputArgs;
use super::model::{ForwardArgs, ModelArgs};
use super::output_file;
use crate::bounds;
use crate::cli::aliases;
use crate::cli::output::{self, note};
use crate::cli::within::within;
use crate::embed::{
    Embeddings, FEWEST_IMAGES, Found, Neighbor, Query, StoredEmbeddings, THUMBNAIL, Whitening, similar_page,
};
use crate::events::EventSink;
use crate::files::write_atomically;
use crate::flags::explained;
use crate::model_file;
use crate::named_model::NamedModel;
use crate::predict::{Asked, Classifier, Output};
use crate::text::{count, printable};
use crate::usage::usage;

/// Find the images of a folder that are most similar to an image, as a model sees them.
///
/// All images of the folder are compared, by the cosine similarity of their whitened embeddings; an image is not compared with its own
/// file. For many searches in the same images, write their embeddings once with `vitrine embed MODEL FOLDER --output FILE.npy`,
/// and give FILE.npy in place of the folder.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine similar runs/photos-hybrid_nano_patch8_64-1 cat.jpg --in photos/ --html similar.html\n  \
    vitrine similar model.safetensors new/ --in photos.npy --top 3 --format jsonl"
)]
pub(super) struct Similar {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    inputs: InputArgs,
    /// Folder to search in, with its subfolders, or a .npy or .safetensors file that `vitrine embed` wrote.
    #[arg(long = "in", value_name = "FOLDER")]
    place: PathBuf,
    /// Number of similar images for each image.
    #[arg(long, value_name = "K", default_value_t = 5, allow_negative_numbers = true, value_parser = within(bounds::TOP), aliases = aliases::TOP)]
    top: usize,
    /// How embeddings are compared; by default whitened, in a folder of at least 20 images.
    #[arg(long, value_enum)]
    similarity: Option<Measure>,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write a page that shows the images, too.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    forward: ForwardArgs,
}

/// How embeddings are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Measure {
    /// By the cosine after whitening by the images of the folder: what most of them have in common counts less.
    Whitened,
    /// By the cosine of the embeddings as they are.
    Cosine,
}

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The path of the image, and below it a line per similar image.
    Text,
    /// One JSON object per line.
    Jsonl,
}

/// An image with those that were found, or why there are none.
#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Found { path: &'a str, similar: Vec<Similarity<'a>> },
    Failed { path: &'a str, error: &'a str },
}

#[derive(Serialize)]
struct Similarity<'a> {
    path: &'a str,
    similarity: f32,
}

/// The images that were asked about, and those that could not be read.
struct Embedded {
    embeddings: Embeddings,
    /// The path and the error message of each.
    failed: Vec<(String, String)>,
}

/// The images that are searched.
struct Searched {
    embeddings: Embeddings,
    /// The folder in which relative paths begin, if it is not the working folder.
    base: Option<PathBuf>,
}

impl Searched {
    /// The file of a row. One that does not exist there may be where it is from here: the file of embeddings was moved, or the image
    /// is no file at all.
    fn file(&self, row: usize) -> PathBuf {
        let path = path_of_shown(&self.embeddings.paths[row]);
        let placed = self.base.as_ref().map(|base| base.join(&path));
        placed.filter(|placed| placed.exists()).unwrap_or(path)
    }
}

impl Similar {
    pub(super) fn run(&self) -> Result<Status> {
        self.check()?;
        let (log, device) = self.forward.begin()?;
        let NamedModel { card, model, files, .. } = self.model.load(&device, &log)?;
        let classifier = Classifier::new(card, model, &device).with_limits(self.forward.limits());
        let stored = if self.place.is_dir() { None } else { Some(self.stored(&classifier, &files)?) };
        let mut queries = self.embed(&classifier, &self.inputs, &log)?;
        if queries.embeddings.is_empty() {
            self.print(&queries.embeddings, &queries, &[])?;
            return Ok(Status::Partial);
        }
        let (mut images, mut failed) = match stored {
            Some(images) => (images, 0),
            None => {
                let Embedded { embeddings, failed } =
                    self.embed(&classifier, &InputArgs::of(self.place.clone()), &log)?;
                (Searched { embeddings, base: None }, failed.len())
            }
        };
        failed += queries.failed.len();
        let measure = self.prepare(&mut images.embeddings, &mut queries.embeddings)?;
        let found = nearest(&images, &queries.embeddings, self.top);
        if let Some(html) = &self.html {
            let similar = found.iter().flatten().map(|found| images.file(found.index));
            let asked = queries.embeddings.paths.iter().map(|path| path_of_shown(path));
            note_missing_pictures(asked.chain(similar));
            let page = self.page(&images, &queries.embeddings, &found, measure);
            write_atomically(html, page.as_bytes())?;
            note!("page: {}", html.display());
        }
        self.print(&images.embeddings, &queries, &found)?;
        Ok(if failed == 0 { Status::Done } else { Status::Partial })
    }

    /// Checks what can be checked before anything is computed.
    fn check(&self) -> Result<()> {
        self.model.check()?;
        self.inputs.check()?;
        let shown = self.place.display();
        if !self.place.exists() {
            bail!("--in {shown}: no such folder or file");
        }
        if !self.place.is_dir() && !StoredEmbeddings::is_name(&self.place) {
            usage!("--in {shown}: give a folder, or a .npy or .safetensors file that `vitrine embed` wrote");
        }
        if let Some(html) = &self.html {
            output_file::check(("--html", html), &["html", "htm"], &self.model.model, &self.inputs)?;
        }
        Ok(())
    }

    /// Makes the embeddings ready to be compared, and returns in words how.
    ///
    /// # Errors
    /// If whitening is wanted of too few images.
    fn prepare(&self, images: &mut Embeddings, queries: &mut Embeddings) -> Result<&'static str> {
        images.normalize();
        queries.normalize();
        let whitening = match self.similarity {
            Some(Measure::Cosine) => None,
            _ => Whitening::of(images),
        };
        let Some(whitening) = whitening else {
            if self.similarity == Some(Measure::Whitened) {
                bail!(
                    "--similarity whitened: {} has {}, and whitening needs at least {FEWEST_IMAGES} that are not all equal; use \
                     --similarity cosine",
                    self.place.display(),
                    count(images.len(), "image")
                );
            }
            return Ok("cosine");
        };
        whitening.apply(images);
        whitening.apply(queries);
        Ok("cosine of whitened embeddings")
    }

    /// The embeddings in the file to search in.
    ///
    /// # Errors
    /// If the file cannot be read, or its embeddings are those of another model, or were changed to another width.
    fn stored(&self, classifier: &Classifier, files: &[PathBuf]) -> Result<Searched> {
        let stored = StoredEmbeddings::load(&self.place)?;
        let base = stored.base(&self.place);
        let StoredEmbeddings { description, embeddings } = stored;
        let own = model_file::checksum(files)?;
        if own != description.model_sha256 {
            let short = |hash: &str| hash.chars().take(12).collect::<String>();
            let (place, model) = (self.place.display(), self.model.model.display());
            usage!(
                "--in {place}: these embeddings are of another model: {} (SHA-256 {}...), and {model} has {}...; embeddings of \
                 two models cannot be compared. Write them anew with `vitrine embed {model} FOLDER --output {place}`",
                description.model,
                short(&description.model_sha256),
                short(&own)
            );
        }
        let dim = classifier.card().model.embedding_dim();
        if embeddings.dim != dim {
            let place = self.place.display();
            bail!("--in {place}: a row has {} values, and an embedding of the model {dim}", embeddings.dim);
        }
        Ok(Searched { embeddings, base })
    }

    /// The embeddings of images. Those that cannot be read are named on standard error.
    fn embed(&self, classifier: &Classifier, inputs: &InputArgs, log: &dyn EventSink) -> Result<Embedded> {
        let mut embeddings = Embeddings::new(classifier.card().model.embedding_dim());
        let mut failed = Vec::new();
        let batches = inputs.batches(None, self.forward.batch_size, self.forward.limits())?;
        classifier.predictor().ask_stream(Output::Embedding, batches, log, |batch| {
            for Asked { tag: path, value } in batch {
                match value {
                    Ok(embedding) => embeddings.push(path, &embedding),
                    Err(error) => {
                        let message = explained(&error);
                        let message =
                            message.strip_prefix(&format!("{path}: ")).unwrap_or(&message).to_owned();
                        note!("error: {}: {}", printable(&path), printable(&message));
                        failed.push((path, message));
                    }
                }
            }
            Ok(())
        })?;
        Ok(Embedded { embeddings, failed })
    }

    /// Prints what was found for each image, in the order of the input, and then the images that could not be read.
    fn print(&self, images: &Embeddings, queries: &Embedded, found: &[Vec<Neighbor>]) -> Result<()> {
        for (path, found) in queries.embeddings.paths.iter().zip(found) {
            let text = match self.format {
                Format::Text => {
                    let line = |found: &Neighbor| {
                        format!("  {:.3}  {}\n", found.similarity, printable(&images.paths[found.index]))
                    };
                    format!("{}:\n{}", printable(path), found.iter().map(line).collect::<String>())
                }
                Format::Jsonl => {
                    let named = |found: &Neighbor| Similarity {
                        path: &images.paths[found.index],
                        similarity: found.similarity,
                    };
                    json(&Line::Found { path, similar: found.iter().map(named).collect() })?
                }
            };
            output::write(text.as_bytes())?;
        }
        if self.format == Format::Jsonl {
            for (path, error) in &queries.failed {
                output::write(json(&Line::Failed { path, error })?.as_bytes())?;
            }
        }
        Ok(())
    }

    /// The page of what was found.
    fn page(
        &self,
        images: &Searched,
        queries: &Embeddings,
        found: &[Vec<Neighbor>],
        measure: &str,
    ) -> String {
        let limits = self.forward.limits();
        let shown = |found: &Neighbor| {
            let image = thumbnail(images.file(found.index), &limits);
            Found { image, similarity: found.similarity, name: images.embeddings.paths[found.index].clone() }
        };
        let query = |(name, found): (&String, &Vec<Neighbor>)| Query {
            name: name.clone(),
            image: thumbnail(path_of_shown(name), &limits),
            found: found.iter().map(shown).collect(),
        };
        let facts = [
            ("model", self.model.model.display().to_string()),
            ("in", self.place.display().to_string()),
            ("images", images.embeddings.len().to_string()),
            ("similarity", measure.to_owned()),
        ];
        let queries: Vec<Query> = queries.paths.par_iter().zip(found).map(query).collect();
        similar_page(&queries, &facts)
    }
}

/// The most similar images for each query, without the file of the query itself.
fn nearest(images: &Searched, queries: &Embeddings, top: usize) -> Vec<Vec<Neighbor>> {
    let files: Vec<Option<PathBuf>> =
        queries.paths.iter().map(|path| path_of_shown(path).canonicalize().ok()).collect();
    // Names are compared first, because resolving a path takes as long as comparing hundreds of images.
    let is_itself = |query: usize, row: usize| {
        let [asked, other] =
            [&queries.paths[query], &images.embeddings.paths[row]].map(|path| path_of_shown(path));
        let has_its_name = asked.file_name() == other.file_name();
        let is_its_file = || files[query].is_some() && files[query] == images.file(row).canonicalize().ok();
        has_its_name && (asked == other && images.base.is_none() || is_its_file())
    };
    images.embeddings.nearest(queries, top, |query, row| !is_itself(query, row))
}

/// Says that a page has no pictures of images that are no files, if some are not.
pub(super) fn note_missing_pictures(mut files: impl Iterator<Item = PathBuf>) {
    if files.any(|file| !file.is_file()) {
        note!(
            "the page has the names alone of images that are no files here, such as those in archives and object stores"
        );
    }
}

/// The image of a file; `None` if it cannot be read.
pub(super) fn image(file: PathBuf, limits: &DecodeLimits) -> Option<Image> {
    ImageSource::File(file).decode(limits).ok()
}

/// The image of a file as pages show it, so that many take little memory; `None` if it cannot be read.
fn thumbnail(file: PathBuf, limits: &DecodeLimits) -> Option<Image> {
    Some(image(file, limits)?.fit(THUMBNAIL))
}

/// A line of JSON.
fn json(line: &Line<'_>) -> Result<String> {
    let text = serde_json::to_string(line).context("a line cannot be written as JSON")?;
    Ok(format!("{text}\n"))
}
