//! Content keys: a hash of an image's content, which identifies the image. Its name plays no part, so that a file that
//! was moved, copied, renamed, or packed into an archive is still the same image.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use twox_hash::xxhash3_128::Hasher;

use crate::images::probe_bytes;
use crate::{BadFile, DecodeLimits, Image, ImageSource, Sample, open_regular};

/// Bytes to read at once.
const CHUNK: usize = 1 << 16;

/// A hash of an image's content (XXH3, 128 bits): of the whole file for encoded images, of size and pixels for raw
/// ones, of class and seed for drawn ones.
///
/// Two files with the same bytes have the same key; the same pixels in two file formats do not. Unreadable images have
/// keys too, and moving the data set to another folder does not change them:
///
/// - The key of a file larger than [`DecodeLimits::max_file_bytes`] is a hash of its length and of the 64 KiB at each
///   of its ends. No more of it is read, and files with the same name in different folders have different keys.
/// - The key of a file that cannot be read at all, for example because it is missing, is a hash of its folder's name
///   and its own. Its own name would not be enough, since numbered files have the same names in every class folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ContentKey(u128);

impl ContentKey {
    /// The key of an image. Reads its whole file, unless that is larger than `limits` allow.
    pub fn of(source: &ImageSource, limits: &DecodeLimits) -> Self {
        Self(match source {
            ImageSource::File(path) => {
                hash_file(path, limits.max_file_bytes).unwrap_or_else(|| unreadable(source))
            }
            ImageSource::Spooled { spool, place, .. } => {
                spool.get(*place).map_or_else(|_| unreadable(source), |bytes| hash([&bytes]))
            }
            ImageSource::Encoded { bytes, .. } => hash([bytes]),
            ImageSource::Raw { buffer, offset, width, height, channels, .. } => {
                let length = *width as usize * *height as usize * usize::from(*channels);
                let pixels = buffer.get(*offset..*offset + length).unwrap_or_default();
                hash([&width.to_le_bytes()[..], &height.to_le_bytes(), &[*channels], pixels])
            }
            ImageSource::Pixels { image, .. } => {
                let Image { width, height, channels, pixels } = &**image;
                hash([&width.to_le_bytes()[..], &height.to_le_bytes(), &[*channels], pixels])
            }
            ImageSource::Drawn { class, seed } => {
                hash([&b"drawn"[..], &(*class as u64).to_le_bytes(), &seed.to_le_bytes()])
            }
        })
    }

    /// The key of each image, and why it cannot be read, as far as [`ImageSource::probe`] can tell. Reads every file
    /// once, on all threads.
    pub(crate) fn of_all(samples: &[Sample], limits: &DecodeLimits) -> Vec<(Self, Option<BadFile>)> {
        samples.par_iter().with_min_len(16).map(|sample| Self::examined(&sample.source, limits)).collect()
    }

    /// The key of an image, and why it cannot be read, from a single read of its file.
    fn examined(source: &ImageSource, limits: &DecodeLimits) -> (Self, Option<BadFile>) {
        if let ImageSource::Raw { .. } | ImageSource::Pixels { .. } | ImageSource::Drawn { .. } = source {
            let fault = source.probe(limits).err().map(|error| source.as_bad_file(&error));
            return (Self::of(source, limits), fault);
        }
        let mut key = None;
        let probed = source.with_bytes(limits, |name, bytes| {
            key = Some(Self(hash([bytes])));
            probe_bytes(name, bytes, limits)
        });
        (
            key.unwrap_or_else(|| Self::of(source, limits)),
            probed.err().map(|error| source.as_bad_file(&error)),
        )
    }

    /// A number in `0..1` that depends only on the content and `seed`. It must never change, since the splits of
    /// existing runs depend on it.
    pub(crate) fn draw(self, seed: u64) -> f64 {
        let hash = Hasher::oneshot_with_seed(seed, &self.0.to_le_bytes());
        // The 53 highest bits fit into the mantissa of a double without rounding, so that the result is below 1.
        (hash >> 75) as f64 / (1u64 << 53) as f64
    }

