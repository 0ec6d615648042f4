//! A temporary file for the images of a large archive, so that they take no memory until they are decoded.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Mutex, PoisonError};

/// A temporary file of byte strings, which is deleted when it is dropped.
#[derive(Debug)]
pub struct Spool(Mutex<File>);

/// The position of a byte string in a [`Spool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    offset: u64,
    length: usize,
}

impl Spool {
    /// An empty spool in the system's folder for temporary files (`TMPDIR`).
    ///
    /// # Errors
    ///
    /// If no file can be created there.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Mutex::new(tempfile::tempfile()?)))
    }

    /// Appends bytes and returns their position.
    ///
    /// # Errors
    ///
    /// If they cannot be written, for example because the disk is full.
    pub(crate) fn put(&self, bytes: &[u8]) -> io::Result<Place> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = file.seek(SeekFrom::End(0))?;
        file.write_all(bytes)?;
        Ok(Place { offset, length: bytes.len() })
    }

    /// Reads the bytes at `place`.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub(crate) fn get(&self, place: Place) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; place.length];
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(place.offset))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_back() {
        let spool = Spool::new().unwrap();
        let (first, second) = (spool.put(b"one").unwrap(), spool.put(b"").unwrap());
        let third = spool.put(b"three").unwrap();
        assert_eq!(spool.get(third).unwrap(), b"three");
        assert_eq!(spool.get(first).unwrap(), b"one");
        assert_eq!(spool.get(second).unwrap(), b"");
    }
}
