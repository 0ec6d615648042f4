//! The images of a run and their splits: chosen once, listed in the run folder (`images.csv`), and found again in the
//! same order when the run is resumed or repeated.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vitrine_datasets::{
    BadFile, ContentKey, Dataset, DecodeLimits, Fault, Fold, ImageSource, Inventory, Labels, ListedImage,
    Sample, Split, ValidationOrigin,
};

use super::RunFolder;
use super::bad_files::unreadable;
use super::config::RunConfig;
use super::duplicates;
use super::file_names::{IMAGES, TRAINED_ON};
use super::hold_out::HoldOut;
use crate::files::write_atomically;
use crate::model_file::TrainedOn;
use crate::text::first_few;
use crate::usage::usage;

/// The images of a run with their splits, and the record of training images for its model files.
#[derive(Clone, Debug)]
pub struct RunData {
    images: Inventory,
    /// The training images, as the model file will record them.
    pub trained_on: TrainedOn,
    /// Notes for the user about the images, such as warnings about duplicates, one per entry.
    pub remarks: Vec<String>,
}

/// One row of `images.csv`.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    path: String,
    /// The names of the classes, separated by ` | ` if the image has several.
    label: String,
    /// Empty for a validation or test image that is left out because the model is also trained on it.
    split: Option<Split>,
    key: ContentKey,
    /// Whether its first bytes show that it cannot be read.
    #[serde(default)]
    unreadable: bool,
}

/// The purpose for which the listed images of a run are found again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The run is continued (`--resume`).
    Resume,
    /// A new run repeats it from the beginning (`--config`).
    Repeat,
}

impl RunData {
    /// Chooses the images of a new run on `dataset`, whose name in messages is `data`. If it has no validation split,
    /// some training images are held out as one. Images of this training, or of the `earlier` training of pretrained
    /// weights, are removed from the validation and test splits. `limits` are the limits with which the images will be
    /// decoded.
    ///
    /// # Errors
    /// If the data set cannot be trained on (see [`Dataset::check_for_training`]), or no validation image is left.
    pub fn choose(
        dataset: Dataset,
        data: &str,
        HoldOut { fraction, seed, fold }: HoldOut,
        earlier: Option<&TrainedOn>,
        limits: &DecodeLimits,
    ) -> Result<Self> {
        dataset.check_for_training(data)?;
        let mut images = Inventory::of(dataset, limits);
        let splits = images.fingerprints();
        let lacking = match fold {
            Some(fold) => hold_out_fold(&mut images, data, (fold, seed), earlier)?,
            None => images.hold_out(fraction, seed).map(|()| Vec::new())?,
        };
        check_validation(&images, data)?;
        let trained_on = TrainedOn::new(splits, &images.keys(Split::Train), earlier);
        let left_out = images.leave_out(&trained_on.keys);
        check_unseen(&images, data, earlier.is_some())?;
        let copies = duplicates::remarks(&images, &left_out, limits);
        let uncovered = if lacking.is_empty() {
            classes_without_validation(&images)
        } else {
            classes_missing_from_folds(&lacking)
        };
        let remarks = copies.into_iter().chain(uncovered).collect();
        Ok(Self { images, trained_on, remarks })
    }

    /// Finds the images that the folder `run` lists in `dataset`, by their content, so that files may have been moved
    /// or renamed. Unreadable images that have been removed since are still images of the run, and still unreadable: those of which the
    /// list says so, and those that the run has found to be `undecodable`.
    ///
    /// # Errors
    /// If readable images of the run are gone or have changed, or the list in the folder cannot be read.
    pub fn reopen(
        dataset: Dataset,
        config: &RunConfig,
        (run, purpose): (&Path, Purpose),
        undecodable: &BTreeSet<ContentKey>,
    ) -> Result<Self> {
        let rows = read_rows(run, purpose)?;
        let trained_on = run.join(TRAINED_ON);
        let trained_on: TrainedOn = std::fs::read(&trained_on)
            .map_err(anyhow::Error::from)
            .and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
            .with_context(|| format!("{}: cannot be read; {}", trained_on.display(), purpose.way_out(run)))?;
        let total = rows.len();
        let (mut images, mut found) = by_content(dataset, config);
        let mut missing = Vec::new();
        for row in rows {
            match (found.take(&row), row.split) {
                (Some(image), split) => images.images.push(ListedImage { split, ..image }),
                (None, Some(_)) => match row.removed(&config.classes, undecodable) {
                    Some(image) => images.images.push(image),
                    None => missing.push(row.path),
                },
                (None, None) => {}
            }
        }
        let new = found.into_names();
        if !missing.is_empty() {
            bail!(missing_images((run, purpose), &missing, &new, total));
        }
        let remark = format!(
            "warning: {} images of {} are new since the run began and are not used: {}; a new run would use them{}",
            new.len(),
            config.data,
            first_few(&new),
            if purpose == Purpose::Repeat { ", one without --config" } else { "" }
        );
        let remarks = if new.is_empty() { Vec::new() } else { vec![remark] };
        Ok(Self { images, trained_on, remarks })
    }

