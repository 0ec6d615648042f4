//! Safe reading and writing of files: a write replaces the whole file or nothing, even if the program is killed, and a
//! text file is read only up to a limit.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf, absolute};

use anyhow::{Context, Result, anyhow, ensure};
use tempfile::NamedTempFile;
use vitrine_datasets::open_regular;
pub use vitrine_datasets::{Unfinished, remove_unfinished};

/// Replaces the file at `path` as a whole: writes a temporary file in the same folder, forces it to the disk, and
/// renames it.
///
/// # Errors
/// If any of these steps fails. Until the temporary file is renamed, the file at `path` is unchanged.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.write(bytes)?;
    file.finish()
}

/// Whether the name of a file ends in this extension, in upper or lower case.
pub fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

/// A file that is written in parts, and replaces the file at its path when it is finished. One that is dropped before
/// leaves the file at its path unchanged.
pub struct AtomicFile {
    file: NamedTempFile,
    path: PathBuf,
    _unfinished: Unfinished,
}

impl AtomicFile {
    /// A temporary file in the folder of `path`.
    ///
    /// # Errors
    /// If the folder does not exist or cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        let file = temporary().tempfile_in(folder_of(path)).with_context(|| cannot_be_written(path))?;
        let _unfinished = Unfinished::note(file.path());
        Ok(Self { file, path: path.to_owned(), _unfinished })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).with_context(|| cannot_be_written(&self.path))
    }

    /// Forces the file to the disk, and renames it.
    ///
    /// # Errors
    /// If one of these steps fails.
    pub fn finish(self) -> Result<()> {
        let Self { file, path, _unfinished } = self;
        let finish = || -> std::io::Result<()> {
            file.as_file().sync_all()?;
            file.persist(&path).map_err(|error| error.error)?;
            sync_folder(folder_of(&path))
        };
        finish().with_context(|| cannot_be_written(&path))
    }
}

/// Renames a complete file, which replaces the one at `to`.
///
/// # Errors
/// If it cannot be renamed.
pub fn replace(file: &Path, to: &Path) -> Result<()> {
    let rename = || std::fs::rename(file, to).and_then(|()| sync_folder(folder_of(to)));
    rename().with_context(|| cannot_be_written(to))
}

/// The folder that a file is in.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether the path of an output is `-`, which is standard output for other programs.
pub fn is_standard_output(path: &Path) -> bool {
    path == Path::new("-")
}

fn cannot_be_written(path: &Path) -> String {
    format!("{}: cannot be written", path.display())
}

/// Forces the list of files in a folder to the disk, so that a renamed file keeps its new name after a power failure.
///
/// # Errors
/// If the folder cannot be opened, or the disk fails.
pub fn sync_folder(folder: &Path) -> std::io::Result<()> {
    // Only Unix can open a folder as a file.
    #[cfg(unix)]
    std::fs::File::open(folder)?.sync_all()?;
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

/// The limit on text files in bytes. Configurations, recipes, and lists of names are much smaller.
const MAX_TEXT: u64 = 16 << 20;

/// Whether two paths lead to the same existing file.
pub fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Whether two paths, which need not exist, lead to the same place. Symbolic links are followed.
pub fn same_place(a: &Path, b: &Path) -> bool {
    resolved(a) == resolved(b)
}

/// Whether a path, which need not exist, is a folder or inside of it. Symbolic links are followed.
pub fn is_inside(path: &Path, folder: &Path) -> bool {
    resolved(path).starts_with(resolved(folder))
}

/// The absolute path with symbolic links followed, for a path of which only the first components may exist.
pub fn resolved(path: &Path) -> PathBuf {
    let path = absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = path.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?)));
    let Some((part, start)) = there else { return path };
    let rest = path.strip_prefix(part).unwrap_or(Path::new(""));
    rest.components().fold(start, |mut path, component| {
        match component {
            Component::ParentDir => {
                path.pop();
            }
            other => path.push(other),
        }
        path
    })
}

/// Reads a regular text file. Devices and pipes, which may never end, are refused.
///
/// # Errors
/// If the file is missing, is not a regular file, has more than 16 MiB, or is not UTF-8. The message does not name the
/// file.
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

/// The prefix and the suffix of the names of temporary files.
const TEMPORARY: (&str, &str) = (".vitrine-", ".tmp");

/// Whether this is the name of a temporary file of [`write_atomically`]. Such a file stays behind if the program is
/// killed while it writes.
pub fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(TEMPORARY.0.as_bytes()) && name.ends_with(TEMPORARY.1.as_bytes())
}

/// A builder of temporary files that have the same permissions as other new files of the user. By default, only the
/// user could read them.
fn temporary() -> tempfile::Builder<'static, 'static> {
    #[allow(unused_mut)] // changed only on Unix
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
    fn devices_and_files_above_the_limit_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "words").unwrap();
        assert_eq!(read_text(&path).unwrap(), "words");
        std::fs::write(&path, vec![b' '; MAX_TEXT as usize + 1]).unwrap();
        assert!(read_text(&path).is_err() && read_text(&folder.path().join("nothing")).is_err());
        assert!(read_text(Path::new("/dev/zero")).unwrap_err().to_string().contains("a device"));
    }

    #[test]
    fn a_written_file_replaces_the_old_one_and_has_usual_permissions() {
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
