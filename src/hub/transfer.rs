//! Downloads of files: an interrupted one continues where it stopped, and the complete file is checked against its size
//! and hash.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use ureq::Body;
use ureq::http::Response;

use super::client::{Client, RemoteFile, header};
use super::repository::is_hexadecimal;
use crate::events::{Event, EventSink};

/// How often an interrupted download is retried.
const RETRIES: u32 = 4;
/// Bytes that are read at once.
const BUFFER: usize = 1 << 18;

/// The end of one connection.
enum Transfer {
    /// The file has all of its bytes, which are not checked yet.
    Complete,
    /// The connection failed for the given reason. The bytes that arrived are kept.
    Interrupted(String),
}

impl Client<'_> {
    /// Downloads a file to `part`, which may hold its first bytes already, and checks its size and hash.
    ///
    /// # Errors
    /// If the connection fails too often, the content is not the announced one, or the file cannot be written.
    pub(super) fn download(&self, remote: &RemoteFile, part: &Path) -> Result<()> {
        self.events.emit(Event::DownloadStart { label: remote.label.clone(), bytes: remote.size });
        let result = self.download_with_retries(remote, part);
        self.events.emit(Event::DownloadEnd);
        result
    }

    fn download_with_retries(&self, remote: &RemoteFile, part: &Path) -> Result<()> {
        let mut is_continued = fs::metadata(part).is_ok_and(|part| part.len() > 0);
        let mut interruptions = 0;
        loop {
            match self.transfer(remote, part)? {
                Transfer::Complete => {
                    let Err(error) = check(remote, part) else { return Ok(()) };
                    fs::remove_file(part)
                        .with_context(|| format!("{}: cannot be removed", part.display()))?;
                    // The first bytes may be from another file. Then a second attempt starts from nothing.
                    if !is_continued {
                        return Err(error);
                    }
                    is_continued = false;
                }
                Transfer::Interrupted(_) if interruptions < RETRIES => {
                    interruptions += 1;
                    thread::sleep(self.pause * interruptions);
                }
                Transfer::Interrupted(reason) => bail!(
                    "{}: the download was interrupted ({reason}); what has arrived is kept: run it again to \
                     continue from there",
                    remote.label
                ),
            }
        }
    }

    /// Requests the bytes that `part` lacks and appends them.
    fn transfer(&self, remote: &RemoteFile, part: &Path) -> Result<Transfer> {
        let mut part = PartialFile::open(part)?;
        if remote.size.is_some_and(|size| part.length > size) {
            part.clear()?;
        }
        if remote.size == Some(part.length) {
            return Ok(Transfer::Complete);
        }
        let response = match self.get(&remote.url, part.length) {
            Ok(response) => response,
            Err(error) => return Ok(Transfer::Interrupted(error.to_string())),
        };
        match response.status().as_u16() {
            206 if starts_at(&response, part.length) => {}
            // The site sends the whole file.
            200 => part.clear()?,
            // The site sends another range, or has none there: its file may have changed.
            206 | 416 => {
                part.clear()?;
                return Ok(Transfer::Interrupted(response.status().to_string()));
            }
            408 | 429 | 500.. => return Ok(Transfer::Interrupted(response.status().to_string())),
            _ => bail!("{}: {} answers {}", remote.label, remote.url, response.status()),
        }
        // One byte more than announced is enough to show that the file is too long.
        let limit = remote.size.map_or(u64::MAX, |size| size - part.length + 1);
        part.append(response.into_body().into_reader().take(limit), remote.size, self.events)
    }
}

/// A file whose first `length` bytes have been downloaded.
struct PartialFile<'a> {
    path: &'a Path,
    file: File,
    length: u64,
}

impl<'a> PartialFile<'a> {
    /// Opens the file, or creates an empty one.
    fn open(path: &'a Path) -> Result<Self> {
        let context = || cannot_write(path);
        let file = File::options().create(true).append(true).open(path).with_context(context)?;
        let length = file.metadata().with_context(context)?.len();
        Ok(Self { path, file, length })
    }

    /// Deletes all bytes.
    fn clear(&mut self) -> Result<()> {
        self.file.set_len(0).with_context(|| cannot_write(self.path))?;
        self.length = 0;
        Ok(())
    }

    /// Appends a response's body. `size` is the announced size of the whole file.
    fn append(&mut self, mut body: impl Read, size: Option<u64>, events: &dyn EventSink) -> Result<Transfer> {
        let context = || cannot_write(self.path);
        events.emit(Event::DownloadProgress { bytes: self.length });
        let mut buffer = vec![0; BUFFER];
        loop {
            match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    self.file.write_all(&buffer[..count]).with_context(context)?;
                    self.length += count as u64;
                    events.emit(Event::DownloadProgress { bytes: self.length });
                }
                Err(error) => return Ok(Transfer::Interrupted(error.to_string())),
            }
        }
        self.file.sync_all().with_context(context)?;
        let length = self.length;
        Ok(match size {
            Some(size) if length < size => Transfer::Interrupted(format!("{length} of {size} bytes arrived")),
            _ => Transfer::Complete,
        })
    }
}

fn cannot_write(path: &Path) -> String {
    format!("{}: cannot be written", path.display())
}

/// Whether a response with a part of a file begins at byte `start`.
fn starts_at(response: &Response<Body>, start: u64) -> bool {
    header(response, "content-range").is_some_and(|range| range.starts_with(&format!("bytes {start}-")))
}

/// Checks a complete file against the announced size, and against the hash in its ETag if the ETag is one.
fn check(remote: &RemoteFile, part: &Path) -> Result<()> {
    let context = || format!("{}: cannot be read", part.display());
    let mut file = File::open(part).with_context(context)?;
    let length = file.metadata().with_context(context)?.len();
    let wrong =
        |what: String| anyhow!("{}: {what}: this is a different file, so it was not kept", remote.label);
    if let Some(size) = remote.size.filter(|size| *size != length) {
        return Err(wrong(format!("at least {length} bytes arrived, not {size}")));
    }
    let (name, found) = if is_hexadecimal(&remote.etag, 64) {
        ("SHA-256", hash(Sha256::new(), &mut file).with_context(context)?)
    } else if is_hexadecimal(&remote.etag, 40) {
        // Git hashes a file together with this header.
        let start = Sha1::new().chain_update(format!("blob {length}\0"));
        ("git SHA-1", hash(start, &mut file).with_context(context)?)
    } else {
        return Ok(());
    };
    if !found.eq_ignore_ascii_case(&remote.etag) {
        return Err(wrong(format!("it has the {name} {found}, not {}", remote.etag)));
    }
    Ok(())
}

fn hash(mut hash: impl Digest, file: &mut File) -> std::io::Result<String> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            count => hash.update(&buffer[..count]),
        }
    }
}
