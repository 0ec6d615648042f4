//! `vitrine serve`: its answers against those of the other commands, and what it refuses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Images, vitrine};

/// A server that runs until it is dropped.
struct Server {
    process: Child,
    address: String,
    /// What it writes to standard error from now on.
    log: BufReader<std::process::ChildStderr>,
}

/// An answer of the server.
struct Answer {
    status: u16,
    headers: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

impl Server {
    fn start(images: &Images, arguments: &[&str]) -> Self {
        let mut process = Command::new(assert_cmd::cargo::cargo_bin("vitrine"))
            .current_dir(images.path(""))
            .args(["serve", "--listen", "127.0.0.1:0", "--threads", "1"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let mut address = String::new();
        while address.is_empty() {
            let mut line = String::new();
            assert!(log.read_line(&mut line).unwrap() > 0, "the server has ended");
            if let Some((_, rest)) = line.split_once("http://") {
                address = rest.trim_end_matches(['/', '\n']).to_owned();
            }
        }
        Self { process, address, log }
    }

    /// Sends a request and reads the answer, in as plain a way as can be.
    fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let host =
            if headers.contains("Host:") { String::new() } else { format!("Host: {}\r\n", self.address) };
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{host}{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let headers = String::from_utf8(answer[..end].to_vec()).unwrap().to_ascii_lowercase();
        let status = headers.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, headers, body: answer[end..].to_vec() }
    }

    fn post(&self, path: &str, body: &[u8]) -> Answer {
        self.ask("POST", path, "", body)
    }

    fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", &[])
    }

    fn signal(&self, name: &str) {
        let number = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &number]).status().unwrap().success());
    }

    /// Reads the log up to a line that holds a text.
    fn wait_for(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "the log ends without `{text}`");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What another command prints, a JSON object for each line.
fn printed(images: &Images, arguments: &[&str]) -> Vec<Value> {
    let output = vitrine(images).args(arguments).assert().success().get_output().stdout.clone();
    String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether two lists of numbers are equal up to rounding.
fn close(a: &Value, b: &Value) -> bool {
    let numbers = |value: &Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    let (a, b) = (numbers(a), numbers(b));
    a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5)
}

/// A form with a file in each field.
fn form(files: &[(&str, Vec<u8>)]) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    for (name, bytes) in files {
        let head =
            format!("--edge\r\nContent-Disposition: form-data; name=\"image\"; filename=\"{name}\"\r\n\r\n");
        body.extend([head.as_bytes(), bytes, b"\r\n"].concat());
    }
    body.extend(b"--edge--\r\n");
    ("Content-Type: multipart/form-data; boundary=edge\r\n".to_owned(), body)
}

