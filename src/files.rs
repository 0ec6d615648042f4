//! Files that are whole or not there.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

/// Writes a temporary file in the same folder, forces it to the disk and renames it to `path`.
///
/// # Errors
/// When any of it fails; `path` then holds what it held before.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        Ok(())
    };
    write().with_context(|| format!("{}: cannot be written", path.display()))
}
