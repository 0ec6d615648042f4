//! The images of a run: chosen once, kept in its folder, and the same ones in the same order whenever it goes on.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vitrine_datasets::{ContentKey, Dataset, Inventory, ListedImage, Sample, Split, ValidationOrigin};

use super::file_names::{IMAGES, TRAINED_ON};
use super::run_folder::{RunConfig, RunFolder};
use crate::files::write_atomically;
use crate::names::first_few;
use crate::trained_on::TrainedOn;

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

impl RunData {
    /// Chooses the images of a new run on `dataset`, which messages call `data`; where it has no validation split,
    /// a share of the training images becomes one. Images that the weights learn from, now or in `earlier` training,
    /// are left out of validation and test.
    ///
    /// # Errors
    /// When the data set lacks what training needs, or nothing is left for validation.
    pub fn choose(
        dataset: Dataset,
        data: &str,
        (val_fraction, seed): (f64, u64),
        earlier: Option<&TrainedOn>,
    ) -> Result<Self> {
        dataset.check_for_training(data)?;
        let mut images = Inventory::of(dataset);
        let splits = images.fingerprints();
        images.hold_out(val_fraction, seed)?;
        if images.of_split(Split::Val).next().is_none() {
            bail!(
                "{data}: has one image per class, so none can be kept for validation: add images or a val split"
            );
        }
        let trained_on = TrainedOn::new(splits, &images.keys(Split::Train), earlier);
        let left_out = images.leave_out(&trained_on.keys);
        if images.of_split(Split::Val).next().is_none() {
            let way_out = match images.info.validation {
                ValidationOrigin::SplitOff { .. } => "use the --seed and --val-fraction of the earlier run",
                ValidationOrigin::Given | ValidationOrigin::Absent => "put other images there",
            };
            bail!("{data}: every image of the validation split is also trained on: {way_out}");
        }
        Ok(Self { images, trained_on, remarks: shared(&left_out).into_iter().collect() })
    }

    /// The images of the run in `folder`, found again in `dataset`: by their content, wherever they are now.
    ///
    /// # Errors
    /// When images of the run are gone or have changed, or the folder does not say which they were.
    pub fn reopen(dataset: Dataset, config: &RunConfig, folder: &RunFolder) -> Result<Self> {
        let rows = read(folder)?;
        let trained_on = folder.path().join(TRAINED_ON);
        let trained_on: TrainedOn = std::fs::read(&trained_on)
            .map_err(anyhow::Error::from)
            .and_then(|bytes| Ok(serde_json::from_slice(&bytes)?))
            .with_context(|| {
                let run = folder.path().display();
                format!("{}: cannot be read; start a new run with --pretrained {run}", trained_on.display())
            })?;
        let total = rows.len();
        let (mut images, mut found) = by_content(dataset, config);
        let mut missing = Vec::new();
        for row in rows {
            match (found.take(&row), row.split) {
                (Some(sample), split) => images.images.push(ListedImage { sample, key: row.key, split }),
                (None, Some(_)) => missing.push(row.path),
                (None, None) => {}
            }
        }
        let new = found.rest();
        if !missing.is_empty() {
            bail!(gone(folder.path(), &missing, &new, total));
        }
        let remark = format!(
            "warning: {} images of {} are new since the run began and are not used: {}; a new run would use them",
            new.len(),
            config.data,
            first_few(&new)
        );
        let remarks = if new.is_empty() { Vec::new() } else { vec![remark] };
        Ok(Self { images, trained_on, remarks })
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

/// What is said of images that are trained on and were to be measured, too.
fn shared(left_out: &[(Split, String)]) -> Option<String> {
    let count = |split| left_out.iter().filter(|(of, _)| *of == split).count();
    let names = left_out.iter().map(|(_, name)| name);
    (!left_out.is_empty()).then(|| {
        format!(
            "warning: {} validation and {} test images are also trained on and do not count: {}",
            count(Split::Val),
            count(Split::Test),
            first_few(names)
        )
    })
}

fn read(folder: &RunFolder) -> Result<Vec<Row>> {
    let file = folder.path().join(IMAGES);
    if !file.is_file() {
        let run = folder.path().display();
        bail!(
            "--resume {run}: the folder holds no file {IMAGES}: it was removed, or an earlier version started the run. Which images \
             were held out is not known: start a new run with --pretrained {run} to keep what it has learned"
        );
    }
    let rows = csv::Reader::from_path(&file).map(|reader| reader.into_deserialize().collect());
    let rows: Result<Vec<Row>, csv::Error> = rows.and_then(|rows| rows);
    let rows = rows.with_context(|| format!("{}: cannot be read", file.display()))?;
    if rows.is_empty() {
        let run = folder.path().display();
        bail!(
            "{}: lists no images, so it is damaged: start a new run with --pretrained {run}",
            file.display()
        );
    }
    Ok(rows)
}

/// The images of a data set that no row of the run has taken yet.
#[derive(Default)]
struct Found {
    /// By content and class, the first of several copies last.
    samples: HashMap<(ContentKey, String), Vec<Sample>>,
    /// The names of those whose class the run does not know.
    strangers: Vec<String>,
}

/// The data set without its images, and these under the run's numbers of classes.
fn by_content(dataset: Dataset, config: &RunConfig) -> (Inventory, Found) {
    let mut found = Found::default();
    let mut inventory = Inventory::of(dataset);
    let images = std::mem::take(&mut inventory.images);
    for ListedImage { sample: Sample { label, source }, key, .. } in images.into_iter().rev() {
        let class = &inventory.info.classes[label];
        match config.classes.iter().position(|known| known == class) {
            Some(label) => {
                found.samples.entry((key, class.clone())).or_default().push(Sample { label, source });
            }
            None => found.strangers.push(source.name()),
        }
    }
    inventory.info.classes.clone_from(&config.classes);
    (inventory, found)
}

impl Found {
    /// The image of a row: the one of its name, or else a copy of it.
    fn take(&mut self, row: &Row) -> Option<Sample> {
        let samples = self.samples.get_mut(&(row.key, row.label.clone()))?;
        match samples.iter().rposition(|sample| sample.source.name() == row.path) {
            Some(position) => Some(samples.remove(position)),
            None => samples.pop(),
        }
    }

    /// The names of the images that no row has taken, in order.
    fn rest(self) -> Vec<String> {
        let rest = self.samples.into_values().flatten().map(|sample| sample.source.name());
        let mut names: Vec<String> = rest.chain(self.strangers).collect();
        names.sort_unstable();
        names
    }
}

/// The last folder and the name of a file: what stays when its data set is moved.
fn place(name: &str) -> &str {
    name.rmatch_indices(['/', '\\']).nth(1).map_or(name, |(slash, _)| &name[slash + 1..])
}

/// The message for a run whose images are not all there.
fn gone(run: &Path, missing: &[String], new: &[String], total: usize) -> String {
    let new: HashSet<&str> = new.iter().map(|name| place(name)).collect();
    let (changed, gone): (Vec<&String>, Vec<&String>) =
        missing.iter().partition(|path| new.contains(place(path)));
    let part = |names: Vec<&String>, what: &str| {
        (!names.is_empty()).then(|| format!("{} {what} ({})", names.len(), first_few(names)))
    };
    let parts: Vec<String> =
        [part(changed, "have changed"), part(gone, "are gone")].into_iter().flatten().collect();
    let run = run.display();
    format!(
        "--resume {run}: of the {total} images of the run, {}: put them back as they were, or start a new run with \
         --pretrained {run} to keep what it has learned",
        parts.join(" and ")
    )
}
