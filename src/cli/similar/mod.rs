//! `vitrine similar`: the images of a folder that are most similar to other images.

mod known;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use rayon::prelude::*;
use serde::Serialize;
use vitrine_datasets::{DecodeLimits, Image, ImageSource, path_of_shown, shown};

use self::known::Known;
use super::Status;
use super::inputs::InputArgs;
use super::model::{ForwardArgs, ModelArgs};
use super::output_file;
use crate::bounds;
use crate::cli::aliases;
use crate::cli::output::{self, note};
use crate::cli::within::within;
use crate::embed::{
    Embeddings, FEWEST_IMAGES, Found, Neighbor, Placing, Query, StoredEmbeddings, THUMBNAIL, Whitening,
    normalize, similar_page,
};
use crate::events::EventSink;
use crate::files::{resolved, write_atomically};
use crate::flags::explained;
use crate::model_file;
use crate::named_model::NamedModel;
use crate::predict::{Asked, Classifier, Output};
use crate::text::{count, printable, shell_word};
use crate::usage::usage;

/// Find the images of a folder that are most similar to an image, as a model sees them.
///
/// All images of the folder are compared, by the cosine similarity of their whitened embeddings; an image is not compared with its own
/// file. For many searches in the same images, write their embeddings once with `vitrine embed MODEL FOLDER --output FILE.npy`,
/// and give FILE.npy in place of the folder.
///
/// To find other versions of a picture rather than other pictures of a kind, use --similarity layout.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine similar runs/photos-hybrid_nano_patch16_128-1 cat.jpg --in photos/ --html similar.html\n  \
    vitrine similar dinov2-small drawing.png --in drawings/ --similarity layout\n  \
    vitrine similar model.safetensors new/ --in photos.npy --top 3 --format jsonl"
)]
pub(super) struct Similar {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    inputs: InputArgs,
    /// Folder to search in, with its subfolders, or a file that `vitrine embed` wrote as npy or safetensors.
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
    /// By what lies where, in 4 by 4 cells of each image, whitened: finds other versions of a picture rather than other pictures of a
    /// kind.
    Layout,
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
    Found { path: &'a str, similar: Vec<Similarity> },
    Failed { path: &'a str, error: &'a str },
}

#[derive(Serialize)]
struct Similarity {
    path: String,
    similarity: f32,
}

/// The images that were asked about, and those that could not be read.
struct Embedded {
    embeddings: Embeddings,
    /// The path and the error message of each.
    failed: Vec<(String, String)>,
}

/// The images that are searched.
#[derive(Default)]
struct Searched {
    embeddings: Embeddings,
    /// The folder in which relative paths begin, if it is not the working folder.
    base: Option<PathBuf>,
}

impl Searched {
    /// The file of a row, or its place in an archive. One that does not exist there may be where it is from here: the file of embeddings
    /// was moved, or the image is no file at all.
    fn file(&self, row: usize) -> PathBuf {
        let path = path_of_shown(&self.embeddings.paths[row]);
        let placed = self.base.as_ref().map(|base| base.join(&path));
        placed.filter(|placed| placed.ancestors().any(Path::is_file)).unwrap_or(path)
    }
}

impl Similar {
    pub(super) fn run(&self) -> Result<Status> {
        self.check()?;
        let (log, device) = self.forward.begin()?;
        let NamedModel { card, model, files, .. } = self.model.load(&device, &log)?;
        let classifier = Classifier::new(card, model, &device).with_limits(self.forward.limits());
        let stored = if self.place.is_dir() { None } else { Some(self.stored(&classifier, &files)?) };
        let mut asked = Embeddings::new(self.width(&classifier));
        let none = Embeddings::default();
        let failed = self.ask(&classifier, &self.inputs, &none, &log, |path, row| asked.push(path, row))?;
        let mut queries = Embedded { embeddings: asked, failed };
        if queries.embeddings.is_empty() {
            self.print(&Searched::default(), &queries, &[])?;
            if self.html.is_some() {
                bail!("no image could be embedded, so no page is written");
            }
            return Ok(if queries.failed.is_empty() { Status::Done } else { Status::Partial });
        }
        let (mut images, mut failed) = match stored {
            Some(images) => (images, 0),
            None => self.folder(&classifier, &mut queries.embeddings, &log)?,
        };
        failed += queries.failed.len();
        if images.embeddings.is_empty() {
            bail!("--in {}: it holds no image that could be compared", self.place.display());
        }
        let measure =
            self.prepare(&mut images.embeddings, &mut queries.embeddings, self.width(&classifier))?;
        let found = nearest(&images, &queries.embeddings, self.top);
        let printed = self.print(&images, &queries, &found);
        if let Some(html) = &self.html {
            let similar = found.iter().flatten().map(|found| images.file(found.index));
            let asked = queries.embeddings.paths.iter().map(|path| path_of_shown(path));
            note_missing_pictures(asked.chain(similar));
            let page = self.page(&images, &queries.embeddings, &found, measure);
            write_atomically(html, page.as_bytes())?;
            note!("page: {}", html.display());
        }
        printed?;
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
        if !self.place.is_dir() && !StoredEmbeddings::recognizes(&self.place) {
            usage!("--in {shown}: give a folder, or a file that `vitrine embed` wrote as npy or safetensors");
        }
        if !self.place.is_dir() && self.is_layout() {
            usage!(
                "--similarity layout: files of embeddings do not say what lies where; give the folder of the images with --in"
            );
        }
        if let Some(html) = &self.html {
            output_file::check(("--html", html), &["html", "htm"], &self.model.model, &self.inputs)?;
        }
        Ok(())
    }

