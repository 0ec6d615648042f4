//! The download cache, shared with Python's `huggingface_hub`.
//!
//! Each repository has a folder with `blobs/ETAG` (contents of files, named by their ETag), `snapshots/COMMIT/FILE`
//! (links to the contents), and `refs/REVISION` (the commit that a branch or tag pointed to).

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::repository::{Repository, is_hexadecimal};
use super::weights;
use crate::events::{Event, EventSink};
use crate::files::{Unfinished, write_atomically};

/// The cache of one repository.
pub(super) struct RepositoryCache {
    root: PathBuf,
    locks: PathBuf,
}

impl RepositoryCache {
    pub(super) fn new(cache: &Path, repository: &Repository) -> Self {
        let folder = format!("models--{}--{}", repository.owner, repository.name);
        Self { root: cache.join(&folder), locks: cache.join(".locks").join(&folder) }
    }

    /// The folder of the repository.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder with the files of a commit.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// The commit whose files are in a folder that [`Self::snapshot`] has named.
    pub(super) fn commit_of(snapshot: &Path) -> String {
        snapshot.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The path of the content with an ETag.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(etag)
    }

    /// The path of a content during its download.
    pub(super) fn partial_blob(&self, etag: &str) -> PathBuf {
        self.blob(&format!("{etag}.incomplete"))
    }

    /// Renames a partial content to the final path after its download is complete.
    pub(super) fn keep(&self, etag: &str) -> Result<()> {
        let blob = self.blob(etag);
        fs::rename(self.partial_blob(etag), &blob).with_context(|| cannot_write(&blob))
    }

    /// The folder of the commit that a revision pointed to at the last download, if it has all of its weights.
    pub(super) fn complete_snapshot(&self, revision: &str) -> Option<PathBuf> {
        let is_commit = |text: &String| is_hexadecimal(text, 40);
        let recorded = fs::read_to_string(self.reference(revision)).ok().map(|text| text.trim().to_owned());
        let commit = recorded.or_else(|| Some(revision.to_owned())).filter(is_commit)?;
        Some(self.snapshot(&commit)).filter(|folder| weights::are_complete(folder))
    }

    /// Records the commit that a revision points to.
    pub(super) fn set_commit(&self, revision: &str, commit: &str) -> Result<()> {
        let path = self.reference(revision);
        if revision == commit || fs::read_to_string(&path).is_ok_and(|recorded| recorded == commit) {
            return Ok(());
        }
        make_parent(&path)?;
        write_atomically(&path, commit.as_bytes())
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.root.join("refs").join(revision)
    }

    /// Locks a content, waiting until no other process downloads it. Dropping the returned file releases the lock.
    pub(super) fn lock(&self, etag: &str, label: &str, events: &dyn EventSink) -> Result<File> {
        make_parent(&self.blob(etag))?;
        let path = self.locks.join(format!("{etag}.lock"));
        make_parent(&path)?;
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| cannot_write(&path))?;
        // Some network drives have no locks. There, the hash check after the download is the only protection.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            events.emit(Event::notice(format!("waiting for another process that is downloading {label}")));
            file.lock().with_context(|| format!("{}: cannot be locked", path.display()))?;
        }
        Ok(file)
    }

    /// Links a content into a snapshot under the file's name: as a symbolic link, else a hard link, else a copy.
    pub(super) fn link(&self, etag: &str, commit: &str, file: &str) -> Result<()> {
        let path = self.snapshot(commit).join(file);
        if path.is_file() {
            return Ok(());
        }
        make_parent(&path)?;
        if path.is_symlink() {
            // A symbolic link whose target was deleted.
            fs::remove_file(&path).with_context(|| cannot_write(&path))?;
        }
        let target: PathBuf = ["..", "..", "blobs", etag].iter().collect();
        let blob = self.blob(etag);
        symlink(&target, &path)
            .or_else(|_| fs::hard_link(&blob, &path))
            .or_else(|_| copy(&blob, &path))
            .with_context(|| cannot_write(&path))
    }
}

#[cfg(unix)]
fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

#[cfg(windows)]
fn symlink(target: &Path, path: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, path)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Copies a file by way of a temporary one, so that `path` never holds a part of it.
pub(super) fn copy(from: &Path, path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let temporary = tempfile::NamedTempFile::new_in(folder)?;
    let _unfinished = Unfinished::note(temporary.path());
    fs::copy(from, temporary.path())?;
    temporary.persist(path)?;
    Ok(())
}

fn make_parent(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).with_context(|| cannot_write(folder))
}

fn cannot_write(path: &Path) -> String {
    format!("{}: cannot be written; HF_HUB_CACHE can name another folder for models", path.display())
}
