//! Regular files up to a size, and nothing else: a device or a pipe may never end.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

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
pub fn open_regular(path: &Path, limit: u64) -> Result<(File, u64), String> {
    let message = |error: io::Error| error.to_string();
    check(&std::fs::metadata(path).map_err(message)?, limit)?;
    let file = options().open(path).map_err(message)?;
    let length = check(&file.metadata().map_err(message)?, limit)?;
    Ok((file, length))
}

/// The content of a regular file of at most `limit` bytes.
///
/// # Errors
///
/// What [`open_regular`] refuses, what cannot be read to its end, and what grows past the limit while it is read.
pub fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>, String> {
    let (file, length) = open_regular(path, limit)?;
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    match bytes.len() as u64 {
        length if length > limit => Err(too_large(length, limit)),
        _ => Ok(bytes),
    }
}

fn check(metadata: &Metadata, limit: u64) -> Result<u64, String> {
    if !metadata.is_file() {
        return Err(format!("it is {}, not a regular file", what(metadata.file_type())));
    }
    match metadata.len() {
        length if length > limit => Err(too_large(length, limit)),
        length => Ok(length),
    }
}

fn too_large(length: u64, limit: u64) -> String {
    format!("it has {length} bytes, more than the limit of {limit} (--max-file-size)")
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

    #[test]
    fn only_regular_files_up_to_the_limit_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, [7; 100]).unwrap();
        assert_eq!(read_regular(&file, 100).unwrap(), [7; 100]);
        let message = read_regular(&file, 99).unwrap_err();
        assert!(message.contains("100 bytes") && message.contains("--max-file-size"), "{message}");
        assert!(read_regular(folder.path(), 100).unwrap_err().contains("a folder"));
        assert!(read_regular(&folder.path().join("nothing"), 100).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn devices_pipes_and_sockets_are_refused_without_waiting() {
        use std::os::unix::net::UnixListener;
        assert!(read_regular(Path::new("/dev/zero"), 100).unwrap_err().contains("a device"));
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert!(read_regular(&pipe, 100).unwrap_err().contains("a named pipe"));
        let link = folder.path().join("link.png");
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        assert!(read_regular(&link, 100).unwrap_err().contains("a named pipe"));
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        assert!(read_regular(&socket, 100).unwrap_err().contains("a socket"));
    }
}
