//! Reading the binary batches of CIFAR-10 and CIFAR-100: <https://www.cs.toronto.edu/~kriz/cifar.html>.

use std::path::Path;
use std::sync::Arc;

use super::{Blob, MAX_BYTES, SourceData};
use crate::{DatasetError, ImageSource, LeftOut, Sample, SourceKind, duplicate_name};

/// Width and height of an image, in pixels.
const SIZE: u32 = 32;
/// Bytes of an image, which has three planes.
const IMAGE_BYTES: usize = 3 * (SIZE * SIZE) as usize;

/// The classes of CIFAR-10, for folders without `batches.meta.txt`.
const CIFAR10: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// One of the two data sets, which are distinguished by the names of their files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CifarSet {
    /// CIFAR-10: `data_batch_1.bin` and so on, with one label byte per record.
    Ten,
    /// CIFAR-100: `train.bin`, with a coarse and a fine label byte per record, of which the fine one is used.
    Hundred,
}

impl CifarSet {
    fn of(blobs: &[Blob]) -> Option<Self> {
        let has = |is: fn(&str) -> bool| blobs.iter().any(|blob| is(&blob.file_name()));
        // A file with a name as common as `test.bin` is CIFAR's only next to the names of the classes.
        let has_names = has(|name| name == Self::Hundred.names_file());
        if has(|name| is_batch(name) || name == Self::Ten.test_file()) {
            Some(Self::Ten)
        } else if has(|name| name == "train.bin")
            || has_names && has(|name| name == Self::Hundred.test_file())
        {
            Some(Self::Hundred)
        } else {
            None
        }
    }

    fn label_bytes(self) -> usize {
        match self {
            Self::Ten => 1,
            Self::Hundred => 2,
        }
    }

    fn names_file(self) -> &'static str {
        match self {
            Self::Ten => "batches.meta.txt",
            Self::Hundred => "fine_label_names.txt",
        }
    }

    fn test_file(self) -> &'static str {
        match self {
            Self::Ten => "test_batch.bin",
            Self::Hundred => "test.bin",
        }
    }

    fn is_train_file(self, name: &str) -> bool {
        match self {
            Self::Ten => is_batch(name),
            Self::Hundred => name == "train.bin",
        }
    }
}

fn is_batch(name: &str) -> bool {
    name.starts_with("data_batch_") && name.ends_with(".bin")
}

/// Whether a file's name is one of CIFAR's binary layout.
pub(crate) fn is_name(name: &str) -> bool {
    is_batch(name)
        || matches!(
            name,
            "test_batch.bin" | "train.bin" | "test.bin" | "batches.meta.txt" | "fine_label_names.txt"
        )
}

/// Whether any of the files is a batch of CIFAR.
pub(crate) fn is_layout(blobs: &[Blob]) -> bool {
    CifarSet::of(blobs).is_some()
}

/// Reads CIFAR batches. A split without files has no images.
///
/// # Errors
///
/// If the class names are missing, or a file does not follow the format.
pub(crate) fn read(origin: &Path, blobs: Vec<Blob>) -> Result<SourceData, DatasetError> {
    let Some(kind) = CifarSet::of(&blobs) else {
        return Err(DatasetError::layout(origin, "has no CIFAR batches (data_batch_1.bin or train.bin)"));
    };
    let classes = class_names(origin, &blobs, kind)?;
    let (mut train, mut test) = (Vec::new(), Vec::new());
    let mut bytes_left = MAX_BYTES;
    for blob in &blobs {
        let name = blob.file_name();
        if kind.is_train_file(&name) {
            train.append(&mut read_batch(blob, kind, classes.len(), &mut bytes_left)?);
        } else if name == kind.test_file() {
            test.append(&mut read_batch(blob, kind, classes.len(), &mut bytes_left)?);
        }
    }
    Ok(SourceData {
        classes,
        multi_label: false,
        train,
        val: Vec::new(),
        test,
        source: SourceKind::Cifar,
        flip_safe: true,
        left_out: LeftOut::default(),
    })
}

fn class_names(origin: &Path, blobs: &[Blob], kind: CifarSet) -> Result<Vec<String>, DatasetError> {
    let Some(file) = blobs.iter().find(|blob| blob.file_name() == kind.names_file()) else {
        return match kind {
            CifarSet::Ten => Ok(CIFAR10.map(str::to_owned).to_vec()),
            CifarSet::Hundred => {
                let problem = format!(
                    "lacks '{}' with the class names: add it from the data set's archive, or move train.bin away if it is none of CIFAR's",
                    kind.names_file()
                );
                Err(DatasetError::layout(origin, problem))
            }
        };
    };
    let text = String::from_utf8(file.read_all(1 << 20)?)
        .map_err(|_| file.malformed("is not a text file of class names"))?;
    let names: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if !(2..=256).contains(&names.len()) {
        return Err(
            file.malformed(format!("names {} classes: one name per line, 2 to 256 of them", names.len()))
        );
    }
    match duplicate_name(&names) {
        Some(name) => Err(file.malformed(format!("names two classes '{name}': give each its own name"))),
        None => Ok(names),
    }
}

