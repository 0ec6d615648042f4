//! What a reader of an archive passes on, entry by entry.

use std::io::{self, Read};
use std::path::Path;

use crate::files::{HEAD_BYTES, is_hidden, shown_bytes};
use crate::{DatasetError, Fault, FileKind, Reason, shown};

/// What takes the entries of an archive.
pub(super) trait Entries {
    /// The path of the archive, for messages.
    fn archive(&self) -> &Path;

    /// The number of images so far, for messages.
    fn images(&self) -> usize;

    /// Takes a folder.
    fn add_folder(&mut self, name: &[u8]);

    /// The limit on the size of an image, in bytes.
    fn max_file_bytes(&self) -> u64;

    /// Takes a file of a layout without image files, by its name; `None` if it is none.
    fn add_data(&mut self, _name: &str, _content: impl Read) -> Option<Result<(), DatasetError>> {
        None
    }

    /// Takes an image.
    fn add_image(&mut self, name: String, bytes: Vec<u8>) -> Result<(), DatasetError>;

    /// Takes note of an entry, or of a part of the archive, that is not used. `name` is the one that messages use.
    fn leave_out(&mut self, name: String, reason: Reason) -> Result<(), DatasetError>;

    /// Takes a file. `claimed` is its size according to the header, which may be wrong: no more than a limit is read in
    /// any case, and nothing of a file whose name says that it is no image. The inner error is that of reading an image,
    /// or what may be one, which then is not taken.
    fn add_file(
        &mut self,
        name: &[u8],
        claimed: u64,
        mut content: impl Read,
    ) -> Result<io::Result<()>, DatasetError> {
        let Some(name) = normalized(name) else {
            return self.leave_out(self.within(&shown_bytes(name)), Reason::Hidden).map(Ok);
        };
        if let Some(added) = self.add_data(&name, &mut content) {
            return added.map(Ok);
        }
        match read_image(&name, claimed, content, self.max_file_bytes()) {
            Ok(Ok(bytes)) => self.add_image(name, bytes).map(Ok),
            Ok(Err(reason)) => self.leave_out(self.within(&name), reason).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    /// The name of an entry in messages.
    fn within(&self, name: &str) -> String {
        format!("{}/{name}", shown(self.archive()))
    }

    /// Takes note of an entry that is neither a file nor a folder, and why it is not used.
    fn add_other(&mut self, name: &[u8], problem: &str) -> Result<(), DatasetError> {
        let (name, reason) = match normalized(name) {
            Some(name) => (name, Reason::Unreadable(Fault::Other(problem.to_owned()))),
            None => (shown_bytes(name), Reason::Hidden),
        };
        self.leave_out(self.within(&name), reason)
    }

    /// Takes note that a tar archive has no end marker, the only sign that it was truncated between two files.
    fn add_missing_end(&mut self) -> Result<(), DatasetError> {
        let count = self.images();
        self.add_rest(format!(
            "the archive has no end marker: what follows after {count} images may be missing"
        ))
    }

    /// Takes note of a problem with the data after the end of a tar archive.
    fn add_rest(&mut self, problem: String) -> Result<(), DatasetError> {
        self.leave_out(shown(self.archive()), Reason::Unreadable(Fault::Other(problem)))
    }

    /// The error for an archive of a kind that cannot be read.
    fn not_supported(&self, problem: &str) -> DatasetError {
        let problem =
            format!("is of a kind that is not supported ({problem}): unpack it and give the folder");
        DatasetError::layout(self.archive(), problem)
    }

    /// The error for an archive that cannot be read at some place.
    fn damaged(&self, place: &str, error: &dyn std::error::Error) -> DatasetError {
        DatasetError::malformed(shown(self.archive()), format!("the archive is damaged {place}: {error}"))
    }
}

/// The bytes of a file that is an image, by its name or its first bytes, or why it is left out. Nothing is read if the
/// name is enough to leave it out.
///
/// # Errors
///
/// If it cannot be read.
fn read_image(
    name: &str,
    claimed: u64,
    mut content: impl Read,
    limit: u64,
) -> io::Result<Result<Vec<u8>, Reason>> {
    let (mut bytes, mut read) = (Vec::new(), Ok(0));
    let kind = FileKind::of(name.rsplit('/').next().unwrap_or_default(), || {
        read = content.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut bytes);
        bytes.clone()
    });
    read?;
    match kind {
        FileKind::Image => {}
        FileKind::Unsupported(format) => return Ok(Err(Reason::Unsupported(format))),
        FileKind::Other => return Ok(Err(Reason::NoImage)),
    }
    if claimed <= limit {
        let rest = (limit + 1).saturating_sub(bytes.len() as u64);
        content.take(rest).read_to_end(&mut bytes)?;
    }
    let size = claimed.max(bytes.len() as u64);
    if size > limit {
        return Ok(Err(Reason::Unreadable(Fault::TooLarge { bytes: size, limit })));
    }
    Ok(Ok(bytes))
}

/// The path of an entry without `.` components and leading `/`; `None` if a component is hidden.
pub(super) fn normalized(name: &[u8]) -> Option<String> {
    let parts = name.split(|byte| *byte == b'/');
    let names: Vec<String> =
        parts.filter(|part| !part.is_empty() && *part != b".").map(shown_bytes).collect();
    (!names.is_empty() && !names.iter().any(|name| is_hidden(name))).then(|| names.join("/"))
}

/// The kind of an archive entry.
pub(super) enum EntryKind {
    File,
    Folder,
    /// Neither a file nor a folder, with the reason why it is not used.
    Other(&'static str),
    /// Metadata of other entries.
    Metadata,
}

impl EntryKind {
    pub(super) const LINK: Self = Self::Other("a link inside an archive: unpack it and give the folder");
    pub(super) const SPARSE: Self =
        Self::Other("a sparse file inside an archive: unpack it and give the folder");
    pub(super) const DEVICE: Self = Self::Other("it is a device, not a regular file");
    pub(super) const PIPE: Self = Self::Other("it is a named pipe, not a regular file");
    pub(super) const SOCKET: Self = Self::Other("it is a socket, not a regular file");
    pub(super) const UNKNOWN: Self =
        Self::Other("of a kind that is not known: unpack the archive and give the folder");
}
