//! `vitrine worker` and `train --workers` with processes on this machine: the result has the bits of a run without workers, whatever
//! happens to them.

#![allow(clippy::unwrap_used)]
#![cfg(unix)]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, ChildStdout, Command, Stdio};

use assert_cmd::cargo::cargo_bin;
use iroh::endpoint::{Connection, VarInt, presets};
use iroh::{Endpoint, EndpointAddr, EndpointId, RelayMode};
use predicates::prelude::*;
use predicates::str::contains;
use support::{Images, vitrine};

/// A running program, which is killed at the end.
struct Process(Child);

impl Process {
    fn start(images: &Images, arguments: &[&str], stderr: Stdio) -> Self {
        let child = Command::new(cargo_bin!("vitrine"))
            .current_dir(images.path("."))
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        Self(child)
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.0.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A worker that listens, and its address.
struct Worker {
    process: Process,
    address: String,
    _output: BufReader<ChildStdout>,
}

impl Worker {
    /// A worker on the loopback interface, at a port of its own or a given one.
    fn start(images: &Images, port: Option<u16>) -> Self {
        let port = port.unwrap_or_else(free_port);
        Self::listening(images, &["--listen", &format!("127.0.0.1:{port}"), "--key", &format!("{port}.key")])
    }

    /// A worker with these options and one thread.
    fn listening(images: &Images, options: &[&str]) -> Self {
        let all = [&["worker", "--token-file", "token.txt", "--threads", "1"], options].concat();
        let messages = File::options().create(true).append(true).open(images.path(MESSAGES)).unwrap();
        let mut process = Process::start(images, &all, messages.into());
        let mut output = BufReader::new(process.0.stdout.take().unwrap());
        let mut address = String::new();
        output.read_line(&mut address).unwrap();
        assert!(!address.is_empty(), "the worker {options:?} did not start");
        Self { process, address, _output: output }
    }

    /// The most memory that it has had, in bytes, where the system says so.
    fn peak_memory(&self) -> Option<usize> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.0.id())).ok()?;
        let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        Some(kilobytes.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()? << 10)
    }
}

/// The file with the messages of all workers.
const MESSAGES: &str = "messages.txt";

fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A folder with a data set, a token, and a recipe for micro-batches.
fn prepared() -> Images {
    let images = Images::prepared();
    images.write("token.txt", "secret\n");
    images.write("other.txt", "wrong\n");
    images
}

fn list(images: &Images, workers: &[&str]) {
    images.write("workers.txt", &workers.concat());
}

const TRAIN: [&str; 14] = [
    "train",
    "data",
    "--model",
    "tiny.toml",
    "--epochs",
    "3",
    "--batch-size",
    "3",
    "--accumulate",
    "4",
    "--threads",
    "1",
    "--seed",
    "5",
];
const WITH_WORKERS: [&str; 4] = ["--workers", "workers.txt", "--token-file", "token.txt"];

fn model(images: &Images, run: &str) -> Vec<u8> {
    std::fs::read(images.path(&format!("{run}/model.safetensors"))).unwrap()
}

#[test]
fn workers_change_no_bit_of_the_result() {
    let images = prepared();
    vitrine(&images).args(TRAIN).args(["--output", "alone"]).assert().success();
    let port = free_port();
    let anywhere = ["--listen", &format!("0.0.0.0:{port}"), "--key", "worker.key"];
    let workers =
        [Worker::start(&images, None), Worker::start(&images, None), Worker::listening(&images, &anywhere)];
    let id = workers[2].address.trim().strip_prefix("iroh:").unwrap().split_once('@').unwrap().0.to_owned();
    let addresses = [&workers[0].address, &workers[1].address, &format!("iroh:{id}@127.0.0.1:{port}\n")];
    for (run, workers, more) in
        [("two", 0..2, &[][..]), ("one", 2..3, &["--workers-only"]), ("three", 0..3, &["--workers-only"])]
    {
        list(&images, &addresses.map(String::as_str)[workers]);
        let assert = vitrine(&images)
            .args(TRAIN)
            .args(WITH_WORKERS)
            .args(more)
            .args(["--output", run])
            .assert()
            .success();
        let messages = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
        assert!(["is lost", "alone", "panicked"].iter().all(|word| !messages.contains(word)), "{messages}");
        if !more.is_empty() {
            assert_eq!(messages.matches(", 0 here").count(), 3, "{messages}");
        }
        assert!(model(&images, run) == model(&images, "alone"), "{run}");
    }
    // They end when they are asked to.
    for Worker { mut process, .. } in workers {
        process.signal("TERM");
        assert!(process.0.wait().unwrap().success());
    }
}

