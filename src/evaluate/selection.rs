//! Which images of a data set are measured: by default none that the model was trained on.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use vitrine_datasets::{
    Dataset, DatasetInfo, DecodeLimits, Fingerprint, Inventory, ListedImage, Sample, Split,
};

use crate::model_file::ModelCard;
use crate::model_file::TrainedOn;
use crate::text::first_few;

/// A part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// One split; `val` of a data set without one is what the model was not trained on.
    Split(Split),
    /// Every image, trained on or not.
    All,
}

impl FromStr for Part {
    type Err = String;

    /// # Errors
    /// For any word but those of splits and `all`.
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
    /// With the labels of the model.
    pub samples: Vec<Sample>,
    /// The part of the data set that they are.
    pub part: Part,
    /// Images of that part that are left out, as the model was trained on them.
    pub left_out: usize,
    /// How many of `samples` the model was trained on, where the model file says so.
    pub trained_on: Option<usize>,
    /// What they are, in a line.
    pub title: String,
    /// What the user should know about them, one per line.
    pub remarks: Vec<String>,
}

/// Which images of the source are taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Take {
    Every,
    /// Those that the model was not trained on.
    Unseen,
    /// Those that it was trained on.
    Seen,
}

impl Selection {
    /// Chooses from `dataset`, which messages call `data`, what `part` asks for: by default the test split, else the
    /// validation split, else everything; and never what the model was trained on, unless `part` says so. `limits` are those that the
    /// images will be decoded with.
    ///
    /// # Errors
    /// When there is no such part, all of it was trained on, or the model does not know one of its classes.
    pub fn new(
        dataset: Dataset,
        data: &str,
        part: Option<Part>,
        card: &ModelCard,
        limits: &DecodeLimits,
    ) -> Result<Self> {
        let places = places(&dataset.info, data, card)?;
        let request = Request::new(&dataset, data, part, card)?;
        let images = Inventory::of(restricted(dataset, request.source), limits);
        let changes = request.changes(&images);
        let is_seen: Vec<bool> = images.images.iter().map(|image| request.is_seen(image)).collect();
        let (total, seen) = (is_seen.len(), is_seen.iter().filter(|&&is_seen| is_seen).count());
        let (take, part) = request.resolve(seen)?;
        let (mut samples, mut left_out) = (Vec::new(), Vec::new());
        for (ListedImage { sample, .. }, is_seen) in images.images.into_iter().zip(is_seen) {
            if take == Take::Every || (take == Take::Seen) == is_seen {
                samples.push(Sample { label: places[sample.label], ..sample });
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
        Ok(Self { samples, part, left_out: left_out.len(), trained_on, title, remarks })
    }
}

/// The model's number of each of the data set's classes, matched by name.
fn places(info: &DatasetInfo, data: &str, card: &ModelCard) -> Result<Vec<usize>> {
    let place = |class: &String| match card.classes.iter().position(|known| known == class) {
        Some(place) => Ok(place),
        None => {
            bail!(
                "{data}: its class `{class}` is unknown to the model, which has {}",
                card.classes.join(", ")
            )
        }
    };
    info.classes.iter().map(place).collect()
}

/// The data set without the splits that are not looked at, whose files need not be read then.
fn restricted(mut dataset: Dataset, source: Part) -> Dataset {
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

/// What is to be measured, and where it is found.
struct Request<'a> {
    data: &'a str,
    /// What the user asked for.
    part: Option<Part>,
    /// Where it is taken from: what the data set itself calls so.
    source: Part,
    /// Whether the data set has training images alone.
    is_unsplit: bool,
    card: &'a ModelCard,
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
            bail!("--split {}: `{data}` has no such split", part.unwrap_or(source));
        }
        let is_unsplit = !has(Split::Val) && !has(Split::Test);
        Ok(Self { data, part, source, is_unsplit, card, known: card.trained_on.as_ref() })
    }

    fn is_seen(&self, image: &ListedImage) -> bool {
        self.known.is_some_and(|known| known.keys.contains(image.key))
    }

    /// Which images are taken, and what they are called, when the model was trained on `seen` of them.
    fn resolve(&self, seen: usize) -> Result<(Take, Part)> {
        let (train, val) = (Part::Split(Split::Train), Part::Split(Split::Val));
        Ok(match self.part {
            Some(Part::All) => (Take::Every, Part::All),
            Some(part) if part == train && seen > 0 => (Take::Seen, train),
            Some(part) if part == train && (self.known.is_none() || !self.is_unsplit) => (Take::Every, train),
            Some(part) if part == train => {
                bail!(
                    "--split train: the model was trained on none of the images of `{}`; --split all measures all of them",
                    self.data
                )
            }
            Some(_) if self.source == train && seen == 0 => bail!(
                "--split val: `{}` has no such split, and as far as is known, the model was trained on none of its images; \
                 --split all measures all of them",
                self.data
            ),
            None if self.source == train && seen == 0 => (Take::Unseen, Part::All),
            _ if self.source == train => (Take::Unseen, val),
            _ => (Take::Unseen, self.source),
        })
    }

    /// What is measured: `count` of `total` images, of which the model was trained on `seen`.
    fn title(&self, (take, part): (Take, Part), (count, total, seen): (usize, usize, usize)) -> String {
        let data = self.data;
        let says_it = take == Take::Unseen && part != self.source && part != Part::All;
        let images = match part {
            Part::All => format!("all {count} images of {data}"),
            _ if says_it => {
                format!("{count} of {total} images of {data}, those that the model was not trained on")
            }
            _ if take == Take::Seen => {
                format!("{count} of {total} images of {data}, those that the model was trained on")
            }
            split => format!("{split} split of {data}, {count} images"),
        };
        match self.known {
            None => format!("{images}; the model file does not say what it was trained on"),
            Some(_) if seen == 0 && !says_it => format!("{images}; the model was trained on none of them"),
            Some(_) => images,
        }
    }

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

    /// How the splits that are looked at differ from what they were when the model was trained, if they are of the
    /// same data set.
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
                format!(
                    "warning: the{name} data set is not the one that the model was trained with: {then} images then, {now} now"
                )
            })
        };
        images.fingerprints().iter().filter_map(differs).collect()
    }
}
