//! The images of a run: written once, and found again by their content in a data set that has changed since.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use vitrine_datasets::{ContentKey, Dataset, DecodeLimits, ImageSource, OpenOptions, Split};

use crate::events::Quiet;
use crate::run_folder::file_names::{IMAGES, TRAINED_ON};
use crate::run_folder::testing::{config, drawn, photos};
use crate::run_folder::{HoldOut, Purpose, RunConfig, RunData, RunFolder};

const HOLD_OUT: HoldOut = HoldOut { fraction: 0.25, seed: 7, fold: None };

/// A run on a folder of images, whose list is written.
struct Begun {
    place: tempfile::TempDir,
    folder: RunFolder,
    config: RunConfig,
    chosen: RunData,
}

fn opened(data: &Path) -> Dataset {
    vitrine_datasets::open(data.to_str().unwrap(), &OpenOptions::default()).unwrap()
}

impl Begun {
    /// A run on eight blue and eight red images, a quarter of which is kept for validation.
    fn new() -> Self {
        Self::with(|_| ())
    }

    /// The same on a folder that `change` has changed.
    fn with(change: impl FnOnce(&Path)) -> Self {
        let place = tempfile::tempdir().unwrap();
        photos(&place.path().join("data/blue"), 0, 8);
        photos(&place.path().join("data/red"), 200, 8);
        change(&place.path().join("data"));
        let config = config(&["blue", "red"]);
        let dataset = opened(&place.path().join("data"));
        let limits = DecodeLimits::default();
        let chosen = RunData::choose(dataset, "data", HOLD_OUT, None, &limits).unwrap();
        let folder = RunFolder::create(Some(&place.path().join("run")), &config, "data", &Quiet).unwrap();
        chosen.write(&folder).unwrap();
        Self { place, folder, config, chosen }
    }

    fn data(&self) -> PathBuf {
        self.place.path().join("data")
    }

    fn reopened(&self, purpose: Purpose) -> Result<RunData> {
        self.reopened_without(purpose, &BTreeSet::new())
    }

    fn reopened_without(&self, purpose: Purpose, undecodable: &BTreeSet<ContentKey>) -> Result<RunData> {
        RunData::reopen(opened(&self.data()), &self.config, (self.folder.path(), purpose), undecodable)
    }

    fn error(&self, purpose: Purpose) -> String {
        format!("{:#}", self.reopened(purpose).unwrap_err())
    }
}

/// Label and file name of every image of a split, in order.
fn names(data: &RunData, split: Split) -> Vec<(usize, String)> {
    let name = |name: String| Path::new(&name).file_name().unwrap().to_str().unwrap().to_owned();
    data.dataset().split(split).iter().map(|sample| (sample.labels[0], name(sample.source.name()))).collect()
}

#[test]
fn a_moved_data_set_gives_the_same_images_in_the_same_order() {
    let run = Begun::new();
    let before = [Split::Train, Split::Val].map(|split| names(&run.chosen, split));
    assert_eq!(before.iter().map(Vec::len).sum::<usize>(), 16);
    assert!(!before[1].is_empty(), "a quarter is kept for validation");
    let moved = run.place.path().join("moved");
    fs::rename(run.data(), &moved).unwrap();
    let again = (run.folder.path(), Purpose::Resume);
    let again = RunData::reopen(opened(&moved), &run.config, again, &BTreeSet::new()).unwrap();
    assert_eq!([Split::Train, Split::Val].map(|split| names(&again, split)), before);
    assert_eq!(again.trained_on, run.chosen.trained_on);
    assert!(again.remarks.is_empty(), "{:?}", again.remarks);
}

#[test]
fn an_unreadable_image_that_was_removed_keeps_its_place() {
    let run = Begun::with(|data| {
        for name in ["blue/broken.png", "red/broken.png"] {
            fs::write(data.join(name), format!("no image: {name}")).unwrap();
        }
    });
    let before = [Split::Train, Split::Val].map(|split| names(&run.chosen, split));
    assert_eq!(before.iter().map(Vec::len).sum::<usize>(), 18);
    for name in ["blue/broken.png", "red/broken.png"] {
        fs::remove_file(run.data().join(name)).unwrap();
    }
    let again = run.reopened(Purpose::Resume).unwrap();
    assert_eq!([Split::Train, Split::Val].map(|split| names(&again, split)), before);
    let bad: Vec<String> = [Split::Train, Split::Val]
        .iter()
        .flat_map(|&split| again.unreadable(split).0)
        .map(|bad| bad.message)
        .collect();
    assert_eq!(bad.len(), 2);
    assert!(bad.iter().all(|message| message.contains("removed")), "{bad:?}");
    fs::remove_file(run.data().join("red/3.png")).unwrap();
    assert!(run.error(Purpose::Resume).contains("of the 18 images of the run, 1 are gone"));
}

