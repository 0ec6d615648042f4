//! Warnings about duplicate images in a data set: under two classes, or in two splits.

use std::collections::{HashMap, HashSet};

use vitrine_datasets::{ContentKey, DecodeLimits, Inventory, ListedImage, Split};

use crate::text::{count, first_few};

/// The warnings about duplicates in `images`, at most one for each kind. `left_out` has the split and the name of each
/// validation or test image that [`Inventory::leave_out`] removed because it is also a training image.
pub(super) fn remarks(
    images: &Inventory,
    left_out: &[(Split, String)],
    limits: &DecodeLimits,
) -> Vec<String> {
    let in_two_classes = in_two_classes(images, limits);
    let in_two_splits = in_validation_and_test(images, limits);
    [in_two_classes, trained_on(images, left_out), in_two_splits].into_iter().flatten().collect()
}

/// The warning about equal images in different classes, of whose labels at least one must be wrong.
fn in_two_classes(images: &Inventory, limits: &DecodeLimits) -> Option<String> {
    let pairs = conflicting_pairs(images, limits, |first, other| first.sample.labels != other.sample.labels);
    let class = |image: &ListedImage| {
        format!("{} ({})", image.sample.source.name(), image.sample.labels.names(&images.info.classes))
    };
    let names = pairs.iter().map(|(first, other)| format!("{} = {}", class(first), class(other)));
    (!pairs.is_empty()).then(|| {
        let (are, their) = if pairs.len() == 1 { ("is", "its") } else { ("are", "their") };
        if images.info.multi_label {
            return format!(
                "warning: {} {are} listed more than once, with labels that contradict each other: {}; list each image once, with all {their} \
                 labels (`vitrine inspect` lists them)",
                count(pairs.len(), "image"),
                first_few(names)
            );
        }
        format!(
            "warning: {} {are} in two classes or more, so {their} labels contradict each other: {}; keep each in one class \
             (`vitrine inspect` lists them)",
            count(pairs.len(), "image"),
            first_few(names)
        )
    })
}

/// The warning about validation and test images that are also trained on. It names each together with the training
/// image that it equals, or alone if only the pretrained weights were trained on it.
fn trained_on(images: &Inventory, left_out: &[(Split, String)]) -> Option<String> {
    let by_key: HashMap<ContentKey, &ListedImage> =
        images.of_split(Split::Train).map(|image| (image.key, image)).collect();
    let names = images.images.iter().filter(|image| image.split.is_none()).map(|image| {
        let name = image.sample.source.name();
        match by_key.get(&image.key) {
            Some(twin) => format!("{name} = {}", twin.sample.source.name()),
            None => name,
        }
    });
    let count = |split| left_out.iter().filter(|(of, _)| *of == split).count();
    (!left_out.is_empty()).then(|| {
        format!(
            "warning: {} validation and {} test images are also trained on and do not count: {}",
            count(Split::Val),
            count(Split::Test),
            first_few(names)
        )
    })
}

/// The warning about images in both the validation and the test split: the best epoch is chosen by them, which favors
/// the test result.
fn in_validation_and_test(images: &Inventory, limits: &DecodeLimits) -> Option<String> {
    let pairs = conflicting_pairs(images, limits, |first, other| {
        [first.split, other.split].contains(&Some(Split::Val))
            && [first.split, other.split].contains(&Some(Split::Test))
    });
    let name = |image: &ListedImage| image.sample.source.name();
    let names = pairs.iter().map(|(first, other)| format!("{} = {}", name(first), name(other)));
    (!pairs.is_empty()).then(|| {
        format!(
            "warning: {} images are in the validation and in the test split, so the test result is a little too good: {}",
            pairs.len(),
            first_few(names)
        )
    })
}

