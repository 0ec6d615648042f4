//! Every image of a data set with its content's key: what splits, leaks and changes are told by.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::folds::{different_images, folds};
use super::held_out::held_out;
use super::key::hash;
use crate::{
    BadFile, ContentKey, Dataset, DatasetError, DatasetInfo, DecodeLimits, Fold, KeySet, LeftOut, Sample,
    Split, ValidationOrigin,
};

#[cfg(test)]
mod tests;

/// One image of a data set.
#[derive(Clone, Debug)]
pub struct ListedImage {
    /// The image with its class.
    pub sample: Sample,
    /// What tells its content from others.
    pub key: ContentKey,
    /// Where it belongs; nothing for one that was left out of every split.
    pub split: Option<Split>,
    /// What keeps it from being read, as far as its first bytes tell.
    pub bad: Option<BadFile>,
}

/// What a split held: enough to see later that it changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Number of images.
    pub images: usize,
    /// A hash of their keys and class names, in no order: 32 hexadecimal digits.
    pub hash: String,
}

/// All images of a data set, split by split in the data set's order.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// What the data set is.
    pub info: DatasetInfo,
    /// Its images.
    pub images: Vec<ListedImage>,
    /// What was found next to them.
    pub left_out: LeftOut,
    /// How the data set was understood.
    pub warnings: Vec<String>,
}

impl Inventory {
    /// Reads every image once, for its key and to see whether it is one, on all threads, within the limits that it will be decoded with.
    pub fn of(dataset: Dataset, limits: &DecodeLimits) -> Self {
        let Dataset { info, train, val, test, left_out, warnings } = dataset;
        let splits = [(Split::Train, train), (Split::Val, val), (Split::Test, test)];
        let listed = |(split, samples): (Split, Vec<Sample>)| {
            let keys = ContentKey::of_all(&samples, limits);
            samples.into_iter().zip(keys).map(move |(sample, (key, bad))| ListedImage {
                sample,
                key,
                split: Some(split),
                bad,
            })
        };
        let images = splits.into_iter().flat_map(listed).collect();
        Self { info, images, left_out, warnings }
    }

    /// The images of a split.
    pub fn of_split(&self, split: Split) -> impl Iterator<Item = &ListedImage> {
        self.images.iter().filter(move |image| image.split == Some(split))
    }

    /// The keys of a split's images.
    pub fn keys(&self, split: Split) -> KeySet {
        self.of_split(split).map(|image| image.key).collect()
    }

    /// What each split that has images holds.
    pub fn fingerprints(&self) -> BTreeMap<Split, Fingerprint> {
        let mut rows: BTreeMap<Split, Vec<(ContentKey, &str)>> = BTreeMap::new();
        for image in &self.images {
            if let Some(split) = image.split {
                rows.entry(split).or_default().push((image.key, &self.info.classes[image.sample.label]));
            }
        }
        rows.into_iter().map(|(split, rows)| (split, fingerprint(rows))).collect()
    }

    /// Where there is no validation split, takes about `fraction` of each class's training images for one: by their
    /// content and `seed`, so that the same image always goes the same way.
    ///
    /// A class of two different images or more gives at least one and keeps at least one.
    ///
    /// # Errors
    ///
    /// [`DatasetError::ValidationFraction`] for a fraction that is not between 0 and 1.
    pub fn hold_out(&mut self, fraction: f64, seed: u64) -> Result<(), DatasetError> {
        if !(fraction > 0.0 && fraction < 1.0) {
            return Err(DatasetError::ValidationFraction { fraction });
        }
        if self.of_split(Split::Val).next().is_some() {
            return Ok(());
        }
        let mut classes = vec![Vec::new(); self.info.classes.len()];
        for (position, image) in self.images.iter().enumerate() {
            if image.split == Some(Split::Train) {
                classes[image.sample.label].push(position);
            }
        }
        for positions in classes {
            let keys: Vec<ContentKey> = positions.iter().map(|&position| self.images[position].key).collect();
            for (position, is_held_out) in positions.into_iter().zip(held_out(&keys, fraction, seed)) {
                if is_held_out {
                    self.images[position].split = Some(Split::Val);
                }
            }
        }
        self.info.validation = ValidationOrigin::SplitOff { fraction, seed };
        Ok(())
    }

