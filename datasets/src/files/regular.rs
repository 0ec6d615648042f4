//! Regular files up to a size, and nothing else: a device or a pipe may never end.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use super::Fault;

/// The most bytes of a file, unless the user allows more: 256 MiB.
pub const DEFAULT_FILE_BYTES: u64 = 256 << 20;

/// Opens a regular file of at most `limit` bytes, and says how many it has.
///
/// Links are followed. What a path leads to is checked before it is opened and once more when it is open, so that
/// neither opening a pipe waits nor a device is read, whatever changes meanwhile.
///
/// # Errors
///
/// What is not there, no regular file, or larger. The message does not name the file.
pub fn open_regular(path: &Path, limit: u64) -> Result<(File, u64), Fault> {
    check(&std::fs::metadata(path).map_err(fault)?, limit)?;
    let file = options().open(path).map_err(fault)?;
    let length = check(&file.metadata().map_err(fault)?, limit)?;
    Ok((file, length))
}

/// The content of a regular file of at most `limit` bytes.
///
/// # Errors
///
/// What [`open_regular`] refuses, what cannot be read to its end, and what grows past the limit while it is read.
pub fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>, Fault> {
    let (file, length) = open_regular(path, limit)?;
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(fault)?;
    match bytes.len() as u64 {
        length if length > limit => Err(Fault::TooLarge { bytes: length, limit }),
        _ => Ok(bytes),
    }
}

fn check(metadata: &Metadata, limit: u64) -> Result<u64, Fault> {
    if !metadata.is_file() {
        return Err(Fault::Other(format!("it is {}, not a regular file", what(metadata.file_type()))));
    }
    match metadata.len() {
        length if length > limit => Err(Fault::TooLarge { bytes: length, limit }),
        length => Ok(length),
    }
}

fn fault(error: io::Error) -> Fault {
    Fault::Other(error.to_string())
}

#[cfg(unix)]
fn what(kind: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        _ => "something else",
    }
}

#[cfg(not(unix))]
fn what(kind: FileType) -> &'static str {
    if kind.is_dir() { "a folder" } else { "something else" }
}

/// Opening a pipe that takes a file's place does not wait for a writer.
#[cfg(unix)]
fn options() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK);
    options
}

#[cfg(not(unix))]
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message of a failed read.
    fn message(path: &Path) -> String {
        read_regular(path, 100).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_up_to_the_limit_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, [7; 100]).unwrap();
        assert_eq!(read_regular(&file, 100).unwrap(), [7; 100]);
        assert_eq!(read_regular(&file, 99).unwrap_err(), Fault::TooLarge { bytes: 100, limit: 99 });
        assert!(message(folder.path()).contains("a folder"));
        assert!(read_regular(&folder.path().join("nothing"), 100).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn devices_pipes_and_sockets_are_refused_without_waiting() {
        use std::os::unix::net::UnixListener;
        assert!(message(Path::new("/dev/zero")).contains("a device"));
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(message(&pipe).contains("a named pipe"));
        let link = folder.path().join("link.png");
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        assert!(message(&link).contains("a named pipe"));
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        assert!(message(&socket).contains("a socket"));
    }
}
