//! What training says of a data set before it begins, for those who only look at the data: why it refuses the data set,
//! and what it warns about.

use std::collections::HashSet;

use vitrine_datasets::{
    BadFile, CorruptImage, Dataset, DatasetError, DecodeLimits, Inspection, Inventory, Split, inspect,
};

use super::bad_files::{BadFiles, unreadable};
use super::duplicates;
use super::images::{check_unseen, check_validation, classes_without_validation};
use crate::recipe::Recipe;

/// The images of a data set with the splits of a new run, and what that run would say of them.
#[derive(Clone, Debug)]
pub struct Review {
    /// The images, some of which are held out if the data set has no validation split. Validation and test images that
    /// are also trained on are among them, which a run leaves out.
    pub images: Inventory,
    /// The report about these images, for which each of them was decoded.
    pub inspection: Inspection,
    /// Each reason for which training refuses the data set, in its own words.
    pub problems: Vec<String>,
    /// Each warning with which training would begin, without a prefix.
    pub warnings: Vec<String>,
}

impl Review {
    /// Reads and decodes the images of `dataset`, whose name in messages is `data`, and chooses validation images as
    /// [`RunData::choose`](super::RunData::choose) does: about `fraction` of each class, by `seed`. `limits` are the
    /// limits with which the images will be decoded.
    ///
    /// # Errors
    /// If `fraction` is not between 0 and 1.
    pub fn of(
        dataset: Dataset,
        data: &str,
        (fraction, seed): (f64, u64),
        limits: &DecodeLimits,
    ) -> Result<Self, DatasetError> {
        let mut problems: Vec<String> =
            dataset.training_problems(data).iter().map(ToString::to_string).collect();
        let mut images = Inventory::of(dataset, limits);
        images.hold_out(fraction, seed)?;
        let inspection = inspect(&images.clone().into_dataset(), limits);
        let mut unseen = images.clone();
        let left_out = unseen.leave_out(&images.keys(Split::Train));
        let mut remarks = duplicates::remarks(&unseen, &left_out, limits);
        // What is said of validation images makes no sense for splits that cannot be trained on.
        if problems.is_empty() {
            let checked = check_validation(&images, data).and_then(|()| check_unseen(&unseen, data, false));
            problems.extend(checked.err().map(|error| error.to_string()));
        }
        if problems.is_empty() {
            remarks.extend(classes_without_validation(&unseen));
        }
        let (too_many, tolerated) = judge_unreadable(&unseen, &inspection.corrupt);
        problems.extend(too_many);
        let warnings = tolerated.iter().chain(&remarks).map(|remark| without_prefix(remark)).collect();
        Ok(Self { images, inspection, problems, warnings })
    }
}

/// What training would say of unreadable images with the default limit, before it begins or when it decodes them: an error
/// for each split with too many, and a warning for each split with fewer.
fn judge_unreadable(images: &Inventory, corrupt: &[CorruptImage]) -> (Vec<String>, Vec<String>) {
    let limit = Recipe::default().bad_file_limit;
    let (mut too_many, mut tolerated) = (Vec::new(), Vec::new());
    let mut bad_files = BadFiles::default();
    for split in Split::ALL {
        let (mut bad, total) = unreadable(images, split);
        bad.extend(undecodable(images, split, corrupt));
        match bad_files.verdict(limit, split, (&bad, total)) {
            Ok(event) => tolerated.extend(event.map(|event| event.to_string())),
            Err(error) => too_many.push(error.to_string()),
        }
    }
    (too_many, tolerated)
}

/// The images of a split that begin as images do and yet cannot be decoded.
fn undecodable(images: &Inventory, split: Split, corrupt: &[CorruptImage]) -> Vec<BadFile> {
    let probed = images.of_split(split).filter(|image| image.bad.is_none());
    let names: HashSet<String> = probed.map(|image| image.sample.source.name()).collect();
    corrupt
        .iter()
        .filter(|image| image.split == split && names.contains(&image.image))
        .map(|CorruptImage { image, reason, is_too_large, .. }| BadFile {
            name: image.clone(),
            message: reason.clone(),
            is_too_large: *is_too_large,
        })
        .collect()
}

