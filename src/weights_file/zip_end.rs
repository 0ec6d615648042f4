//! Archives whose end misleads the reader of archives.
//!
//! `torch.save` ends every archive with the two records of ZIP64 (76 bytes), whether they are needed or not. A reader that takes the
//! directory to end where the last record begins looks 76 bytes too far, and where the first entry's header is as long (a root of 21
//! letters, as `vit_small_patch16_224` has) finds the second one there.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempPath;

const LAST_RECORD: usize = 22;
const ZIP64_RECORDS: usize = 56 + 20;
const ENTRY: &[u8] = b"PK\x01\x02";

/// A copy of the archive at `path` without the records that mislead, where it has them; it is removed when dropped.
///
/// # Errors
/// When there is no room for the copy.
pub(super) fn plain_copy(path: &Path, content: &[u8]) -> Result<Option<TempPath>> {
    let Some((directory_end, last_record)) = misleading_end(content) else { return Ok(None) };
    let write = || -> std::io::Result<TempPath> {
        let copy = tempfile::NamedTempFile::new()?;
        std::fs::copy(path, copy.path())?;
        let mut file = std::fs::OpenOptions::new().write(true).open(copy.path())?;
        file.set_len(directory_end as u64)?;
        file.seek(SeekFrom::End(0))?;
        file.write_all(last_record)?;
        Ok(copy.into_temp_path())
    };
    let folder = std::env::temp_dir();
    let copy =
        write().with_context(|| format!("{}: cannot be copied to {}", path.display(), folder.display()))?;
    Ok(Some(copy))
}

/// The end of the directory and the archive's last record, where the bytes between them are needless and mislead.
fn misleading_end(content: &[u8]) -> Option<(usize, &[u8])> {
    let last = content.len().checked_sub(LAST_RECORD)?;
    let record = &content[last..];
    if !record.starts_with(b"PK\x05\x06") {
        return None;
    }
    let number = |at: usize| u32::from_le_bytes(*record[at..].first_chunk()?).try_into().ok();
    let (size, offset): (usize, usize) = (number(12)?, number(16)?);
    let end = offset.checked_add(size)?;
    let starts_entry = |at: usize| content.get(at..).is_some_and(|rest| rest.starts_with(ENTRY));
    let misleads = end.checked_add(ZIP64_RECORDS) == Some(last)
        && content[end..].starts_with(b"PK\x06\x06")
        && starts_entry(offset)
        && starts_entry(last - size);
    misleads.then_some((end, record))
}