/// One pair for each group of equal images in which two `conflict`: the first image of the group, and the first one
/// that conflicts with it. Equal files that are not images (such as empty ones) are ignored.
fn conflicting_pairs<'a>(
    images: &'a Inventory,
    limits: &DecodeLimits,
    conflict: impl Fn(&ListedImage, &ListedImage) -> bool,
) -> Vec<(&'a ListedImage, &'a ListedImage)> {
    let mut firsts: HashMap<ContentKey, &ListedImage> = HashMap::new();
    let mut reported: HashSet<ContentKey> = HashSet::new();
    let mut pairs = Vec::new();
    for image in &images.images {
        let first = *firsts.entry(image.key).or_insert(image);
        if conflict(first, image) && reported.insert(image.key) && first.sample.source.probe(limits).is_ok() {
            pairs.push((first, image));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use vitrine_datasets::{
        Dataset, DatasetInfo, ImageSource, LeftOut, Sample, SourceKind, ValidationOrigin,
    };

    use super::*;

    /// An inventory of training, validation, and test images, given as labels and contents.
    fn inventory(splits: [&[(usize, ImageSource)]; 3]) -> Inventory {
        let [train, val, test] = splits.map(|rows| {
            rows.iter()
                .map(|(label, source)| Sample { labels: (*label).into(), source: source.clone() })
                .collect()
        });
        let info = DatasetInfo {
            name: "drawn".to_owned(),
            classes: vec!["cat".to_owned(), "dog".to_owned()],
            multi_label: false,
            source: SourceKind::Shapes,
            validation: ValidationOrigin::Given,
            flip_safe: true,
        };
        let (left_out, warnings) = (LeftOut::default(), Vec::new());
        Inventory::of(Dataset { info, train, val, test, left_out, warnings }, &DecodeLimits::default())
    }

    fn png(name: &str, shade: u8) -> ImageSource {
        let mut bytes = std::io::Cursor::new(Vec::new());
        image::GrayImage::from_pixel(4, 4, image::Luma([shade]))
            .write_to(&mut bytes, image::ImageFormat::Png)
            .unwrap();
        ImageSource::Encoded { name: name.to_owned(), bytes: bytes.into_inner().into() }
    }

    fn empty(name: &str) -> ImageSource {
        ImageSource::Encoded { name: name.to_owned(), bytes: [].into() }
    }

    /// The warnings about a data set for a run that starts with random parameters.
    fn warnings_for(splits: [&[(usize, ImageSource)]; 3]) -> Vec<String> {
        let mut images = inventory(splits);
        let known = images.keys(Split::Train);
        let left_out = images.leave_out(&known);
        remarks(&images, &left_out, &DecodeLimits::default())
    }

    #[test]
    fn distinct_images_and_copies_within_a_class_cause_no_warning() {
        let train = [(0, png("a", 1)), (0, png("b", 1)), (1, png("c", 2))];
        assert_eq!(warnings_for([&train, &[(0, png("d", 3))], &[(1, png("e", 4))]]), Vec::<String>::new());
    }

    #[test]
    fn equal_images_in_two_classes_are_named_in_pairs() {
        let train = [(0, png("cat/1", 1)), (0, png("cat/2", 2)), (1, png("dog/7", 1)), (1, png("dog/8", 1))];
        let remarks = warnings_for([&train, &[(0, png("val/1", 9))], &[]]);
        assert_eq!(remarks.len(), 1, "{remarks:?}");
        for part in [
            "1 image is in two classes or more, so its labels",
            "cat/1 (cat) = dog/7 (dog)",
            "vitrine inspect",
        ] {
            assert!(remarks[0].contains(part), "{remarks:?}");
        }
    }

    #[test]
    fn an_image_listed_twice_with_other_labels_is_to_be_listed_once_with_all() {
        let train = [(0, png("beach", 1)), (1, png("beach", 1))];
        let mut images = inventory([&train, &[], &[]]);
        images.info.multi_label = true;
        let remarks = remarks(&images, &[], &DecodeLimits::default());
        assert!(remarks[0].contains("list each image once, with all its labels"), "{remarks:?}");
    }

    #[test]
    fn leaks_are_named_with_the_images_that_they_are_copies_of() {
        let train = [(0, png("train/1", 1)), (1, png("train/2", 2))];
        let val = [(0, png("val/1", 1)), (1, png("val/3", 3))];
        let test = [(1, png("test/2", 2)), (1, png("test/3", 3)), (0, png("test/4", 4))];
        let remarks = warnings_for([&train, &val, &test]);
        assert_eq!(remarks.len(), 2, "{remarks:?}");
        for part in
            ["1 validation and 1 test images are also trained on", "val/1 = train/1, test/2 = train/2"]
        {
            assert!(remarks[0].contains(part), "{remarks:?}");
        }
        for part in ["1 images are in the validation and in the test split", "val/3 = test/3"] {
            assert!(remarks[1].contains(part), "{remarks:?}");
        }
        // An image that only the pretrained weights were trained on is named without a training image.
        let mut images = inventory([&train, &[(0, png("val/5", 5))], &[]]);
        let known = images.keys(Split::Val);
        let left_out = images.leave_out(&known);
        let remarks = super::remarks(&images, &left_out, &DecodeLimits::default());
        assert!(remarks[0].ends_with("do not count: val/5"), "{remarks:?}");
    }

    #[test]
    fn equal_files_that_are_not_images_cause_no_warning() {
        let train = [(0, empty("cat/1")), (0, png("cat/2", 1)), (1, empty("dog/1")), (1, png("dog/2", 2))];
        assert_eq!(warnings_for([&train, &[], &[]]), Vec::<String>::new());
    }
}