    /// Makes the embeddings ready to be compared, and returns in words how. `width` is that of an answer of the model.
    ///
    /// # Errors
    /// If whitening is wanted of too few images.
    fn prepare(
        &self,
        images: &mut Embeddings,
        queries: &mut Embeddings,
        width: usize,
    ) -> Result<&'static str> {
        // The places of layouts are those of layouts of the length 1 already.
        if !self.is_layout() {
            images.normalize();
            queries.normalize();
        }
        let whitening = match self.similarity {
            Some(Measure::Cosine) => None,
            _ => Whitening::within(images, width),
        };
        let Some(whitening) = whitening else {
            let wanted = match self.similarity {
                Some(Measure::Whitened) => "whitened",
                Some(Measure::Layout) => "layout",
                Some(Measure::Cosine) | None => return Ok("cosine"),
            };
            bail!(
                "--similarity {wanted}: {} has {}, and whitening needs at least {FEWEST_IMAGES} that are not all equal; use \
                 --similarity cosine",
                self.place.display(),
                count(images.len(), "image")
            );
        };
        whitening.apply(images);
        whitening.apply(queries);
        Ok(if self.is_layout() { "cosine of whitened layouts" } else { "cosine of whitened embeddings" })
    }

    fn is_layout(&self) -> bool {
        self.similarity == Some(Measure::Layout)
    }

    /// The width of what the model is asked for.
    fn width(&self, classifier: &Classifier) -> usize {
        let model = &classifier.card().model;
        if self.is_layout() { model.layout_dim() } else { model.embedding_dim() }
    }

    /// The images of the folder to search in, and how many of them could not be read. The model is not asked again about those that are
    /// queries. Layouts are placed within what those of the folder span, and those of the queries with them.
    fn folder(
        &self,
        classifier: &Classifier,
        queries: &mut Embeddings,
        log: &dyn EventSink,
    ) -> Result<(Searched, usize)> {
        let (inputs, width) = (InputArgs::of(self.place.clone()), self.width(classifier));
        let (embeddings, failed) = if self.is_layout() {
            let mut placing = Placing::new(width);
            let failed = self.ask(classifier, &inputs, queries, log, |path, row| placing.push(path, row))?;
            let (span, images) = placing.finish();
            *queries = span.places(queries);
            (images, failed)
        } else {
            let mut images = Embeddings::new(width);
            let failed = self.ask(classifier, &inputs, queries, log, |path, row| images.push(path, row))?;
            (images, failed)
        };
        Ok((Searched { embeddings, base: None }, failed.len()))
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
                 two models cannot be compared. Write them anew with `vitrine embed {} FOLDER --output {}`",
                description.model,
                short(&description.model_sha256),
                short(&own),
                shell_word(&model),
                shell_word(&place)
            );
        }
        let dim = classifier.card().model.embedding_dim();
        if embeddings.dim != dim {
            let place = self.place.display();
            bail!("--in {place}: a row has {} values, and an embedding of the model {dim}", embeddings.dim);
        }
        Ok(Searched { embeddings, base })
    }

    /// Asks the model about images that are not among the `known` ones, and hands the answer for each image to `push`, in their order. Returns
    /// the path and the error message of those that cannot be read, which are named on standard error, too.
    fn ask(
        &self,
        classifier: &Classifier,
        inputs: &InputArgs,
        known: &Embeddings,
        log: &dyn EventSink,
        mut push: impl FnMut(String, &[f32]),
    ) -> Result<Vec<(String, String)>> {
        let output = if self.is_layout() { Output::Layout } else { Output::Embedding };
        let mut failed = Vec::new();
        let size = self.forward.batch_size;
        let batches = inputs.batches(None, size, self.forward.limits())?;
        let batches = Known::of(known).mark_all(batches, size);
        classifier.predictor().ask_stream(output, batches, log, |batch| {
            for Asked { tag: (path, row), value } in batch {
                if let Some(row) = row {
                    push(path, known.row(row));
                    continue;
                }
                match value {
                    Ok(mut answer) => {
                        if self.is_layout() {
                            normalize(&mut answer);
                        }
                        push(path, &answer);
                    }
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
        Ok(failed)
    }

    /// Prints what was found for each image, in the order of the input, and then the images that could not be read.
    fn print(&self, images: &Searched, queries: &Embedded, found: &[Vec<Neighbor>]) -> Result<()> {
        let file = |found: &Neighbor| shown(images.file(found.index));
        for (path, found) in queries.embeddings.paths.iter().zip(found) {
            let text = match self.format {
                Format::Text => {
                    let line = |of: &Neighbor| format!("  {:.3}  {}\n", of.similarity, printable(&file(of)));
                    format!("{}:\n{}", printable(path), found.iter().map(line).collect::<String>())
                }
                Format::Jsonl => {
                    let named = |of: &Neighbor| Similarity { path: file(of), similarity: of.similarity };
                    json(&Line::Found { path, similar: found.iter().map(named).collect() })?
                }
            };
            output::print(text.as_bytes())?;
        }
        if self.format == Format::Jsonl {
            for (path, error) in &queries.failed {
                output::print(json(&Line::Failed { path, error })?.as_bytes())?;
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
    let places: Vec<PathBuf> = queries.paths.iter().map(|path| resolved(&path_of_shown(path))).collect();
    // Names are compared first, because resolving a path takes as long as comparing hundreds of images.
    let is_itself = |query: usize, row: usize| {
        let [asked, other] =
            [&queries.paths[query], &images.embeddings.paths[row]].map(|path| path_of_shown(path));
        let has_its_name = asked.file_name() == other.file_name();
        let is_at_its_place = || places[query] == resolved(&images.file(row));
        has_its_name && (asked == other && images.base.is_none() || is_at_its_place())
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
