//! Published data sets (MNIST, Fashion-MNIST, CIFAR): finding them on disk and downloading them.

mod table;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

pub(crate) use self::table::PUBLISHED;
use super::SourceData;
use super::download::{Downloader, RemoteFile};
use crate::{DatasetError, SourceKind, Unfinished};

/// A published data set, which is read from the data folder or downloaded into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Published {
    /// Its name for the user, and the folder to which it is downloaded.
    pub(crate) name: &'static str,
    /// Folders below the data folder in which its files may be, including those of torchvision.
    folders: &'static [&'static str],
    /// The files of a complete copy, each of which may also be compressed and end in `.gz`.
    files: &'static [&'static str],
    /// The files to download.
    remote: &'static [RemoteFile],
    /// Whether the download is an archive of the files.
    is_archive: bool,
    /// Class names, for IDX files, which have only numbers.
    classes: &'static [&'static str],
    /// Whether a mirrored image still shows its class.
    flip_safe: bool,
}

impl Published {
    /// Reads the data set from `data_dir`. Missing files are first downloaded if a downloader is given.
    ///
    /// # Errors
    ///
    /// If files are missing and not downloaded, or do not follow their format.
    pub(crate) fn open(
        &self,
        data_dir: &Path,
        downloader: Option<&Downloader>,
        mirror: Option<&str>,
    ) -> Result<SourceData, DatasetError> {
        let path = match self.find(data_dir) {
            Some(path) => path,
            None => self.obtain(data_dir, downloader, mirror)?,
        };
        let mut found = super::read(&path)?;
        if found.source == SourceKind::Idx {
            if found.classes.len() > self.classes.len() {
                let (labels, classes) = (found.classes.len(), self.classes.len());
                let problem = format!(
                    "is not {}: it has labels up to {}, not {classes} classes",
                    self.name,
                    labels - 1
                );
                return Err(DatasetError::layout(&path, problem));
            }
            found.classes = self.classes.iter().map(|&class| class.to_owned()).collect();
        }
        found.flip_safe = self.flip_safe;
        Ok(found)
    }

    /// The path of a complete copy: a folder of its files, an archive, or class folders below its name.
    fn find(&self, data_dir: &Path) -> Option<PathBuf> {
        let own = data_dir.join(self.name);
        let folders = self.folders.iter().map(|folder| data_dir.join(folder));
        let mut folders = folders.filter(|folder| self.files.iter().all(|file| has_file(folder, file)));
        let archives = self.remote.iter().filter(|_| self.is_archive).map(|file| file.name.to_owned());
        let renamed = [".tar.gz", ".tgz", ".tar", ".zip"].map(|ending| format!("{}{ending}", self.name));
        let archives = archives.chain(renamed).flat_map(|name| [data_dir.join(&name), own.join(&name)]);
        let mut archives = archives.filter(|archive| archive.is_file());
        folders.next().or_else(|| archives.next()).or_else(|| own.join("train").is_dir().then_some(own))
    }

    /// Downloads the missing files into the data set's own folder. Returns the path of the copy.
    fn obtain(
        &self,
        data_dir: &Path,
        downloader: Option<&Downloader>,
        mirror: Option<&str>,
    ) -> Result<PathBuf, DatasetError> {
        let folder = data_dir.join(self.name);
        let is_missing = |file: &&RemoteFile| !has_file(&folder, file.name.trim_end_matches(".gz"));
        let missing: Vec<&RemoteFile> = self.remote.iter().filter(is_missing).collect();
        let unavailable = |source| DatasetError::Unavailable {
            name: self.name,
            data_dir: data_dir.to_owned(),
            urls: missing.iter().map(|file| file.url()).collect(),
            folder: folder.clone(),
            source,
        };
        let Some(downloader) = downloader else { return Err(unavailable(None)) };
        for file in &missing {
            let url = match mirror {
                Some(mirror) => format!("{}/{}/{}", mirror.trim_end_matches('/'), self.name, file.name),
                None => file.url(),
            };
            downloader.fetch(file, &url, &folder).map_err(|error| match error {
                DatasetError::Download { .. } => unavailable(Some(Box::new(error))),
                other => other,
            })?;
        }
        if self.is_archive {
            for file in self.remote {
                unpack(&folder.join(file.name), &folder)?;
            }
        }
        self.find(data_dir).ok_or_else(|| {
            let problem = format!(
                "lacks some of {} after the download: remove the folder and try again",
                self.files.join(", ")
            );
            DatasetError::layout(&folder, problem)
        })
    }
}

/// Whether a folder has a file, either plain or compressed.
fn has_file(folder: &Path, name: &str) -> bool {
    folder.join(name).is_file() || folder.join(format!("{name}.gz")).is_file()
}

/// Unpacks a `.tar.gz` archive into `folder` and removes it. Files are unpacked into a temporary folder first, so that
/// a crash leaves the archive but no incomplete file.
fn unpack(archive: &Path, folder: &Path) -> Result<(), DatasetError> {
    let partial = tempfile::Builder::new()
        .prefix(".unpack-")
        .tempdir_in(folder)
        .map_err(DatasetError::write(folder))?;
    let unfinished = Unfinished::note(partial.path());
    let file = File::open(archive).map_err(DatasetError::read(archive))?;
    let mut entries = tar::Archive::new(MultiGzDecoder::new(BufReader::new(file)));
    entries.set_preserve_mtime(false);
    entries.unpack(partial.path()).map_err(DatasetError::read(archive))?;
    // A signal must not remove what is being moved to its place.
    drop(unfinished);
    for entry in fs::read_dir(partial.path()).map_err(DatasetError::read(partial.path()))? {
        let entry = entry.map_err(DatasetError::read(partial.path()))?;
        let place = folder.join(entry.file_name());
        if !place.exists() {
            fs::rename(entry.path(), &place).map_err(DatasetError::write(&place))?;
        }
    }
    fs::remove_file(archive).map_err(DatasetError::write(archive))
}
