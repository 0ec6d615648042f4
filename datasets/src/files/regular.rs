//! Opening regular files up to a maximum size and refusing everything else, since reading a device or a pipe may never
//! end.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

use super::Fault;

/// The default limit on the size of a file, in bytes: 256 MiB.
pub const DEFAULT_FILE_BYTES: u64 = 256 << 20;

/// Opens a regular file of at most `limit` bytes. Returns the file and its size in bytes.
///
/// Links are followed. The type of the file is checked both before and after opening it: before, since opening some
/// devices has side effects; after, since the path may have come to lead elsewhere in between.
///
/// # Errors
///
/// If there is no such file, it is not a regular file, or it is larger than `limit`. The message does not name the
/// file.
pub fn open_regular(path: &Path, limit: u64) -> Result<(File, u64), Fault> {
    check(&std::fs::metadata(path).map_err(fault)?, limit)?;
    let file = options().open(path).map_err(fault)?;
    let length = check(&file.metadata().map_err(fault)?, limit)?;
    Ok((file, length))
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
///
/// As [`open_regular`], and if the file cannot be read to its end or grows beyond the limit meanwhile.
pub fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>, Fault> {
    let (file, length) = open_regular(path, limit)?;
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(fault)?;
    match bytes.len() as u64 {
        length if length > limit => Err(Fault::TooLarge { bytes: length, limit }),
        _ => Ok(bytes),
    }
}

/// The size of a file, if it is a regular file of at most `limit` bytes.
fn check(metadata: &Metadata, limit: u64) -> Result<u64, Fault> {
    if !metadata.is_file() {
        return Err(Fault::Other(format!("it is {}, not a regular file", kind_name(metadata.file_type()))));
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
fn kind_name(kind: FileType) -> &'static str {
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
fn kind_name(kind: FileType) -> &'static str {
    if kind.is_dir() { "a folder" } else { "something else" }
}

/// Options for reading that do not wait for a writer if the path leads to a named pipe.
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
    fn devices_pipes_and_sockets_are_refused_without_blocking() {
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
