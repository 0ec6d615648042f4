//! From what the user typed to a data set: the one list of names and the one list of path kinds.

use std::path::{Path, PathBuf};

use crate::files::DEFAULT_FILE_BYTES;
use crate::images::drawing;
use crate::source::download::{DownloadProgress, Downloader};
use crate::source::published::PUBLISHED;
use crate::source::{self, SourceData, shapes};
use crate::{Dataset, DatasetError, DatasetInfo, LeftOut, SourceKind, Split, ValidationOrigin, shown};

/// The name of the data set that the program draws.
const SHAPES: &str = "shapes";

/// How a data set is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Where named data sets are looked for and downloaded to.
    pub data_dir: PathBuf,
    /// Whether a named data set that is not there may be downloaded.
    pub download: bool,
    /// A base address to download from instead of the publishers': files are at `MIRROR/NAME/FILE`.
    pub mirror: Option<String>,
    /// Called while a file is downloaded, first with nothing received.
    pub progress: Option<fn(&DownloadProgress<'_>)>,
    /// The most bytes of an image in an archive; larger ones are left out.
    pub max_file_bytes: u64,
}

impl Default for OpenOptions {
    /// `datasets/data`, downloads from the publishers without a word.
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("datasets/data"),
            download: true,
            mirror: None,
            progress: None,
            max_file_bytes: DEFAULT_FILE_BYTES,
        }
    }
}

/// The names that [`open`] knows.
pub fn names() -> Vec<&'static str> {
    [SHAPES].into_iter().chain(PUBLISHED.iter().map(|published| published.name)).collect()
}

/// The names of the data sets that are kept in a folder and downloaded to it.
pub fn published_names() -> impl Iterator<Item = &'static str> {
    PUBLISHED.iter().map(|published| published.name)
}

/// Opens a data set by name or path, with the splits that it has. Images are found and labeled, not decoded.
///
/// Any split may be empty: [`Dataset::check_for_training`] says whether a classifier can be trained on it, and
/// [`Inventory::hold_out`](crate::Inventory::hold_out) makes a validation split where there is none.
///
/// Where a folder in the current directory is called like a known data set, the folder is meant, and a warning says so.
/// Class order is the lexicographic order of names (`"10"` before `"2"`) for
/// folders, manifests and archives, the label's own for IDX files and CIFAR batches.
///
/// # Errors
///
/// What is neither, what cannot be read or downloaded, and what is not laid out as a data set; see
/// [`DatasetError`].
pub fn open(data: &str, options: &OpenOptions) -> Result<Dataset, DatasetError> {
    if let Some(dataset) = folder_with_a_name(data, options)? {
        return Ok(dataset);
    }
    if data == SHAPES {
        return Ok(shapes_dataset());
    }
    if let Some(published) = PUBLISHED.iter().find(|published| published.name == data) {
        let downloader = options.download.then(|| Downloader::new(options.progress));
        let found = published.open(&options.data_dir, downloader.as_ref(), options.mirror.as_deref())?;
        return Ok(dataset(published.name.to_owned(), found));
    }
    let path = Path::new(data);
    if !path.exists() {
        return Err(DatasetError::UnknownData { data: data.to_owned(), names: names().join(", ") });
    }
    Ok(dataset(name_of(path), source::read_up_to(path, options.max_file_bytes)?))
}

/// The folder in the current directory that is called like a known data set, unless it is where that is kept.
fn folder_with_a_name(data: &str, options: &OpenOptions) -> Result<Option<Dataset>, DatasetError> {
    let path = Path::new(data);
    let is_kept_there = || {
        let (here, kept) = (path.canonicalize(), options.data_dir.join(data).canonicalize());
        here.is_ok_and(|here| kept.is_ok_and(|kept| here == kept))
    };
    if !names().contains(&data) || !path.is_dir() || is_kept_there() {
        return Ok(None);
    }
    let found = source::read_up_to(path, options.max_file_bytes)?;
    let mut dataset = dataset(name_of(path), found);
    dataset.warnings.push(format!(
        "{data} means the folder ./{data} here: for the data set of this name, rename the folder or work in another one"
    ));
    Ok(Some(dataset))
}

fn shapes_dataset() -> Dataset {
    Dataset {
        info: DatasetInfo {
            name: SHAPES.to_owned(),
            classes: drawing::CLASSES.map(str::to_owned).to_vec(),
            source: SourceKind::Shapes,
            validation: ValidationOrigin::Given,
            flip_safe: true,
        },
        train: shapes::samples(Split::Train),
        val: shapes::samples(Split::Val),
        test: shapes::samples(Split::Test),
        left_out: LeftOut::default(),
        warnings: Vec::new(),
    }
}

