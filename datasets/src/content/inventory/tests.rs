//! Tests of validation splits, folds, leaks, and fingerprints.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use image::{Rgb, RgbImage};
use tempfile::TempDir;

use super::*;
use crate::source::archive::tests::tar_of;
use crate::{ImageSource, Labels, OpenOptions, SourceKind, open};

/// An inventory of drawn images in two classes, given the label and the seed of each image of each split.
fn inventory(splits: [&[(usize, u64)]; 3]) -> Inventory {
    let [train, val, test] = splits.map(|rows| {
        let sample = |&(label, seed): &(usize, u64)| Sample {
            labels: label.into(),
            source: ImageSource::Drawn { class: 0, seed },
        };
        rows.iter().map(sample).collect::<Vec<_>>()
    });
    let info = DatasetInfo {
        name: "drawn".to_owned(),
        classes: vec!["a".to_owned(), "b".to_owned()],
        multi_label: false,
        source: SourceKind::Shapes,
        validation: ValidationOrigin::Absent,
        flip_safe: true,
    };
    let (left_out, warnings) = (LeftOut::default(), Vec::new());
    Inventory::of(Dataset { info, train, val, test, left_out, warnings }, &DecodeLimits::default())
}

fn seeds(inventory: &Inventory, split: Split) -> Vec<u64> {
    let seed = |image: &ListedImage| match image.sample.source {
        ImageSource::Drawn { seed, .. } => seed,
        _ => panic!("the test draws its images"),
    };
    inventory.of_split(split).map(seed).collect()
}

#[test]
fn about_a_fifth_of_each_class_is_held_out_and_no_image_is_lost() {
    let rows: Vec<(usize, u64)> = (0..500).map(|seed| (usize::from(seed >= 400), seed)).collect();
    let mut inventory = inventory([&rows, &[], &[(0, 900)]]);
    inventory.hold_out(0.2, 0).unwrap();
    let dataset = inventory.into_dataset();
    assert_eq!((dataset.train.len() + dataset.val.len(), dataset.test.len()), (500, 1));
    for (class, expected) in [(0, 80), (1, 20)] {
        let found = dataset.val.iter().filter(|sample| sample.labels.contains(&class)).count();
        assert!(found.abs_diff(expected) < 30 && found > 5, "{found} of class {class}");
    }
    assert_eq!(dataset.info.validation, ValidationOrigin::SplitOff { fraction: 0.2, seed: 0 });
}

#[test]
fn a_validation_split_of_the_data_set_itself_is_kept() {
    let mut inventory = inventory([&[(0, 1), (0, 2), (1, 3), (1, 4)], &[(0, 5), (1, 6)], &[]]);
    inventory.hold_out(0.5, 0).unwrap();
    assert_eq!((seeds(&inventory, Split::Train).len(), seeds(&inventory, Split::Val)), (4, vec![5, 6]));
}

#[test]
fn known_images_are_removed_from_validation_and_test_only() {
    let mut inventory = inventory([&[(0, 1), (1, 2)], &[(0, 1), (1, 3)], &[(0, 4), (1, 2), (1, 9)]]);
    let mut known = inventory.keys(Split::Train);
    let earlier =
        [9].map(|seed| ContentKey::of(&ImageSource::Drawn { class: 0, seed }, &DecodeLimits::default()));
    known = known.union(&earlier.into_iter().collect());
    let left_out: Vec<Split> = inventory.leave_out(&known).into_iter().map(|(split, _)| split).collect();
    assert_eq!(left_out, [Split::Val, Split::Test, Split::Test]);
    assert_eq!(Split::ALL.map(|split| seeds(&inventory, split)), [vec![1, 2], vec![3], vec![4]]);
}

