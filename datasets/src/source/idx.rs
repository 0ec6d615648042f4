//! Reading IDX files, the format of MNIST and similar data sets: <https://yann.lecun.com/exdb/mnist/>.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use super::{Blob, MAX_BYTES, MAX_IMAGES, SourceData};
use crate::{DatasetError, ImageSource, Labels, LeftOut, Sample, SourceKind, Split};

/// Magic number of a file of images: unsigned bytes in three dimensions.
const IMAGES_MAGIC: u32 = 0x0803;
/// Magic number of a file of labels: unsigned bytes in one dimension.
const LABELS_MAGIC: u32 = 0x0801;

/// The content of an IDX file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    Images,
    Labels,
}

/// Whether a file's name is that of an IDX file.
pub(crate) fn is_name(name: &str) -> bool {
    role(name).is_some()
}

/// Whether any of the files is an IDX file.
pub(crate) fn is_layout(blobs: &[Blob]) -> bool {
    blobs.iter().any(|blob| is_name(&blob.file_name()))
}

/// The split and the role of a file by its name, such as `train-images-idx3-ubyte.gz` or
/// `emnist-test-labels-idx1-ubyte`.
fn role(name: &str) -> Option<(Split, Role)> {
    let name = name.to_ascii_lowercase();
    let stem = name.strip_suffix(".gz").unwrap_or(&name);
    if !stem.ends_with("ubyte") {
        return None;
    }
    let split = if stem.contains("t10k") || stem.contains("test") {
        Split::Test
    } else if stem.contains("train") {
        Split::Train
    } else {
        return None;
    };
    let role = if stem.contains("images") {
        Role::Images
    } else if stem.contains("labels") {
        Role::Labels
    } else {
        return None;
    };
    Some((split, role))
}

/// Reads an IDX data set. If a file exists both plain and compressed, the plain one is read. A split whose files are missing has no
/// images.
///
/// # Errors
///
/// If one of two files that go together is missing, or a file is ambiguous or does not follow the format.
pub(crate) fn read(origin: &Path, blobs: Vec<Blob>) -> Result<SourceData, DatasetError> {
    let mut files: BTreeMap<(Split, Role), Blob> = BTreeMap::new();
    for blob in blobs {
        let Some(key) = role(&blob.file_name()) else { continue };
        match files.get(&key) {
            None => drop(files.insert(key, blob)),
            Some(other) => {
                let (name, other_name) = (blob.file_name(), other.file_name());
                if other_name.strip_suffix(".gz") == Some(&name) {
                    files.insert(key, blob);
                } else if name.strip_suffix(".gz") != Some(&other_name) {
                    let problem =
                        format!("holds both '{other_name}' and '{name}': keep only one data set per folder");
                    return Err(DatasetError::layout(origin, problem));
                }
            }
        }
    }
    let mut bytes_left = MAX_BYTES;
    let train = pair(origin, &mut files, Split::Train, &mut bytes_left)?.unwrap_or_default();
    let test = pair(origin, &mut files, Split::Test, &mut bytes_left)?.unwrap_or_default();
    let highest = train
        .samples
        .iter()
        .chain(&test.samples)
        .filter_map(|sample| sample.labels.only())
        .max()
        .unwrap_or_default();
    if highest == 0 {
        return Err(DatasetError::layout(origin, "has only one class: a classifier needs two or more"));
    }
    Ok(SourceData {
        classes: (0..=highest).map(|class| class.to_string()).collect(),
        multi_label: false,
        flip_safe: !([train.size, test.size].contains(&(28, 28)) && highest == 9),
        train: train.samples,
        val: Vec::new(),
        test: test.samples,
        source: SourceKind::Idx,
        left_out: LeftOut::default(),
    })
}

/// The data set without the classes before the first that has images. The names of the others are their numbers still.
pub(crate) fn from_first_label(mut found: SourceData) -> SourceData {
    let samples = found.train.iter().chain(&found.test);
    let first = samples.filter_map(|sample| sample.labels.only()).min().unwrap_or_default();
    found.classes.drain(..first);
    for sample in found.train.iter_mut().chain(&mut found.test) {
        sample.labels = Labels::new(sample.labels.iter().map(|label| label - first).collect());
    }
    found
}

/// The samples of one split, and the size of their images.
#[derive(Default)]
struct Pair {
    samples: Vec<Sample>,
    size: (u32, u32),
}

/// Reads the images and labels of a split; `None` if it has neither file.
fn pair(
    origin: &Path,
    files: &mut BTreeMap<(Split, Role), Blob>,
    split: Split,
    bytes_left: &mut u64,
) -> Result<Option<Pair>, DatasetError> {
    match (files.remove(&(split, Role::Images)), files.remove(&(split, Role::Labels))) {
        (Some(images), Some(labels)) => Ok(Some(read_pair(&images, &labels, bytes_left)?)),
        (None, None) => Ok(None),
        (Some(present), None) | (None, Some(present)) => {
            let name = present.file_name();
            let problem =
                format!("has only '{name}': images and labels go together, so add the missing file");
            Err(DatasetError::layout(origin, problem))
        }
    }
}