    /// Makes one fold of the training images the validation split, where there is none: see [`Fold`]. The same images and `seed` give
    /// folds that have no image in common.
    ///
    /// Names the classes of which some folds have no image. Where no class has two different images, no fold has any, and nothing is
    /// held out.
    ///
    /// # Errors
    ///
    /// [`DatasetError::Folds`] if this fold or another one would have no image.
    ///
    /// # Panics
    ///
    /// If there is no such fold.
    pub fn hold_out_fold(&mut self, fold: Fold, seed: u64) -> Result<Vec<String>, DatasetError> {
        assert!((1..=fold.of).contains(&fold.number), "there is no fold {} of {}", fold.number, fold.of);
        if self.of_split(Split::Val).next().is_some() {
            return Ok(Vec::new());
        }
        let images = self.training_images();
        self.check_folds(&images, fold.of)?;
        let folds = folds(&images, self.info.classes.len(), fold.of, seed);
        let mut of_class: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.info.classes.len()];
        for ((_, label), found) in images.iter().zip(&folds) {
            of_class[*label].insert(*found);
        }
        let train = self.images.iter_mut().filter(|image| image.split == Some(Split::Train));
        for (image, found) in train.zip(folds) {
            if found == fold.number {
                image.split = Some(Split::Val);
            }
        }
        self.info.validation = ValidationOrigin::Fold { fold, seed };
        let is_in_all = |found: &BTreeSet<usize>| (1..=fold.of).all(|number| found.contains(&number));
        let classes = self.info.classes.iter().zip(of_class);
        let lacking = classes.filter(|(_, found)| !found.is_empty() && !is_in_all(found));
        Ok(lacking.map(|(name, _)| name.clone()).collect())
    }

    /// The number of the first of `count` folds of the training images that has images, all of them in `known`. There are no folds
    /// where there is a validation split.
    pub fn known_fold(&self, count: usize, seed: u64, known: &KeySet) -> Option<usize> {
        if self.of_split(Split::Val).next().is_some() {
            return None;
        }
        let images = self.training_images();
        let folds = folds(&images, self.info.classes.len(), count, seed);
        // By fold: whether it has images, and whether one of them is new.
        let mut found = vec![(false, false); count + 1];
        for ((key, _), fold) in images.iter().zip(folds) {
            let (has_images, has_new) = &mut found[fold];
            (*has_images, *has_new) = (true, *has_new || !known.contains(*key));
        }
        (1..=count).find(|&number| found[number] == (true, false))
    }

    /// Key and class of each training image.
    fn training_images(&self) -> Vec<(ContentKey, usize)> {
        self.of_split(Split::Train).map(|image| (image.key, image.sample.label)).collect()
    }

    /// Refuses more folds than images that can be held out, if there are any.
    fn check_folds(&self, images: &[(ContentKey, usize)], folds: usize) -> Result<(), DatasetError> {
        const SHOWN: usize = 3;
        let different = different_images(images, self.info.classes.len());
        let mut sizes: Vec<(usize, &String)> =
            different.iter().map(Vec::len).zip(&self.info.classes).collect();
        let images: usize = sizes.iter().map(|(size, _)| *size).filter(|size| *size > 1).sum();
        if images == 0 || images >= folds {
            return Ok(());
        }
        sizes.retain(|(size, _)| *size > 0);
        sizes.sort_unstable();
        let smallest: Vec<String> =
            sizes.iter().take(SHOWN).map(|(size, class)| format!("'{class}' {size}")).collect();
        let (data, smallest) = (self.info.name.clone(), smallest.join(", "));
        Err(DatasetError::Folds { folds, data, images, smallest })
    }

    /// Leaves the images of `known` out of the validation and test splits; their splits and names.
    pub fn leave_out(&mut self, known: &KeySet) -> Vec<(Split, String)> {
        let mut left_out = Vec::new();
        for image in &mut self.images {
            if let Some(split @ (Split::Val | Split::Test)) = image.split
                && known.contains(image.key)
            {
                image.split = None;
                left_out.push((split, image.sample.source.name()));
            }
        }
        left_out
    }

    /// The data set of these splits.
    pub fn into_dataset(self) -> Dataset {
        let Self { info, images, left_out, warnings } = self;
        let (train, val, test) = (vec![], vec![], vec![]);
        let mut dataset = Dataset { info, train, val, test, left_out, warnings };
        for ListedImage { sample, split, .. } in images {
            match split {
                Some(Split::Train) => dataset.train.push(sample),
                Some(Split::Val) => dataset.val.push(sample),
                Some(Split::Test) => dataset.test.push(sample),
                None => {}
            }
        }
        dataset
    }
}

fn fingerprint(mut rows: Vec<(ContentKey, &str)>) -> Fingerprint {
    rows.sort_unstable();
    let mut bytes = Vec::new();
    for (key, class) in &rows {
        bytes.extend(key.to_le_bytes());
        bytes.extend((class.len() as u64).to_le_bytes());
        bytes.extend(class.as_bytes());
    }
    Fingerprint { images: rows.len(), hash: format!("{:032x}", hash([&bytes])) }
}