#[test]
fn a_fingerprint_depends_on_images_labels_and_splits_and_not_on_their_order() {
    let print = |splits| inventory(splits).fingerprints();
    let first = print([&[(0, 1), (1, 2)], &[], &[(0, 3)]]);
    assert_eq!(first.keys().copied().collect::<Vec<_>>(), [Split::Train, Split::Test]);
    assert_eq!(first[&Split::Train].images, 2);
    assert_eq!(first, print([&[(1, 2), (0, 1)], &[], &[(0, 3)]]));
    for other in [
        print([&[(0, 1), (1, 2)], &[], &[(0, 4)]]),
        print([&[(1, 1), (0, 2)], &[], &[(0, 3)]]),
        print([&[(0, 1)], &[], &[(0, 3)]]),
        print([&[(0, 1), (1, 2)], &[(0, 3)], &[]]),
    ] {
        assert_ne!(first, other);
    }
}

/// Writes two class folders of `count` image files each, all of them different.
fn fill(root: &Path, count: u8) {
    for (place, class) in ["cat", "dog"].into_iter().enumerate() {
        let folder = root.join(class);
        fs::create_dir_all(&folder).unwrap();
        for index in 0..count {
            let image = RgbImage::from_pixel(4, 3, Rgb([index, place as u8, 9]));
            image.save(folder.join(format!("{index}.png"))).unwrap();
        }
    }
}

/// The keys of the training images and of the validation images of a folder or an archive.
fn parts(path: &Path) -> [BTreeSet<ContentKey>; 2] {
    let dataset = open(&path.to_string_lossy(), &OpenOptions::default()).unwrap();
    let mut inventory = Inventory::of(dataset, &DecodeLimits::default());
    inventory.hold_out(0.2, 0).unwrap();
    [Split::Train, Split::Val].map(|split| inventory.of_split(split).map(|image| image.key).collect())
}

#[test]
fn adding_or_removing_files_changes_the_split_of_no_other() {
    let root = TempDir::new().unwrap();
    fill(root.path(), 35);
    let [train, val] = parts(root.path());
    assert_eq!(train.len() + val.len(), 70);
    for (name, shade) in [("0a.png", 200), ("zz.png", 201), ("17b.png", 202)] {
        let path = root.path().join("cat").join(name);
        RgbImage::from_pixel(4, 3, Rgb([shade, 0, 9])).save(&path).unwrap();
        let [more_train, more_val] = parts(root.path());
        assert_eq!(more_train.len() + more_val.len(), 71);
        assert!(train.is_subset(&more_train) && val.is_subset(&more_val), "{name}");
        fs::remove_file(path).unwrap();
    }
    fs::remove_file(root.path().join("dog/20.png")).unwrap();
    let [less_train, less_val] = parts(root.path());
    assert_eq!(less_train.len() + less_val.len(), 69);
    assert!(less_train.is_subset(&train) && less_val.is_subset(&val));
}

#[test]
fn a_folder_that_is_moved_renamed_or_packed_keeps_its_split() {
    let root = TempDir::new().unwrap();
    let (here, there) = (root.path().join("here"), root.path().join("there"));
    fill(&here, 12);
    let before = parts(&here);
    fs::rename(&here, &there).unwrap();
    for index in 0..12 {
        fs::rename(there.join(format!("dog/{index}.png")), there.join(format!("dog/no {}.png", 30 - index)))
            .unwrap();
    }
    assert_eq!(parts(&there), before);
    fs::rename(there.join("dog"), there.join("a dog")).unwrap();
    assert_eq!(parts(&there), before);
    let files: Vec<(String, Vec<u8>)> = ["a dog", "cat"]
        .into_iter()
        .flat_map(|class| fs::read_dir(there.join(class)).unwrap())
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.strip_prefix(root.path()).unwrap().display().to_string(), fs::read(path).unwrap()))
        .collect();
    let entries: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    let archive = root.path().join("packed.tar");
    fs::write(&archive, tar_of(&entries)).unwrap();
    assert_eq!(parts(&archive), before);
}

