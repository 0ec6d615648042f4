//! A tar or zip archive of one of the folder layouts, read into memory or, where it is large, a temporary file. Paths
//! inside it only give labels and names.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use zip::CompressionMethod;

use super::class_folders::Listing;
use super::{Blob, Found, MAX_IMAGES, align, cifar, idx};
use crate::files::{HEAD_BYTES, is_hidden, shown_bytes};
use crate::{DatasetError, FileKind, ImageSource, LeftOut, Reason, SourceKind, Spool, shown};

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

    /// The format that a file begins as, whatever it is called.
    pub(crate) fn of_content(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, ..] => Some(Self::TarGz),
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some(Self::Zip),
            _ if head.get(257..262) == Some(b"ustar") => Some(Self::Tar),
            _ => None,
        }
    }
}

/// Bytes of a file that its format is told from.
pub(crate) const FORMAT_BYTES: usize = 512;
/// How archives begin that are not read, and what they are.
const OTHERS: [(&[u8], &str); 5] = [
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
    (b"\x28\xb5\x2f\xfd", "Zstandard"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!", "RAR"),
];

/// The kind of an archive that is not read.
pub(crate) fn unsupported(head: &[u8]) -> Option<&'static str> {
    OTHERS.into_iter().find(|(start, _)| head.starts_with(start)).map(|(_, kind)| kind)
}

/// Bytes of images that are kept in memory; what is more lies in a temporary file.
const MEMORY_BYTES: u64 = 256 << 20;
/// Bytes of all images of an archive.
const MAX_IMAGE_BYTES: u64 = 64 << 30;
/// Bytes of all IDX files or CIFAR batches of an archive, as they are in it.
const MAX_DATA_BYTES: u64 = 384 << 20;
/// What lies between two files of a tar archive: headers and long names.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// Where POSIX archives have the name of a sparse file. Its header has another one.
const SPARSE_NAME: &[u8] = b"GNU.sparse.name";
/// Tar archives are made of such blocks, and end with blocks of zeros.
const TAR_BLOCK: u64 = 512;

/// Reads an archive by the layout inside it; folders that hold everything else are left out of account.
///
/// # Errors
///
/// A damaged archive, one that unpacks to more than it may, and a layout that is not known.
pub(crate) fn read(path: &Path, format: Format, max_file_bytes: u64) -> Result<Found, DatasetError> {
    let file = BufReader::with_capacity(1 << 20, super::open(path)?);
    let limits = Limits { file: max_file_bytes, memory: MEMORY_BYTES, images: MAX_IMAGE_BYTES };
    let mut contents = Contents::new(path, limits);
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
    let images = contents.listing.unwrapped().labeled(&contents.left_out)?;
    Ok(align(SourceKind::Archive, images, contents.left_out))
}

/// How many bytes may be unpacked.
#[derive(Clone, Copy)]
struct Limits {
    /// Of one image.
    file: u64,
    /// Of all images, before they go to a temporary file.
    memory: u64,
    /// Of all images.
    images: u64,
}

/// What was read so far.
struct Contents<'a> {
    path: &'a Path,
    listing: Listing,
    /// Files of the IDX and CIFAR layouts.
    blobs: Vec<Blob>,
    left_out: LeftOut,
    limits: Limits,
    image_bytes: u64,
    blob_bytes: u64,
    spool: Option<Arc<Spool>>,
}

impl<'a> Contents<'a> {
    fn new(path: &'a Path, limits: Limits) -> Self {
        let listing = Listing { root: path.to_owned(), images: BTreeMap::new(), folders: BTreeSet::new() };
        let (blobs, left_out) = (Vec::new(), LeftOut::default());
        Self { path, listing, blobs, left_out, limits, image_bytes: 0, blob_bytes: 0, spool: None }
    }

    fn add_folder(&mut self, name: &[u8]) {
        if let Some(name) = normalized(name) {
            self.listing.folders.insert(name);
        }
    }

    /// An entry that is neither a file nor a folder.
    fn add_other(&mut self, name: &[u8], problem: &str) {
        let (name, reason) = match normalized(name) {
            Some(name) => (name, Reason::Unreadable(problem.to_owned())),
            None => (shown_bytes(name), Reason::Hidden),
        };
        self.left_out.add(self.within(&name), reason);
    }

    /// An entry, whatever size its header claims: no more of it is read than a file may have.
    fn add_file(&mut self, name: &[u8], claimed: u64, mut content: impl Read) -> Result<(), DatasetError> {
        let Some(name) = normalized(name) else {
            self.left_out.add(self.within(&shown_bytes(name)), Reason::Hidden);
            return Ok(());
        };
        let shown = self.within(&name);
        let file_name = name.rsplit('/').next().unwrap_or_default();
        if idx::is_name(file_name) || cifar::is_name(file_name) {
            return self.add_blob(shown, &name, content);
        }
        let mut head = Vec::new();
        content
            .by_ref()
            .take(HEAD_BYTES as u64)
            .read_to_end(&mut head)
            .map_err(|e| self.damaged_at(&name, &e))?;
        match FileKind::of(file_name, || head.clone()) {
            FileKind::Image => self.add_image(shown, name, claimed, head, content),
            FileKind::Unsupported(format) => {
                self.left_out.add(shown, Reason::Unsupported(format));
                Ok(())
            }
            FileKind::Other => {
                self.left_out.add(shown, Reason::NoImage);
                Ok(())
            }
        }
    }

