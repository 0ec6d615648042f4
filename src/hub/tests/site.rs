//! A local HTTP server that imitates the Hugging Face Hub.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use sha1::Sha1;
use sha2::{Digest, Sha256};

pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request that the server has received.
#[derive(Clone, Debug)]
pub(super) struct RecordedRequest {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: BTreeMap<String, String>,
}

/// The content of the repository `owner/name`, and the faults of its server.
#[derive(Default)]
pub(super) struct Site {
    /// Contents of the files by name.
    pub(super) files: BTreeMap<String, Vec<u8>>,
    /// Names that the listing contains although there is no such file.
    pub(super) extra_names: Vec<String>,
    /// Names of the large files, which the site redirects to its storage.
    pub(super) large: BTreeSet<String>,
    /// URL of the storage, if it is another server.
    pub(super) storage: Option<String>,
    /// Numbers of bytes after which the connection ends, one for each download of a large file in turn.
    pub(super) cuts: Vec<usize>,
    /// Contents that are sent instead of the announced ones, by name.
    pub(super) swapped: BTreeMap<String, Vec<u8>>,
    /// The only token with access; `None` for a public repository.
    pub(super) token: Option<String>,
    /// Responses that replace the usual ones, by the beginning of the request's path.
    pub(super) instead: BTreeMap<String, CannedResponse>,
    /// Whether range requests are answered with the whole file.
    pub(super) ignores_ranges: bool,
}

/// A response of the server.
#[derive(Clone, Default)]
pub(super) struct CannedResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
    /// The number of bytes of the body after which the connection ends.
    pub(super) cut: Option<usize>,
}

impl CannedResponse {
    pub(super) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, body: body.into(), ..Self::default() }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }
}

impl Site {
    /// A site with these files, of which the weights count as large.
    pub(super) fn new(files: &[(&str, &[u8])]) -> Self {
        let files: BTreeMap<_, _> =
            files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec())).collect();
        let is_large = |name: &&String| name.ends_with(".safetensors") || name.ends_with(".bin");
        let large = files.keys().filter(is_large).cloned().collect();
        Self { files, large, ..Self::default() }
    }

    fn respond(&mut self, request: &RecordedRequest) -> CannedResponse {
        let path = request.path.as_str();
        if let Some((_, answer)) = self.instead.iter().find(|(start, _)| path.starts_with(start.as_str())) {
            return answer.clone();
        }
        if let Some(file) = path.strip_prefix("/storage/") {
            return self.content(file, request).with("etag", "\"of the storage\"");
        }
        let allowed = self.token.as_ref().map(|token| format!("Bearer {token}"));
        if allowed.is_some() && request.headers.get("authorization") != allowed.as_ref() {
            return CannedResponse::new(401, "Invalid username or password.");
        }
        if path.starts_with("/api/models/owner/name/revision/") {
            return CannedResponse::new(200, self.listing());
        }
        let direct = format!("/api/resolve-cache/{COMMIT}/");
        if let Some(file) = path.strip_prefix(&direct) {
            let tag = format!("W/\"{}\"", git_sha1(&self.files[file]));
            return self.content(file, request).with("etag", tag).with("x-repo-commit", COMMIT);
        }
        match path.strip_prefix(&format!("/owner/name/resolve/{COMMIT}/")) {
            Some(file) if self.large.contains(file) => {
                let storage = self.storage.as_deref().unwrap_or_default();
                CannedResponse::new(302, "Found")
                    .with("location", format!("{storage}/storage/{file}"))
                    .with("x-repo-commit", COMMIT)
                    .with("x-linked-size", self.files[file].len())
                    .with("x-linked-etag", format!("\"{}\"", sha256(&self.files[file])))
            }
            Some(file) if self.files.contains_key(file) => CannedResponse::new(307, "Temporary Redirect")
                .with("location", format!("{direct}{file}"))
                .with("x-repo-commit", COMMIT),
            _ => CannedResponse::new(404, "Not found"),
        }
    }

    fn listing(&self) -> String {
        let names = self.files.keys().chain(&self.extra_names);
        let siblings: Vec<_> = names.map(|name| serde_json::json!({"rfilename": name})).collect();
        let tags = ["safetensors", "license:apache-2.0"];
        serde_json::json!({"id": "owner/name", "sha": COMMIT, "siblings": siblings, "tags": tags}).to_string()
    }

    fn content(&mut self, file: &str, request: &RecordedRequest) -> CannedResponse {
        let bytes = self.swapped.get(file).or_else(|| self.files.get(file)).expect("a file of the site");
        let range = request.headers.get("range").filter(|_| !self.ignores_ranges);
        let start =
            range.map(|range| range.strip_prefix("bytes=").unwrap().trim_end_matches('-').parse().unwrap());
        let mut answer = match start {
            Some(start) if start >= bytes.len() => CannedResponse::new(416, ""),
            Some(start) => CannedResponse::new(206, &bytes[start..])
                .with("content-range", format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len())),
            None => CannedResponse::new(200, bytes.as_slice()),
        };
        if self.large.contains(file) && request.method == "GET" && !self.cuts.is_empty() {
            answer.cut = Some(self.cuts.remove(0));
        }
        answer
    }
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn git_sha1(bytes: &[u8]) -> String {
    let head = format!("blob {}\0", bytes.len());
    Sha1::digest([head.as_bytes(), bytes].concat()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A running server.
pub(super) struct Server {
    pub(super) site: Arc<Mutex<Site>>,
    pub(super) port: u16,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
}

impl Server {
    pub(super) fn start(site: Site) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let site = Arc::new(Mutex::new(site));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let server = Self { site: Arc::clone(&site), port, requests: Arc::clone(&requests) };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (site, requests) = (Arc::clone(&site), Arc::clone(&requests));
                thread::spawn(move || serve(stream.unwrap(), &site, &requests));
            }
        });
        server
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The requests since the last call.
    pub(super) fn take_requests(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn serve(stream: TcpStream, site: &Mutex<Site>, requests: &Mutex<Vec<RecordedRequest>>) {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let mut words = line.split_whitespace().map(str::to_owned);
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return };
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let request = RecordedRequest { method, path, headers };
    let answer = site.lock().unwrap().respond(&request);
    requests.lock().unwrap().push(request.clone());
    let mut head = format!(
        "HTTP/1.1 {} x\r\nconnection: close\r\ncontent-length: {}\r\n",
        answer.status,
        answer.body.len()
    );
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let mut bytes = (head + "\r\n").into_bytes();
    if request.method == "GET" {
        bytes.extend(&answer.body[..answer.cut.unwrap_or(answer.body.len()).min(answer.body.len())]);
    }
    // A client may close the connection before it has read everything.
    let _ = reader.get_mut().write_all(&bytes);
}

#[test]
fn the_git_hash_is_that_of_git() {
    // `printf 'hello\n' | git hash-object --stdin`
    assert_eq!(git_sha1(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
}
