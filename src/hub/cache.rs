//! The cache that is shared with Python's `huggingface_hub`. For each repository it holds
//! `blobs/ETAG` (contents), `snapshots/COMMIT/FILE` (links to them) and `refs/REVISION` (a commit).

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::repository::{Repository, is_hexadecimal};
use super::weights;
use crate::events::{Event, EventSink};
use crate::files::write_atomically;

/// The part of the cache that is one repository's.
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

    /// Where the files of a commit are.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.root.join("snapshots").join(commit)
    }

    /// Where the content with that tag is.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.root.join("blobs").join(etag)
    }

    /// Where that content grows until it is whole.
    pub(super) fn partial_blob(&self, etag: &str) -> PathBuf {
        self.blob(&format!("{etag}.incomplete"))
    }

    /// Makes a content that has arrived a whole one.
    pub(super) fn keep(&self, etag: &str) -> Result<()> {
        let blob = self.blob(etag);
        fs::rename(self.partial_blob(etag), &blob).with_context(|| cannot_write(&blob))
    }

    /// The snapshot that a revision meant when it was last fetched, if all its weights are there.
    pub(super) fn complete_snapshot(&self, revision: &str) -> Option<PathBuf> {
        let is_commit = |text: &String| is_hexadecimal(text, 40);
        let noted = fs::read_to_string(self.reference(revision)).ok().map(|text| text.trim().to_owned());
        let commit = noted.or_else(|| Some(revision.to_owned())).filter(is_commit)?;
        Some(self.snapshot(&commit)).filter(|folder| weights::are_complete(folder))
    }

    /// Notes the commit that a revision means.
    pub(super) fn set_commit(&self, revision: &str, commit: &str) -> Result<()> {
        let path = self.reference(revision);
        if revision == commit || fs::read_to_string(&path).is_ok_and(|noted| noted == commit) {
            return Ok(());
        }
        make_parent(&path)?;
        write_atomically(&path, commit.as_bytes())
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.root.join("refs").join(revision)
    }

    /// Waits until no other process writes that content. The lock ends with the value.
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
        // Where a drive has no locks, the check of the whole file must do.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            events.emit(Event::notice(format!("waiting for another process that is downloading {label}")));
            file.lock().with_context(|| format!("{}: cannot be locked", path.display()))?;
        }
        Ok(file)
    }

    /// Gives a content its name in a snapshot.
    pub(super) fn link(&self, etag: &str, commit: &str, file: &str) -> Result<()> {
        let path = self.snapshot(commit).join(file);
        if path.is_file() {
            return Ok(());
        }
        make_parent(&path)?;
        if path.is_symlink() {
            // Its content is gone.
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

/// Copies a file so that `path` is whole or not there.
pub(super) fn copy(from: &Path, path: &Path) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let temporary = tempfile::NamedTempFile::new_in(folder)?;
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