    fn add_image(
        &mut self,
        shown: String,
        name: String,
        claimed: u64,
        mut bytes: Vec<u8>,
        content: impl Read,
    ) -> Result<(), DatasetError> {
        let limit = self.limits.file;
        if claimed <= limit {
            let rest = (limit + 1).saturating_sub(bytes.len() as u64);
            content.take(rest).read_to_end(&mut bytes).map_err(|error| self.damaged_at(&name, &error))?;
        }
        if claimed.max(bytes.len() as u64) > limit {
            let problem = format!("it has more than the limit of {limit} bytes (--max-file-size)");
            self.left_out.add(shown, Reason::Unreadable(problem));
            return Ok(());
        }
        self.image_bytes += bytes.len() as u64;
        if self.image_bytes > self.limits.images || self.listing.images.len() >= MAX_IMAGES {
            let (bytes, way_out) = (self.limits.images, "unpack it and give the folder");
            let problem =
                format!("unpacks to more than {bytes} bytes or {MAX_IMAGES} images at '{name}': {way_out}");
            return Err(DatasetError::layout(self.path, problem));
        }
        let image = self.keep(shown.clone(), bytes)?;
        if self.listing.images.insert(name, image).is_some() {
            let problem =
                "the archive holds several files of this name, of which the last one is used".to_owned();
            self.left_out.add(shown, Reason::Unreadable(problem));
        }
        Ok(())
    }

    /// The image in memory, or in a temporary file when much is in memory.
    fn keep(&mut self, name: String, bytes: Vec<u8>) -> Result<ImageSource, DatasetError> {
        if self.image_bytes <= self.limits.memory {
            return Ok(ImageSource::Encoded { name, bytes: bytes.into() });
        }
        let failed = |error: std::io::Error| {
            let folder = std::env::temp_dir();
            let problem = format!(
                "cannot be unpacked into {}: {error}; set TMPDIR to a folder with more space, or unpack it and give the folder",
                shown(folder)
            );
            DatasetError::layout(self.path, problem)
        };
        let spool = match &self.spool {
            Some(spool) => Arc::clone(spool),
            None => Arc::new(Spool::new().map_err(failed)?),
        };
        let place = spool.put(&bytes).map_err(failed)?;
        self.spool = Some(Arc::clone(&spool));
        Ok(ImageSource::Spooled { name, spool, place })
    }

    fn add_blob(&mut self, shown: String, name: &str, content: impl Read) -> Result<(), DatasetError> {
        let left = MAX_DATA_BYTES - self.blob_bytes;
        let mut bytes = Vec::new();
        content.take(left + 1).read_to_end(&mut bytes).map_err(|error| self.damaged_at(name, &error))?;
        if bytes.len() as u64 > left {
            let problem = format!(
                "unpacks to more than {MAX_DATA_BYTES} bytes at '{name}': unpack it and give the folder"
            );
            return Err(DatasetError::layout(self.path, problem));
        }
        self.blob_bytes += bytes.len() as u64;
        self.blobs.push(Blob::Memory { name: shown, bytes: bytes.into() });
        Ok(())
    }

    /// What messages call an entry.
    fn within(&self, name: &str) -> String {
        format!("{}/{name}", shown(self.path))
    }

    /// A tar archive that was cut between two files looks whole but for its end.
    fn add_missing_end(&mut self) {
        let count = self.listing.images.len();
        let problem =
            format!("the archive has no end marker: what follows after {count} images may be missing");
        self.left_out.add(shown(self.path), Reason::Unreadable(problem));
    }

    /// What follows the end of a tar archive, or of its compressed data, and is not read.
    fn add_rest(&mut self, problem: String) {
        self.left_out.add(shown(self.path), Reason::Unreadable(problem));
    }

    fn damaged_at(&self, name: &str, error: &dyn std::error::Error) -> DatasetError {
        self.damaged(&format!("at '{name}'"), error)
    }

    fn not_supported(&self, problem: &str) -> DatasetError {
        let problem =
            format!("is of a kind that is not supported ({problem}): unpack it and give the folder");
        DatasetError::layout(self.path, problem)
    }

    fn damaged(&self, place: &str, error: &dyn std::error::Error) -> DatasetError {
        DatasetError::malformed(shown(self.path), format!("the archive is damaged {place}: {error}"))
    }
}

