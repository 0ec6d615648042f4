//! Opening a data set by its name or its path, and the list of all names.

use std::path::{Path, PathBuf};

use crate::files::DEFAULT_FILE_BYTES;
use crate::images::drawing;
use crate::source::download::{DownloadProgress, Downloader};
use crate::source::published::PUBLISHED;
use crate::source::{self, SourceData, idx, shapes};
use crate::{Dataset, DatasetError, DatasetInfo, LeftOut, SourceKind, Split, ValidationOrigin, shown};

/// The name of the synthetic data set, whose images are drawn on demand.
const SHAPES: &str = "shapes";

/// Options for opening a data set.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// The folder in which named data sets are looked for, and to which they are downloaded.
    pub data_dir: PathBuf,
    /// Whether a named data set that is missing from `data_dir` may be downloaded.
    pub download: bool,
    /// Base URL of a mirror to download from instead of the publishers' servers: `{mirror}/{data set}/{file}`.
    pub mirror: Option<String>,
    /// Called repeatedly while a file is downloaded, the first time with 0 bytes received.
    pub progress: Option<fn(&DownloadProgress<'_>)>,
    /// Largest image file, in bytes, to take from an archive. Larger ones are left out and listed in
    /// [`Dataset::left_out`].
    pub max_file_bytes: u64,
    /// The character between the labels of an image in a manifest whose images have several labels each; `None` for one
    /// label an image. Arrays of labels in JSON Lines need no separator.
    pub label_separator: Option<char>,
}

impl Default for OpenOptions {
    /// Data sets are kept in `datasets/data` and downloaded from their publishers without reporting progress.
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("datasets/data"),
            download: true,
            mirror: None,
            progress: None,
            max_file_bytes: DEFAULT_FILE_BYTES,
            label_separator: None,
        }
    }
}

/// All names that [`open`] accepts.
pub fn names() -> Vec<&'static str> {
    [SHAPES].into_iter().chain(PUBLISHED.iter().map(|published| published.name)).collect()
}

/// The names of the data sets that can be downloaded.
pub fn published_names() -> impl Iterator<Item = &'static str> {
    PUBLISHED.iter().map(|published| published.name)
}

/// Whether `data` can only mean a data set, and not images: the name of one, unless a file or folder in the current
/// directory has this name, or the path of a manifest, an archive, or a folder of IDX files or CIFAR batches.
///
/// # Examples
///
/// ```
/// assert!(vitrine_datasets::can_only_be_dataset("shapes"));
/// assert!(!vitrine_datasets::can_only_be_dataset("cat.jpg"));
/// ```
pub fn can_only_be_dataset(data: &str) -> bool {
    let path = Path::new(data);
    if names().contains(&data) && !path.is_dir() {
        return !path.exists();
    }
    source::is_packed(path)
}