#[test]
fn an_image_that_the_run_could_not_decode_may_be_removed_as_one_that_the_list_calls_unreadable() {
    let run = Begun::new();
    let before = [Split::Train, Split::Val].map(|split| names(&run.chosen, split));
    let broken = run.data().join("red/3.png");
    let key = ContentKey::of(&ImageSource::File(broken.clone()), &DecodeLimits::default());
    fs::remove_file(&broken).unwrap();
    assert!(run.error(Purpose::Resume).contains("1 are gone"));
    for purpose in [Purpose::Resume, Purpose::Repeat] {
        let again = run.reopened_without(purpose, &BTreeSet::from([key])).unwrap();
        assert_eq!([Split::Train, Split::Val].map(|split| names(&again, split)), before);
    }
}

#[test]
fn a_renamed_image_is_found_by_its_content() {
    let run = Begun::new();
    fs::rename(run.data().join("red/3.png"), run.data().join("red/renamed.png")).unwrap();
    let again = run.reopened(Purpose::Resume).unwrap();
    let count = |data: &RunData, split| data.dataset().split(split).len();
    for split in [Split::Train, Split::Val] {
        assert_eq!(count(&again, split), count(&run.chosen, split), "{split}");
    }
    let all: Vec<String> = [Split::Train, Split::Val]
        .into_iter()
        .flat_map(|split| names(&again, split))
        .map(|(_, name)| name)
        .collect();
    assert!(all.contains(&"renamed.png".to_owned()), "{all:?}");
}

#[test]
fn images_that_are_gone_or_changed_are_counted_and_named_with_a_way_out() {
    let run = Begun::new();
    fs::remove_file(run.data().join("blue/0.png")).unwrap();
    let other = image::RgbImage::from_pixel(8, 8, image::Rgb([9, 99, 199]));
    other.save(run.data().join("red/5.png")).unwrap();
    let message = run.error(Purpose::Resume);
    for part in
        ["--resume", "of the 16 images", "1 have changed", "5.png", "1 are gone", "0.png", "--pretrained"]
    {
        assert!(message.contains(part), "{message} lacks {part}");
    }
    let message = run.error(Purpose::Repeat);
    assert!(message.contains("--config") && !message.contains("--resume"), "{message}");
}

#[test]
fn an_image_under_another_class_is_gone_from_its_own() {
    let run = Begun::new();
    fs::rename(run.data().join("red/2.png"), run.data().join("blue/20.png")).unwrap();
    let message = run.error(Purpose::Resume);
    assert!(message.contains("1 are gone") && message.contains("red"), "{message}");
}

#[test]
fn new_images_are_left_out_with_a_remark() {
    let run = Begun::new();
    photos(&run.data().join("blue"), 0, 10);
    for (purpose, advises) in [(Purpose::Resume, false), (Purpose::Repeat, true)] {
        let again = run.reopened(purpose).unwrap();
        assert_eq!(names(&again, Split::Train), names(&run.chosen, Split::Train));
        assert_eq!(again.remarks.len(), 1, "{:?}", again.remarks);
        let remark = &again.remarks[0];
        assert!(remark.contains("2 images of data are new") && remark.contains("8.png"), "{remark}");
        assert_eq!(remark.contains("one without --config"), advises, "{remark}");
    }
}

#[test]
fn a_new_class_moves_no_label() {
    let run = Begun::new();
    // "azure" comes first in the alphabet, so that the data set's own labels all move by one.
    photos(&run.data().join("azure"), 100, 3);
    let again = run.reopened(Purpose::Resume).unwrap();
    for split in [Split::Train, Split::Val] {
        assert_eq!(names(&again, split), names(&run.chosen, split), "{split}");
    }
    assert_eq!(again.dataset().info.classes, ["blue", "red"]);
    assert!(
        again.remarks[0].contains("3 images") && again.remarks[0].contains("azure"),
        "{:?}",
        again.remarks
    );
}

