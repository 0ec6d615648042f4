//! A file of features, which is written once and never changed: a header, a row per image, and a checksum.
//!
//! | bytes | what |
//! |---|---|
//! | 20 | `vitrine features 1` and two line feeds |
//! | 4, 8 | the width of the features and the number of rows |
//! | 24 + 4 * width, for each row | the content key of the image, the hash of its pixels, its features (float32) |
//! | 32 | SHA-256 of all of this |
//!
//! Numbers are little-endian.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

const MAGIC: &[u8; 20] = b"vitrine features 1\n\n";
const HEADER: usize = MAGIC.len() + 4 + 8;
const CHECKSUM: usize = 32;
/// The largest file that is read, far above what this program writes.
const MAX_BYTES: u64 = 1 << 30;

/// The content key of an image, as bytes.
pub(super) type Key = [u8; 16];

/// The features of one image.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) key: Key,
    /// A hash of the decoded pixels.
    pub(super) pixel_key: u64,
    pub(super) features: Vec<f32>,
}

impl Row {
    /// The size of a row in a file.
    pub(super) fn bytes(width: usize) -> usize {
        24 + 4 * width
    }
}

/// The content of a file with these rows, each of `width` features.
pub(super) fn encode(width: usize, rows: &[Row]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + rows.len() * Row::bytes(width) + CHECKSUM);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&(width as u32).to_le_bytes());
    bytes.extend_from_slice(&(rows.len() as u64).to_le_bytes());
    for Row { key, pixel_key, features } in rows {
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(&pixel_key.to_le_bytes());
        bytes.extend(features.iter().flat_map(|value| value.to_le_bytes()));
    }
    let checksum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

/// Reads the bytes of a file, as many as [`decode`] accepts and one more at most.
///
/// # Errors
/// If the file cannot be read. The message does not name it.
pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path).context("it cannot be opened")?;
    let length = file.metadata().context("it cannot be opened")?.len().min(MAX_BYTES + 1);
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).context("it cannot be read")?;
    Ok(bytes)
}

/// The number of rows that the header of a file states.
///
/// # Errors
/// If the file cannot be read, or is no file of features.
pub(super) fn count(path: &Path) -> Result<u64> {
    let mut header = [0; HEADER];
    File::open(path).and_then(|mut file| file.read_exact(&mut header)).context("it cannot be read")?;
    ensure!(header.starts_with(MAGIC), "it is no file of features");
    Ok(u64::from_le_bytes(header[HEADER - 8..].try_into()?))
}

/// The rows of a file with these bytes whose keys are `wanted`. A row has `width` features.
///
/// # Errors
/// If it is no such file, is cut short, was changed, or has other features. The message does not name the file.
pub(super) fn decode(bytes: &[u8], width: usize, wanted: &dyn Fn(&Key) -> bool) -> Result<Vec<Row>> {
    ensure!(bytes.len() as u64 <= MAX_BYTES, "it is too large for a file of features");
    ensure!(bytes.starts_with(MAGIC) && bytes.len() >= HEADER + CHECKSUM, "it is no file of features");
    let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
    ensure!(Sha256::digest(content).as_slice() == checksum, "it is cut short or was changed");
    let (numbers, rows) = content[MAGIC.len()..].split_at(12);
    let stated = u32::from_le_bytes(numbers[..4].try_into()?) as usize;
    let count = u64::from_le_bytes(numbers[4..].try_into()?);
    ensure!(stated == width, "its features have a width of {stated}, not {width}");
    let size = Row::bytes(width);
    ensure!(
        rows.len().is_multiple_of(size) && (rows.len() / size) as u64 == count,
        "its rows are incomplete"
    );
    let parse = |row: &[u8]| -> Result<Row> {
        let features = row[24..].chunks_exact(4).map(|value| Ok(f32::from_le_bytes(value.try_into()?)));
        Ok(Row {
            key: row[..16].try_into()?,
            pixel_key: u64::from_le_bytes(row[16..24].try_into()?),
            features: features.collect::<Result<_>>()?,
        })
    };
    let is_wanted = |row: &&[u8]| row[..16].try_into().is_ok_and(|key: Key| wanted(&key));
    rows.chunks_exact(size).filter(is_wanted).map(parse).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |number: u8| Row {
            key: [number; 16],
            pixel_key: u64::from(number) << 40,
            features: vec![f32::from(number), -0.5, 1e-30],
        };
        (1..=4).map(row).collect()
    }

    #[test]
    fn rows_are_read_as_they_were_written() {
        let bytes = encode(3, &rows());
        assert_eq!(decode(&bytes, 3, &|_| true).unwrap(), rows());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(count(file.path()).unwrap(), 4);
        assert_eq!(decode(&bytes, 3, &|key| key[0] == 2).unwrap(), rows()[1..2]);
        assert!(decode(&encode(3, &[]), 3, &|_| true).unwrap().is_empty());
    }

    #[test]
    fn a_file_that_is_cut_short_or_changed_anywhere_is_refused() {
        let bytes = encode(3, &rows());
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length], 3, &|_| true).is_err(), "{length} bytes");
        }
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 4;
            assert!(decode(&changed, 3, &|_| true).is_err(), "byte {place}");
        }
        assert!(decode(&bytes, 4, &|_| true).unwrap_err().to_string().contains("width of 3, not 4"));
        // A file with a right checksum whose header promises more rows than it has.
        let mut lying = bytes[..bytes.len() - CHECKSUM].to_vec();
        lying[24] = 200;
        let checksum = Sha256::digest(&lying);
        lying.extend_from_slice(&checksum);
        assert!(decode(&lying, 3, &|_| true).unwrap_err().to_string().contains("incomplete"));
    }
}