/// A path as class folders are told by: without `.` and root, nothing when a part of it is hidden.
fn normalized(name: &[u8]) -> Option<String> {
    let parts = name.split(|byte| *byte == b'/');
    let names: Vec<String> =
        parts.filter(|part| !part.is_empty() && *part != b".").map(shown_bytes).collect();
    (!names.is_empty() && !names.iter().any(|name| is_hidden(name))).then(|| names.join("/"))
}

/// A reader that gives no more bytes than are left, so that a header does not take the memory of a file.
struct Rationed<'a, R> {
    inner: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for Rationed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = usize::try_from(self.left.get()).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 && !buffer.is_empty() {
            let problem = format!("a header of more than {MAX_HEADER_BYTES} bytes");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, problem));
        }
        let read = self.inner.read(&mut buffer[..most])?;
        self.left.set(self.left.get() - read as u64);
        Ok(read)
    }
}

/// What an entry of an archive is.
enum Kind {
    File,
    Folder,
    /// Neither of these, and why that is not used.
    Other(&'static str),
    /// Facts about other entries.
    Metadata,
}

impl Kind {
    const LINK: Self = Self::Other("a link inside an archive: unpack it and give the folder");
    const SPARSE: Self = Self::Other("a sparse file inside an archive: unpack it and give the folder");
    const DEVICE: Self = Self::Other("it is a device, not a regular file");
    const PIPE: Self = Self::Other("it is a named pipe, not a regular file");
    const SOCKET: Self = Self::Other("it is a socket, not a regular file");
    const UNKNOWN: Self = Self::Other("of a kind that is not known: unpack the archive and give the folder");

    /// By the type in the header. POSIX archives mark sparse files in an extended header instead, and have a map of the
    /// holes before their content.
    fn of_tar<R: Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<Self> {
        let kind = entry.header().entry_type();
        Ok(match kind {
            tar::EntryType::Regular | tar::EntryType::Continuous => {
                match extension(entry, |key| key.starts_with(b"GNU.sparse."))? {
                    Some(_) => Self::SPARSE,
                    None => Self::File,
                }
            }
            tar::EntryType::Directory => Self::Folder,
            tar::EntryType::Link | tar::EntryType::Symlink => Self::LINK,
            tar::EntryType::Char | tar::EntryType::Block => Self::DEVICE,
            tar::EntryType::Fifo => Self::PIPE,
            tar::EntryType::GNUSparse => Self::SPARSE,
            tar::EntryType::GNULongName
            | tar::EntryType::GNULongLink
            | tar::EntryType::XGlobalHeader
            | tar::EntryType::XHeader => Self::Metadata,
            // A volume's label, the attributes of Solaris, and the list of a folder in an incremental archive.
            _ => match kind.as_byte() {
                b'V' | b'X' => Self::Metadata,
                b'D' => Self::Folder,
                _ => Self::UNKNOWN,
            },
        })
    }

    /// By the mode, where the archive is from Unix.
    fn of_zip(mode: Option<u32>, is_folder: bool) -> Self {
        match mode.unwrap_or_default() & 0o170_000 {
            0o120_000 => Self::LINK,
            0o020_000 | 0o060_000 => Self::DEVICE,
            0o010_000 => Self::PIPE,
            0o140_000 => Self::SOCKET,
            _ if is_folder => Self::Folder,
            _ => Self::File,
        }
    }
}

/// The first value of a tar entry's extended header whose key `is_it`. Lines of it that break its format, such as binary
/// attributes, are passed over.
fn extension<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    is_it: impl Fn(&[u8]) -> bool,
) -> io::Result<Option<Vec<u8>>> {
    let kind = entry.header().entry_type();
    if kind.is_pax_global_extensions() || kind.is_pax_local_extensions() {
        // Its content would be read for it.
        return Ok(None);
    }
    let lines = entry.pax_extensions()?.into_iter().flatten().flatten();
    Ok(lines.into_iter().find(|line| is_it(line.key_bytes())).map(|line| line.value_bytes().to_vec()))
}

/// The bytes of a sparse file that are in the archive. Its holes, which may be as large as they like, are not.
fn packed_size<R: Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<u64> {
    let stated = extension(entry, |key| key == b"size")?;
    let stated = stated.and_then(|value| String::from_utf8(value).ok()?.parse::<u64>().ok());
    let size = stated.map_or_else(|| entry.header().entry_size(), Ok)?;
    Ok(size.checked_next_multiple_of(TAR_BLOCK).unwrap_or(size))
}