    /// The content key of each image of a split, in the order of the [data set](Self::dataset).
    pub fn keys(&self, split: Split) -> Vec<ContentKey> {
        self.images.of_split(split).map(|image| image.key).collect()
    }

    /// The unreadable images of a split, as far as the first bytes of a file show that it is unreadable, and the number of
    /// all its images. Files that the data set could not assign to any split count as training images.
    pub fn unreadable(&self, split: Split) -> (Vec<BadFile>, usize) {
        unreadable(&self.images, split)
    }

    /// Writes `images.csv` and `trained_on.json` into the folder of a new run.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, folder: &RunFolder) -> Result<()> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        for image in &self.images.images {
            writer.serialize(Row {
                path: image.sample.source.name(),
                label: image.sample.labels.names(&self.images.info.classes),
                split: image.split,
                key: image.key,
                unreadable: image.bad.is_some(),
            })?;
        }
        write_atomically(&folder.path().join(IMAGES), &writer.into_inner()?)?;
        write_atomically(&folder.path().join(TRAINED_ON), &serde_json::to_vec(&self.trained_on)?)
    }

    /// The data set with the splits of the run.
    pub fn dataset(&self) -> Dataset {
        self.images.clone().into_dataset()
    }
}

impl Row {
    /// What stands for an unreadable image that is no longer in the data set: its place in the order of the images decides which
    /// of the others are in a batch. `None` for an image that could be read, or of an unknown class.
    fn removed(&self, classes: &[String], undecodable: &BTreeSet<ContentKey>) -> Option<ListedImage> {
        let fault = Fault::Other("it was removed; before, it could not be read".to_owned());
        let is_unreadable = self.unreadable || undecodable.contains(&self.key);
        let labels = Labels::of_names(&self.label, classes).filter(|_| is_unreadable)?;
        Some(ListedImage {
            // Not the file: by now, another image may lie there, which is none of the run's.
            sample: Sample {
                labels,
                source: ImageSource::Encoded { name: self.path.clone(), bytes: [].into() },
            },
            key: self.key,
            split: self.split,
            bad: Some(BadFile::new(self.path.clone(), &fault)),
        })
    }
}

impl Purpose {
    /// The command-line option with this purpose.
    fn option(self) -> &'static str {
        match self {
            Self::Resume => "--resume",
            Self::Repeat => "--config",
        }
    }

    /// The alternative that an error message suggests.
    fn way_out(self, run: &Path) -> String {
        match self {
            Self::Resume => {
                format!("start a new run with --pretrained {} to keep what it has learned", run.display())
            }
            Self::Repeat => "start a new run without --config".to_owned(),
        }
    }
}

/// Holds out a fold as the validation split. Returns the names of the classes that are missing from some folds.
///
/// # Errors
/// If a fold would be empty, or the `earlier` training covered all images of any fold. Other folds than this one count,
/// since a series of runs would otherwise fail halfway.
fn hold_out_fold(
    images: &mut Inventory,
    data: &str,
    (fold, seed): (Fold, u64),
    earlier: Option<&TrainedOn>,
) -> Result<Vec<String>> {
    let known = earlier.and_then(|earlier| images.known_fold(fold.of, seed, &earlier.keys));
    if let Some(number) = known {
        usage!(
            "--folds {}: every image of fold {number} of {data} is one that the weights of --pretrained were trained on; start from \
             others",
            fold.of
        );
    }
    Ok(images.hold_out_fold(fold, seed)?)
}

/// Checks that images are kept for validation, once they are held out.
///
/// # Errors
/// If there are none.
pub(super) fn check_validation(images: &Inventory, data: &str) -> Result<()> {
    if images.of_split(Split::Val).next().is_none() {
        bail!(
            "{data}: has one different image per class, so none can be kept for validation: add images or a val split"
        );
    }
    Ok(())
}

/// Checks that validation images remain, once those that are also trained on, or were in the training of `pretrained` weights,
/// are left out.
///
/// # Errors
/// If there are none.
pub(super) fn check_unseen(images: &Inventory, data: &str, pretrained: bool) -> Result<()> {
    if images.of_split(Split::Val).next().is_none() {
        let way_out = match images.info.validation {
            ValidationOrigin::SplitOff { .. } if pretrained => {
                "use the --seed and --val-fraction of the earlier run"
            }
            ValidationOrigin::SplitOff { .. } => {
                "add images, or keep others with another --seed or --val-fraction"
            }
            ValidationOrigin::Fold { .. } => "start from weights that were not trained on these images",
            ValidationOrigin::Given | ValidationOrigin::Absent => "put other images there",
        };
        bail!("{data}: every image of the validation split is also trained on: {way_out}");
    }
    Ok(())
}

