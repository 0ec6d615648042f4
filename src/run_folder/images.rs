//! The images of a run: chosen once, kept in its folder, and the same ones in the same order whenever it goes on.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vitrine_datasets::{
    BadFile, ContentKey, Dataset, DecodeLimits, Fold, Inventory, ListedImage, Split, ValidationOrigin,
};

use super::RunFolder;
use super::config::RunConfig;
use super::duplicates;
use super::file_names::{IMAGES, TRAINED_ON};
use super::hold_out::HoldOut;
use crate::files::write_atomically;
use crate::model_file::TrainedOn;
use crate::text::first_few;
use crate::usage::usage;

/// The images of a run, and what its models will say of them.
#[derive(Clone, Debug)]
pub struct RunData {
    images: Inventory,
    /// What is trained on.
    pub trained_on: TrainedOn,
    /// What the user should know about the choice, one remark per line.
    pub remarks: Vec<String>,
}

/// One row of `images.csv`.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    path: String,
    label: String,
    /// Empty for an image that is left out.
    split: Option<Split>,
    key: ContentKey,
}

/// What the images that a run lists are wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The run goes on.
    Resume,
    /// It is done once more, from its beginning.
    Repeat,
}

impl RunData {
    /// Chooses the images of a new run on `dataset`, which messages call `data`; where it has no validation split,
    /// a share of the training images becomes one. Images that the weights learn from, now or in `earlier` training,
    /// are left out of validation and test. `limits` are those that the images will be decoded with.
    ///
    /// # Errors
    /// When the data set lacks what training needs, or nothing is left for validation.
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
        if images.of_split(Split::Val).next().is_none() {
            bail!(
                "{data}: has one different image per class, so none can be kept for validation: add images or a val split"
            );
        }
        let trained_on = TrainedOn::new(splits, &images.keys(Split::Train), earlier);
        let left_out = images.leave_out(&trained_on.keys);
        if images.of_split(Split::Val).next().is_none() {
            let way_out = match images.info.validation {
                ValidationOrigin::SplitOff { .. } => "use the --seed and --val-fraction of the earlier run",
                ValidationOrigin::Fold { .. } => "start from weights that were not trained on these images",
                ValidationOrigin::Given | ValidationOrigin::Absent => "put other images there",
            };
            bail!("{data}: every image of the validation split is also trained on: {way_out}");
        }
        let copies = duplicates::remarks(&images, &left_out, limits);
        let unmeasured = if lacking.is_empty() { unmeasured(&images) } else { uneven(&lacking) };
        let remarks = copies.into_iter().chain(unmeasured).collect();
        Ok(Self { images, trained_on, remarks })
    }

    /// The images of the run in the folder `run`, found again in `dataset`: by their content, wherever they are now.
    ///
    /// # Errors
    /// When images of the run are gone or have changed, or the folder does not say which they were.
    pub fn reopen(dataset: Dataset, config: &RunConfig, run: &Path, purpose: Purpose) -> Result<Self> {
        let rows = read(run, purpose)?;
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
                (None, Some(_)) => missing.push(row.path),
                (None, None) => {}
            }
        }
        let new = found.rest();
        if !missing.is_empty() {
            bail!(gone((run, purpose), &missing, &new, total));
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

    /// The images of a split that cannot be read, as far as their first bytes tell.
    pub fn bad(&self, split: Split) -> Vec<BadFile> {
        self.images.of_split(split).filter_map(|image| image.bad.clone()).collect()
    }

    /// Writes the list of images into a new run's folder.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, folder: &RunFolder) -> Result<()> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        for image in &self.images.images {
            writer.serialize(Row {
                path: image.sample.source.name(),
                label: self.images.info.classes[image.sample.label].clone(),
                split: image.split,
                key: image.key,
            })?;
        }
        write_atomically(&folder.path().join(IMAGES), &writer.into_inner()?)?;
        write_atomically(&folder.path().join(TRAINED_ON), &serde_json::to_vec(&self.trained_on)?)
    }

    /// The splits that the run uses.
    pub fn dataset(&self) -> Dataset {
        self.images.clone().into_dataset()
    }
}

impl Purpose {
    /// The option that asks for it.
    fn option(self) -> &'static str {
        match self {
            Self::Resume => "--resume",
            Self::Repeat => "--config",
        }
    }

    /// What else can be done.
    fn way_out(self, run: &Path) -> String {
        match self {
            Self::Resume => {
                format!("start a new run with --pretrained {} to keep what it has learned", run.display())
            }
            Self::Repeat => "start a new run without --config".to_owned(),
        }
    }
}

/// Makes a fold the validation split; the classes of which some folds have no image. What keeps another fold of the same images
/// from being validation is an error, too: it would end a series of runs in the middle.
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

/// What is said of classes that validation tells nothing of.
fn unmeasured(images: &Inventory) -> Option<String> {
    let has = |split| images.of_split(split).map(|image| image.sample.label).collect::<HashSet<usize>>();
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

/// What is said of classes with fewer different images than there are folds.
fn uneven(lacking: &[String]) -> Option<String> {
    (!lacking.is_empty()).then(|| {
        format!(
            "warning: {} classes have fewer different images than there are folds, so some folds measure none of theirs: {}",
            lacking.len(),
            first_few(lacking)
        )
    })
}

fn read(run: &Path, purpose: Purpose) -> Result<Vec<Row>> {
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

/// The images of a data set that no row of the run has taken yet.
#[derive(Default)]
struct Found {
    /// By content and class, the first of several copies last.
    images: HashMap<(ContentKey, String), Vec<ListedImage>>,
    /// The names of those whose class the run does not know.
    strangers: Vec<String>,
}

/// The data set without its images, and these under the run's numbers of classes.
fn by_content(dataset: Dataset, config: &RunConfig) -> (Inventory, Found) {
    let mut found = Found::default();
    let mut inventory = Inventory::of(dataset, &config.limits());
    let images = std::mem::take(&mut inventory.images);
    for mut image in images.into_iter().rev() {
        let class = &inventory.info.classes[image.sample.label];
        match config.classes.iter().position(|known| known == class) {
            Some(label) => {
                image.sample.label = label;
                found.images.entry((image.key, class.clone())).or_default().push(image);
            }
            None => found.strangers.push(image.sample.source.name()),
        }
    }
    inventory.info.classes.clone_from(&config.classes);
    (inventory, found)
}

impl Found {
    /// The image of a row: the one of its name, or else a copy of it.
    fn take(&mut self, row: &Row) -> Option<ListedImage> {
        let images = self.images.get_mut(&(row.key, row.label.clone()))?;
        match images.iter().rposition(|image| image.sample.source.name() == row.path) {
            Some(position) => Some(images.remove(position)),
            None => images.pop(),
        }
    }

    /// The names of the images that no row has taken, in order.
    fn rest(self) -> Vec<String> {
        let rest = self.images.into_values().flatten().map(|image| image.sample.source.name());
        let mut names: Vec<String> = rest.chain(self.strangers).collect();
        names.sort_unstable();
        names
    }
}

/// The last folder and the name of a file: what stays when its data set is moved.
fn place(name: &str) -> &str {
    name.rmatch_indices(std::path::is_separator).nth(1).map_or(name, |(slash, _)| &name[slash + 1..])
}

/// The message for a run whose images are not all there.
fn gone((run, purpose): (&Path, Purpose), missing: &[String], new: &[String], total: usize) -> String {
    let new: HashSet<&str> = new.iter().map(|name| place(name)).collect();
    let (changed, gone): (Vec<&String>, Vec<&String>) =
        missing.iter().partition(|path| new.contains(place(path)));
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
