//! Bytes that are put away in a temporary file until they are wanted, so that they take no memory.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Mutex, PoisonError};

/// A temporary file that is gone when nobody holds it.
#[derive(Debug)]
pub struct Spool(Mutex<File>);

/// Where in a [`Spool`] something lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    offset: u64,
    length: usize,
}

impl Spool {
    /// An empty one, in the system's folder for temporary files (`TMPDIR`).
    ///
    /// # Errors
    ///
    /// When no file can be made there.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Mutex::new(tempfile::tempfile()?)))
    }

    /// Puts bytes away.
    ///
    /// # Errors
    ///
    /// When the disk is full.
    pub(crate) fn put(&self, bytes: &[u8]) -> io::Result<Place> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let offset = file.seek(SeekFrom::End(0))?;
        file.write_all(bytes)?;
        Ok(Place { offset, length: bytes.len() })
    }

    /// What was put away at `place`.
    ///
    /// # Errors
    ///
    /// When the disk fails.
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
    fn what_is_put_away_is_found_again() {
        let spool = Spool::new().unwrap();
        let (first, second) = (spool.put(b"one").unwrap(), spool.put(b"").unwrap());
        let third = spool.put(b"three").unwrap();
        assert_eq!(spool.get(third).unwrap(), b"three");
        assert_eq!(spool.get(first).unwrap(), b"one");
        assert_eq!(spool.get(second).unwrap(), b"");
    }
}