#[test]
fn no_failure_changes_a_bit_of_the_result() {
    let images = prepared();
    images.write(
        "model.toml",
        "image_size = 96\npatch_size = 8\nembed_dim = 96\ndepth = 4\nnum_heads = 3\ndropout = 0.1\ndrop_path = 0.1\n",
    );
    let more = [
        "--model",
        "model.toml",
        "--epochs",
        "60",
        "--batch-size",
        "3",
        "--accumulate",
        "4",
        "--threads",
        "1",
    ];
    let seeds = std::env::var("VITRINE_FAULTY_SEEDS").map_or(1, |text| text.parse().unwrap());
    for seed in 0..seeds {
        let seed = format!("{seed}");
        let train = [&["train", "data", "--seed", &seed], &more[..]].concat();
        let (alone, run) = (format!("alone-{seed}"), format!("run-{seed}"));
        vitrine(&images).args(&train).args(["--output", &alone]).assert().success();
        train_with_failures(&images, &train, &run);
        assert!(model(&images, &run) == model(&images, &alone), "seed {seed}");
    }
}

/// Trains with workers, of which one is killed, one freezes, one is started again, and one comes late; the trainer is killed and goes on
/// with others.
fn train_with_failures(images: &Images, train: &[&str], run: &str) {
    let ports: Vec<u16> = (0..4).map(|_| free_port()).collect();
    let start = |index: usize| Worker::start(images, Some(ports[index]));
    let (killed, frozen, restarted, late) = (start(0), start(1), start(2), start(3));
    let addresses = [&killed, &frozen, &restarted, &late].map(|worker| worker.address.clone());
    drop(late);
    list(images, &addresses.each_ref().map(String::as_str));
    let arguments = [train, &WITH_WORKERS, &["--output", run]].concat();
    let mut trainer = Process::start(images, &arguments, Stdio::piped());
    let mut lines = BufReader::new(trainer.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut seen = Vec::new();
    let mut until_any = |parts: &[&str]| {
        let found = lines.any(|line| {
            seen.push(line);
            seen.last().is_some_and(|line| parts.iter().any(|part| line.contains(part)))
        });
        assert!(found, "none of {parts:?} in {seen:#?}");
    };
    // A connection without a sign of life breaks after 15 seconds; its micro-batch is late before that, unless all of them take long.
    let until_silent = |until_any: &mut dyn FnMut(&[&str]), port: u16| {
        until_any(
            &["is lost", "does not answer"]
                .map(|what| format!("127.0.0.1:{port} {what}"))
                .each_ref()
                .map(String::as_str),
        );
    };
    until_any(&["epoch 2/60"]);
    drop(killed);
    until_silent(&mut until_any, ports[0]);
    // This one closes its connections.
    restarted.process.signal("TERM");
    until_any(&[&format!("127.0.0.1:{} is lost", ports[2])]);
    drop(restarted);
    let _restarted = start(2);
    until_any(&[&format!("127.0.0.1:{} is there", ports[2])]);
    frozen.process.signal("STOP");
    until_silent(&mut until_any, ports[1]);
    let _late = start(3);
    until_any(&["epoch"]);
    trainer.signal("KILL");
    trainer.0.wait().unwrap();
    assert!(seen.iter().all(|line| !line.contains("epoch 60/60") && !line.contains("panicked")), "{seen:#?}");
    list(images, &[&addresses[2]]);
    let resumed = [&["train", "--resume", run], &WITH_WORKERS[..]].concat();
    vitrine(images)
        .args(resumed)
        .assert()
        .success()
        .stderr(contains("micro-batches: ").and(contains("panicked").not()));
}

#[test]
fn workers_refuse_what_they_should_and_go_on() {
    let images = prepared();
    let worker = Worker::start(&images, None);
    list(&images, &[&worker.address]);
    let train = |more: &[&str]| vitrine(&images).args(TRAIN).args(["--output", "run"]).args(more).assert();
    train(&["--workers", "workers.txt", "--token-file", "other.txt"])
        .code(1)
        .stderr(contains("refuses").and(contains("the token is wrong")).and(contains("panicked").not()));
    assert!(!images.path("run").exists());
    let before = worker.peak_memory();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (silent, stranger) = runtime.block_on(strangers(&worker));
    if let (Some(before), Some(after)) = (before, worker.peak_memory()) {
        assert!(after < before + (64 << 20), "{before} bytes of memory became {after}");
    }
    train(&[&WITH_WORKERS[..], &["--workers-only"]].concat())
        .success()
        .stderr(contains("is lost").not().and(contains(", 0 here")));
    drop((silent, stranger));
    let messages = std::fs::read_to_string(images.path(MESSAGES)).unwrap();
    assert!(!messages.contains("panicked"), "{messages}");
    for (more, code, part) in [
        (&["--workers", "workers.txt"][..], 2, "give --token-file, too"),
        (&["--token-file", "token.txt"], 2, "no effect without --workers"),
        (&["--workers-only"], 2, "no effect without --workers"),
        (&["--workers", "nowhere.txt", "--token-file", "token.txt"], 1, "nowhere.txt"),
        (&["--workers", "token.txt", "--token-file", "token.txt"], 2, "line 1: write iroh:ID"),
    ] {
        vitrine(&images)
            .args(TRAIN)
            .args(more)
            .args(["--output", "other"])
            .assert()
            .code(code)
            .stderr(contains(part));
    }
    let without = ["train", "data", "--model", "tiny.toml", "--epochs", "1", "--output", "other"];
    vitrine(&images)
        .args(without)
        .args(WITH_WORKERS)
        .assert()
        .code(2)
        .stderr(contains("give --accumulate N"));
}

#[test]
fn a_worker_whose_key_was_made_anew_is_not_called_unreachable() {
    let images = prepared();
    let port = free_port();
    let before = Worker::start(&images, Some(port)).address.clone();
    std::fs::remove_file(images.path(&format!("{port}.key"))).unwrap();
    let worker = Worker::start(&images, Some(port));
    assert_ne!(worker.address, before);
    list(&images, &[&before]);
    let train = || vitrine(&images).args(TRAIN).args(WITH_WORKERS).args(["--output", "run"]).assert();
    train().code(1).stderr(
        contains(format!("127.0.0.1:{port} refuses: its key is not the one of its line"))
            .and(contains("cannot be reached").not()),
    );
    list(&images, &[&worker.address]);
    train().success();
}

/// What strangers may try: garbage, a message of 1 GiB without having shown the token, the same as a token, and garbage with the token.
/// A connection that says nothing is left, with the endpoint that holds it.
async fn strangers(worker: &Worker) -> (Connection, Endpoint) {
    let (id, place) = worker.address.trim().strip_prefix("iroh:").unwrap().split_once('@').unwrap();
    let (id, place): (EndpointId, SocketAddr) = (id.parse().unwrap(), place.parse().unwrap());
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 1200], &[0xc0; 1200], &[0; 3]] {
        socket.send_to(garbage, place).unwrap();
    }
    let endpoint = Endpoint::builder(presets::Minimal).relay_mode(RelayMode::Disabled).bind().await.unwrap();
    let connected =
        async |protocol: &[u8]| endpoint.connect(EndpointAddr::new(id).with_ip_addr(place), protocol).await;
    for protocol in [&b"burn/remote/1"[..], b"vitrine/admission/1"] {
        let connection = connected(protocol).await.unwrap();
        let sent = send_a_gigabyte(&connection).await;
        assert!(sent < 64 << 20, "{sent} bytes were taken");
        connection.closed().await;
    }
    assert!(connected(b"another protocol").await.is_err());
    // Who has shown the token may send garbage: to burn's own stream, and in place of one.
    let shown = connected(b"vitrine/admission/1").await.unwrap();
    let (mut sender, mut receiver) = shown.open_bi().await.unwrap();
    sender.write_all(b"secret").await.unwrap();
    sender.finish().unwrap();
    assert_eq!(receiver.read_to_end(2).await.unwrap(), [1]);
    for frames in [&[&b"\x92\x01\xa7Session"[..], &[0xff; 4096]][..], &[&[0xff; 64]]] {
        let connection = connected(b"burn/remote/1").await.unwrap();
        let (mut sender, mut receiver) = connection.open_bi().await.unwrap();
        for frame in frames {
            sender.write_all(&(frame.len() as u64).to_le_bytes()).await.unwrap();
            sender.write_all(frame).await.unwrap();
        }
        sender.finish().unwrap();
        // Burn closes the stream or the connection.
        let _ = receiver.read_to_end(4096).await;
    }
    (connected(b"vitrine/admission/1").await.unwrap(), endpoint)
}