fn read_tar(reader: impl Read, contents: &mut Contents<'_>) -> Result<(), DatasetError> {
    let left = Cell::new(MAX_HEADER_BYTES);
    let mut archive = tar::Archive::new(Rationed { inner: reader, left: &left });
    let mut entries = archive.entries().map_err(|error| contents.damaged("at its start", &error))?;
    // Bytes of the entry before that are passed over on the way to the next header.
    let mut unread = 0;
    loop {
        left.set(MAX_HEADER_BYTES.saturating_add(unread));
        let Some(entry) = entries.next() else { break };
        let place = match contents.listing.images.len() {
            0 => "at its start".to_owned(),
            count => format!("after {count} images"),
        };
        let mut entry = entry.map_err(|error| contents.damaged(&place, &error))?;
        left.set(u64::MAX);
        unread = read_tar_entry(&mut entry, contents, &place)?;
    }
    if left.get() > MAX_HEADER_BYTES - TAR_BLOCK {
        contents.add_missing_end();
        return Ok(());
    }
    left.set(u64::MAX);
    if let Some(problem) = after_the_end(archive.into_inner()) {
        contents.add_rest(problem);
    }
    Ok(())
}

/// What is wrong with the rest of a tar archive, which is zeros and, if it is compressed, a checksum.
fn after_the_end(mut rest: impl Read) -> Option<String> {
    let mut chunk = vec![0; 1 << 16];
    loop {
        match rest.read(&mut chunk) {
            Ok(0) => return None,
            Ok(length) if chunk[..length].iter().all(|byte| *byte == 0) => {}
            Ok(_) => {
                return Some(
                    "what follows the first end marker, such as another archive, is not read".to_owned(),
                );
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Some(format!("the archive is damaged at its end: {error}")),
        }
    }
}

/// Whether the name of an entry is likely to be that of a header that could not be read: with a line break in it. Its other name, for
/// programs that do not know such headers, is cut at 100 bytes or has question marks.
fn has_lost_its_name<R: Read>(entry: &mut tar::Entry<'_, R>, name: &[u8]) -> io::Result<bool> {
    if !(name.contains(&b'?') || name.len() >= 100) || extension(entry, |key| key == b"path")?.is_some() {
        return Ok(false);
    }
    Ok(entry.pax_extensions()?.is_some_and(|mut lines| lines.any(|line| line.is_err())))
}

/// Adds an entry, and says how many bytes of it are not read.
fn read_tar_entry<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    contents: &mut Contents<'_>,
    place: &str,
) -> Result<u64, DatasetError> {
    let read = Kind::of_tar(entry).and_then(|kind| Ok((kind, extension(entry, |key| key == SPARSE_NAME)?)));
    let (kind, sparse_name) = read.map_err(|error| contents.damaged(place, &error))?;
    let name = sparse_name.unwrap_or_else(|| entry.path_bytes().into_owned());
    let has_lost_its_name = !matches!(kind, Kind::Metadata)
        && has_lost_its_name(entry, &name).map_err(|error| contents.damaged(place, &error))?;
    match kind {
        _ if has_lost_its_name => {
            contents.add_other(
                &name,
                "its name has a line break, which cannot be read in this archive: rename it",
            );
        }
        Kind::File => contents.add_file(&name, entry.size(), &mut *entry)?,
        Kind::Folder => contents.add_folder(&name),
        Kind::Other(problem) => contents.add_other(&name, problem),
        Kind::Metadata => {}
    }
    let passed = match entry.header().entry_type().is_gnu_sparse() {
        // Reading it would read its holes.
        true => packed_size(entry),
        false => io::copy(entry, &mut io::sink()).map(|_| 0),
    };
    passed.map_err(|error| contents.damaged(place, &error))
}

fn read_zip(mut file: BufReader<File>, contents: &mut Contents<'_>) -> Result<(), DatasetError> {
    // Looking for the start of an archive that has a program before it goes wrong for some that have none.
    let at_start = zip::read::Config { archive_offset: zip::read::ArchiveOffset::Known(0) };
    if let Ok(archive) = zip::ZipArchive::with_config(at_start, &mut file) {
        return read_zip_entries(archive, contents);
    }
    let archive =
        zip::ZipArchive::new(file).map_err(|error| contents.damaged("or not a zip file", &error))?;
    read_zip_entries(archive, contents)
}

