//! A tar or zip archive of one of the folder layouts, read into memory. Paths inside it only give labels and
//! names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;

use super::class_folders::Listing;
use super::{Blob, Found, MAX_BYTES, align, cifar, idx, is_hidden, is_image_name};
use crate::{DatasetError, Picture, SourceKind};

/// How the archive is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Tar,
    TarGz,
    Zip,
}

impl Format {
    /// The format that a file name in lower case ends in.
    pub(crate) fn of(name: &str) -> Option<Self> {
        if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
            Some(Self::TarGz)
        } else if name.ends_with(".tar") {
            Some(Self::Tar)
        } else if name.ends_with(".zip") {
            Some(Self::Zip)
        } else {
            None
        }
    }
}

/// Reads an archive by the layout inside it; folders that hold everything else are left out of account.
///
/// # Errors
///
/// A damaged archive, one that unpacks to more than memory should take, and a layout that is not known.
pub(crate) fn read(path: &Path, format: Format) -> Result<Found, DatasetError> {
    let file = BufReader::with_capacity(1 << 20, File::open(path).map_err(DatasetError::read(path))?);
    let mut contents = Contents::new(path, MAX_BYTES);
    match format {
        Format::Tar => read_tar(file, &mut contents)?,
        Format::TarGz => read_tar(MultiGzDecoder::new(file), &mut contents)?,
        Format::Zip => read_zip(file, &mut contents)?,
    }
    if idx::is_layout(&contents.blobs) {
        return idx::read(path, contents.blobs);
    }
    if cifar::is_layout(&contents.blobs) {
        return cifar::read(path, contents.blobs);
    }
    align(path, SourceKind::Archive, contents.listing.unwrapped().labelled()?)
}

/// What was read so far, and how much more may be.
struct Contents<'a> {
    path: &'a Path,
    listing: Listing,
    /// Files of the IDX and CIFAR layouts.
    blobs: Vec<Blob>,
    limit: u64,
    bytes_left: u64,
}

impl<'a> Contents<'a> {
    fn new(path: &'a Path, limit: u64) -> Self {
        let listing = Listing { root: path.to_owned(), pictures: BTreeMap::new(), folders: BTreeSet::new() };
        Self { path, listing, blobs: Vec::new(), limit, bytes_left: limit }
    }

    fn add_folder(&mut self, name: &str) {
        if let Some(name) = normalised(name) {
            self.listing.folders.insert(name);
        }
    }

    fn add_file(&mut self, name: &str, content: impl Read) -> Result<(), DatasetError> {
        let Some(name) = normalised(name) else { return Ok(()) };
        let file_name = name.rsplit('/').next().unwrap_or_default();
        let (is_picture, is_blob) =
            (is_image_name(file_name), idx::is_name(file_name) || cifar::is_name(file_name));
        if is_picture || is_blob {
            let bytes = self.read_bytes(&name, content)?;
            let shown = format!("{}/{name}", self.path.display());
            if is_picture {
                self.listing.pictures.insert(name, Picture::Encoded { name: shown, bytes });
            } else {
                self.blobs.push(Blob::Memory { name: shown, bytes });
            }
        }
        Ok(())
    }

    /// All of an entry, whatever size its header claims.
    fn read_bytes(&mut self, name: &str, content: impl Read) -> Result<Arc<[u8]>, DatasetError> {
        let mut bytes = Vec::new();
        let read = content.take(self.bytes_left + 1).read_to_end(&mut bytes);
        read.map_err(|error| self.damaged(&format!("at '{name}'"), &error))?;
        self.bytes_left = self.bytes_left.checked_sub(bytes.len() as u64).ok_or_else(|| {
            let problem = format!(
                "unpacks to more than {} bytes at '{name}': unpack it and give the folder",
                self.limit
            );
            DatasetError::layout(self.path, problem)
        })?;
        Ok(bytes.into())
    }

    fn damaged(&self, place: &str, error: &dyn std::error::Error) -> DatasetError {
        DatasetError::malformed(
            self.path.display().to_string(),
            format!("the archive is damaged {place}: {error}"),
        )
    }
}