#[test]
fn answers_are_those_of_the_other_commands_in_every_form() {
    use base64::prelude::{BASE64_STANDARD, Engine};
    let images = Images::trained();
    let server = Server::start(&images, &["run"]);
    let [red, blue] = ["data/red/3.png", "data/blue/1.png"];
    let [red_bytes, blue_bytes] = [red, blue].map(|name| std::fs::read(images.path(name)).unwrap());
    let expected = printed(&images, &["classify", "run", red, blue, "--format", "jsonl", "--logits"]);

    let single = server.post("/classify?logits=true&top=1", &red_bytes);
    assert_eq!(single.status, 200, "{}", String::from_utf8_lossy(&single.body));
    let by_curl = "Content-Type: application/x-www-form-urlencoded\r\n";
    assert_eq!(server.ask("POST", "/classify?logits=true&top=1", by_curl, &red_bytes).json(), single.json());
    let single = single.json();
    assert_eq!(single["model"], "run");
    let result = &single["results"][0];
    assert_eq!(result["predictions"].as_array().unwrap().len(), 1);
    assert_eq!(result["predictions"][0]["label"], "red");
    assert!(close(&result["logits"], &expected[0]["logits"]), "{result} {}", expected[0]);

    let (kind, body) =
        form(&[("a.png", red_bytes.clone()), ("no", b"none".to_vec()), ("b.png", blue_bytes.clone())]);
    let several = server.ask("POST", "/classify?logits=true", &kind, &body).json();
    let results = several["results"].as_array().unwrap();
    assert_eq!([&results[0]["name"], &results[1]["name"], &results[2]["name"]], ["a.png", "no", "b.png"]);
    assert!(close(&results[0]["logits"], &expected[0]["logits"]));
    assert!(close(&results[2]["logits"], &expected[1]["logits"]));
    assert!(results[1]["error"].is_string() && results[1].get("predictions").is_none(), "{}", results[1]);

    let encoded = json!({ "images": [{ "data": BASE64_STANDARD.encode(&blue_bytes) }] }).to_string();
    let encoded =
        server.ask("POST", "/embed", "Content-Type: application/json\r\n", encoded.as_bytes()).json();
    let embedded = printed(&images, &["embed", "run", blue]);
    assert!(close(&encoded["results"][0]["embedding"], &embedded[0]["embedding"]));
    assert!(encoded["results"][0].get("name").is_none());

    let facts = server.get("/models").json();
    let model = &facts["models"][0];
    assert_eq!((&model["classes"], &model["image_size"]), (&json!(["blue", "red"]), &json!([16, 16])));
    let overlay = server.post("/explain", &red_bytes);
    assert_eq!(overlay.status, 200);
    assert!(overlay.headers.contains("content-type: image/png"));
    let overlay = image::load_from_memory(&overlay.body).unwrap();
    assert_eq!([overlay.width(), overlay.height()], [448, 448]);
}

#[test]
fn images_without_a_signature_are_recognized_by_their_type_or_name() {
    let images = Images::trained();
    let server = Server::start(&images, &["run"]);
    // The header of a TGA file of 16 by 16 pixels in blue, green, and red, the first row at the top.
    let header = [0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 16, 0, 24, 0x20];
    let tga: Vec<u8> = [&header[..], &[40, 40, 210].repeat(256)].concat();
    let label = |answer: Answer| answer.json()["results"][0]["predictions"][0]["label"].clone();
    for kind in ["image/x-tga", "image/targa"] {
        let kind = format!("Content-Type: {kind}\r\n");
        assert_eq!(label(server.ask("POST", "/classify?top=1", &kind, &tga)), "red", "{kind}");
    }
    let (kind, body) = form(&[("red.TGA", tga.clone())]);
    assert_eq!(label(server.ask("POST", "/classify", &kind, &body)), "red");
    // Nothing else says so.
    assert_eq!(server.post("/classify", &tga).status, 422);
    let cut = server.ask("POST", "/classify", "Content-Type: image/x-tga\r\n", &tga[..9]);
    assert!(cut.status == 422 && !cut.json()["error"].as_str().unwrap().contains("image.tga"));
}