fn read_zip_entries<R: Read + io::Seek>(
    mut archive: zip::ZipArchive<R>,
    contents: &mut Contents<'_>,
) -> Result<(), DatasetError> {
    for index in 0..archive.len() {
        let place = format!("at entry {index}");
        let entry = archive.by_index(index).map_err(|error| match error {
            zip::result::ZipError::UnsupportedArchive(problem) => contents.not_supported(problem),
            error => contents.damaged(&place, &error),
        })?;
        if !matches!(entry.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
            return Err(contents.not_supported(&format!("compressed by {}", entry.compression())));
        }
        // A name that is not UTF-8 is in the first code page of MS-DOS, which has a character for each byte.
        // Some programs for Windows write backslashes between folders.
        let name = entry.name().map_err(|error| contents.damaged(&place, &error))?.replace('\\', "/");
        match Kind::of_zip(entry.unix_mode(), entry.is_dir()) {
            Kind::File => contents.add_file(name.as_bytes(), entry.size(), entry)?,
            Kind::Folder => contents.add_folder(name.as_bytes()),
            Kind::Other(problem) => contents.add_other(name.as_bytes(), problem),
            Kind::Metadata => {}
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
            let ImageSource::Encoded { name, bytes } = &samples[0].source else {
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
    fn a_zip_with_needless_records_at_its_end_and_one_after_a_program_are_read() {
        // The first entry's header in the directory is as long as the records of ZIP64 are.
        let entries: Entries<'_> = &[("a/234567890123456789012345.png", b"a"), ("b/2.png", b"b")];
        let plain = zip_of(entries);
        let (rest, last) = plain.split_at(plain.len() - 22);
        let number = |at: usize| u64::from(u32::from_le_bytes(*last[at..].first_chunk().unwrap()));
        let (size, offset) = (number(12), number(16));
        assert_eq!(&rest[offset as usize + 76..][..4], b"PK\x01\x02");
        let counts = [2u64, 2, size, offset].map(u64::to_le_bytes).concat();
        let record =
            [&b"PK\x06\x06"[..], &44u64.to_le_bytes(), &[30, 3, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0], &counts];
        let end = rest.len() as u64;
        let locator = [&b"PK\x06\x07"[..], &[0; 4], &end.to_le_bytes(), &1u32.to_le_bytes()].concat();
        let with_records = [rest, &record.concat(), &locator, last].concat();
        let after_program = [&b"#!/bin/sh\nexec unzip $0\n"[..], &plain].concat();
        for bytes in [with_records, after_program] {
            let (_folder, path) = write("pets.zip", &bytes);
            assert_eq!(source::read(&path).unwrap().train.len(), 2);
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
    fn a_backslash_is_a_part_of_a_name_in_tar_and_stands_between_folders_in_zip() {
        let entries: Entries<'_> = &[(r"a\x/1.png", b"1"), (r"a\y/2.png", b"2"), ("b/3.png", b"3")];
        let (_folder, path) = write("pets.tar", &tar_of(entries));
        assert_eq!(source::read(&path).unwrap().classes, [r"a\x", r"a\y", "b"]);
        let (_folder, path) = write("pets.zip", &zip_of(&[(r"a\1.png", b"1"), (r"b\2.png", b"2")]));
        assert_eq!(source::read(&path).unwrap().classes, ["a", "b"]);
    }

    #[test]
    fn of_several_files_of_one_name_the_others_are_named() {
        let entries: Entries<'_> = &[("a/1.png", b"first"), ("b/2.png", b"b"), ("./a/1.png", b"last")];
        for bytes in [("pets.tar", tar_of(entries)), ("pets.zip", zip_of(entries))] {
            let (_folder, path) = write(bytes.0, &bytes.1);
            let found = source::read(&path).unwrap();
            assert_eq!(found.train.len(), 2);
            let unreadable = &found.left_out.unreadable;
            assert!(unreadable.len() == 1 && unreadable[0].name.ends_with("a/1.png"), "{unreadable:?}");
        }
    }

    #[test]
    fn what_follows_the_end_is_named_and_a_checksum_is_checked() {
        let whole = tar_of(&[("a/1.png", b"1"), ("b/2.png", b"2")]);
        let left_out = |name: &str, bytes: &[u8]| {
            let (_folder, path) = write(name, bytes);
            let unreadable = source::read(&path).unwrap().left_out.unreadable;
            unreadable.into_iter().map(|bad| bad.message).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(left_out("pets.tar", &whole), "");
        assert_eq!(left_out("pets.tar.gz", &gzip(&whole)), "");
        assert!(left_out("two.tar", &[&whole[..], &whole].concat()).contains("first end marker"));
        let mut wrong = gzip(&whole);
        let checksum = wrong.len() - 8;
        wrong[checksum] ^= 1;
        assert!(left_out("wrong.tar.gz", &wrong).contains("damaged at its end"));
    }

    #[test]
    fn a_name_with_a_line_break_in_an_extended_header_is_not_taken_for_another_one() {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, path) in [("?/1.png", "\u{e9}/1\n.png"), ("a/1.png", "a/1.png"), ("b/2.png", "b/2.png")] {
            let record = format!(" path={path}\n");
            let length = record.len() + 2;
            let mut header = tar::Header::new_ustar();
            header.set_entry_type(tar::EntryType::XHeader);
            header.set_size(length as u64);
            header.set_cksum();
            builder.append(&header, format!("{length}{record}").as_bytes()).unwrap();
            let mut header = tar::Header::new_ustar();
            header.set_path(name).unwrap();
            header.set_size(1);
            header.set_cksum();
            builder.append(&header, &b"-"[..]).unwrap();
        }
        let (_folder, path) = write("pets.tar", &builder.into_inner().unwrap());
        let found = source::read(&path).unwrap();
        assert_eq!(found.classes, ["a", "b"]);
        assert!(found.left_out.unreadable[0].message.contains("line break"), "{:?}", found.left_out);
    }

    #[test]
    fn names_that_are_not_utf8_stay_apart() {
        let names: [&[u8]; 4] =
            [b"cl\xe9/\xe4.png", b"cl\xe9/\xf6.png", b"cl\xe8/1.png", b"cl\xc3\xa9/1.png"];
        let mut builder = tar::Builder::new(Vec::new());
        for name in names {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name);
            header.set_size(1);
            header.set_cksum();
            builder.append(&header, &b"-"[..]).unwrap();
        }
        let (_folder, path) = write("pets.tar", &builder.into_inner().unwrap());
        let found = source::read(&path).unwrap();
        assert_eq!(found.classes, [r"cl\xE8", r"cl\xE9", "clé"]);
        let names: Vec<String> = found.train.iter().map(|sample| sample.source.name()).collect();
        assert_eq!(names.len(), 4);
        assert_eq!(names[1], format!(r"{}/cl\xE9/\xE4.png", path.display()));
        // A name of the same length in its place.
        let mut zip = zip_of(&[("cl1/1.png", b"1"), ("cl2/1.png", b"2")]);
        for (name, byte) in [(b"cl1", 0xe9), (b"cl2", 0xe8)] {
            let places: Vec<usize> = (0..zip.len() - 4).filter(|&at| zip[at..].starts_with(name)).collect();
            assert_eq!(places.len(), 2, "in its header and in the directory");
            places.into_iter().for_each(|at| zip[at + 2] = byte);
        }
        let (_folder, path) = write("pets.zip", &zip);
        assert_eq!(source::read(&path).unwrap().classes, ["clΘ", "clΦ"], "as MS-DOS wrote them");
    }

    #[test]
    fn a_damaged_or_empty_archive_is_named() {
        let whole = tar_of(&[("cat/1.png", &[7; 2000]), ("dog/1.png", b"d")]);
        let zipped = zip_of(&[("cat/1.png", &[7; 2000]), ("dog/1.png", b"d")]);
        for (name, bytes, part) in [
            ("cut.tar", whole[..1000].to_vec(), "damaged"),
            ("cut.tar.gz", gzip(&whole)[..60].to_vec(), "damaged"),
            ("cut.zip", zipped[..60].to_vec(), "damaged or not a zip file"),
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
        let mut contents = Contents::new(&path, Limits { file: 100, memory: 100, images: 100 });
        let file = BufReader::new(File::open(&path).unwrap());
        let message = read_zip(file, &mut contents).unwrap_err().to_string();
        assert!(message.contains("bomb.zip") && message.contains("'cat/2.png'"), "{message}");
    }

    #[test]
    fn an_archive_is_known_by_its_content_whatever_it_is_called() {
        let entries: Entries<'_> = &[("cat/1.png", b"c"), ("dog/2.png", b"d")];
        let tar = tar_of(entries);
        for bytes in [tar.clone(), gzip(&tar), zip_of(entries)] {
            for name in ["pets.tar", "pets.tar.gz", "pets.zip", "pets", "pets.tar.xz"] {
                let (_folder, path) = write(name, &bytes);
                assert_eq!(source::read(&path).unwrap().train.len(), 2, "{name}");
            }
        }
        for (start, kind) in OTHERS {
            let (_folder, path) = write("pets.tar.xz", start);
            let message = source::read(&path).unwrap_err().to_string();
            assert!(message.contains(kind) && message.contains("pack it as"), "{message}");
        }
    }

    #[test]
    fn a_tar_archive_that_was_cut_between_two_files_is_said_to_have_no_end() {
        let tar = tar_of(&[("cat/1.png", b"c"), ("dog/2.png", b"d"), ("dog/3.png", b"e")]);
        for (length, faults) in [(tar.len(), 0), (2 * 1024, 1), (3 * 1024, 1)] {
            for (name, bytes) in [("pets.tar", tar[..length].to_vec()), ("pets.tar.gz", gzip(&tar[..length]))]
            {
                let (_folder, path) = write(name, &bytes);
                let found = source::read(&path).unwrap();
                assert_eq!(found.train.len(), if length == 2 * 1024 { 2 } else { 3 });
                assert_eq!(found.left_out.unreadable.len(), faults, "{name}, {length} bytes");
            }
        }
    }

    #[test]
    fn a_zip_archive_that_is_encrypted_or_otherwise_compressed_is_not_called_damaged() {
        let mut zip = zip_of(&[("cat/1.png", b"c"), ("dog/2.png", b"d")]);
        for (start, flags) in [(b"PK\x03\x04", 6), (b"PK\x01\x02", 8)] {
            let places: Vec<usize> = (0..zip.len() - 4).filter(|&at| zip[at..].starts_with(start)).collect();
            places.into_iter().for_each(|at| zip[at + flags] |= 1);
        }
        let (_folder, path) = write("pets.zip", &zip);
        let message = source::read(&path).unwrap_err().to_string();
        assert!(message.contains("Password") && message.contains("unpack it"), "{message}");
        let mut zip = zip_of(&[("cat/1.png", b"c"), ("dog/2.png", b"d")]);
        for (start, method) in [(b"PK\x03\x04", 8), (b"PK\x01\x02", 10)] {
            let places: Vec<usize> = (0..zip.len() - 4).filter(|&at| zip[at..].starts_with(start)).collect();
            places.into_iter().for_each(|at| zip[at + method] = 12);
        }
        let (_folder, path) = write("pets.zip", &zip);
        let message = source::read(&path).unwrap_err().to_string();
        assert!(message.contains("compressed by") && message.contains("unpack it"), "{message}");
    }

    #[test]
    fn an_image_over_the_limit_is_named_and_the_rest_is_read() {
        let entries: Entries<'_> =
            &[("a/1.png", b"a"), ("a/2.png", &[0; 3000]), ("b/3.png", b"b"), ("b/4.png", &[0; 1000])];
        for (_folder, path) in archives(entries) {
            let format = Format::of(&path.to_string_lossy().to_ascii_lowercase()).unwrap();
            let found = read(&path, format, 1000).unwrap();
            assert_eq!(found.train.len(), 3, "{}", path.display());
            let [bad] = &found.left_out.unreadable[..] else { panic!("{:?}", found.left_out) };
            assert!(bad.name.ends_with("a/2.png") && bad.message.contains("1000 bytes"), "{bad:?}");
        }
    }

    /// An entry of `size` zero bytes behind a header that says so, without holding them.
    fn bomb(kind: tar::EntryType, size: u64) -> impl Read {
        let mut header = tar::Header::new_gnu();
        header.set_path("cat/1.png").unwrap();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        Cursor::new(header.as_bytes().to_vec()).chain(io::repeat(0).take(size))
    }

    #[test]
    fn gigabytes_of_nothing_take_no_memory() {
        let limits = Limits { file: 1000, memory: 1000, images: 10_000 };
        let mut contents = Contents::new(Path::new("bomb.tar"), limits);
        read_tar(bomb(tar::EntryType::Regular, 3 << 20).chain(io::repeat(0).take(1024)), &mut contents)
            .unwrap();
        assert_eq!(contents.left_out.unreadable.len(), 1);
        for kind in [tar::EntryType::GNULongName, tar::EntryType::GNULongLink, tar::EntryType::XHeader] {
            let message = read_tar(bomb(kind, 6 << 30), &mut contents).unwrap_err().to_string();
            assert!(message.contains("bomb.tar") && message.contains("a header of more than"), "{message}");
        }
    }

    /// What is said of each entry that cannot be read, by its name in the archive.
    fn unreadable(found: &Found) -> Vec<(&str, &str)> {
        let bad = found.left_out.unreadable.iter();
        bad.map(|bad| (bad.name.split_once("/pets.").unwrap().1, bad.message.as_str())).collect()
    }

    const LINK: &str = "a link inside an archive: unpack it and give the folder";

    #[test]
    fn links_and_devices_of_a_zip_archive_are_named() {
        let options = SimpleFileOptions::default();
        let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
        for name in ["cat/1.png", "dog/2.png", "dog/pipe.png"] {
            writer.start_file(name, options.unix_permissions(0o644)).unwrap();
        }
        writer.add_symlink("dog/3.png", "../cat/1.png", options).unwrap();
        writer.add_symlink("dog/.4.png", "../cat/1.png", options).unwrap();
        writer.add_symlink("rat", "cat", options).unwrap();
        let mut zip = writer.finish().unwrap().into_inner();
        let directory = (0..zip.len()).rfind(|&at| zip[at..].starts_with(b"dog/pipe.png")).unwrap() - 46;
        assert_eq!(zip[directory + 41] >> 4, 0o10, "the type of a file in its mode");
        zip[directory + 41] = 0o01 << 4;
        let (_folder, path) = write("pets.zip", &zip);
        let found = source::read(&path).unwrap();
        assert_eq!((found.train.len(), found.left_out.hidden.count), (2, 1));
        let pipe = ("zip/dog/pipe.png", "it is a named pipe, not a regular file");
        assert_eq!(unreadable(&found), [pipe, ("zip/dog/3.png", LINK), ("zip/rat", LINK)]);
    }

    /// A tar archive of entries of these kinds, each with three bytes of content where it may have some.
    fn tar_of_kinds(kinds: &[(u8, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for &(kind, name) in kinds {
            let mut header = tar::Header::new_gnu();
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(tar::EntryType::new(kind));
            let is_sparse = kind == b'S';
            header.set_size(if is_sparse { 512 } else { 3 * u64::from(!b"123456".contains(&kind)) });
            if let (true, Some(gnu)) = (is_sparse, header.as_gnu_mut()) {
                // An exbibyte of nothing before a block of content.
                gnu.sparse[0].set_offset(1 << 60);
                gnu.sparse[0].set_length(512);
                gnu.set_real_size((1 << 60) + 512);
            }
            header.set_cksum();
            bytes.extend_from_slice(header.as_bytes());
            if !b"123456".contains(&kind) {
                bytes.extend_from_slice(&[b"abc".as_slice(), &[0; 509]].concat());
            }
        }
        [bytes, vec![0; 1024]].concat()
    }

    #[test]
    fn what_is_no_file_in_a_tar_archive_is_named() {
        let tar = tar_of_kinds(&[
            (b'5', "cat"),
            (b'0', "cat/1.png"),
            (b'1', "cat/2.png"),
            (b'2', "cat/3.png"),
            (b'3', "cat/4.png"),
            (b'4', "cat/.5.png"),
            (b'6', "cat/6.png"),
            (b'S', "cat/7.png"),
            (b'g', "pax_global_header"),
            (b'V', "a label"),
            (b'Q', "cat/8.png"),
            (b'7', "dog/1.png"),
            (b'S', "dog/2.png"),
        ]);
        let (_folder, path) = write("pets.tar", &tar);
        let found = source::read(&path).unwrap();
        assert_eq!((found.train.len(), found.left_out.hidden.count), (2, 1));
        let sparse = "a sparse file inside an archive: unpack it and give the folder";
        let expected = [
            ("tar/cat/2.png", LINK),
            ("tar/cat/3.png", LINK),
            ("tar/cat/4.png", "it is a device, not a regular file"),
            ("tar/cat/6.png", "it is a named pipe, not a regular file"),
            ("tar/cat/7.png", sparse),
            ("tar/cat/8.png", "of a kind that is not known: unpack the archive and give the folder"),
            ("tar/dog/2.png", sparse),
        ];
        assert_eq!(unreadable(&found), expected);
        // Cut after a sparse file.
        let (_folder, path) = write("pets.tar", &tar[..tar.len() - 1024]);
        let message = source::read(&path).unwrap().left_out.unreadable.pop().unwrap().message;
        assert!(message.contains("no end marker"), "{message}");
    }

    #[test]
    fn a_sparse_file_of_a_posix_archive_is_named_as_it_was() {
        let mut builder = tar::Builder::new(Vec::new());
        let sparse = [
            ("GNU.sparse.major", b"1".as_slice()),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", b"cat/2.png"),
            ("GNU.sparse.realsize", b"1000000"),
        ];
        for (name, extensions) in [
            ("cat/1.png", &[("SCHILY.xattr.user.bytes", b"1\n2".as_slice())][..]),
            ("cat/GNUSparseFile.7/2.png", &sparse),
            ("dog/3.png", &[]),
        ] {
            builder.append_pax_extensions(extensions.iter().copied()).unwrap();
            let mut header = tar::Header::new_ustar();
            header.set_size(3);
            builder.append_data(&mut header, name, &b"abc"[..]).unwrap();
        }
        let (_folder, path) = write("pets.tar", &builder.into_inner().unwrap());
        let found = source::read(&path).unwrap();
        assert_eq!(found.train.len(), 2);
        assert!(matches!(unreadable(&found)[..], [("tar/cat/2.png", message)] if message.contains("sparse")));
    }

    #[test]
    fn a_large_archive_is_put_away_in_a_temporary_file() {
        let png = |value: u8| {
            let mut bytes = Cursor::new(Vec::new());
            image::GrayImage::from_pixel(2, 1, image::Luma([value]))
                .write_to(&mut bytes, image::ImageFormat::Png)
                .unwrap();
            bytes.into_inner()
        };
        let (first, second, third) = (png(1), png(2), png(3));
        let tar = tar_of(&[("a/1.png", &first), ("b/2.png", &second), ("b/3.png", &third)]);
        let limits = Limits { file: 1000, memory: first.len() as u64, images: 10_000 };
        let mut contents = Contents::new(Path::new("large.tar"), limits);
        read_tar(&tar[..], &mut contents).unwrap();
        let images: Vec<&ImageSource> = contents.listing.images.values().collect();
        assert!(matches!(images[0], ImageSource::Encoded { .. }));
        assert!(matches!(images[2], ImageSource::Spooled { .. }));
        for (image, value) in images.iter().zip([1, 2, 3]) {
            assert_eq!(image.decode(&crate::DecodeLimits::default()).unwrap().pixels, [value; 2]);
        }
        assert_eq!(images[2].name(), "large.tar/b/3.png");
    }

    #[test]
    fn images_are_known_by_their_content_and_what_is_left_out_is_counted() {
        let entries: Entries<'_> = &[
            ("a/1", b"GIF89a"),
            ("b/2.png", b""),
            ("b/3.heic", b""),
            ("b/notes.txt", b"GIF89a"),
            ("b/.hidden", b""),
        ];
        for (_folder, path) in archives(entries) {
            let found = source::read(&path).unwrap();
            assert_eq!(found.train.len(), 2);
            let left_out = found.left_out;
            assert_eq!(left_out.unsupported["HEIC"].count, 1);
            assert_eq!((left_out.no_images.count, left_out.hidden.count), (1, 1));
        }
    }
}