/// A remark without the word with which warnings begin.
fn without_prefix(remark: &str) -> String {
    remark.strip_prefix("warning: ").unwrap_or(remark).to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::path::Path;

    use anyhow::Result;
    use vitrine_datasets::{OpenOptions, open};

    use super::*;
    use crate::run_folder::testing::photos;
    use crate::run_folder::{HoldOut, RunData};

    const FRACTION: f64 = 0.25;

    fn opened(data: &Path) -> Dataset {
        open(data.to_str().unwrap(), &OpenOptions::default()).unwrap()
    }

    fn reviewed(data: &Path) -> Review {
        let name = data.to_str().unwrap();
        Review::of(opened(data), name, (FRACTION, 0), &DecodeLimits::default()).unwrap()
    }

    /// The images that a new run would choose.
    fn chosen(data: &Path) -> Result<RunData> {
        let hold_out = HoldOut { fraction: FRACTION, seed: 0, fold: None };
        RunData::choose(opened(data), data.to_str().unwrap(), hold_out, None, &DecodeLimits::default())
    }

    /// Fills folders, each with so many images of a shade.
    fn filled(root: &Path, folders: &[(&str, u8, u8)]) {
        for (folder, shade, count) in folders {
            photos(&root.join(folder), *shade, *count);
        }
    }

    #[test]
    fn a_data_set_that_training_refuses_has_its_error_as_the_first_problem() {
        for (folders, part) in [
            (vec![("test/red", 200, 4), ("test/blue", 0, 4)], "no training images"),
            (vec![("red", 200, 4)], "only one class, 'red'"),
            (
                vec![("train/red", 200, 4), ("train/blue", 0, 4), ("val/red", 100, 4)],
                "the class 'blue' is in train but not in val",
            ),
            (vec![("red", 200, 1), ("blue", 0, 1)], "one different image per class"),
            (
                vec![("train/red", 200, 4), ("train/blue", 0, 4), ("val/red", 200, 2), ("val/blue", 0, 2)],
                "every image of the validation split is also trained on",
            ),
        ] {
            let place = tempfile::tempdir().unwrap();
            filled(place.path(), &folders);
            let review = reviewed(place.path());
            assert_eq!(review.problems.len(), 1, "{:?}", review.problems);
            assert!(review.problems[0].contains(part), "{:?}", review.problems);
            assert_eq!(review.problems[0], chosen(place.path()).unwrap_err().to_string());
        }
    }

    #[test]
    fn the_warnings_and_splits_are_those_of_a_run_that_may_begin() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        filled(root, &[("red", 200, 8), ("blue", 0, 8), ("green", 100, 1)]);
        fs::copy(root.join("red/0.png"), root.join("blue/copy.png")).unwrap();
        let (review, run) = (reviewed(root), chosen(root).unwrap());
        assert!(review.problems.is_empty(), "{:?}", review.problems);
        let remarks: Vec<String> = run.remarks.iter().map(|remark| without_prefix(remark)).collect();
        assert_eq!(review.warnings, remarks);
        for part in ["1 image is in two classes or more", "classes have no validation image"] {
            assert!(review.warnings.iter().any(|warning| warning.contains(part)), "{remarks:?}");
        }
        assert_eq!(review.images.keys(Split::Train), run.trained_on.keys);
    }

    #[test]
    fn copies_are_also_named_in_a_data_set_that_training_refuses() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        filled(
            root,
            &[("train/red", 200, 4), ("train/blue", 0, 4), ("train/fox", 50, 2), ("train/dog", 60, 2)],
        );
        filled(root, &[("val/red", 100, 2), ("val/blue", 150, 2)]);
        fs::copy(root.join("train/red/0.png"), root.join("train/blue/copy.png")).unwrap();
        fs::copy(root.join("train/red/1.png"), root.join("val/red/copy.png")).unwrap();
        let Review { problems, warnings, .. } = reviewed(root);
        assert_eq!(problems.len(), 2, "every class that is in one split alone: {problems:?}");
        assert!(problems[0].contains("'dog'") && problems[1].contains("'fox'"), "{problems:?}");
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("in two classes or more"), "{warnings:?}");
        assert!(warnings[1].contains("1 validation and 0 test images are also trained on"), "{warnings:?}");
    }
}
