//! What the user is told, before training, of images that a data set holds more than once: under two classes, or in two splits.

use std::collections::{HashMap, HashSet};

use vitrine_datasets::{ContentKey, DecodeLimits, Inventory, ListedImage, Split};

use crate::text::first_few;

/// One remark for each kind of trouble that there is. `left_out` names the validation and test images that are trained on, too, and
/// that [`Inventory::leave_out`] has left out of their splits.
pub(super) fn remarks(
    images: &Inventory,
    left_out: &[(Split, String)],
    limits: &DecodeLimits,
) -> Vec<String> {
    let in_two_classes = in_two_classes(images, limits);
    let in_two_splits = in_both_measured_splits(images, limits);
    [in_two_classes, trained_on(images, left_out), in_two_splits].into_iter().flatten().collect()
}

/// Images of which one label must be wrong.
fn in_two_classes(images: &Inventory, limits: &DecodeLimits) -> Option<String> {
    let pairs = pairs(images, limits, |first, other| first.sample.label != other.sample.label);
    let class = |image: &ListedImage| {
        format!("{} ({})", image.sample.source.name(), images.info.classes[image.sample.label])
    };
    let names = pairs.iter().map(|(first, other)| format!("{} = {}", class(first), class(other)));
    (!pairs.is_empty()).then(|| {
        format!(
            "warning: {} images are in two classes or more, so their labels contradict each other: {}; keep each in one class \
             (`vitrine inspect` lists them)",
            pairs.len(),
            first_few(names)
        )
    })
}

/// Images that were to be measured and are trained on, each with the training image that it is a copy of; what earlier training of
/// pretrained weights has seen stands alone.
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

/// Test images by which the best epoch is chosen, too.
fn in_both_measured_splits(images: &Inventory, limits: &DecodeLimits) -> Option<String> {
    let pairs = pairs(images, limits, |first, other| {
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

/// For each content of which two images are `wrong` together, the first one and the first that is wrong with it. Files that are no
/// images have nothing to do with each other, whatever they have in common.
fn pairs<'a>(
    images: &'a Inventory,
    limits: &DecodeLimits,
    wrong: impl Fn(&ListedImage, &ListedImage) -> bool,
) -> Vec<(&'a ListedImage, &'a ListedImage)> {
    let mut firsts: HashMap<ContentKey, &ListedImage> = HashMap::new();
    let mut told: HashSet<ContentKey> = HashSet::new();
    let mut pairs = Vec::new();
    for image in &images.images {
        let first = *firsts.entry(image.key).or_insert(image);
        if wrong(first, image) && told.insert(image.key) && first.sample.source.probe(limits).is_ok() {
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

    /// Labels with the contents of each split.
    fn inventory(splits: [&[(usize, ImageSource)]; 3]) -> Inventory {
        let [train, val, test] = splits.map(|rows| {
            rows.iter().map(|(label, source)| Sample { label: *label, source: source.clone() }).collect()
        });
        let info = DatasetInfo {
            name: "drawn".to_owned(),
            classes: vec!["cat".to_owned(), "dog".to_owned()],
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

    /// The remarks on a data set as a run sees it.
    fn said(splits: [&[(usize, ImageSource)]; 3]) -> Vec<String> {
        let mut images = inventory(splits);
        let known = images.keys(Split::Train);
        let left_out = images.leave_out(&known);
        remarks(&images, &left_out, &DecodeLimits::default())
    }

    #[test]
    fn a_clean_data_set_and_copies_within_a_class_are_passed_over() {
        let train = [(0, png("a", 1)), (0, png("b", 1)), (1, png("c", 2))];
        assert_eq!(said([&train, &[(0, png("d", 3))], &[(1, png("e", 4))]]), Vec::<String>::new());
    }

    #[test]
    fn contradicting_labels_are_named_in_pairs() {
        let train = [(0, png("cat/1", 1)), (0, png("cat/2", 2)), (1, png("dog/7", 1)), (1, png("dog/8", 1))];
        let remarks = said([&train, &[(0, png("val/1", 9))], &[]]);
        assert_eq!(remarks.len(), 1, "{remarks:?}");
        for part in ["1 images are in two classes", "cat/1 (cat) = dog/7 (dog)", "vitrine inspect"] {
            assert!(remarks[0].contains(part), "{remarks:?}");
        }
    }

    #[test]
    fn leaks_are_named_with_the_images_that_they_are_copies_of() {
        let train = [(0, png("train/1", 1)), (1, png("train/2", 2))];
        let val = [(0, png("val/1", 1)), (1, png("val/3", 3))];
        let test = [(1, png("test/2", 2)), (1, png("test/3", 3)), (0, png("test/4", 4))];
        let remarks = said([&train, &val, &test]);
        assert_eq!(remarks.len(), 2, "{remarks:?}");
        for part in
            ["1 validation and 1 test images are also trained on", "val/1 = train/1, test/2 = train/2"]
        {
            assert!(remarks[0].contains(part), "{remarks:?}");
        }
        for part in ["1 images are in the validation and in the test split", "val/3 = test/3"] {
            assert!(remarks[1].contains(part), "{remarks:?}");
        }
        // What earlier training has seen has no twin here.
        let mut images = inventory([&train, &[(0, png("val/5", 5))], &[]]);
        let known = images.keys(Split::Val);
        let left_out = images.leave_out(&known);
        let remarks = super::remarks(&images, &left_out, &DecodeLimits::default());
        assert!(remarks[0].ends_with("do not count: val/5"), "{remarks:?}");
    }

    #[test]
    fn files_that_are_no_images_contradict_nothing() {
        let train = [(0, empty("cat/1")), (0, png("cat/2", 1)), (1, empty("dog/1")), (1, png("dog/2", 2))];
        assert_eq!(said([&train, &[], &[]]), Vec::<String>::new());
    }
}