#[test]
fn copies_of_a_file_are_in_the_same_split() {
    let root = TempDir::new().unwrap();
    fill(root.path(), 20);
    let before = parts(root.path());
    for index in 0..20 {
        let file = |name: String| root.path().join("cat").join(name);
        fs::copy(file(format!("{index}.png")), file(format!("copy of {index}.png"))).unwrap();
    }
    assert_eq!(parts(root.path()), before);
    let [train, val] = before;
    assert!(train.is_disjoint(&val));
}

#[test]
fn files_above_the_size_limit_with_the_same_name_are_told_apart() {
    let root = TempDir::new().unwrap();
    for (path, byte) in
        [("train/cat/1.tif", 1), ("train/dog/1.tif", 2), ("test/cat/1.tif", 3), ("test/dog/1.tif", 2)]
    {
        let path = root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, [byte; 100]).unwrap();
    }
    for limit in [10, 100, 1000] {
        let dataset = open(&root.path().to_string_lossy(), &OpenOptions::default()).unwrap();
        let limits = DecodeLimits::default().with_max_file_bytes(Some(limit));
        let mut inventory = Inventory::of(dataset, &limits);
        let left_out = inventory.leave_out(&inventory.keys(Split::Train));
        let [(Split::Test, name)] = &left_out[..] else { panic!("{left_out:?} with {limit}") };
        assert!(name.ends_with("test/dog/1.tif"), "{name}");
    }
}

#[test]
fn every_image_is_held_out_by_exactly_one_fold() {
    let rows: Vec<(usize, u64)> = (0..50).map(|seed| (usize::from(seed >= 40), seed)).collect();
    let mut held_out = Vec::new();
    for number in 1..=3 {
        let mut inventory = inventory([&rows, &[], &[(0, 900)]]);
        assert!(inventory.hold_out_fold(Fold { number, of: 3 }, 7).unwrap().is_empty());
        let val = seeds(&inventory, Split::Val);
        assert_eq!(seeds(&inventory, Split::Train).len() + val.len(), 50);
        assert!((3..=4).contains(&val.iter().filter(|&&seed| seed >= 40).count()), "{val:?}");
        held_out.extend(val);
    }
    held_out.sort_unstable();
    assert_eq!(held_out, (0..50).collect::<Vec<u64>>());
}

#[test]
fn classes_that_are_missing_from_a_fold_are_named() {
    let mut inventory = inventory([&[(0, 1), (0, 2), (1, 3), (1, 4), (1, 5)], &[], &[]]);
    assert_eq!(inventory.hold_out_fold(Fold { number: 1, of: 3 }, 0).unwrap(), ["a"]);
}

#[test]
fn more_folds_than_images_to_hold_out_are_an_error_for_every_fold() {
    // The only image of class b is always trained on, which leaves three different images to hold out.
    let rows = [(0, 1), (0, 2), (0, 3), (0, 3), (1, 9)];
    for number in 1..=4 {
        let error = inventory([&rows, &[], &[]]).hold_out_fold(Fold { number, of: 4 }, 0).unwrap_err();
        let message = error.to_string();
        for part in ["4 folds", "drawn has only 3", "'b' 1, 'a' 3", "3 folds at most"] {
            assert!(message.contains(part), "{message}");
        }
    }
    let mut held_out = Vec::new();
    for number in 1..=3 {
        let mut inventory = inventory([&rows, &[], &[]]);
        assert_eq!(inventory.hold_out_fold(Fold { number, of: 3 }, 0).unwrap(), ["b"]);
        held_out.extend(seeds(&inventory, Split::Val));
    }
    held_out.sort_unstable();
    assert_eq!(held_out, [1, 2, 3, 3]);
    // A data set without any image to hold out is no error here: the caller reports it.
    let mut single = inventory([&[(0, 1), (1, 2)], &[], &[]]);
    assert!(single.hold_out_fold(Fold { number: 1, of: 2 }, 0).is_ok());
    assert!(seeds(&single, Split::Val).is_empty());
}

