//! The choice of images that an evaluation measures: by default, only images that the model was not trained on.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use vitrine_datasets::{
    Dataset, DatasetInfo, DecodeLimits, Fingerprint, Inventory, ListedImage, Sample, SourceKind, Split,
};

use crate::model_file::ModelCard;
use crate::model_file::TrainedOn;
use crate::text::{count, first_few};
use crate::usage::{did_you_mean, usage};

/// A part of a data set, as `--split` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// One split. If a data set has no validation split, `val` stands for the images that the model was not trained on.
    Split(Split),
    /// All images, including those that the model was trained on.
    All,
}

impl FromStr for Part {
    type Err = String;

    /// # Errors
    /// If the word is neither the name of a split nor `all`.
    fn from_str(word: &str) -> Result<Self, String> {
        if word.eq_ignore_ascii_case("all") {
            return Ok(Self::All);
        }
        word.parse()
            .map(Self::Split)
            .map_err(|_| format!("'{word}' is not a split: write train, val, test or all"))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Split(split) => split.fmt(formatter),
            Self::All => formatter.pad("all"),
        }
    }
}

/// The images that are measured.
#[derive(Clone, Debug)]
pub struct Selection {
    /// The images, with labels that index the model's classes.
    pub samples: Vec<Sample>,
    /// The part of the data set to which the images belong.
    pub part: Part,
    /// Number of images of that part that are left out because the model was trained on them.
    pub left_out: usize,
    /// Number of `samples` that the model was trained on; `None` if the model file does not list its training images.
    pub trained_on: Option<usize>,
    /// Whether files among these images may be images, too, and are left out: their format is not supported, or they cannot be
    /// read.
    pub is_incomplete: bool,
    /// A description of the images in one line.
    pub title: String,
    /// Notes for the user about the images, such as warnings, one per entry.
    pub remarks: Vec<String>,
}

/// Which images of the source splits are measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Take {
    /// All images.
    Every,
    /// The images that the model was not trained on.
    Unseen,
    /// The images that the model was trained on.
    Seen,
}

impl Selection {
    /// Chooses the images to measure from `dataset`, whose name in messages is `data`. The default for `part` is the
    /// first that exists of the test split, the validation split, and all images. Images that the model was trained on
    /// are left out, unless `part` is the training split or all images. `limits` are the limits with which the images
    /// will be decoded.
    ///
    /// # Errors
    /// If the data set has no such part, the model was trained on all of it, or the model lacks a class of the data
    /// set or knows one label an image where the data set has several.
    pub fn new(
        dataset: Dataset,
        data: &str,
        part: Option<Part>,
        card: &ModelCard,
        limits: &DecodeLimits,
    ) -> Result<Self> {
        if dataset.info.multi_label && !card.multi_label {
            bail!(
                "{data}: its images have several labels each, and the model gives an image exactly one class"
            );
        }
        let model_labels = model_labels(&dataset.info, data, card)?;
        let request = Request::new(&dataset, data, part, card)?;
        let is_incomplete = match request.source {
            Part::Split(split) => dataset.has_faults_in(split),
            Part::All => dataset.left_out.has_faults(),
        };
        let images = Inventory::of(only_source(dataset, request.source), limits);
        let changes = request.changes(&images);
        let is_seen: Vec<bool> = images.images.iter().map(|image| request.is_seen(image)).collect();
        let (total, seen) = (is_seen.len(), is_seen.iter().filter(|&&is_seen| is_seen).count());
        let (take, part) = request.resolve(seen)?;
        let (mut samples, mut left_out) = (Vec::new(), Vec::new());
        for (ListedImage { sample, .. }, is_seen) in images.images.into_iter().zip(is_seen) {
            if take == Take::Every || (take == Take::Seen) == is_seen {
                samples.push(Sample { labels: sample.labels.renumbered(&model_labels), ..sample });
            } else {
                left_out.push(sample.source.name());
            }
        }
        if samples.is_empty() {
            bail!(
                "{data}: the model was trained on all {total} images that would be measured: use other images or --split all"
            );
        }
        let trained_on = if take == Take::Unseen { 0 } else { seen };
        let title = request.title((take, part), (samples.len(), total, trained_on));
        let mut remarks = request.remarks(&left_out, take, (trained_on, samples.len()));
        remarks.extend(changes);
        let trained_on = request.known.map(|_| trained_on);
        // Of the training images, those that are not among them are no loss.
        let left_out = if take == Take::Unseen { left_out.len() } else { 0 };
        Ok(Self { samples, part, left_out, trained_on, is_incomplete, title, remarks })
    }
}