fn dataset(name: String, found: SourceData) -> Dataset {
    let SourceData { classes, train, val, test, source, flip_safe, left_out } = found;
    let validation = if val.is_empty() { ValidationOrigin::Absent } else { ValidationOrigin::Given };
    let warnings = split_names(&classes).into_iter().collect();
    let info = DatasetInfo { name, classes, source, validation, flip_safe };
    Dataset { info, train, val, test, left_out, warnings }
}

/// A warning where classes have the names of splits: what was meant as a split may have become a class.
fn split_names(classes: &[String]) -> Option<String> {
    let names: Vec<&str> =
        classes.iter().map(String::as_str).filter(|name| Split::is_in_name(name)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "some classes have names of splits: {}; if these are splits, call them train, val and test and put one folder per class into each",
            names.join(", ")
        )
    })
}

/// A short name for what a path leads to, safe in a file name.
fn name_of(path: &Path) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = shown(absolute.file_name().unwrap_or_default());
    let endings = [".tar.gz", ".tgz", ".tar", ".zip", ".csv", ".tsv", ".jsonl"];
    let lower = name.to_ascii_lowercase();
    let ending =
        endings.into_iter().find(|ending| path.is_file() && lower.ends_with(ending)).map_or(0, str::len);
    let safe = |character: char| {
        if character.is_alphanumeric() || matches!(character, '.' | '_' | '-') { character } else { '-' }
    };
    let name: String = name.chars().take(lower.chars().count() - ending).map(safe).collect();
    match name.trim_matches(['.', '-']) {
        "" => "data".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use image::RgbImage;
    use tempfile::TempDir;

    use super::*;
    use crate::{DecodeLimits, ImageSource, Inventory};

    /// `count` images in a class folder, unlike those of any other folder.
    fn fill(root: &Path, folder: &str, count: u8) {
        let place = folder.bytes().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
        let folder = root.join(folder);
        fs::create_dir_all(&folder).unwrap();
        for index in 0..count {
            let image = RgbImage::from_pixel(4, 3, image::Rgb([index, place, 9]));
            image.save(folder.join(format!("{index:03}.png"))).unwrap();
        }
    }

    fn open_path(path: &Path) -> Result<Dataset, DatasetError> {
        open(&path.to_string_lossy(), &OpenOptions { download: false, ..OpenOptions::default() })
    }

    fn paths(samples: &[crate::Sample], root: &Path) -> Vec<String> {
        let below = |sample: &crate::Sample| match &sample.source {
            ImageSource::File(path) => path.strip_prefix(root).unwrap().to_string_lossy().into_owned(),
            other => panic!("a folder has files, not {other:?}"),
        };
        samples.iter().map(below).collect()
    }

    /// As for training, with a fifth held out where there is no validation split.
    fn held_out(path: &Path, seed: u64) -> Dataset {
        let mut inventory = Inventory::of(open_path(path).unwrap(), &DecodeLimits::default());
        inventory.hold_out(0.2, seed).unwrap();
        inventory.into_dataset()
    }

    fn for_training(path: &Path) -> Result<(), DatasetError> {
        open_path(path)?.check_for_training(&path.to_string_lossy())
    }

    #[test]
    fn class_folders_are_split_by_seed_class_by_class() {
        let root = TempDir::new().unwrap();
        fill(root.path(), "My pets!/dog", 10);
        fill(root.path(), "My pets!/cat/deep/er", 20);
        fs::write(root.path().join("My pets!/notes.txt"), "hello").unwrap();
        fs::write(root.path().join("My pets!/cat/.hidden.png"), "").unwrap();
        fs::write(root.path().join("My pets!/cat/Thumbs.db"), "").unwrap();
        let folder = root.path().join("My pets!");
        let found = open_path(&folder).unwrap();
        assert_eq!(
            (found.info.name.as_str(), found.info.classes.join(" ")),
            ("My-pets", "cat dog".to_owned())
        );
        assert_eq!((found.train.len(), found.val.len(), found.test.len()), (30, 0, 0));
        assert_eq!(found.info.validation, ValidationOrigin::Absent);
        assert!(found.info.flip_safe);
        let dataset = held_out(&folder, 0);
        assert_eq!((dataset.train.len() + dataset.val.len(), dataset.test.len()), (30, 0));
        assert!((2..=12).contains(&dataset.val.len()), "{}", dataset.val.len());
        assert!((0..2).all(|label| dataset.val.iter().any(|sample| sample.label == label)));
        assert_eq!(paths(&dataset.val, &folder), paths(&held_out(&folder, 0).val, &folder));
        assert_ne!(paths(&dataset.val, &folder), paths(&held_out(&folder, 1).val, &folder));
    }

    #[test]
    fn split_folders_are_kept_apart() {
        let root = TempDir::new().unwrap();
        for (folder, count) in [
            ("train/a", 3),
            ("train/b", 2),
            ("validation/a", 1),
            ("validation/b", 1),
            ("test/a", 1),
            ("test/b", 4),
        ] {
            fill(root.path(), folder, count);
        }
        let dataset = open_path(root.path()).unwrap();
        assert_eq!(Split::ALL.map(|split| dataset.split(split).len()), [5, 2, 5]);
        assert_eq!(dataset.info.validation, ValidationOrigin::Given);
        assert!(paths(&dataset.val, root.path()).iter().all(|path| path.starts_with("validation/")));
    }

    #[test]
    fn without_a_val_folder_validation_comes_from_train_and_never_from_test() {
        let root = TempDir::new().unwrap();
        for (folder, count) in [("train/a", 10), ("train/b", 10), ("test/a", 3), ("test/b", 3)] {
            fill(root.path(), folder, count);
        }
        let dataset = held_out(root.path(), 0);
        assert_eq!((dataset.train.len() + dataset.val.len(), dataset.test.len()), (20, 6));
        assert!(!dataset.val.is_empty());
        assert!(paths(&dataset.val, root.path()).iter().all(|path| path.starts_with("train/")));
    }

    #[test]
    fn a_class_of_one_split_is_named() {
        for (folders, parts) in [
            (&["train/a", "train/b", "train/fox", "val/a", "val/b"], ["'fox'", "in train but not in val"]),
            (&["train/a", "train/b", "val/a", "val/b", "val/fox"], ["'fox'", "in val but not in train"]),
        ] {
            let root = TempDir::new().unwrap();
            folders.iter().for_each(|folder| fill(root.path(), folder, 2));
            let message = for_training(root.path()).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }

    #[test]
    fn what_is_no_data_set_is_named_with_the_way_out() {
        let root = TempDir::new().unwrap();
        fill(root.path(), "loose", 2);
        fill(root.path(), "one/cat", 2);
        fill(root.path(), "tested/test/cat", 1);
        fill(root.path(), "tested/test/dog", 1);
        fs::create_dir(root.path().join("empty")).unwrap();
        fs::write(root.path().join("weights.bin"), "").unwrap();
        for (name, part) in [
            ("loose", "one folder per class"),
            ("one", "only one class, 'cat'"),
            ("tested", "no training images"),
            ("empty", "holds no images"),
            ("weights.bin", "manifest (.csv"),
            ("nowhere", "the names are shapes, mnist, fashion-mnist, cifar10, cifar100"),
        ] {
            let path = root.path().join(name);
            let message = for_training(&path).unwrap_err().to_string();
            assert!(
                message.contains(&*path.to_string_lossy()) && message.contains(part),
                "{message} lacks {part}"
            );
        }
    }

    #[test]
    fn classes_with_the_names_of_splits_are_warned_of() {
        let root = TempDir::new().unwrap();
        for folder in ["cat", "dog", "train_old"] {
            fill(root.path(), folder, 2);
        }
        let warnings = open_path(root.path()).unwrap().warnings;
        assert!(warnings.len() == 1 && warnings[0].contains("train_old"), "{warnings:?}");
        fs::remove_dir_all(root.path().join("train_old")).unwrap();
        assert!(open_path(root.path()).unwrap().warnings.is_empty());
    }

    #[test]
    fn a_validation_fraction_out_of_range_is_refused() {
        for val_fraction in [0.0, 1.0, -0.5, f64::NAN] {
            let mut inventory =
                Inventory::of(open("shapes", &OpenOptions::default()).unwrap(), &DecodeLimits::default());
            let message = inventory.hold_out(val_fraction, 0).unwrap_err().to_string();
            assert!(
                message.contains("a validation fraction") && message.contains(&val_fraction.to_string()),
                "{message}"
            );
        }
    }

    #[test]
    fn the_drawn_data_set_has_all_splits() {
        let dataset = open("shapes", &OpenOptions::default()).unwrap();
        for split in Split::ALL {
            let labels: std::collections::BTreeSet<usize> =
                dataset.split(split).iter().map(|sample| sample.label).collect();
            assert_eq!(labels.len(), dataset.info.classes.len(), "{split}");
        }
    }

    #[test]
    fn names_are_safe_in_file_names() {
        let root = TempDir::new().unwrap();
        for (name, expected) in
            [("pets.v2.tar.gz", "pets.v2"), ("a b.CSV", "a-b"), (".zip", "data"), ("Füchse.jsonl", "Füchse")]
        {
            let path = root.path().join(name);
            fs::write(&path, "").unwrap();
            assert_eq!(name_of(&path), expected);
        }
        assert!(!name_of(Path::new(".")).is_empty());
        assert_eq!(name_of(Path::new("/")), "data");
    }
}
