//! Reading the entries of a tar archive, with bounded memory even for hostile headers.

use std::cell::Cell;
use std::io::{self, Read};

use super::entries::{Entries, EntryKind};
use crate::DatasetError;
use crate::files::shown_bytes;

/// Largest total size of the headers and long names between two files of a tar archive.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// The key of a sparse file's name in the extended header of a POSIX archive, whose plain header has a made-up name.
const SPARSE_NAME: &[u8] = b"GNU.sparse.name";
/// Size of the blocks that a tar archive consists of. It ends with blocks of zeros.
const TAR_BLOCK: u64 = 512;

impl EntryKind {
    /// The kind by the type in the header. Sparse files in POSIX archives have the type of a regular file and are
    /// recognized by keys in their extended header; their content would begin with a map of the holes.
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
            // `V` is a volume label, `X` are Solaris attributes, and `D` is a folder listing in an incremental archive.
            _ => match kind.as_byte() {
                b'V' | b'X' => Self::Metadata,
                b'D' => Self::Folder,
                _ => Self::UNKNOWN,
            },
        })
    }
}

/// A reader that fails after a number of bytes, so that a header cannot make the `tar` crate allocate gigabytes.
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

/// The first value in an entry's extended header whose key satisfies `is_it`. Invalid lines, which binary attributes
/// cause, are skipped.
fn extension<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    is_it: impl Fn(&[u8]) -> bool,
) -> io::Result<Option<Vec<u8>>> {
    let kind = entry.header().entry_type();
    if kind.is_pax_global_extensions() || kind.is_pax_local_extensions() {
        // For an entry that is itself an extended header, `pax_extensions` would read its content.
        return Ok(None);
    }
    let lines = entry.pax_extensions()?.into_iter().flatten().flatten();
    Ok(lines.into_iter().find(|line| is_it(line.key_bytes())).map(|line| line.value_bytes().to_vec()))
}

/// The number of bytes of a sparse file in the archive, without its holes, whose size is unlimited.
fn packed_size<R: Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<u64> {
    let stated = extension(entry, |key| key == b"size")?;
    let stated = stated.and_then(|value| String::from_utf8(value).ok()?.parse::<u64>().ok());
    let size = stated.map_or_else(|| entry.header().entry_size(), Ok)?;
    Ok(size.checked_next_multiple_of(TAR_BLOCK).unwrap_or(size))
}

/// Passes all entries of a tar archive to `contents`.
pub(super) fn read_tar(reader: impl Read, contents: &mut impl Entries) -> Result<(), DatasetError> {
    let left = Cell::new(MAX_HEADER_BYTES);
    let mut archive = tar::Archive::new(Rationed { inner: reader, left: &left });
    let mut entries = archive.entries().map_err(|error| contents.damaged("at its start", &error))?;
    // Bytes of the previous entry that the `tar` crate still has to skip before the next header.
    let mut unread = 0;
    loop {
        left.set(MAX_HEADER_BYTES.saturating_add(unread));
        let Some(entry) = entries.next() else { break };
        let place = match contents.images() {
            0 => "at its start".to_owned(),
            number => format!("after {number} images"),
        };
        let mut entry = entry.map_err(|error| contents.damaged(&place, &error))?;
        left.set(u64::MAX);
        unread = read_tar_entry(&mut entry, contents, &place)?;
    }
    if left.get() > MAX_HEADER_BYTES - TAR_BLOCK {
        return contents.add_missing_end();
    }
    left.set(u64::MAX);
    match after_the_end(archive.into_inner()) {
        Some(problem) => contents.add_rest(problem),
        None => Ok(()),
    }
}

/// The problem with the data after the end marker, if there is one. They should be zeros; reading them also verifies
/// the checksum of compressed data.
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

/// Whether the true name of an entry is probably in an extended header that cannot be parsed, because the name contains
/// a line break. The name in the plain header, which is meant for programs without support for extended headers, then
/// is cut at 100 bytes or has question marks.
fn has_lost_its_name<R: Read>(entry: &mut tar::Entry<'_, R>, name: &[u8]) -> io::Result<bool> {
    if !(name.contains(&b'?') || name.len() >= 100) || extension(entry, |key| key == b"path")?.is_some() {
        return Ok(false);
    }
    Ok(entry.pax_extensions()?.is_some_and(|mut lines| lines.any(|line| line.is_err())))
}

/// Adds an entry to `contents`. Returns the number of its bytes that are left unread.
fn read_tar_entry<R: Read>(
    entry: &mut tar::Entry<'_, R>,
    contents: &mut impl Entries,
    place: &str,
) -> Result<u64, DatasetError> {
    let read =
        EntryKind::of_tar(entry).and_then(|kind| Ok((kind, extension(entry, |key| key == SPARSE_NAME)?)));
    let (kind, sparse_name) = read.map_err(|error| contents.damaged(place, &error))?;
    let name = sparse_name.unwrap_or_else(|| entry.path_bytes().into_owned());
    let has_lost_its_name = !matches!(kind, EntryKind::Metadata)
        && has_lost_its_name(entry, &name).map_err(|error| contents.damaged(place, &error))?;
    match kind {
        _ if has_lost_its_name => {
            contents.add_other(
                &name,
                "its name has a line break, which cannot be read in this archive: rename it",
            )?;
        }
        EntryKind::File => {
            // What follows a damaged file cannot be found.
            let read = contents.add_file(&name, entry.size(), &mut *entry)?;
            read.map_err(|error| contents.damaged(&format!("at '{}'", shown_bytes(&name)), &error))?;
        }
        EntryKind::Folder => contents.add_folder(&name),
        EntryKind::Other(problem) => contents.add_other(&name, problem)?,
        EntryKind::Metadata => {}
    }
    let passed = match entry.header().entry_type().is_gnu_sparse() {
        // Reading a sparse file to its end would produce all the zeros of its holes.
        true => packed_size(entry),
        false => io::copy(entry, &mut io::sink()).map(|_| 0),
    };
    passed.map_err(|error| contents.damaged(place, &error))
}