/// For each class of the data set, the index of the class of the same name in the model.
fn model_labels(info: &DatasetInfo, data: &str, card: &ModelCard) -> Result<Vec<usize>> {
    let label = |class: &String| match card.classes.iter().position(|known| known == class) {
        Some(label) => Ok(label),
        None => {
            if let Some(separator) = separator(class, card, info) {
                bail!(
                    "{data}: its class `{class}` is unknown to the model, but what `{separator}` separates in it is not: give \
                     --label-separator '{separator}'"
                );
            }
            bail!(
                "{data}: its class `{class}` is unknown to the model, which has {}{}",
                first_few(&card.classes),
                did_you_mean(class, card.classes.iter().map(String::as_str))
            )
        }
    };
    info.classes.iter().map(label).collect()
}

/// The character that separates several classes in a text of a manifest, if the model knows several labels an image.
fn separator(text: &str, card: &ModelCard, info: &DatasetInfo) -> Option<char> {
    if !card.multi_label || info.multi_label || info.source != SourceKind::Manifest {
        return None;
    }
    let is_class = |part: &str| card.classes.iter().any(|class| class == part.trim());
    let mut separators = text.chars().filter(|character| !character.is_alphanumeric() && *character != '\'');
    separators.find(|&separator| text.split(separator).all(is_class))
}

/// The data set with only the splits of `source`, so that files of other splits are not read.
fn only_source(mut dataset: Dataset, source: Part) -> Dataset {
    let keeps = |split| source == Part::All || source == Part::Split(split);
    for (split, samples) in
        [(Split::Train, &mut dataset.train), (Split::Val, &mut dataset.val), (Split::Test, &mut dataset.test)]
    {
        if !keeps(split) {
            samples.clear();
        }
    }
    dataset
}

/// A request to measure a part of a data set, with the splits from which that part is taken.
struct Request<'a> {
    data: &'a str,
    /// The part that the user asked for.
    part: Option<Part>,
    /// The part of the data set from which images are taken: the training split if `part` is a validation split that
    /// the data set lacks.
    source: Part,
    /// Whether all images of the data set are in its training split.
    is_unsplit: bool,
    card: &'a ModelCard,
    /// The images that the model was trained on, if the model file lists them.
    known: Option<&'a TrainedOn>,
}

impl<'a> Request<'a> {
    fn new(dataset: &Dataset, data: &'a str, part: Option<Part>, card: &'a ModelCard) -> Result<Self> {
        let has = |split: Split| !dataset.split(split).is_empty();
        let default = [Split::Test, Split::Val].into_iter().find(|&split| has(split)).unwrap_or(Split::Train);
        let source = match part {
            Some(Part::Split(Split::Val)) if !has(Split::Val) => Part::Split(Split::Train),
            Some(part) => part,
            None => Part::Split(default),
        };
        if let Part::Split(split) = source
            && !has(split)
        {
            usage!("--split {}: `{data}` has no such split", part.unwrap_or(source));
        }
        let is_unsplit = !has(Split::Val) && !has(Split::Test);
        Ok(Self { data, part, source, is_unsplit, card, known: card.trained_on.as_ref() })
    }

    fn is_seen(&self, image: &ListedImage) -> bool {
        self.known.is_some_and(|known| known.contains(image.key))
    }