    /// The 40 highest bits of the hash. The probability that an image shares them with any of a million others is one
    /// in a million.
    pub(crate) fn short(self) -> u64 {
        (self.0 >> 88) as u64
    }

    /// The hash as 16 bytes, the lowest first.
    pub fn to_le_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }
}

impl From<ContentKey> for String {
    fn from(key: ContentKey) -> Self {
        format!("{:032x}", key.0)
    }
}

impl TryFrom<String> for ContentKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match u128::from_str_radix(&text, 16) {
            Ok(hash) if text.len() == 32 => Ok(Self(hash)),
            _ => Err(format!("'{text}' is not the key of an image: keys have 32 hexadecimal digits")),
        }
    }
}

/// The hash of the name of an unreadable file and of its folder's name.
fn unreadable(source: &ImageSource) -> u128 {
    let name = source.name();
    let mut names = name.rsplit(std::path::is_separator);
    let (file, folder) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
    hash([b"unreadable", folder.as_bytes(), b"/", file.as_bytes()])
}

/// The hash of several byte strings, one after the other.
pub(crate) fn hash<const PARTS: usize>(parts: [&[u8]; PARTS]) -> u128 {
    let mut hasher = Hasher::new();
    for part in parts {
        hasher.write(part);
    }
    hasher.finish_128()
}

