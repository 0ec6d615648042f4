//! Published data sets (MNIST, Fashion-MNIST, CIFAR): finding them on disk and downloading them.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;

use super::SourceData;
use super::download::{Downloader, RemoteFile};
use crate::{DatasetError, SourceKind};

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

const MNIST_URL: &str = "https://storage.googleapis.com/cvdf-datasets/mnist/";
const FASHION_URL: &str = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/";
const CIFAR_URL: &str = "https://www.cs.toronto.edu/~kriz/";

const IDX_FILES: &[&str] = &[
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

const fn remote(base_url: &'static str, name: &'static str, bytes: u64, sha256: &'static str) -> RemoteFile {
    RemoteFile { name, base_url, sha256, bytes }
}

/// All published data sets, with the hashes that TensorFlow Datasets also uses.
pub(crate) const PUBLISHED: [Published; 4] = [
    Published {
        name: "mnist",
        folders: &["mnist", "mnist/raw", "MNIST/raw"],
        files: IDX_FILES,
        remote: &[
            remote(
                MNIST_URL,
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            remote(
                MNIST_URL,
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            remote(
                MNIST_URL,
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            remote(
                MNIST_URL,
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ],
        is_archive: false,
        classes: &["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"],
        flip_safe: false,
    },
    Published {
        name: "fashion-mnist",
        folders: &["fashion-mnist", "fashion-mnist/raw", "FashionMNIST/raw"],
        files: IDX_FILES,
        remote: &[
            remote(
                FASHION_URL,
                "train-images-idx3-ubyte.gz",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            remote(
                FASHION_URL,
                "train-labels-idx1-ubyte.gz",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            remote(
                FASHION_URL,
                "t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            remote(
                FASHION_URL,
                "t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ],
        is_archive: false,
        classes: &[
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ],
        flip_safe: true,
    },
    Published {
        name: "cifar10",
        folders: &["cifar10", "cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"],
        files: &[
            "data_batch_1.bin",
            "data_batch_2.bin",
            "data_batch_3.bin",
            "data_batch_4.bin",
            "data_batch_5.bin",
            "test_batch.bin",
        ],
        remote: &[remote(
            CIFAR_URL,
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        )],
        is_archive: true,
        classes: &[],
        flip_safe: true,
    },
    Published {
        name: "cifar100",
        folders: &["cifar100", "cifar100/cifar-100-binary", "cifar-100-binary"],
        files: &["train.bin", "test.bin", "fine_label_names.txt"],
        remote: &[remote(
            CIFAR_URL,
            "cifar-100-binary.tar.gz",
            168_513_733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        )],
        is_archive: true,
        classes: &[],
        flip_safe: true,
    },
];

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
    let file = File::open(archive).map_err(DatasetError::read(archive))?;
    let mut entries = tar::Archive::new(MultiGzDecoder::new(BufReader::new(file)));
    entries.set_preserve_mtime(false);
    entries.unpack(partial.path()).map_err(DatasetError::read(archive))?;
    for entry in fs::read_dir(partial.path()).map_err(DatasetError::read(partial.path()))? {
        let entry = entry.map_err(DatasetError::read(partial.path()))?;
        let place = folder.join(entry.file_name());
        if !place.exists() {
            fs::rename(entry.path(), &place).map_err(DatasetError::write(&place))?;
        }
    }
    fs::remove_file(archive).map_err(DatasetError::write(archive))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use sha2::{Digest, Sha256};
    use tempfile::TempDir;

    use super::*;
    use crate::source::archive::tests::tar_of;
    use crate::source::cifar::tests::record;
    use crate::source::download::hexadecimal;
    use crate::source::download::tests::{answer, downloader, serve};
    use crate::source::idx::tests::{encode, gzip};

    /// The four files of a small data set in MNIST's format, with one image of each digit.
    fn digits() -> [(&'static str, Vec<u8>); 4] {
        let pixels: Vec<u8> = (0..10 * 4).collect();
        let labels: Vec<u8> = (0..10).collect();
        let images = gzip(&encode(0x0803, &[10, 2, 2], &pixels));
        let labels = gzip(&encode(0x0801, &[10], &labels));
        [
            ("train-images-idx3-ubyte.gz", images.clone()),
            ("train-labels-idx1-ubyte.gz", labels.clone()),
            ("t10k-images-idx3-ubyte.gz", images),
            ("t10k-labels-idx1-ubyte.gz", labels),
        ]
    }

    fn write(folder: &Path, files: &[(&str, Vec<u8>)]) {
        fs::create_dir_all(folder).unwrap();
        for (name, bytes) in files {
            fs::write(folder.join(name), bytes).unwrap();
        }
    }

    fn published(name: &str) -> Published {
        *PUBLISHED.iter().find(|published| published.name == name).unwrap()
    }

    /// The named data set with other files to download, and the address of a mirror that serves them.
    fn served(name: &str, files: &[(&'static str, Vec<u8>)]) -> (Published, String) {
        let hash = |bytes: &[u8]| &*hexadecimal(&Sha256::digest(bytes)).leak();
        let remote = files
            .iter()
            .map(|(name, bytes)| remote("http://example.invalid/", name, bytes.len() as u64, hash(bytes)));
        let published = Published { remote: remote.collect::<Vec<_>>().leak(), ..published(name) };
        let content: HashMap<String, Vec<u8>> =
            files.iter().map(|(file, bytes)| (format!("/{name}/{file}"), bytes.clone())).collect();
        let mirror = serve(files.len(), move |path| match content.get(path) {
            Some(bytes) => answer("200 OK", bytes.len(), bytes),
            None => answer("404 Not SourceData", 0, b""),
        });
        (published, mirror)
    }

    #[test]
    fn hashes_and_names_are_well_formed() {
        for published in PUBLISHED {
            for file in published.remote {
                let is_hash =
                    file.sha256.len() == 64 && file.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
                assert!(is_hash && file.bytes > 0 && file.base_url.ends_with('/'), "{}", file.url());
            }
            assert_eq!(published.folders[0], published.name);
        }
    }

    #[test]
    fn copies_are_found_in_all_usual_places() {
        for (name, folder, class) in [
            ("mnist", "mnist", "3"),
            ("mnist", "MNIST/raw", "3"),
            ("fashion-mnist", "FashionMNIST/raw", "Dress"),
            ("fashion-mnist", "fashion-mnist", "Dress"),
        ] {
            let data_dir = TempDir::new().unwrap();
            write(&data_dir.path().join(folder), &digits());
            let found = published(name).open(data_dir.path(), None, None).unwrap();
            assert_eq!((found.classes[3].as_str(), found.train.len(), found.test.len()), (class, 10, 10));
            assert_eq!(found.flip_safe, name != "mnist");
        }
        for archive in ["cifar-10-binary.tar.gz", "cifar10/cifar-10-binary.tar.gz", "cifar10.tgz"] {
            let data_dir = TempDir::new().unwrap();
            fs::create_dir(data_dir.path().join("cifar10")).unwrap();
            let tar = tar_of(&[("cifar-10-batches-bin/data_batch_1.bin", &record(&[3]))]);
            fs::write(data_dir.path().join(archive), gzip(&tar)).unwrap();
            let found = published("cifar10").open(data_dir.path(), None, None).unwrap();
            assert_eq!((found.classes[3].as_str(), found.train.len()), ("cat", 1), "{archive}");
        }
    }

    #[test]
    fn missing_files_are_downloaded_once() {
        let data_dir = TempDir::new().unwrap();
        let files = digits();
        write(&data_dir.path().join("mnist"), &files[..1]);
        let (published, mirror) = served("mnist", &files);
        let found = published.open(data_dir.path(), Some(&downloader()), Some(&mirror)).unwrap();
        assert_eq!((found.classes.len(), found.train.len()), (10, 10));
        published.open(data_dir.path(), None, None).unwrap();
    }

    #[test]
    fn an_archive_is_downloaded_and_unpacked() {
        let data_dir = TempDir::new().unwrap();
        let batches = published("cifar10")
            .files
            .iter()
            .map(|file| format!("cifar-10-batches-bin/{file}"))
            .collect::<Vec<_>>();
        let batch = record(&[7]);
        let tar = tar_of(&batches.iter().map(|name| (name.as_str(), &batch[..])).collect::<Vec<_>>());
        let (published, mirror) = served("cifar10", &[("cifar-10-binary.tar.gz", gzip(&tar))]);
        let found = published.open(data_dir.path(), Some(&downloader()), Some(&mirror)).unwrap();
        assert_eq!((found.train.len(), found.test.len()), (5, 1));
        let left: Vec<_> = fs::read_dir(data_dir.path().join("cifar10"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["cifar-10-batches-bin"]);
    }

    #[test]
    fn the_error_for_missing_files_names_their_addresses_and_the_folder() {
        let data_dir = TempDir::new().unwrap();
        let folder = data_dir.path().join("mnist");
        write(&folder, &digits()[..2]);
        let refusing = serve(1, |_| answer("404 Not SourceData", 0, b""));
        for (downloader, mirror) in [(None, None), (Some(downloader()), Some(refusing.as_str()))] {
            let error = published("mnist").open(data_dir.path(), downloader.as_ref(), mirror).unwrap_err();
            let message = error.to_string();
            for part in [
                &*data_dir.path().to_string_lossy(),
                &*folder.to_string_lossy(),
                "mnist is not in",
                "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-images-idx3-ubyte.gz",
                "t10k-labels-idx1-ubyte.gz",
            ] {
                assert!(message.contains(part), "{message} lacks {part}");
            }
            assert!(!message.contains("train-images"), "{message}");
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            assert_eq!(cause.is_some_and(|cause| cause.contains("404")), downloader.is_some());
        }
    }

    #[test]
    fn another_data_set_in_the_folder_is_refused() {
        let data_dir = TempDir::new().unwrap();
        let folder = data_dir.path().join("mnist");
        let mut files = digits();
        files[3].1 = gzip(&encode(0x0801, &[10], &[25; 10]));
        write(&folder, &files);
        let message = published("mnist").open(data_dir.path(), None, None).unwrap_err().to_string();
        assert!(
            message.contains(&*folder.to_string_lossy()) && message.contains("labels up to 25"),
            "{message}"
        );
    }
}