    /// Decides which images of the source are measured and to which part they belong. `seen` is the number of images of
    /// the source that the model was trained on.
    fn resolve(&self, seen: usize) -> Result<(Take, Part)> {
        let (train, val) = (Part::Split(Split::Train), Part::Split(Split::Val));
        Ok(match self.part {
            Some(Part::All) => (Take::Every, Part::All),
            Some(part) if part == train && seen > 0 => (Take::Seen, train),
            Some(part) if part == train && (self.known.is_none() || !self.is_unsplit) => (Take::Every, train),
            Some(part) if part == train => {
                usage!(
                    "--split train: the model was trained on none of the images of `{}`; --split all measures all of them",
                    self.data
                )
            }
            Some(_) if self.source == train && seen == 0 => usage!(
                "--split val: `{}` has no such split, and as far as is known, the model was trained on none of its images; \
                 --split all measures all of them",
                self.data
            ),
            None if self.source == train && seen == 0 => (Take::Unseen, Part::All),
            _ if self.source == train => (Take::Unseen, val),
            _ => (Take::Unseen, self.source),
        })
    }

    /// Describes the measured images: `count` of `total` images, of which the model was trained on `seen`.
    fn title(&self, (take, part): (Take, Part), (count, total, seen): (usize, usize, usize)) -> String {
        let data = self.data;
        let names_unseen = take == Take::Unseen && part != self.source && part != Part::All;
        let images = match part {
            Part::All => format!("all {count} images of {data}"),
            _ if names_unseen => {
                format!("{count} of {total} images of {data}, those that the model was not trained on")
            }
            _ if take == Take::Seen => {
                format!("{count} of {total} images of {data}, those that the model was trained on")
            }
            split => format!("{split} split of {data}, {}", crate::text::count(count, "image")),
        };
        match self.known {
            None => format!("{images}; the model file does not say what it was trained on"),
            Some(_) if seen == 0 && !names_unseen => {
                format!("{images}; the model was trained on none of them")
            }
            Some(_) => images,
        }
    }

    /// Warnings about images that were left out, and about measured images that the model was or may have been trained
    /// on.
    fn remarks(&self, left_out: &[String], take: Take, (seen, count): (usize, usize)) -> Vec<String> {
        let mut remarks = Vec::new();
        if take == Take::Unseen && self.source != Part::Split(Split::Train) && !left_out.is_empty() {
            remarks.push(format!(
                "warning: {} images of the {} split are left out, because the model was trained on them: {}",
                left_out.len(),
                self.source,
                first_few(left_out)
            ));
        }
        if seen > 0 {
            remarks.push(format!(
                "warning: the model was trained on {seen} of these {count} images: expect worse results on new images"
            ));
        }
        if self.known.is_none() && self.card.data.is_some() {
            remarks.push(
                "warning: an earlier version wrote the model file, without a list of the images that the model was \
                 trained on: if any of these are among them, expect worse results on new images"
                    .to_owned(),
            );
        }
        remarks
    }

    /// Warnings about splits that changed since the model was trained on this data set. There are none if the model was
    /// trained on another data set.
    fn changes(&self, images: &Inventory) -> Vec<String> {
        let Some(known) = self.known else { return Vec::new() };
        let same_name = |data: &str| data.trim_end_matches('/') == self.data.trim_end_matches('/');
        let is_same = self.card.data.as_deref().is_some_and(same_name)
            || images.images.iter().any(|image| self.is_seen(image));
        let differs = |(split, now): (&Split, &Fingerprint)| {
            let then = known.splits.get(split)?;
            (is_same && then != now).then(|| {
                let name = if self.is_unsplit { String::new() } else { format!(" {split} split of the") };
                let (then, now) = (then.images, now.images);
                let what = match then == now {
                    // A fingerprint is of images and labels together.
                    true => format!("as many images, {now}, but other images or other labels"),
                    false => format!("{} then, {now} now", count(then, "image")),
                };
                format!("warning: the{name} data set is not the one that the model was trained with: {what}")
            })
        };
        images.fingerprints().iter().filter_map(differs).collect()
    }
}