/// The warning about training classes without a validation image.
pub(super) fn classes_without_validation(images: &Inventory) -> Option<String> {
    let has = |split| -> HashSet<usize> {
        images.of_split(split).flat_map(|image| image.sample.labels.iter().copied()).collect()
    };
    let measured = has(Split::Val);
    let mut labels: Vec<usize> = has(Split::Train).difference(&measured).copied().collect();
    labels.sort_unstable();
    (!labels.is_empty()).then(|| {
        format!(
            "warning: {} classes have no validation image, so nothing is known of how well they are recognized: {}; add images of them",
            labels.len(),
            first_few(labels.iter().map(|&label| &images.info.classes[label]))
        )
    })
}

/// The warning about classes with fewer different images than there are folds.
fn classes_missing_from_folds(lacking: &[String]) -> Option<String> {
    (!lacking.is_empty()).then(|| {
        format!(
            "warning: {} classes have fewer different images than there are folds, so some folds measure none of theirs: {}",
            lacking.len(),
            first_few(lacking)
        )
    })
}

/// Reads `images.csv` of the folder `run`.
fn read_rows(run: &Path, purpose: Purpose) -> Result<Vec<Row>> {
    let file = run.join(IMAGES);
    if !file.is_file() {
        bail!(
            "{} {}: the folder holds no file {IMAGES}: it was removed, or an earlier version started the run. Which images \
             were held out is not known: {}",
            purpose.option(),
            run.display(),
            purpose.way_out(run)
        );
    }
    let rows = csv::Reader::from_path(&file).map(|reader| reader.into_deserialize().collect());
    let rows: Result<Vec<Row>, csv::Error> = rows.and_then(|rows| rows);
    let rows = rows.with_context(|| format!("{}: cannot be read", file.display()))?;
    if rows.is_empty() {
        bail!("{}: lists no images, so it is damaged: {}", file.display(), purpose.way_out(run));
    }
    Ok(rows)
}

/// The images of a data set that are not yet matched with a row of `images.csv`.
#[derive(Default)]
struct UnmatchedImages {
    /// Images by content and the names of their classes. Copies are in reverse order, so that `pop` takes the first.
    images: HashMap<(ContentKey, String), Vec<ListedImage>>,
    /// The names of images whose class the run does not have.
    of_unknown_classes: Vec<String>,
}

/// Takes the images out of a data set, to be matched by content. Their labels become the indices of the run's classes.
fn by_content(dataset: Dataset, config: &RunConfig) -> (Inventory, UnmatchedImages) {
    let mut found = UnmatchedImages::default();
    let mut inventory = Inventory::of(dataset, &config.limits());
    let images = std::mem::take(&mut inventory.images);
    let position = |class: &String| config.classes.iter().position(|known| known == class);
    let index_of: Vec<Option<usize>> = inventory.info.classes.iter().map(position).collect();
    for mut image in images.into_iter().rev() {
        let labels: Option<Vec<usize>> = image.sample.labels.iter().map(|&class| index_of[class]).collect();
        match labels {
            Some(labels) => {
                image.sample.labels = Labels::new(labels);
                let names = image.sample.labels.names(&config.classes);
                found.images.entry((image.key, names)).or_default().push(image);
            }
            None => found.of_unknown_classes.push(image.sample.source.name()),
        }
    }
    inventory.info.classes.clone_from(&config.classes);
    (inventory, found)
}

impl UnmatchedImages {
    /// Takes the image that matches a row: of several copies, the one with the row's path, or else the first.
    fn take(&mut self, row: &Row) -> Option<ListedImage> {
        let images = self.images.get_mut(&(row.key, row.label.clone()))?;
        match images.iter().rposition(|image| image.sample.source.name() == row.path) {
            Some(position) => Some(images.remove(position)),
            None => images.pop(),
        }
    }

    /// The names of the images that no row matches, sorted.
    fn into_names(self) -> Vec<String> {
        let rest = self.images.into_values().flatten().map(|image| image.sample.source.name());
        let mut names: Vec<String> = rest.chain(self.of_unknown_classes).collect();
        names.sort_unstable();
        names
    }
}

/// The last two components of a path, which stay the same if the whole data set is moved.
fn folder_and_file(name: &str) -> &str {
    name.rmatch_indices(std::path::is_separator).nth(1).map_or(name, |(slash, _)| &name[slash + 1..])
}

/// The error message for images of a run that are not in the data set. A missing image counts as changed if a new image
/// has its folder and file name.
fn missing_images(
    (run, purpose): (&Path, Purpose),
    missing: &[String],
    new: &[String],
    total: usize,
) -> String {
    let new: HashSet<&str> = new.iter().map(|name| folder_and_file(name)).collect();
    let (changed, gone): (Vec<&String>, Vec<&String>) =
        missing.iter().partition(|path| new.contains(folder_and_file(path)));
    let part = |names: Vec<&String>, what: &str| {
        (!names.is_empty()).then(|| format!("{} {what} ({})", names.len(), first_few(names)))
    };
    let parts: Vec<String> =
        [part(changed, "have changed"), part(gone, "are gone")].into_iter().flatten().collect();
    format!(
        "{} {}: of the {total} images of the run, {}: put them back as they were, or {}",
        purpose.option(),
        run.display(),
        parts.join(" and "),
        purpose.way_out(run)
    )
}