/// Opens a data set by name or path, with the splits that it has. Images are found and labeled, not decoded.
///
/// Any split may be empty: [`Dataset::check_for_training`] says whether a classifier can be trained on the data set,
/// and [`Inventory::hold_out`](crate::Inventory::hold_out) makes a validation split if there is none.
///
/// If the current directory has a folder with the name of a known data set, that folder is opened, with a warning.
///
/// Classes of folders, manifests, and archives are in lexicographic order of their names (`"10"` before `"2"`); classes
/// of IDX files and CIFAR batches are in the order of their numbers, those of IDX files from the first that has images.
///
/// # Errors
///
/// If `data` is neither a name nor a path, cannot be read or downloaded, or has no known layout; see [`DatasetError`].
pub fn open(data: &str, options: &OpenOptions) -> Result<Dataset, DatasetError> {
    if let Some(dataset) = folder_with_a_name(data, options)? {
        return Ok(dataset);
    }
    let is_named = data == SHAPES || PUBLISHED.iter().any(|published| published.name == data);
    if is_named && options.label_separator.is_some() {
        return Err(DatasetError::no_label_lists(data));
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
    Ok(dataset(name_of(path), read(path, options)?))
}

/// Whether [`open`] takes `data` for the name of a known data set, which is kept in `data_dir`, and not for a path: unless the current
/// directory has a folder of this name, other than the one in which the data set is kept.
pub fn is_known_name(data: &str, data_dir: &Path) -> bool {
    let path = Path::new(data);
    let is_its_place = || {
        let (here, kept) = (path.canonicalize(), data_dir.join(data).canonicalize());
        here.is_ok_and(|here| kept.is_ok_and(|kept| here == kept))
    };
    names().contains(&data) && (!path.is_dir() || is_its_place())
}

/// The data set in a folder of the current directory that has the name of a known data set. `None` if there is no such
/// folder, or if it is the one in which the known data set is kept.
fn folder_with_a_name(data: &str, options: &OpenOptions) -> Result<Option<Dataset>, DatasetError> {
    let path = Path::new(data);
    if !names().contains(&data) || is_known_name(data, &options.data_dir) {
        return Ok(None);
    }
    let mut dataset = dataset(name_of(path), read(path, options)?);
    dataset.warnings.push(format!(
        "{data} means the folder ./{data} here: for the data set of this name, rename the folder or work in another one"
    ));
    Ok(Some(dataset))
}

/// Reads the data set at `path`. The classes of IDX files begin with the first number that has images, such as 1 for the letters of EMNIST.
fn read(path: &Path, options: &OpenOptions) -> Result<SourceData, DatasetError> {
    let found = source::read_with(path, options.max_file_bytes, options.label_separator)?;
    Ok(if found.source == SourceKind::Idx { idx::from_first_label(found) } else { found })
}

fn shapes_dataset() -> Dataset {
    Dataset {
        info: DatasetInfo {
            name: SHAPES.to_owned(),
            classes: drawing::CLASSES.map(str::to_owned).to_vec(),
            multi_label: false,
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
    let SourceData { classes, multi_label, train, val, test, source, flip_safe, left_out } = found;
    let validation = if val.is_empty() { ValidationOrigin::Absent } else { ValidationOrigin::Given };
    let warnings = split_names(&classes).into_iter().collect();
    let info = DatasetInfo { name, classes, multi_label, source, validation, flip_safe };
    Dataset { info, train, val, test, left_out, warnings }
}

/// A warning if class names contain names of splits, since folders meant as splits may have been taken for classes.
fn split_names(classes: &[String]) -> Option<String> {
    let names: Vec<&str> =
        classes.iter().map(String::as_str).filter(|name| Split::is_in_name(name)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "some classes have names of splits: {}; if these are splits, call them train, val and test and put one \
             folder per class into each",
            names.join(", ")
        )
    })
}

/// A data set's name from the last part of its path, with only those characters that are safe in a file name.
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
    use crate::source::idx::tests::encode;
    use crate::{DecodeLimits, ImageSource, Inventory};

    /// Writes `count` different images into a class folder. Folders of different names get different images.
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

    /// The data set at `path` with a fifth held out for validation, if it has no validation split.
    fn held_out(path: &Path, seed: u64) -> Dataset {
        let mut inventory = Inventory::of(open_path(path).unwrap(), &DecodeLimits::default());
        inventory.hold_out(0.2, seed).unwrap();
        inventory.into_dataset()
    }

    fn for_training(path: &Path) -> Result<(), DatasetError> {
        open_path(path)?.check_for_training(&path.to_string_lossy())
    }

    #[test]
    fn the_seed_decides_which_images_of_each_class_are_held_out() {
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
        assert!((0..2).all(|label| dataset.val.iter().any(|sample| sample.labels.contains(&label))));
        assert_eq!(paths(&dataset.val, &folder), paths(&held_out(&folder, 0).val, &folder));
        assert_ne!(paths(&dataset.val, &folder), paths(&held_out(&folder, 1).val, &folder));
    }

    #[test]
    fn split_folders_become_splits() {
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
    fn without_a_val_folder_validation_images_come_from_train_and_never_from_test() {
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
    fn a_class_that_is_missing_from_a_split_is_named() {
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
    fn what_can_only_be_a_data_set_is_told_from_images() {
        let root = TempDir::new().unwrap();
        fill(root.path(), "photos/cat", 1);
        for folder in ["digits", "objects", "a.csv"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        for (name, content) in [
            ("digits/train-labels-idx1-ubyte.gz", &b""[..]),
            ("objects/data_batch_1.bin", b""),
            ("b.csv", b""),
            ("c.TSV", b""),
            ("d.jsonl", b""),
            ("e.tgz", b""),
            ("packed", b"PK\x03\x04"),
            ("packed.png", b"PK\x03\x04"),
            ("notes.txt", b""),
        ] {
            fs::write(root.path().join(name), content).unwrap();
        }
        let is_dataset = |name: &str| can_only_be_dataset(&root.path().join(name).to_string_lossy());
        for name in ["digits", "objects", "b.csv", "c.TSV", "d.jsonl", "e.tgz", "packed"] {
            assert!(is_dataset(name), "{name}");
        }
        for name in ["photos", "photos/cat/000.png", "a.csv", "missing.csv", "packed.png", "notes.txt"] {
            assert!(!is_dataset(name), "{name}");
        }
        assert!(can_only_be_dataset("shapes") && !can_only_be_dataset("-"));
    }

    #[test]
    fn errors_for_other_paths_name_the_path_and_what_to_do() {
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
    fn numbered_classes_begin_with_the_first_that_has_images() {
        let folder = TempDir::new().unwrap();
        for (split, labels) in [("train", &[4u8, 2, 2][..]), ("test", &[1][..])] {
            let count = labels.len() as u32;
            let file = |kind: &str| folder.path().join(format!("emnist-letters-{split}-{kind}-ubyte"));
            fs::write(file("images-idx3"), encode(0x0803, &[count, 1, 1], labels)).unwrap();
            fs::write(file("labels-idx1"), encode(0x0801, &[count], labels)).unwrap();
        }
        let found = open_path(folder.path()).unwrap();
        assert_eq!(found.info.classes, ["1", "2", "3", "4"]);
        let names = |samples: &[crate::Sample]| -> Vec<String> {
            samples.iter().map(|sample| sample.labels.names(&found.info.classes)).collect()
        };
        assert_eq!([&found.train, &found.test].map(|samples| names(samples).join(" ")), ["4 2 2", "1"]);
    }

    #[test]
    fn classes_named_like_splits_give_a_warning() {
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
    fn a_validation_fraction_out_of_range_is_an_error() {
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
    fn every_class_of_the_drawn_data_set_is_in_every_split() {
        let dataset = open("shapes", &OpenOptions::default()).unwrap();
        for split in Split::ALL {
            let labels: std::collections::BTreeSet<usize> =
                dataset.split(split).iter().filter_map(|sample| sample.labels.only()).collect();
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