#[test]
fn a_missing_or_damaged_list_is_named() {
    let run = Begun::new();
    let list = run.folder.path().join(IMAGES);
    let written = fs::read_to_string(&list).unwrap();
    let header = written.lines().next().unwrap().to_owned() + "\n";
    for (text, part) in [
        (header.as_str(), "lists no images"),
        ("path,label\na,b\n", "cannot be read"),
        ("", "lists no images"),
    ] {
        fs::write(&list, text).unwrap();
        let message = run.error(Purpose::Resume);
        assert!(message.contains(IMAGES) && message.contains(part), "{text:?}: {message}");
    }
    fs::write(&list, written.replacen(",train,", ",training,", 1)).unwrap();
    assert!(run.error(Purpose::Resume).contains("cannot be read"), "an unknown split");
    fs::remove_file(&list).unwrap();
    for (purpose, option) in [(Purpose::Resume, "--resume"), (Purpose::Repeat, "--config")] {
        let message = run.error(purpose);
        assert!(message.contains("holds no file") && message.contains(option), "{message}");
    }
    fs::write(&list, written).unwrap();
    fs::write(run.folder.path().join(TRAINED_ON), "{").unwrap();
    let message = run.error(Purpose::Resume);
    assert!(message.contains(TRAINED_ON) && message.contains("--pretrained"), "{message}");
}

#[test]
fn every_image_is_listed_with_its_class_and_split() {
    let run = Begun::new();
    let text = fs::read_to_string(run.folder.path().join(IMAGES)).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("path,label,split,key,unreadable"));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 16);
    let keys: std::collections::BTreeSet<&str> = rows.iter().map(|row| row[3]).collect();
    assert_eq!(keys.len(), 16, "no two images are alike");
    for row in &rows {
        assert!(row[0].contains(&format!("/{}/", row[1])) || cfg!(windows), "{row:?}");
        assert!(["train", "val"].contains(&row[2]), "{row:?}");
        assert_eq!(row[4], "false", "{row:?}");
    }
    let kept = rows.iter().filter(|row| row[2] == "val").count();
    assert_eq!(kept, run.chosen.dataset().val.len());
}

#[test]
fn the_choice_of_validation_images_depends_on_the_seed_alone() {
    let limits = DecodeLimits::default();
    let choose = |seed| {
        let dataset = drawn([64, 0, 0]);
        let chosen = RunData::choose(dataset, "drawn", HoldOut { seed, ..HOLD_OUT }, None, &limits).unwrap();
        let val = chosen.dataset().val;
        val.iter().map(|sample| sample.source.name()).collect::<Vec<_>>()
    };
    assert_eq!(choose(1), choose(1));
    assert_ne!(choose(1), choose(2));
    let given = RunData::choose(drawn([8, 6, 4]), "drawn", HOLD_OUT, None, &limits).unwrap().dataset();
    assert_eq!([given.train.len(), given.val.len(), given.test.len()], [8, 6, 4], "given splits stay");
}

#[test]
fn images_of_earlier_training_are_not_measured() {
    let limits = DecodeLimits::default();
    let choose = |seed, earlier| {
        let hold_out = HoldOut { seed, ..HOLD_OUT };
        RunData::choose(drawn([400, 0, 0]), "drawn", hold_out, earlier, &limits).unwrap()
    };
    let earlier = choose(1, None);
    let held_out_before = names(&earlier, Split::Val);
    let same = choose(1, Some(&earlier.trained_on));
    assert_eq!(names(&same, Split::Val), held_out_before, "the earlier run has seen none of them");
    let other = choose(2, Some(&earlier.trained_on));
    let measured = names(&other, Split::Val);
    assert!(measured.iter().all(|name| held_out_before.contains(name)), "{measured:?}");
    // Of the hundred images that are held out now, a quarter was held out before, too.
    assert!((10..=40).contains(&measured.len()), "{measured:?}");
    assert!(other.remarks.iter().any(|remark| remark.contains("also trained on")), "{:?}", other.remarks);
    assert!((360..400).contains(&other.trained_on.images), "the images of both trainings count");
}
