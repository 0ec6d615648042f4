//! All images of a data set with the hash of each one's content, from which validation splits are made and leaks and
//! changes are found.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::folds::{different_images, folds};
use super::held_out::held_out;
use super::key::hash;
use super::strata::Strata;
use crate::{
    BadFile, ContentKey, Dataset, DatasetError, DatasetInfo, DecodeLimits, Fold, KeySet, LeftOut, Sample,
    Split, ValidationOrigin,
};

#[cfg(test)]
mod tests;

/// An image of a data set, with its content's key.
#[derive(Clone, Debug)]
pub struct ListedImage {
    /// The image and its class.
    pub sample: Sample,
    /// The key of its content, equal for copies of the image.
    pub key: ContentKey,
    /// Its split; `None` for an image that has been removed from all splits.
    pub split: Option<Split>,
    /// Why it cannot be read, as far as [`ImageSource::probe`](crate::ImageSource::probe) can tell without decoding it.
    pub bad: Option<BadFile>,
}

/// A checksum of a split, from which a later run sees that the split has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Number of images.
    pub images: usize,
    /// A hash of the images' keys and class names, as 32 hexadecimal digits. It does not depend on the order of the
    /// images.
    pub hash: String,
}

/// All images of a data set, split by split, in the data set's order.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// Name, classes, and origin of the data set.
    pub info: DatasetInfo,
    /// The images.
    pub images: Vec<ListedImage>,
    /// Files that were found next to the images and are not used.
    pub left_out: LeftOut,
    /// Warnings about how the data set was interpreted.
    pub warnings: Vec<String>,
}

impl Inventory {
    /// Reads every image file once, on all threads, for its key and to check that it is an image. `limits` are those of
    /// later decoding.
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

    /// The fingerprint of each split that has images.
    pub fn fingerprints(&self) -> BTreeMap<Split, Fingerprint> {
        let mut rows: BTreeMap<Split, Vec<(ContentKey, String)>> = BTreeMap::new();
        for image in &self.images {
            if let Some(split) = image.split {
                rows.entry(split)
                    .or_default()
                    .push((image.key, image.sample.labels.names(&self.info.classes)));
            }
        }
        rows.into_iter().map(|(split, rows)| (split, fingerprint(rows))).collect()
    }

    /// Moves about `fraction` of each class's training images into a validation split, if the data set has none. An image
    /// of several classes counts for the rarest of them.
    /// Content and `seed` decide for each image, so that the same image always goes to the same split.
    ///
    /// Of a class of two or more different images, at least one is moved and at least one is not.
    ///
    /// # Errors
    ///
    /// [`DatasetError::ValidationFraction`] if `fraction` is not between 0 and 1, both excluded.
    pub fn hold_out(&mut self, fraction: f64, seed: u64) -> Result<(), DatasetError> {
        if !(fraction > 0.0 && fraction < 1.0) {
            return Err(DatasetError::ValidationFraction { fraction });
        }
        if self.of_split(Split::Val).next().is_some() {
            return Ok(());
        }
        let strata = self.strata();
        let mut positions_of = vec![Vec::new(); strata.len()];
        for (position, image) in self.images.iter().enumerate() {
            if image.split == Some(Split::Train) {
                positions_of[strata.stratum(&image.sample.labels)].push(position);
            }
        }
        for positions in positions_of {
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

    /// Moves one fold of the training images into a validation split, if the data set has none (see [`Fold`]).
    /// Different folds of the same images and `seed` have no image in common.
    ///
    /// Returns the names of the classes that are missing from some folds. If no class has two different images, nothing
    /// is moved, since the only image of a class is always trained on.
    ///
    /// # Errors
    ///
    /// [`DatasetError::Folds`] if any of the `fold.of` folds would be empty.
    ///
    /// # Panics
    ///
    /// If `fold.number` is not in `1..=fold.of`.
    pub fn hold_out_fold(&mut self, fold: Fold, seed: u64) -> Result<Vec<String>, DatasetError> {
        assert!((1..=fold.of).contains(&fold.number), "there is no fold {} of {}", fold.number, fold.of);
        if self.of_split(Split::Val).next().is_some() {
            return Ok(Vec::new());
        }
        let strata = self.strata();
        let images = self.training_images(&strata);
        self.check_folds(&images, &strata, fold.of)?;
        let folds = folds(&images, strata.len(), fold.of, seed);
        let mut of_class: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); self.info.classes.len()];
        for (image, found) in self.of_split(Split::Train).zip(&folds) {
            for class in image.sample.labels.iter() {
                of_class[*class].insert(*found);
            }
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

    /// The number of the first of `count` folds that is not empty and whose images are all in `known`, if there is one.
    /// `None` also if the data set has a validation split, since it is then not divided into folds.
    pub fn known_fold(&self, count: usize, seed: u64, known: &KeySet) -> Option<usize> {
        if self.of_split(Split::Val).next().is_some() {
            return None;
        }
        let strata = self.strata();
        let images = self.training_images(&strata);
        let folds = folds(&images, strata.len(), count, seed);
        // For each fold number: whether the fold has images, and whether any of them is not in `known`.
        let mut found = vec![(false, false); count + 1];
        for ((key, _), fold) in images.iter().zip(folds) {
            let (has_images, has_new) = &mut found[fold];
            (*has_images, *has_new) = (true, *has_new || !known.contains(*key));
        }
        (1..=count).find(|&number| found[number] == (true, false))
    }

    /// The strata of the training images.
    fn strata(&self) -> Strata {
        let labels = self.of_split(Split::Train).map(|image| &image.sample.labels);
        Strata::of(labels, self.info.classes.len())
    }

    /// The key and the stratum of each training image.
    fn training_images(&self, strata: &Strata) -> Vec<(ContentKey, usize)> {
        let image = |image: &ListedImage| (image.key, strata.stratum(&image.sample.labels));
        self.of_split(Split::Train).map(image).collect()
    }

    /// Checks that there are at least as many images to hold out as folds. No such image at all is accepted.
    fn check_folds(
        &self,
        images: &[(ContentKey, usize)],
        strata: &Strata,
        folds: usize,
    ) -> Result<(), DatasetError> {
        const SHOWN: usize = 3;
        let different = different_images(images, strata.len());
        // The images without a class, which are those of the last stratum, are held out, too.
        let images: usize = different.iter().map(Vec::len).filter(|size| *size > 1).sum();
        if images == 0 || images >= folds {
            return Ok(());
        }
        let mut sizes: Vec<(usize, &String)> =
            different.iter().map(Vec::len).zip(&self.info.classes).collect();
        sizes.retain(|(size, _)| *size > 0);
        sizes.sort_unstable();
        let smallest: Vec<String> =
            sizes.iter().take(SHOWN).map(|(size, class)| format!("'{class}' {size}")).collect();
        let (data, smallest) = (self.info.name.clone(), smallest.join(", "));
        Err(DatasetError::Folds { folds, data, images, smallest })
    }

    /// Removes the images of `known` from the validation and test splits. Returns the split and the name of each one
    /// removed.
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

    /// The data set with the splits of this inventory.
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

/// The fingerprint of the images with these keys and class names.
fn fingerprint(mut rows: Vec<(ContentKey, String)>) -> Fingerprint {
    rows.sort_unstable();
    let mut bytes = Vec::new();
    for (key, class) in &rows {
        bytes.extend(key.to_le_bytes());
        bytes.extend((class.len() as u64).to_le_bytes());
        bytes.extend(class.as_bytes());
    }
    Fingerprint { images: rows.len(), hash: format!("{:032x}", hash([&bytes])) }
}
