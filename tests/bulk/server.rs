//! A server that speaks as much of S3's protocol as the tests need: objects, pages of lists, uploads that must not replace, and faults.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// An answer with this status.
    Status(u16),
    /// The connection ends in the middle of the body.
    Truncated,
    /// Every part of the body takes its time.
    Slow,
}

/// A server on the loopback interface, until the program ends.
#[derive(Clone)]
pub struct Server {
    pub address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    /// For an object, what goes wrong, and how often.
    faults: HashMap<String, (Fault, usize)>,
    /// Method and path of each request.
    requests: Vec<String>,
}

struct Request {
    method: String,
    path: String,
    query: HashMap<String, String>,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

/// The objects of a page of a list.
const PAGE: usize = 5;

impl Server {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Self { address, state: Arc::default() };
        let serving = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, server) = (stream.unwrap(), serving.clone());
                // A client may leave at any time.
                thread::spawn(move || server.serve(stream));
            }
        });
        server
    }

    /// Puts an object there. `path` is `BUCKET/KEY`.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        self.state.lock().unwrap().objects.insert(path.to_owned(), bytes.to_vec());
    }

    pub fn get(&self, path: &str) -> Option<Vec<u8>> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    /// Lets the next `times` requests for an object go wrong.
    pub fn fail(&self, path: &str, fault: Fault, times: usize) {
        self.state.lock().unwrap().faults.insert(path.to_owned(), (fault, times));
    }

    /// How often a request for an object will still go wrong.
    pub fn faults_left(&self, path: &str) -> usize {
        self.state.lock().unwrap().faults.get(path).map_or(0, |(_, times)| *times)
    }

    /// How many requests began like this, such as `GET bucket/`.
    pub fn count(&self, beginning: &str) -> usize {
        self.state.lock().unwrap().requests.iter().filter(|line| line.starts_with(beginning)).count()
    }

    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let request = Request::read(&mut reader)?;
            let (fault, answer) = self.answer(&request);
            let stream = reader.get_mut();
            stream.write_all(answer.head.as_bytes()).ok()?;
            let body = if request.method == "HEAD" { &[] } else { &answer.body[..] };
            match fault {
                Some(Fault::Truncated) => {
                    stream.write_all(&body[..body.len() / 2]).ok()?;
                    return None;
                }
                Some(Fault::Slow) => {
                    for part in body.chunks((body.len() / 4).max(1)) {
                        thread::sleep(Duration::from_millis(150));
                        stream.write_all(part).ok()?;
                    }
                }
                _ => stream.write_all(body).ok()?,
            }
        }
    }

    fn answer(&self, request: &Request) -> (Option<Fault>, Answer) {
        let mut state = self.state.lock().unwrap();
        state.requests.push(format!("{} {}", request.method, request.path));
        let fault = match state.faults.get_mut(&request.path) {
            Some((fault, times)) if *times > 0 => {
                *times -= 1;
                Some(*fault)
            }
            _ => None,
        };
        if let Some(Fault::Status(status)) = fault {
            return (fault, Answer::new(status, "", b"<Error>as the test wants it</Error>".to_vec()));
        }
        (fault, state.answer(request))
    }
}

impl State {
    fn answer(&mut self, request: &Request) -> Answer {
        let missing = || Answer::new(404, "", b"<Error><Code>NoSuchKey</Code></Error>".to_vec());
        match &*request.method {
            "GET" if request.query.contains_key("list-type") => self.list(request),
            "GET" | "HEAD" => match self.objects.get(&request.path) {
                Some(bytes) => Answer::of_object(bytes, request.headers.get("range")),
                None => missing(),
            },
            "PUT" => {
                let is_new = !self.objects.contains_key(&request.path);
                if request.headers.contains_key("if-none-match") && !is_new {
                    return Answer::new(412, "", Vec::new());
                }
                self.objects.insert(request.path.clone(), request.body.clone());
                Answer::new(200, "ETag: \"put\"\r\n", Vec::new())
            }
            _ => Answer::new(405, "", Vec::new()),
        }
    }

    fn list(&self, request: &Request) -> Answer {
        let prefix = request.query.get("prefix").cloned().unwrap_or_default();
        let after = request.query.get("continuation-token").cloned().unwrap_or_default();
        let bucket = format!("{}/", request.path.trim_end_matches('/'));
        let keys: Vec<(&str, usize)> = self
            .objects
            .iter()
            .filter_map(|(path, bytes)| Some((path.strip_prefix(&bucket)?, bytes.len())))
            .filter(|(key, _)| key.starts_with(&prefix) && *key > &*after)
            .collect();
        let page = &keys[..keys.len().min(PAGE)];
        let more = match page.last().filter(|_| keys.len() > PAGE) {
            Some((last, _)) => format!(
                "<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"
            ),
            None => "<IsTruncated>false</IsTruncated>".to_owned(),
        };
        let contents: String = page
            .iter()
            .map(|(key, size)| {
                format!(
                    "<Contents><Key>{key}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>\"e\"</ETag>\
                     <Size>{size}</Size></Contents>"
                )
            })
            .collect();
        let body = format!("<ListBucketResult>{more}{contents}</ListBucketResult>");
        Answer::new(200, "Content-Type: application/xml\r\n", body.into_bytes())
    }
}

struct Answer {
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn new(status: u16, headers: &str, body: Vec<u8>) -> Self {
        let length = body.len();
        Self { head: format!("HTTP/1.1 {status} S\r\nContent-Length: {length}\r\n{headers}\r\n"), body }
    }

    fn of_object(bytes: &[u8], range: Option<&String>) -> Self {
        let known = "ETag: \"e\"\r\nLast-Modified: Fri, 02 Jan 2026 03:04:05 GMT\r\n";
        let Some(range) = range else { return Self::new(200, known, bytes.to_vec()) };
        let (start, end) = range.trim_start_matches("bytes=").split_once('-').unwrap();
        let start: usize = start.parse().unwrap();
        let end = end.parse().map_or(bytes.len(), |end: usize| (end + 1).min(bytes.len()));
        let range = format!("{known}Content-Range: bytes {start}-{}/{}\r\n", end - 1, bytes.len());
        Self::new(206, &range, bytes[start..end].to_vec())
    }
}

impl Request {
    /// The next request of a connection; `None` at its end.
    fn read(reader: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let query = query.split('&').filter_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            Some((key.to_owned(), decoded(&value.replace('+', " "))))
        });
        Some(Self {
            method,
            path: decoded(path.trim_start_matches('/')),
            query: query.collect(),
            headers,
            body,
        })
    }
}

/// Text without percent encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code =
            after.get(..2).and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        match (first, code) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap()
}
