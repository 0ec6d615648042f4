//! Files that are whole or not there, and texts that have an end.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use vitrine_datasets::open_regular;

/// Writes a temporary file in the same folder, forces it to the disk and renames it to `path`.
///
/// # Errors
/// When any of it fails; `path` then holds what it held before.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let mut file = temporary().tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        sync_folder(folder)
    };
    write().with_context(|| format!("{}: cannot be written", path.display()))
}

/// Forces the names in a folder to the disk, so that a renamed file is there after a power cut too.
///
/// # Errors
/// When the folder cannot be read, or the disk fails.
pub fn sync_folder(folder: &Path) -> std::io::Result<()> {
    // Elsewhere folders cannot be opened as files.
    #[cfg(unix)]
    std::fs::File::open(folder)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

/// The most bytes of a text that a user writes: a configuration, a recipe, a list of names.
const MAX_TEXT: u64 = 16 << 20;

/// The text of a regular file; devices and pipes, which may never end, are refused.
///
/// # Errors
/// When it is not there, no regular file, too long or not UTF-8; the message does not name the file.
pub fn read_text(path: &Path) -> Result<String> {
    let (file, _) = open_regular(path, u64::MAX).map_err(|problem| anyhow!("cannot be read: {problem}"))?;
    let mut text = String::new();
    file.take(MAX_TEXT + 1).read_to_string(&mut text).context("cannot be read")?;
    ensure!(
        text.len() as u64 <= MAX_TEXT,
        "it has more than {MAX_TEXT} bytes, too many for a file of this kind"
    );
    Ok(text)
}

/// How the names of our temporary files begin and end.
const TEMPORARY: (&str, &str) = (".vitrine-", ".tmp");

/// Whether a file of this name is a temporary one of ours, which stays where a program is killed.
pub fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(TEMPORARY.0.as_bytes()) && name.ends_with(TEMPORARY.1.as_bytes())
}

/// A temporary file that gets the permissions any new file of the user has.
fn temporary() -> tempfile::Builder<'static, 'static> {
    #[allow(unused_mut)] // only Unix has something to set
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY.0).suffix(TEMPORARY.1);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_text_has_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "words").unwrap();
        assert_eq!(read_text(&path).unwrap(), "words");
        std::fs::write(&path, vec![b' '; MAX_TEXT as usize + 1]).unwrap();
        assert!(read_text(&path).is_err() && read_text(&folder.path().join("nothing")).is_err());
        assert!(read_text(Path::new("/dev/zero")).unwrap_err().to_string().contains("a device"));
    }

    #[test]
    fn a_file_is_replaced_whole_and_readable_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let plain = folder.path().join("plain");
            std::fs::write(&plain, b"").unwrap();
            let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
            assert_eq!(mode(&path), mode(&plain));
        }
        let error = write_atomically(&folder.path().join("no/file"), b"").unwrap_err();
        assert!(error.to_string().contains("no/file"), "{error}");
    }
}
