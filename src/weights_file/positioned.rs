//! Reading a part of a file, wherever its cursor is, with all threads.

use std::fs::File;
use std::io::Result;

use rayon::prelude::*;

/// How many bytes a thread reads at a time.
const PIECE: usize = 1 << 20;

/// Fills `bytes` with those of the file from `offset` on.
///
/// # Errors
/// If the file ends before, or cannot be read.
pub(super) fn read(file: &File, bytes: &mut [u8], offset: u64) -> Result<()> {
    let pieces = bytes.par_chunks_mut(PIECE).enumerate();
    pieces.try_for_each(|(index, piece)| read_exact_at(file, piece, offset + (index * PIECE) as u64))
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                bytes = &mut bytes[count..];
                offset += count as u64;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_from_their_places_and_an_early_end_is_an_error() {
        let content: Vec<u8> = (0..3 * PIECE + 17).map(|at| (at % 251) as u8).collect();
        let mut stored = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut stored, &content).unwrap();
        let mut bytes = vec![0; 2 * PIECE + 5];
        read(stored.as_file(), &mut bytes, 1001).unwrap();
        assert_eq!(bytes, content[1001..1001 + bytes.len()]);
        let error = read(stored.as_file(), &mut bytes, (PIECE + 13) as u64).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
