//! Downloading published files: into a temporary file in the target folder, which is renamed once its length and hash
//! are checked.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use crate::{DatasetError, Unfinished};

/// A file that is published at a fixed address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteFile {
    /// Its name, both at the publisher's and on disk.
    pub(crate) name: &'static str,
    /// The address of its folder, ending in `/`.
    pub(crate) base_url: &'static str,
    /// Its SHA-256, in hexadecimal digits.
    pub(crate) sha256: &'static str,
    /// Its length, in bytes.
    pub(crate) bytes: u64,
}

impl RemoteFile {
    /// Its address.
    pub(crate) fn url(&self) -> String {
        format!("{}{}", self.base_url, self.name)
    }
}

/// The progress of a download.
#[derive(Clone, Copy, Debug)]
pub struct DownloadProgress<'a> {
    /// Address of the file.
    pub url: &'a str,
    /// Bytes received so far; 0 at the start.
    pub received: u64,
    /// Length of the whole file, in bytes.
    pub total: u64,
}

/// Downloads files over HTTP.
pub(crate) struct Downloader {
    agent: ureq::Agent,
    progress: Option<fn(&DownloadProgress<'_>)>,
}

impl Downloader {
    /// A downloader that uses the proxy from the environment.
    pub(crate) fn new(progress: Option<fn(&DownloadProgress<'_>)>) -> Self {
        Self::with_config(ureq::Agent::config_builder(), progress)
    }

    fn with_config(
        config: ureq::config::ConfigBuilder<ureq::typestate::AgentScope>,
        progress: Option<fn(&DownloadProgress<'_>)>,
    ) -> Self {
        let config = config
            .timeout_resolve(Some(Duration::from_secs(20)))
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)));
        Self { agent: config.build().into(), progress }
    }

    /// Downloads a file from `url` into `folder`. A failed download leaves no file behind.
    ///
    /// # Errors
    ///
    /// If there is no answer, the status is not 200, length or hash are not the published ones, or the folder cannot be
    /// written.
    pub(crate) fn fetch(&self, file: &RemoteFile, url: &str, folder: &Path) -> Result<(), DatasetError> {
        let problem = |problem: String| DatasetError::Download { url: url.to_owned(), problem };
        let response = self.agent.get(url).call().map_err(|error| problem(error.to_string()))?;
        let mut body = response.into_body().into_with_config().limit(file.bytes.saturating_add(1)).reader();
        fs::create_dir_all(folder).map_err(DatasetError::write(folder))?;
        let mut partial = temporary_file(folder)?;
        let _unfinished = Unfinished::note(partial.path());
        let (mut hash, mut received, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 18]);
        loop {
            if let Some(progress) = self.progress {
                progress(&DownloadProgress { url, received, total: file.bytes });
            }
            let length = body.read(&mut buffer).map_err(|error| problem(error.to_string()))?;
            if length == 0 {
                break;
            }
            hash.update(&buffer[..length]);
            partial.write_all(&buffer[..length]).map_err(DatasetError::write(partial.path()))?;
            received += length as u64;
        }
        if received != file.bytes {
            return Err(problem(format!("got {received} of {} bytes; try again", file.bytes)));
        }
        let found = hexadecimal(&hash.finalize());
        if found != file.sha256 {
            let problem_text = format!(
                "it has the SHA-256 {found}, not {}: this is a different file, so it was not kept",
                file.sha256
            );
            return Err(problem(problem_text));
        }
        let path = folder.join(file.name);
        partial.persist(&path).map_err(|error| DatasetError::write(&path)(error.error))?;
        Ok(())
    }
}

/// A temporary file in a folder, with ordinary permissions, which is removed unless it is persisted.
fn temporary_file(folder: &Path) -> Result<NamedTempFile, DatasetError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".download-");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder).map_err(DatasetError::write(folder))
}

/// Bytes as hexadecimal digits in lower case.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::path::PathBuf;
    use std::thread;

    use tempfile::TempDir;

    use super::*;

    const FILE: RemoteFile = RemoteFile {
        name: "hello.txt",
        base_url: "http://example.invalid/",
        // The hash of "hello".
        sha256: "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
        bytes: 5,
    };

    /// A downloader that uses no proxy.
    pub(crate) fn downloader() -> Downloader {
        Downloader::with_config(ureq::Agent::config_builder().proxy(None), None)
    }

    /// Starts a server that answers `requests` requests, each by its path. Returns its address.
    pub(crate) fn serve(requests: usize, answer: impl Fn(&str) -> Vec<u8> + Send + 'static) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().take(requests) {
                let mut reader = BufReader::new(stream.unwrap());
                let mut request = String::new();
                reader.read_line(&mut request).unwrap();
                let mut line = String::new();
                while reader.read_line(&mut line).unwrap() > 2 {
                    line.clear();
                }
                let path = request.split(' ').nth(1).unwrap_or_default();
                reader.get_mut().write_all(&answer(path)).unwrap();
            }
        });
        format!("http://{address}")
    }

    /// An HTTP response with a status, a body, and the length that its header claims.
    pub(crate) fn answer(status: &str, claimed: usize, body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {claimed}\r\nconnection: close\r\n\r\n");
        [head.as_bytes(), body].concat()
    }

    fn fetch(answer: Vec<u8>) -> (Result<(), DatasetError>, TempDir, PathBuf) {
        let url = format!("{}/hello.txt", serve(1, move |_| answer.clone()));
        let parent = TempDir::new().unwrap();
        let folder = parent.path().join("new");
        (downloader().fetch(&FILE, &url, &folder), parent, folder)
    }

    #[test]
    fn a_file_of_the_published_length_and_hash_is_kept() {
        let (result, _parent, folder) = fetch(answer("200 OK", 5, b"hello"));
        result.unwrap();
        assert_eq!(fs::read(folder.join("hello.txt")).unwrap(), b"hello");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn any_other_answer_is_an_error_and_leaves_no_file() {
        for (answer, part) in [
            (answer("200 OK", 5, b"hullo"), "this is a different file"),
            (answer("200 OK", 3, b"hel"), "3 of 5 bytes"),
            (answer("200 OK", 5, b"hel"), "hello.txt"),
            (answer("200 OK", 50, &[0; 50]), "hello.txt"),
            (answer("404 Not SourceData", 0, b""), "404"),
            (b"nonsense\r\n\r\n".to_vec(), "hello.txt"),
        ] {
            let (result, _parent, folder) = fetch(answer);
            let message = result.unwrap_err().to_string();
            assert!(
                message.starts_with("cannot download http://127.0.0.1") && message.contains(part),
                "{message}"
            );
            assert!(!folder.exists() || fs::read_dir(&folder).unwrap().count() == 0, "{message}");
        }
    }

    #[test]
    fn the_error_for_a_server_that_does_not_answer_names_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hello.txt", listener.local_addr().unwrap());
        drop(listener);
        let folder = TempDir::new().unwrap();
        let message = downloader().fetch(&FILE, &url, folder.path()).unwrap_err().to_string();
        assert!(message.contains(&url), "{message}");
    }
}