#[test]
fn what_cannot_be_meant_gets_a_status_and_a_reason() {
    let images = Images::trained();
    let server = Server::start(&images, &["colors=run", "--max-body-size", "4K", "--queue", "2"]);
    let red = std::fs::read(images.path("data/red/3.png")).unwrap();
    let as_json = "Content-Type: application/json\r\n";
    let three = json!({ "images": [{ "data": "" }, { "data": "" }, { "data": "" }] }).to_string();
    for (method, path, headers, body, status, part) in [
        ("POST", "/classify", "", b"no image".to_vec(), 422, "image"),
        ("POST", "/classify", "", Vec::new(), 400, "empty"),
        ("POST", "/classify", "", vec![0; 5000], 413, "4096"),
        ("POST", "/classify", "Content-Type: text/plain\r\n", red.clone(), 415, "text/plain"),
        ("POST", "/classify", as_json, b"{".to_vec(), 400, "JSON"),
        ("POST", "/classify", as_json, b"{\"images\": []}".to_vec(), 400, "no image"),
        ("POST", "/classify", as_json, three.into_bytes(), 413, "at most 2"),
        ("POST", "/classify?top=0", "", red.clone(), 400, "top"),
        ("POST", "/classify?tops=1", "", red.clone(), 400, "tops"),
        ("POST", "/classify?model=other", "", red.clone(), 404, "colors"),
        ("POST", "/explain?method=rollup", "", red.clone(), 422, "grad-cam"),
        ("GET", "/classify", "", Vec::new(), 405, "method"),
        ("GET", "/nothing", "", Vec::new(), 404, "path"),
        ("POST", "/classify", "Origin: https://other.example\r\n", red.clone(), 403, "other.example"),
        ("POST", "/classify", "Host: other.example\r\n", red.clone(), 403, "other.example"),
    ] {
        let answer = server.ask(method, path, headers, &body);
        let shown = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(answer.status, status, "{method} {path} {headers}: {shown}");
        assert!(answer.json()["error"].as_str().unwrap().contains(part), "{path}: {shown}");
    }
    assert_eq!(server.post("/classify?model=colors", &red).status, 200);
    let counts = String::from_utf8(server.get("/metrics").body).unwrap();
    for part in [
        "vitrine_http_requests_total{path=\"/classify\",status=\"413\"} 2",
        "vitrine_images_total{model=\"colors\",answer=\"logits\"} 2",
        "vitrine_waiting_images 0",
    ] {
        assert!(counts.contains(part), "{part}\n{counts}");
    }
}

#[test]
fn a_token_opens_everything_but_the_page_and_the_checks_of_health() {
    let images = Images::trained();
    images.write("token", " secret\n");
    let server = Server::start(&images, &["run", "--token-file", "token"]);
    for path in ["/", "/app.js", "/style.css", "/icon.svg", "/health", "/ready"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.headers.contains("content-security-policy: default-src 'none'"), "{}", answer.headers);
    }
    for (headers, path, status) in [
        ("", "/models", 401),
        ("", "/models?token=secret", 401),
        ("Cookie: token=secret\r\n", "/models", 401),
        ("Authorization: Bearer wrong\r\n", "/models", 401),
        ("Authorization: Bearer secret\r\n", "/models", 200),
        ("", "/metrics", 401),
        ("", "/openapi.json", 401),
        ("Authorization: Bearer secret\r\n", "/openapi.json", 200),
    ] {
        let answer = server.ask("GET", path, headers, &[]);
        assert_eq!(answer.status, status, "{headers} {path}");
        assert_eq!(answer.headers.contains("www-authenticate: bearer"), status == 401);
    }
    let description = server.ask("GET", "/openapi.json", "Authorization: Bearer secret\r\n", &[]).json();
    for path in ["/classify", "/embed", "/explain", "/models", "/metrics", "/health", "/ready"] {
        assert!(description["paths"].get(path).is_some(), "{path} is not described");
    }
}

/// Asks again and again until told to stop, and returns the statuses and labels.
fn ask_until(server: &Server, image: &[u8], end: &std::sync::atomic::AtomicBool) -> Vec<(u16, String)> {
    let mut answers = Vec::new();
    while !end.load(std::sync::atomic::Ordering::Relaxed) {
        let answer = server.post("/classify", image);
        let label = answer.json()["results"][0]["predictions"][0]["label"].to_string();
        answers.push((answer.status, label));
    }
    answers
}