/// Reads a file of images and a file of labels, which must agree in length.
fn read_pair(images: &Blob, labels: &Blob, bytes_left: &mut u64) -> Result<Pair, DatasetError> {
    let ([label_count], labels_bytes) = read_file(labels, LABELS_MAGIC, bytes_left)?;
    if label_count as usize > MAX_IMAGES {
        return Err(
            labels.malformed(format!("has {label_count} labels: a data set has at most {MAX_IMAGES} images"))
        );
    }
    let ([count, height, width], buffer) = read_file(images, IMAGES_MAGIC, bytes_left)?;
    if count != label_count {
        let problem = format!("has {label_count} labels for the {count} images of {}", images.name());
        return Err(labels.malformed(problem));
    }
    if count == 0 || height == 0 || width == 0 {
        return Err(images.malformed(format!("holds {count} images of {width}x{height} pixels")));
    }
    let image_bytes = height as usize * width as usize;
    let file = images.name();
    let sample = |(index, &label): (usize, &u8)| Sample {
        labels: usize::from(label).into(),
        source: ImageSource::Raw {
            name: format!("{file}#{index}"),
            buffer: Arc::clone(&buffer),
            offset: index * image_bytes,
            width,
            height,
            channels: 1,
        },
    };
    Ok(Pair { samples: labels_bytes.iter().enumerate().map(sample).collect(), size: (width, height) })
}

/// The dimensions in an IDX file's header and the bytes that follow it, which are taken off `bytes_left`.
fn read_file<const DIMENSIONS: usize>(
    file: &Blob,
    magic: u32,
    bytes_left: &mut u64,
) -> Result<([u32; DIMENSIONS], Arc<[u8]>), DatasetError> {
    let mut reader = file.reader()?;
    let dimensions = read_header(file, magic, &mut reader)?;
    let expected =
        dimensions.iter().try_fold(1u64, |product, &dimension| product.checked_mul(dimension.into()));
    let left = expected.and_then(|bytes| bytes_left.checked_sub(bytes)).ok_or_else(|| {
        file.malformed(format!(
            "claims {dimensions:?} bytes: a data set of this kind has at most {MAX_BYTES} in all"
        ))
    })?;
    let expected = *bytes_left - left;
    *bytes_left = left;
    // The buffer grows as bytes arrive, so that a false header cannot make it allocate what it claims.
    let mut bytes = Vec::new();
    let read = reader.take(expected + 1).read_to_end(&mut bytes);
    read.map_err(|error| file.malformed(format!("is damaged after {} bytes: {error}", bytes.len())))?;
    match bytes.len() as u64 {
        length if length < expected => {
            Err(file.malformed(format!("is cut short: {length} bytes of {expected}")))
        }
        length if length > expected => {
            Err(file.malformed(format!("continues after the {expected} bytes that its header announces")))
        }
        _ => Ok((dimensions, bytes.into())),
    }
}

