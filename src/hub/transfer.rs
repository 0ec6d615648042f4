//! Downloads that go on where they were interrupted, and are checked when they are whole.

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
use crate::events::Event;

/// How often a broken connection is made anew.
const RETRIES: u32 = 4;
const BUFFER: usize = 1 << 18;

enum Transfer {
    Whole,
    /// What has come so far is kept; the reason why no more did.
    BrokenOff(String),
}

impl Client<'_> {
    /// Brings a file to `part`, where some of it may be already. Afterwards it is whole and the one announced.
    pub(super) fn download(&self, remote: &RemoteFile, part: &Path) -> Result<()> {
        self.events.emit(Event::DownloadStart { label: remote.label.clone(), bytes: remote.size });
        let result = self.download_with(remote, part);
        self.events.emit(Event::DownloadEnd);
        result
    }

    fn download_with(&self, remote: &RemoteFile, part: &Path) -> Result<()> {
        let mut is_continued = fs::metadata(part).is_ok_and(|part| part.len() > 0);
        let mut broken_off = 0;
        loop {
            match self.transfer(remote, part)? {
                Transfer::Whole => {
                    let Err(error) = check(remote, part) else { return Ok(()) };
                    fs::remove_file(part)
                        .with_context(|| format!("{}: cannot be removed", part.display()))?;
                    // The beginning may be of another program's making.
                    if !is_continued {
                        return Err(error);
                    }
                    is_continued = false;
                }
                Transfer::BrokenOff(_) if broken_off < RETRIES => {
                    broken_off += 1;
                    thread::sleep(self.pause * broken_off);
                }
                Transfer::BrokenOff(reason) => bail!(
                    "{}: the download was interrupted ({reason}); what has arrived is kept: run it again to \
                     continue from there",
                    remote.label
                ),
            }
        }
    }

    /// Asks for what `part` lacks and appends it.
    fn transfer(&self, remote: &RemoteFile, part: &Path) -> Result<Transfer> {
        let context = || format!("{}: cannot be written", part.display());
        let mut file = File::options().create(true).append(true).open(part).with_context(context)?;
        let mut length = file.metadata().with_context(context)?.len();
        if remote.size.is_some_and(|size| length > size) {
            file.set_len(0).with_context(context)?;
            length = 0;
        }
        if remote.size == Some(length) {
            return Ok(Transfer::Whole);
        }
        let response = match self.get(&remote.url, length) {
            Ok(response) => response,
            Err(error) => return Ok(Transfer::BrokenOff(error.to_string())),
        };
        match response.status().as_u16() {
            206 if starts_at(&response, length) => {}
            200 => {
                file.set_len(0).with_context(context)?;
                length = 0;
            }
            206 | 416 => {
                file.set_len(0).with_context(context)?;
                return Ok(Transfer::BrokenOff(response.status().to_string()));
            }
            408 | 429 | 500.. => return Ok(Transfer::BrokenOff(response.status().to_string())),
            _ => bail!("{}: {} answers {}", remote.label, remote.url, response.status()),
        }
        self.events.emit(Event::DownloadProgress { bytes: length });
        // One byte more shows that there is too much.
        let limit = remote.size.map_or(u64::MAX, |size| size - length + 1);
        let mut body = response.into_body().into_reader().take(limit);
        let mut buffer = vec![0; BUFFER];
        loop {
            match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    file.write_all(&buffer[..count]).with_context(context)?;
                    length += count as u64;
                    self.events.emit(Event::DownloadProgress { bytes: length });
                }
                Err(error) => return Ok(Transfer::BrokenOff(error.to_string())),
            }
        }
        file.sync_all().with_context(context)?;
        Ok(match remote.size {
            Some(size) if length < size => Transfer::BrokenOff(format!("{length} of {size} bytes arrived")),
            _ => Transfer::Whole,
        })
    }
}

/// Whether a part of a file is the one from that byte on.
fn starts_at(response: &Response<Body>, start: u64) -> bool {
    header(response, "content-range").is_some_and(|range| range.starts_with(&format!("bytes {start}-")))
}

/// Compares a whole file with what was announced.
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
        // As git names the contents of files.
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