#[test]
fn a_model_whose_file_has_changed_is_loaded_without_losing_a_request() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let images = Images::trained();
    let model = images.path("model.safetensors");
    std::fs::copy(images.path("run/model.safetensors"), &model).unwrap();
    let mut server = Server::start(&images, &["model.safetensors"]);
    let red = std::fs::read(images.path("data/red/3.png")).unwrap();
    // The same weights with the names of the classes exchanged.
    let (card, weights) = vitrine::model_file::load(&model, &burn::tensor::Device::default()).unwrap();
    let classes = vec!["kilo".to_owned(), "lima".to_owned()];
    let exchanged = vitrine::model_file::ModelCard { classes, ..card };
    let end = AtomicBool::new(false);
    let mut log = std::mem::replace(
        &mut server.log,
        BufReader::new(Command::new("true").stderr(Stdio::piped()).spawn().unwrap().stderr.unwrap()),
    );
    let answers: Vec<(u16, String)> = thread::scope(|scope| {
        let asking: Vec<_> = (0..4).map(|_| scope.spawn(|| ask_until(&server, &red, &end))).collect();
        let mut line = String::new();
        while !line.contains(" 200 ") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0);
        }
        let precision = vitrine::weights_file::Precision::F32;
        vitrine::model_file::save(&model, &exchanged, &weights, precision).unwrap();
        server.signal("HUP");
        while !line.contains("loaded model.safetensors again") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0);
        }
        end.store(true, Ordering::Relaxed);
        asking.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(
        answers
            .iter()
            .all(|(status, label)| *status == 200 && ["\"red\"", "\"lima\""].contains(&label.as_str())),
        "{answers:?}"
    );
    assert_eq!(server.post("/classify", &red).json()["results"][0]["predictions"][0]["label"], "lima");
    // A file that is no model leaves the model as it is.
    std::fs::write(&model, "no model").unwrap();
    server.signal("HUP");
    let mut line = String::new();
    while !line.contains("kept as it was") {
        line.clear();
        assert!(log.read_line(&mut line).unwrap() > 0);
    }
    assert_eq!(server.post("/classify", &red).status, 200);
}

#[test]
fn a_server_that_is_asked_to_end_answers_what_has_begun() {
    let images = Images::trained();
    let mut server = Server::start(&images, &["run"]);
    let red = std::fs::read(images.path("data/red/3.png")).unwrap();
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = format!(
        "POST /classify HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n",
        server.address,
        red.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&red[..10]).unwrap();
    // The server has read the header when it has answered another request.
    assert_eq!(server.get("/ready").status, 200);
    server.signal("TERM");
    server.wait_for("ending");
    stream.write_all(&red[10..]).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("red"), "{answer}");
    assert!(server.process.wait().unwrap().success());
    assert!(TcpStream::connect(&server.address).is_err());
}

#[test]
fn slow_requests_end_with_a_status() {
    let images = Images::trained();
    let server = Server::start(&images, &["run", "--timeout", "300ms"]);
    let mut stream = TcpStream::connect(&server.address).unwrap();
    let head = format!(
        "POST /classify HTTP/1.1\r\nHost: {}\r\nContent-Length: 100\r\n\r\nten bytes.",
        server.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    let red = std::fs::read(images.path("data/red/3.png")).unwrap();
    assert_eq!(server.post("/classify", &red).status, 200);
}

#[test]
fn usage_that_cannot_be_meant_is_refused_before_anything_is_served() {
    let images = Images::trained();
    images.write("empty", "\n");
    for (arguments, status, part) in [
        (&["run", "run"][..], 2, "NAME=run"),
        (&["=run"], 2, "NAME=MODEL"),
        (&["none.safetensors"], 1, "none.safetensors"),
        (&["run", "--offline"], 2, "--offline"),
        (&["run", "--token-file", "empty"], 1, "empty"),
        (&["run", "--token-file", "none"], 1, "--token-file none"),
        (&["run", "--allow-origin", "example.com"], 2, "https://HOST"),
        (&["run", "--listen", "8080"], 2, "--listen"),
        (&["run", "--queue", "0"], 2, "--queue"),
        (&["run", "--batch-size", "9", "--queue", "8"], 2, "--batch-size 9 has no effect beyond --queue 8"),
        (&["run", "--batch-size", "257"], 2, "--queue 256"),
        (&["run", "--timeout", "soon"], 2, "--timeout"),
        (&["run", "--timeout", "10ms", "--batch-delay", "20ms"], 2, "--batch-delay"),
        (&["run", "--batch-delay", "1y"], 2, "--batch-delay"),
        (&["run", "--listen", "192.0.2.1:80"], 1, "--listen 192.0.2.1:80"),
    ] {
        let assert = vitrine(&images).arg("serve").args(arguments).assert().failure().code(status);
        let error = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
}