/// Sends as much of a message of 1 GiB as the other side takes: the number of bytes.
async fn send_a_gigabyte(connection: &Connection) -> usize {
    let Ok((mut sender, _receiver)) = connection.open_bi().await else { return 0 };
    let part = vec![0; 1 << 20];
    let _ = sender.write_all(&(1_u64 << 30).to_le_bytes()).await;
    for sent in 0..1024 {
        if sender.write_all(&part).await.is_err() {
            return sent << 20;
        }
    }
    connection.close(VarInt::from_u32(0), b"");
    1 << 30
}

#[test]
fn a_worker_says_what_is_wrong_with_its_options() {
    let images = prepared();
    let worker = |arguments: &[&str]| vitrine(&images).arg("worker").args(arguments).assert();
    let token = ["--token-file", "token.txt"];
    for (arguments, code, part) in [
        (&["--listen", "10.0.0.7:1", "--key", "k"][..], 2, "[::1]:PORT"),
        (&["--listen", "ws://127.0.0.1:1", "--key", "k"], 2, "0.0.0.0:PORT"),
        (&["--listen", "127.0.0.1:0", "--key", "k"], 2, "0.0.0.0:PORT"),
        (&["--listen", "0.0.0.0:3700"], 2, "--key <FILE>"),
        (&["--listen", "0.0.0.0:3700", "--key", "token.txt"], 1, "--key token.txt"),
    ] {
        worker(&[arguments, &token].concat()).code(code).stderr(contains(part));
    }
    images.write("empty.txt", " \n");
    for (file, part) in [("none.txt", "none.txt"), ("empty.txt", "empty")] {
        worker(&["--listen", "127.0.0.1:3700", "--key", "k", "--token-file", file])
            .code(1)
            .stderr(contains(part));
    }
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    worker(&[&["--listen", &listen, "--key", "k"], &token[..]].concat())
        .code(1)
        .stderr(contains("--listen: port"));
}