/// Reads the header: `magic`, then the length of each dimension.
fn read_header<const DIMENSIONS: usize>(
    file: &Blob,
    magic: u32,
    reader: &mut impl Read,
) -> Result<[u32; DIMENSIONS], DatasetError> {
    let mut word = || -> Result<u32, DatasetError> {
        let mut bytes = [0; 4];
        let read = reader.read_exact(&mut bytes);
        read.map_err(|error| file.malformed(format!("is cut short in its header, or damaged: {error}")))?;
        Ok(u32::from_be_bytes(bytes))
    };
    let found = word()?;
    if found != magic {
        return Err(file.malformed(format!(
            "is not the right kind of IDX file: it starts with {found:#010x}, not {magic:#010x}"
        )));
    }
    let mut dimensions = [0; DIMENSIONS];
    for dimension in &mut dimensions {
        *dimension = word()?;
    }
    Ok(dimensions)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tempfile::TempDir;

    use super::*;
    use crate::source;

    pub(crate) fn encode(magic: u32, dimensions: &[u32], bytes: &[u8]) -> Vec<u8> {
        let words = [magic].into_iter().chain(dimensions.iter().copied());
        words.flat_map(u32::to_be_bytes).chain(bytes.iter().copied()).collect()
    }

    pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Writes a data set with three training images of 2x1 pixels, in the classes 2, 0, and 1, and one test image of
    /// class 1.
    fn write_small(folder: &Path) {
        fs::write(
            folder.join("train-images-idx3-ubyte"),
            encode(IMAGES_MAGIC, &[3, 1, 2], &[0, 1, 2, 3, 4, 5]),
        )
        .unwrap();
        fs::write(folder.join("train-labels-idx1-ubyte"), encode(LABELS_MAGIC, &[3], &[2, 0, 1])).unwrap();
        fs::write(folder.join("t10k-images-idx3-ubyte.gz"), gzip(&encode(IMAGES_MAGIC, &[1, 1, 2], &[6, 7])))
            .unwrap();
        fs::write(folder.join("t10k-labels-idx1-ubyte.gz"), gzip(&encode(LABELS_MAGIC, &[1], &[1]))).unwrap();
    }

    fn message(folder: &TempDir) -> String {
        source::read(folder.path()).unwrap_err().to_string()
    }

    #[test]
    fn plain_and_compressed_files_are_read() {
        let folder = TempDir::new().unwrap();
        write_small(folder.path());
        let found = source::read(folder.path()).unwrap();
        assert_eq!(found.classes, ["0", "1", "2"]);
        assert_eq!(
            found.train.iter().filter_map(|sample| sample.labels.only()).collect::<Vec<_>>(),
            [2, 0, 1]
        );
        assert!(found.flip_safe && found.val.is_empty());
        let ImageSource::Raw { name, buffer, offset, width, height, channels } = &found.train[1].source
        else {
            panic!("IDX images are raw")
        };
        assert!(name.ends_with("train-images-idx3-ubyte#1"), "{name}");
        assert_eq!((&buffer[*offset..offset + 2], *width, *height, *channels), (&[2, 3][..], 2, 1, 1));
        assert_eq!((found.test.len(), found.test[0].labels.only()), (1, Some(1)));
    }

    #[test]
    fn ten_classes_of_28_by_28_pixels_are_taken_for_digits() {
        let folder = TempDir::new().unwrap();
        let pixels = [0; 10 * 28 * 28];
        fs::write(
            folder.path().join("emnist-digits-train-images-idx3-ubyte"),
            encode(IMAGES_MAGIC, &[10, 28, 28], &pixels),
        )
        .unwrap();
        let labels: Vec<u8> = (0..10).collect();
        fs::write(
            folder.path().join("emnist-digits-train-labels-idx1-ubyte"),
            encode(LABELS_MAGIC, &[10], &labels),
        )
        .unwrap();
        assert!(!source::read(folder.path()).unwrap().flip_safe);
    }

    #[test]
    fn errors_name_the_invalid_file_and_the_problem() {
        let huge = encode(IMAGES_MAGIC, &[u32::MAX; 3], &[]);
        for (file, content, part) in [
            ("train-images-idx3-ubyte", encode(IMAGES_MAGIC, &[3, 1, 2], &[0; 5]), "cut short: 5 bytes of 6"),
            (
                "train-images-idx3-ubyte",
                encode(IMAGES_MAGIC, &[3, 1, 2], &[0; 7]),
                "continues after the 6 bytes",
            ),
            ("train-images-idx3-ubyte", encode(LABELS_MAGIC, &[3], &[0; 3]), "starts with 0x00000801"),
            ("train-images-idx3-ubyte", vec![0, 0, 8], "cut short in its header"),
            ("train-images-idx3-ubyte", huge, "at most 671088640"),
            ("train-images-idx3-ubyte", encode(IMAGES_MAGIC, &[0, 1, 2], &[]), "3 labels for the 0 images"),
            ("train-labels-idx1-ubyte", encode(LABELS_MAGIC, &[2], &[0, 1]), "2 labels for the 3 images"),
            ("t10k-images-idx3-ubyte.gz", b"not gzip".to_vec(), "damaged"),
            ("t10k-labels-idx1-ubyte.gz", gzip(&encode(LABELS_MAGIC, &[1], &[1]))[..12].to_vec(), "damaged"),
        ] {
            let folder = TempDir::new().unwrap();
            write_small(folder.path());
            fs::write(folder.path().join(file), content).unwrap();
            let message = message(&folder);
            let is_named =
                message.contains(file) || message.contains(&file.replace("images-idx3", "labels-idx1"));
            assert!(is_named && message.contains(part), "{message} lacks {file} or {part}");
        }
    }

    #[test]
    fn a_missing_or_ambiguous_file_is_named() {
        let folder = TempDir::new().unwrap();
        write_small(folder.path());
        fs::remove_file(folder.path().join("t10k-labels-idx1-ubyte.gz")).unwrap();
        assert!(message(&folder).contains("only 't10k-images-idx3-ubyte.gz'"), "{}", message(&folder));
        fs::remove_file(folder.path().join("t10k-images-idx3-ubyte.gz")).unwrap();
        assert!(source::read(folder.path()).unwrap().test.is_empty());
        let other = TempDir::new().unwrap();
        write_small(other.path());
        for name in ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"] {
            fs::remove_file(other.path().join(name)).unwrap();
        }
        let tested = source::read(other.path()).unwrap();
        assert_eq!((tested.train.len(), tested.test.len()), (0, 1), "to measure a model on");
        fs::write(folder.path().join("emnist-train-labels-idx1-ubyte"), []).unwrap();
        let message = message(&folder);
        assert!(message.contains("emnist-train-labels") && message.contains("'train-labels"), "{message}");
    }
}