/// A path as class folders are told by: without `.` and root, nothing when a part of it is hidden.
fn normalised(name: &str) -> Option<String> {
    let names: Vec<&str> = name.split(['/', '\\']).filter(|part| !part.is_empty() && *part != ".").collect();
    (!names.is_empty() && !names.iter().any(|name| is_hidden(name))).then(|| names.join("/"))
}

fn read_tar(reader: impl Read, contents: &mut Contents<'_>) -> Result<(), DatasetError> {
    let mut archive = tar::Archive::new(reader);
    let entries = archive.entries().map_err(|error| contents.damaged("at its start", &error))?;
    for entry in entries {
        let place = match contents.listing.pictures.len() {
            0 => "at its start".to_owned(),
            count => format!("after {count} images"),
        };
        let entry = entry.map_err(|error| contents.damaged(&place, &error))?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let kind = entry.header().entry_type();
        if kind.is_dir() {
            contents.add_folder(&name);
        } else if kind.is_file() {
            contents.add_file(&name, entry)?;
        }
    }
    Ok(())
}

fn read_zip(file: BufReader<File>, contents: &mut Contents<'_>) -> Result<(), DatasetError> {
    let mut archive =
        zip::ZipArchive::new(file).map_err(|error| contents.damaged("or no zip file", &error))?;
    for index in 0..archive.len() {
        let place = format!("at entry {index}");
        let entry = archive.by_index(index).map_err(|error| contents.damaged(&place, &error))?;
        let name = entry.name().map_err(|error| contents.damaged(&place, &error))?.into_owned();
        if entry.is_dir() {
            contents.add_folder(&name);
        } else if entry.is_file() {
            contents.add_file(&name, entry)?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;
    use std::io::{Cursor, Write};
    use std::path::PathBuf;

    use tempfile::TempDir;
    use zip::write::SimpleFileOptions;

    use super::*;
    use crate::source;
    use crate::source::cifar::tests::record;
    use crate::source::idx::tests::{encode, gzip};

    type Entries<'a> = &'a [(&'a str, &'a [u8])];

    pub(crate) fn tar_of(entries: Entries<'_>) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, bytes) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            if name.ends_with('/') {
                header.set_entry_type(tar::EntryType::Directory);
            }
            builder.append_data(&mut header, name, *bytes).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn zip_of(entries: Entries<'_>) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in entries {
            match name.strip_suffix('/') {
                Some(name) => writer.add_directory(name, SimpleFileOptions::default()).unwrap(),
                None => {
                    writer.start_file(*name, SimpleFileOptions::default()).unwrap();
                    writer.write_all(bytes).unwrap();
                }
            }
        }
        writer.finish().unwrap().into_inner()
    }

    fn write(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    /// The same entries in each format.
    fn archives(entries: Entries<'_>) -> Vec<(TempDir, PathBuf)> {
        let tar = tar_of(entries);
        vec![
            write("pets.tar", &tar),
            write("pets.tar.gz", &gzip(&tar)),
            write("pets.TGZ", &gzip(&tar)),
            write("pets.zip", &zip_of(entries)),
        ]
    }

    #[test]
    fn class_folders_are_read_from_every_format() {
        let entries: Entries<'_> = &[
            ("./pets/", b""),
            ("./pets/train/dog/2.PNG", b"d"),
            ("./pets/train/cat/1.png", b"c"),
            ("./pets/.DS_Store/x.png", b"-"),
            ("__MACOSX/pets/._1.png", b"-"),
            ("./pets/labels.txt", b"-"),
            ("./pets/val/cat/3.jpg", b"v"),
            ("./pets/val/dog/4.jpg", b"w"),
        ];
        for (_folder, path) in archives(entries) {
            let found = source::read(&path).unwrap();
            assert_eq!(
                (found.classes, found.source),
                (vec!["cat".to_owned(), "dog".to_owned()], SourceKind::Archive)
            );
            let samples: Vec<_> = found.train.iter().chain(&found.val).collect();
            assert_eq!(samples.iter().map(|sample| sample.label).collect::<Vec<_>>(), [0, 1, 0, 1]);
            let Picture::Encoded { name, bytes } = &samples[0].picture else {
                panic!("archives are read into memory")
            };
            assert_eq!(name, &format!("{}/pets/train/cat/1.png", path.display()));
            assert_eq!(bytes[..], *b"c");
        }
    }

    #[test]
    fn idx_files_and_cifar_batches_are_read_from_archives() {
        let images = gzip(&encode(0x0803, &[2, 1, 1], &[0, 9]));
        let labels = encode(0x0801, &[2], &[0, 1]);
        for (_folder, path) in
            archives(&[("raw/train-images-idx3-ubyte.gz", &images), ("raw/train-labels-idx1-ubyte", &labels)])
        {
            let found = source::read(&path).unwrap();
            assert_eq!((found.train.len(), found.source), (2, SourceKind::Idx));
        }
        for (_folder, path) in archives(&[("cifar-10-batches-bin/data_batch_1.bin", &record(&[4]))]) {
            let found = source::read(&path).unwrap();
            assert_eq!((found.train[0].label, found.source), (4, SourceKind::Cifar));
        }
    }

    #[test]
    fn a_path_out_of_the_archive_leads_nowhere() {
        let entries: Entries<'_> = &[("a/1.png", b"a"), ("b/2.png", b"b"), ("../../c/3.png", b"c")];
        let (_folder, path) = write("evil.zip", &zip_of(entries));
        let found = source::read(&path).unwrap();
        assert_eq!((found.classes, found.train.len()), (vec!["a".to_owned(), "b".to_owned()], 2));
    }

    #[test]
    fn a_damaged_or_empty_archive_is_named() {
        let whole = tar_of(&[("cat/1.png", &[7; 2000]), ("dog/1.png", b"d")]);
        let zipped = zip_of(&[("cat/1.png", &[7; 2000]), ("dog/1.png", b"d")]);
        for (name, bytes, part) in [
            ("cut.tar", whole[..1000].to_vec(), "damaged"),
            ("cut.tar.gz", gzip(&whole)[..60].to_vec(), "damaged"),
            ("plain.tar.gz", whole.clone(), "damaged at its start"),
            ("cut.zip", zipped[..60].to_vec(), "damaged or no zip file"),
            ("empty.tar", tar_of(&[]), "holds no images"),
            ("empty.zip", zip_of(&[("cat/", b"")]), "holds no images"),
            ("loose.zip", zip_of(&[("1.png", b"")]), "in no class folder"),
            ("hole.zip", zip_of(&[("a/1.png", b""), ("b/1.png", b""), ("c/", b"")]), "'c' holds no images"),
        ] {
            let (_folder, path) = write(name, &bytes);
            let message = source::read(&path).unwrap_err().to_string();
            assert!(message.contains(name) && message.contains(part), "{message} lacks {part}");
        }
    }

    #[test]
    fn no_damage_makes_the_reader_panic() {
        let entries: Entries<'_> = &[("pets/cat/1.png", &[7; 700]), ("pets/dog/1.png", b"d")];
        let folder = TempDir::new().unwrap();
        for (name, bytes) in
            [("a.tar", tar_of(entries)), ("a.tar.gz", gzip(&tar_of(entries))), ("a.zip", zip_of(entries))]
        {
            let path = folder.path().join(name);
            for position in (0..bytes.len()).step_by(17) {
                fs::write(&path, &bytes[..position]).unwrap();
                let message =
                    source::read(&path).map_or_else(|error| error.to_string(), |_| String::from(name));
                assert!(message.contains(name), "{message}");
                let mut flipped = bytes.clone();
                flipped[position] ^= 0xff;
                fs::write(&path, flipped).unwrap();
                let message =
                    source::read(&path).map_or_else(|error| error.to_string(), |_| String::from(name));
                assert!(message.contains(name), "{message}");
            }
        }
    }

    #[test]
    fn what_unpacks_to_too_much_is_refused() {
        let bomb = zip_of(&[("cat/1.png", &[0; 60]), ("cat/2.png", &[0; 60])]);
        let (_folder, path) = write("bomb.zip", &bomb);
        let mut contents = Contents::new(&path, 100);
        let file = BufReader::new(File::open(&path).unwrap());
        let message = read_zip(file, &mut contents).unwrap_err().to_string();
        assert!(message.contains("bomb.zip") && message.contains("'cat/2.png'"), "{message}");
    }
}