/// The hash of a regular file: of all its bytes, or of its length and its ends if it is larger than `limit` bytes.
/// `None` if it cannot be read.
fn hash_file(path: &Path, limit: u64) -> Option<u128> {
    let (file, length) = open_regular(path, u64::MAX).ok()?;
    if length > limit {
        return hash_ends(file, length).ok();
    }
    let mut file = file.take(limit);
    let mut hasher = Hasher::new();
    let mut chunk = vec![0; CHUNK.min(length as usize + 1)];
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Some(hasher.finish_128()),
            Ok(length) => hasher.write(&chunk[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// The hash of a file's length and of its first and last 64 KiB.
fn hash_ends(mut file: File, length: u64) -> io::Result<u128> {
    let chunk = length.min(CHUNK as u64);
    let (mut start, mut end) = (Vec::new(), Vec::new());
    file.by_ref().take(chunk).read_to_end(&mut start)?;
    file.seek(SeekFrom::Start(length - chunk))?;
    file.take(chunk).read_to_end(&mut end)?;
    Ok(hash([b"too large", &length.to_le_bytes(), &start, &end]))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// The key under the default limits.
    fn key_of(source: &ImageSource) -> ContentKey {
        ContentKey::of(source, &DecodeLimits::default())
    }

    fn encoded(name: &str, bytes: &[u8]) -> ImageSource {
        ImageSource::Encoded { name: name.to_owned(), bytes: bytes.into() }
    }

    fn raw(offset: usize, width: u32, height: u32) -> ImageSource {
        let buffer: Arc<[u8]> = [1, 2, 3, 4, 1, 2, 3, 4, 9].into();
        ImageSource::Raw { name: format!("batch#{offset}"), buffer, offset, width, height, channels: 1 }
    }

    #[test]
    fn keys_depend_on_content_and_not_on_name_or_place() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..200_000u64).map(|index| (index * index % 251) as u8).collect();
        let (path, copy) = (folder.path().join("a.png"), folder.path().join("b.jpg"));
        std::fs::write(&path, &bytes).unwrap();
        std::fs::write(&copy, &bytes).unwrap();
        let key = key_of(&ImageSource::File(path.clone()));
        assert_eq!(key, key_of(&ImageSource::File(copy.clone())));
        assert_eq!(key, key_of(&encoded("an archive/c.png", &bytes)));
        // A single changed byte in the middle of the file changes the key.
        let mut changed = bytes;
        changed[100_000] ^= 1;
        std::fs::write(&copy, &changed).unwrap();
        assert_ne!(key, key_of(&ImageSource::File(copy)));
        assert_eq!(key_of(&raw(0, 2, 2)), key_of(&raw(4, 2, 2)));
        assert_ne!(key_of(&raw(0, 2, 2)), key_of(&raw(0, 4, 1)));
        assert_ne!(key_of(&raw(0, 2, 2)), key_of(&raw(5, 2, 2)));
        let drawn = |class, seed| key_of(&ImageSource::Drawn { class, seed });
        assert_eq!(drawn(1, 2), drawn(1, 2));
        assert_ne!(drawn(1, 2), drawn(2, 1));
    }

    #[test]
    fn unreadable_files_have_keys_of_folder_and_name_and_devices_are_not_read() {
        let file = |path: &str| key_of(&ImageSource::File(path.into()));
        assert_eq!(file("nowhere/cat/a.png"), file("nowhere/cat/a.png"));
        assert_ne!(file("nowhere/cat/a.png"), file("nowhere/cat/b.png"));
        assert_ne!(file("nowhere/cat/a.png"), file("nowhere/dog/a.png"));
        assert_eq!(
            file("nowhere/cat/a.png"),
            file("/else/where/cat/a.png"),
            "moving the data set keeps the key"
        );
        assert_eq!(key_of(&ImageSource::File("/dev/zero".into())), file("/dev/zero"));
    }

    #[test]
    fn of_a_file_above_the_limit_only_length_and_ends_count() {
        let root = tempfile::tempdir().unwrap();
        let limits = |bytes| DecodeLimits::default().with_max_file_bytes(Some(bytes));
        let write = |path: &str, place: usize| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let mut bytes = vec![7; 200_000];
            bytes[place] = 8;
            std::fs::write(&path, bytes).unwrap();
            ImageSource::File(path)
        };
        let key = |source: &ImageSource, limit| ContentKey::of(source, &limits(limit));
        let (first, second, middle) =
            (write("a/1.tif", 10), write("b/1.tif", 199_990), write("c/1.tif", 100_000));
        let keys = |limit| [&first, &second, &middle].map(|source| key(source, limit));
        for limit in [200_000, 199_999] {
            let [first, second, middle] = keys(limit);
            assert!(
                first != second && second != middle && middle != first,
                "files with the same name in different folders, limit {limit}"
            );
        }
        assert_ne!(key(&first, 200_000), key(&first, 199_999));
        assert_eq!(key(&write("elsewhere/2.tif", 10), 1000), key(&first, 1000), "copies have the same key");
        // A difference between the two ends is not seen.
        assert_eq!(key(&write("d/1.tif", 100_001), 1000), key(&middle, 1000));
    }

    #[test]
    fn keys_are_written_as_hexadecimal_digits() {
        let key = key_of(&encoded("a", b"content"));
        let text = serde_json::to_string(&key).unwrap();
        assert_eq!(text.len(), 34);
        assert_eq!(serde_json::from_str::<ContentKey>(&text).unwrap(), key);
        for wrong in ["\"\"", "\"12\"", "\"zz\"", "7"] {
            assert!(serde_json::from_str::<ContentKey>(wrong).is_err(), "{wrong}");
        }
    }

    /// The splits of existing runs depend on these numbers.
    #[test]
    fn draws_are_uniform_and_never_change() {
        let draws: Vec<f64> =
            (0..10_000u32).map(|index| key_of(&encoded("", &index.to_le_bytes())).draw(3)).collect();
        let below = |limit: f64| draws.iter().filter(|&&draw| draw < limit).count() as f64 / 1e4;
        for limit in [0.1, 0.2, 0.5, 0.9] {
            assert!((below(limit) - limit).abs() < 0.02, "{} of {limit}", below(limit));
        }
        let percent = |key: u128, seed| (100.0 * ContentKey(key).draw(seed)) as u32;
        assert_eq!([percent(0, 0), percent(1, 0), percent(0, 1)], [89, 7, 12]);
    }
}