/// The samples of a file, whose size is taken off `bytes_left`.
fn read_batch(
    file: &Blob,
    kind: CifarSet,
    classes: usize,
    bytes_left: &mut u64,
) -> Result<Vec<Sample>, DatasetError> {
    let record_bytes = kind.label_bytes() + IMAGE_BYTES;
    let buffer: Arc<[u8]> = file.read_all(*bytes_left)?.into();
    *bytes_left -= buffer.len() as u64;
    if buffer.is_empty() || !buffer.len().is_multiple_of(record_bytes) {
        let problem = format!(
            "is cut short or not a CIFAR batch: {} bytes are not a multiple of {record_bytes}",
            buffer.len()
        );
        return Err(file.malformed(problem));
    }
    let name = file.name();
    let sample = |index: usize| {
        let offset = index * record_bytes + kind.label_bytes();
        let label = usize::from(buffer[offset - 1]);
        if label >= classes {
            return Err(file.malformed(format!(
                "record {index} has the label {label}, but there are {classes} classes"
            )));
        }
        let source = ImageSource::Raw {
            name: format!("{name}#{index}"),
            buffer: Arc::clone(&buffer),
            offset,
            width: SIZE,
            height: SIZE,
            channels: 3,
        };
        Ok(Sample { labels: label.into(), source })
    };
    (0..buffer.len() / record_bytes).map(sample).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::source;

    /// A record with these label bytes, whose planes are filled with 1, 2, and 3.
    pub(crate) fn record(labels: &[u8]) -> Vec<u8> {
        let planes = [1, 2, 3].into_iter().flat_map(|value| [value; 1024]);
        labels.iter().copied().chain(planes).collect()
    }

    fn labels(samples: &[Sample]) -> Vec<usize> {
        samples.iter().filter_map(|sample| sample.labels.only()).collect()
    }

    #[test]
    fn batches_are_read_in_order() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("data_batch_1.bin"), [record(&[3]), record(&[9])].concat()).unwrap();
        fs::write(folder.path().join("data_batch_2.bin"), record(&[0])).unwrap();
        fs::write(folder.path().join("test_batch.bin"), record(&[1])).unwrap();
        let found = source::read(folder.path()).unwrap();
        assert_eq!((labels(&found.train), labels(&found.test)), (vec![3, 9, 0], vec![1]));
        assert_eq!(found.classes[3], "cat");
        let ImageSource::Raw { name, buffer, offset, channels, .. } = &found.train[1].source else {
            panic!("CIFAR images are raw")
        };
        assert!(name.ends_with("data_batch_1.bin#1"), "{name}");
        assert_eq!((buffer[*offset], buffer[offset + 1024], buffer[offset + 3071], *channels), (1, 2, 3, 3));
    }

    #[test]
    fn a_test_file_alone_can_be_measured_on() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("test_batch.bin"), record(&[1])).unwrap();
        let data = source::read(folder.path()).unwrap();
        assert_eq!((data.train.len(), labels(&data.test)), (0, vec![1]));
    }

    #[test]
    fn cifar100_uses_the_fine_label() {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("train.bin"), [record(&[0, 2]), record(&[7, 1])].concat()).unwrap();
        let without_names = source::read(folder.path()).unwrap_err().to_string();
        assert!(without_names.contains("fine_label_names.txt"), "{without_names}");
        fs::write(folder.path().join("fine_label_names.txt"), "apple\naquarium_fish\nbaby\n\n").unwrap();
        let found = source::read(folder.path()).unwrap();
        assert_eq!(found.classes, ["apple", "aquarium_fish", "baby"]);
        assert_eq!((labels(&found.train), found.test.len()), (vec![2, 1], 0));
    }

    #[test]
    fn errors_name_the_invalid_file_and_the_problem() {
        for (file, content, part) in [
            ("data_batch_1.bin", record(&[1])[..3000].to_vec(), "not a multiple of 3073"),
            ("data_batch_1.bin", Vec::new(), "cut short"),
            ("data_batch_1.bin", record(&[10]), "label 10"),
            ("batches.meta.txt", b"\n".to_vec(), "names 0 classes"),
            ("batches.meta.txt", vec![0xff, 0xfe], "not a text file"),
        ] {
            let folder = TempDir::new().unwrap();
            fs::write(folder.path().join("data_batch_1.bin"), record(&[0])).unwrap();
            fs::write(folder.path().join(file), content).unwrap();
            let message = source::read(folder.path()).unwrap_err().to_string();
            assert!(message.contains(file) && message.contains(part), "{message}");
        }
    }
}