#[test]
fn images_without_a_class_are_held_out_by_folds_too() {
    let mut few = inventory([&[(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6)], &[], &[]]);
    few.info.multi_label = true;
    // Only two of the six images have a class.
    few.images[2..].iter_mut().for_each(|image| image.sample.labels = Labels::new(Vec::new()));
    let mut held_out = Vec::new();
    for number in 1..=5 {
        let mut inventory = few.clone();
        inventory.hold_out_fold(Fold { number, of: 5 }, 0).unwrap();
        held_out.extend(seeds(&inventory, Split::Val));
    }
    held_out.sort_unstable();
    assert_eq!(held_out, [1, 2, 3, 4, 5, 6]);
    let message = few.hold_out_fold(Fold { number: 1, of: 7 }, 0).unwrap_err().to_string();
    assert!(message.contains("only 6 different images"), "{message}");
}

#[test]
fn a_fold_whose_images_are_all_known_is_found() {
    let rows: Vec<(usize, u64)> = (0..9).map(|seed| (usize::from(seed >= 4), seed)).collect();
    let of_fold = |number| {
        let mut inventory = inventory([&rows, &[], &[]]);
        inventory.hold_out_fold(Fold { number, of: 3 }, 5).unwrap();
        inventory.keys(Split::Val)
    };
    let inventory = inventory([&rows, &[], &[]]);
    for number in 1..=3 {
        assert_eq!(inventory.known_fold(3, 5, &of_fold(number)), Some(number));
    }
    assert_eq!(inventory.known_fold(3, 5, &KeySet::default()), None);
    assert_eq!(inventory.known_fold(2, 5, &of_fold(1)), None);
}

#[test]
fn unreadable_images_are_listed_with_their_key_and_fault() {
    let root = TempDir::new().unwrap();
    for class in ["a", "b"] {
        fs::create_dir(root.path().join(class)).unwrap();
        RgbImage::from_pixel(4, 4, Rgb([9, 8, 7])).save(root.path().join(class).join("good.png")).unwrap();
        fs::write(root.path().join(class).join("broken.png"), format!("no image {class}")).unwrap();
    }
    let dataset = open(&root.path().to_string_lossy(), &OpenOptions::default()).unwrap();
    let limits = DecodeLimits::default();
    for image in Inventory::of(dataset, &limits).images {
        assert_eq!(image.key, ContentKey::of(&image.sample.source, &limits));
        let name = image.sample.source.name();
        let expected =
            image.sample.source.probe(&limits).err().map(|error| image.sample.source.as_bad_file(&error));
        assert_eq!(image.bad, expected);
        assert_eq!(image.bad.is_some(), name.contains("broken"), "{name}");
    }
}

#[test]
fn an_image_of_several_classes_counts_for_the_rarest_of_them() {
    let mut found = inventory([&(0..60).map(|seed| (0, seed)).collect::<Vec<_>>(), &[], &[]]);
    found.info.multi_label = true;
    // Two images also have the class 1, and ten have none.
    for (position, image) in found.images.iter_mut().enumerate() {
        image.sample.labels = Labels::new(match position {
            0 | 1 => vec![0, 1],
            2..12 => vec![],
            _ => vec![0],
        });
    }
    let count = |inventory: &Inventory, split, labels: &[usize]| {
        inventory.of_split(split).filter(|image| image.sample.labels[..] == *labels).count()
    };
    for seed in 0..20 {
        let mut split = found.clone();
        split.hold_out(0.2, seed).unwrap();
        assert_eq!([Split::Train, Split::Val].map(|of| count(&split, of, &[0, 1])), [1, 1], "seed {seed}");
        assert!(count(&split, Split::Val, &[]) > 0, "images without a class are measured, too");
    }
    let lacking = found.clone().hold_out_fold(Fold { number: 1, of: 3 }, 0).unwrap();
    assert_eq!(lacking, ["b"], "two images are in two of three folds");
}
