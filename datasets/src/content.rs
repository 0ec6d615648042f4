//! What tells an image from every other: a hash of its content. Names play no part, so that a file that was moved,
//! copied, renamed or packed into an archive is still the same image.

use std::io::{ErrorKind, Read};
use std::path::Path;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use twox_hash::xxhash3_128::Hasher;

use crate::{DecodeLimits, ImageSource, Sample, open_regular};

/// Bytes that are read at once.
const CHUNK: usize = 1 << 16;

/// The hash of an image's content (XXH3, 128 bits): of the whole file for encoded images, of size and pixels for raw
/// ones, of class and seed for drawn ones.
///
/// Two files with the same bytes have the same key; the same pixels in two formats do not. A file that cannot be read,
/// or exceeds [`DecodeLimits`], has a key of its name: it is no image that anything could be learned from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ContentKey(u128);

impl ContentKey {
    /// The key of one image; reads all of it.
    pub fn of(source: &ImageSource) -> Self {
        Self(match source {
            ImageSource::File(path) => {
                let limit = DecodeLimits::default().max_file_bytes;
                hash_file(path, limit).unwrap_or_else(|| unreadable(source))
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
            ImageSource::Drawn { class, seed } => {
                hash([&b"drawn"[..], &(*class as u64).to_le_bytes(), &seed.to_le_bytes()])
            }
        })
    }

    /// The keys of some images in their order, made on all threads.
    pub fn of_all(samples: &[Sample]) -> Vec<Self> {
        samples.par_iter().with_min_len(16).map(|sample| Self::of(&sample.source)).collect()
    }

    /// A number in `0..1` that the content and `seed` alone decide. The splits of existing runs depend on it: it
    /// never changes.
    pub(crate) fn draw(self, seed: u64) -> f64 {
        let hash = Hasher::oneshot_with_seed(seed, &self.0.to_le_bytes());
        // The 53 bits that a float holds, so that the result is below 1.
        (hash >> 75) as f64 / (1u64 << 53) as f64
    }

    /// The 40 highest bits: enough to recognize an image among a million, with one mistake in a million tries.
    pub(crate) fn short(self) -> u64 {
        (self.0 >> 88) as u64
    }

    pub(crate) fn to_le_bytes(self) -> [u8; 16] {
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

/// A key for what is no image: of its file name alone, as the folders before it may be written in several ways.
fn unreadable(source: &ImageSource) -> u128 {
    let path = source.name();
    let name = path.rsplit(['/', '\\']).next().unwrap_or_default();
    hash([b"unreadable", name.as_bytes()])
}

/// The hash of some bytes, one part after the other.
pub(crate) fn hash<const PARTS: usize>(parts: [&[u8]; PARTS]) -> u128 {
    let mut hasher = Hasher::new();
    for part in parts {
        hasher.write(part);
    }
    hasher.finish_128()
}

/// The hash of a regular file of at most `limit` bytes.
fn hash_file(path: &Path, limit: u64) -> Option<u128> {
    let (file, length) = open_regular(path, limit).ok()?;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn encoded(name: &str, bytes: &[u8]) -> ImageSource {
        ImageSource::Encoded { name: name.to_owned(), bytes: bytes.into() }
    }

    fn raw(offset: usize, width: u32, height: u32) -> ImageSource {
        let buffer: Arc<[u8]> = [1, 2, 3, 4, 1, 2, 3, 4, 9].into();
        ImageSource::Raw { name: format!("batch#{offset}"), buffer, offset, width, height, channels: 1 }
    }

    #[test]
    fn the_content_decides_and_not_the_name_or_the_place() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..200_000u64).map(|index| (index * index % 251) as u8).collect();
        let (path, copy) = (folder.path().join("a.png"), folder.path().join("b.jpg"));
        std::fs::write(&path, &bytes).unwrap();
        std::fs::write(&copy, &bytes).unwrap();
        let key = ContentKey::of(&ImageSource::File(path.clone()));
        assert_eq!(key, ContentKey::of(&ImageSource::File(copy.clone())));
        assert_eq!(key, ContentKey::of(&encoded("an archive/c.png", &bytes)));
        // A byte in the middle is another image.
        let mut changed = bytes;
        changed[100_000] ^= 1;
        std::fs::write(&copy, &changed).unwrap();
        assert_ne!(key, ContentKey::of(&ImageSource::File(copy)));
        assert_eq!(ContentKey::of(&raw(0, 2, 2)), ContentKey::of(&raw(4, 2, 2)));
        assert_ne!(ContentKey::of(&raw(0, 2, 2)), ContentKey::of(&raw(0, 4, 1)));
        assert_ne!(ContentKey::of(&raw(0, 2, 2)), ContentKey::of(&raw(5, 2, 2)));
        let drawn = |class, seed| ContentKey::of(&ImageSource::Drawn { class, seed });
        assert_eq!(drawn(1, 2), drawn(1, 2));
        assert_ne!(drawn(1, 2), drawn(2, 1));
    }

    #[test]
    fn unreadable_files_are_told_apart_by_their_names_and_endless_ones_are_not_read() {
        let file = |path: &str| ContentKey::of(&ImageSource::File(path.into()));
        assert_eq!(file("nowhere/a.png"), file("nowhere/a.png"));
        assert_ne!(file("nowhere/a.png"), file("nowhere/b.png"));
        assert_eq!(file("nowhere/a.png"), file("/else/where/a.png"), "a folder may be moved");
        assert_eq!(ContentKey::of(&ImageSource::File("/dev/zero".into())), file("/dev/zero"));
    }

    #[test]
    fn keys_are_written_as_hexadecimal_digits() {
        let key = ContentKey::of(&encoded("a", b"content"));
        let text = serde_json::to_string(&key).unwrap();
        assert_eq!(text.len(), 34);
        assert_eq!(serde_json::from_str::<ContentKey>(&text).unwrap(), key);
        for wrong in ["\"\"", "\"12\"", "\"zz\"", "7"] {
            assert!(serde_json::from_str::<ContentKey>(wrong).is_err(), "{wrong}");
        }
    }

    /// The splits of runs that exist depend on these numbers.
    #[test]
    fn the_draw_is_even_and_stays_what_it_is() {
        let draws: Vec<f64> =
            (0..10_000u32).map(|index| ContentKey::of(&encoded("", &index.to_le_bytes())).draw(3)).collect();
        let below = |limit: f64| draws.iter().filter(|&&draw| draw < limit).count() as f64 / 1e4;
        for limit in [0.1, 0.2, 0.5, 0.9] {
            assert!((below(limit) - limit).abs() < 0.02, "{} of {limit}", below(limit));
        }
        let percent = |key: u128, seed| (100.0 * ContentKey(key).draw(seed)) as u32;
        assert_eq!([percent(0, 0), percent(1, 0), percent(0, 1)], [89, 7, 12]);
    }
}
