//! Workaround for zip archives of `torch.save` that the zip reader misreads.
//!
//! `torch.save` always writes two ZIP64 records (76 bytes) between the central directory and the archive's last record,
//! even if they are not needed. A reader that expects the directory to end where the last record begins starts 76 bytes
//! too late. Where the first entry of the directory is 76 bytes long (a root folder of 21 letters, such as
//! `vit_small_patch16_224`), it finds the second entry there, and misses the first.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempPath;

use crate::files::Unfinished;

/// Bytes of the end of central directory record without a comment.
const LAST_RECORD: usize = 22;
/// Bytes of the ZIP64 end of central directory record and of its locator.
const ZIP64_RECORDS: usize = 56 + 20;
/// The signature of an entry of the central directory.
const ENTRY: &[u8] = b"PK\x01\x02";

/// A temporary file, which is removed when dropped, and when a signal ends the program.
pub(super) struct TemporaryCopy {
    path: TempPath,
    _unfinished: Unfinished,
}

impl TemporaryCopy {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Copies the archive at `path` to a temporary file without ZIP64 records, if they would be misread.
///
/// # Errors
/// If the copy cannot be written.
pub(super) fn copy_without_zip64(path: &Path, content: &[u8]) -> Result<Option<TemporaryCopy>> {
    let Some((directory_end, last_record)) = misread_end(content) else { return Ok(None) };
    let write = || -> std::io::Result<TemporaryCopy> {
        let copy = tempfile::NamedTempFile::new()?.into_temp_path();
        let copy = TemporaryCopy { _unfinished: Unfinished::note(&copy), path: copy };
        std::fs::copy(path, copy.path())?;
        let mut file = std::fs::OpenOptions::new().write(true).open(copy.path())?;
        file.set_len(directory_end as u64)?;
        file.seek(SeekFrom::End(0))?;
        file.write_all(last_record)?;
        Ok(copy)
    };
    let folder = std::env::temp_dir();
    let copy =
        write().with_context(|| format!("{}: cannot be copied to {}", path.display(), folder.display()))?;
    Ok(Some(copy))
}

/// The end of the central directory and the bytes of the last record, if the ZIP64 records between them would be
/// misread.
fn misread_end(content: &[u8]) -> Option<(usize, &[u8])> {
    let last = content.len().checked_sub(LAST_RECORD)?;
    let record = &content[last..];
    if !record.starts_with(b"PK\x05\x06") {
        return None;
    }
    let number = |at: usize| u32::from_le_bytes(*record[at..].first_chunk()?).try_into().ok();
    let (size, offset): (usize, usize) = (number(12)?, number(16)?);
    let end = offset.checked_add(size)?;
    let starts_entry = |at: usize| content.get(at..).is_some_and(|rest| rest.starts_with(ENTRY));
    let is_misread = end.checked_add(ZIP64_RECORDS) == Some(last)
        && content[end..].starts_with(b"PK\x06\x06")
        && starts_entry(offset)
        && starts_entry(last - size);
    is_misread.then_some((end, record))
}
