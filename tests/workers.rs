//! `vitrine worker` and `train --workers` with processes on this machine: the result has the bits of a run without workers, whatever
//! happens to them.

#![allow(clippy::unwrap_used)]
#![cfg(unix)]

mod support;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use assert_cmd::cargo::cargo_bin;
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
        let listen = format!("ws://127.0.0.1:{port}");
        Self::listening(images, &["--listen", &listen])
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
}

/// The file with the messages of all workers.
const MESSAGES: &str = "messages.txt";

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
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
    let encrypted = ["--listen", &format!("0.0.0.0:{port}"), "--key", "worker.key"];
    let workers =
        [Worker::start(&images, None), Worker::start(&images, None), Worker::listening(&images, &encrypted)];
    let id = workers[2].address.trim().strip_prefix("iroh:").unwrap().split_once('@').unwrap().0.to_owned();
    let addresses = [&workers[0].address, &workers[1].address, &format!("iroh:{id}@127.0.0.1:{port}\n")];
    for (run, workers, more) in [
        ("two", 0..2, &[][..]),
        ("encrypted", 2..3, &["--workers-only"]),
        ("three", 0..3, &["--workers-only"]),
    ] {
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
    let addresses: Vec<String> = ports.iter().map(|port| format!("ws://127.0.0.1:{port}\n")).collect();
    list(images, &addresses.iter().map(String::as_str).collect::<Vec<_>>());
    let start = |index: usize| Worker::start(images, Some(ports[index]));
    let (killed, frozen, restarted) = (start(0), start(1), start(2));
    let arguments = [train, &WITH_WORKERS, &["--output", run]].concat();
    let mut trainer = Process::start(images, &arguments, Stdio::piped());
    let mut lines = BufReader::new(trainer.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut seen = Vec::new();
    let mut until = |part: &str| {
        let found = lines.any(|line| {
            seen.push(line);
            seen.last().is_some_and(|line| line.contains(part))
        });
        assert!(found, "no {part:?} in {seen:#?}");
    };
    until("epoch 2/60");
    drop(killed);
    until("is lost");
    drop(restarted);
    until("is lost");
    let _restarted = start(2);
    until(&format!("{} is there", addresses[2].trim()));
    frozen.process.signal("STOP");
    until("does not answer");
    let _late = start(3);
    until("epoch");
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
    // Garbage, and a connection that says nothing.
    let place = worker.address.trim().strip_prefix("ws://").unwrap();
    let silent = TcpStream::connect(place).unwrap();
    let upgrade = |path: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
    };
    // A frame that states 2 GiB.
    let large = b"\x82\xff\0\0\0\0\x80\0\0\0\0\0\0\0".to_vec();
    let frames = ["/session", "/data"].map(|path| [upgrade(path).into_bytes(), large.clone()].concat());
    let others = [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0xff; 4096], b"\r\n\r\n".to_vec()];
    for garbage in others.iter().chain(&frames) {
        let mut stream = TcpStream::connect(place).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let _ = stream.write_all(garbage);
        let _ = stream.read(&mut [0; 64]);
    }
    train(&[&WITH_WORKERS[..], &["--workers-only"]].concat())
        .success()
        .stderr(contains("is lost").not().and(contains(", 0 here")));
    drop(silent);
    let messages = std::fs::read_to_string(images.path(MESSAGES)).unwrap();
    assert!(
        !messages.contains("panicked") && messages.contains("warning: a connection was closed"),
        "{messages}"
    );
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
fn a_worker_says_what_is_wrong_with_its_options() {
    let images = prepared();
    let worker = |arguments: &[&str]| vitrine(&images).arg("worker").args(arguments).assert();
    let token = ["--token-file", "token.txt"];
    for (arguments, code, part) in [
        (&["--listen", "127.0.0.1:1"][..], 2, "0.0.0.0:PORT"),
        (&["--listen", "ws://0.0.0.0:1"], 2, "0.0.0.0:PORT"),
        (&["--listen", "0.0.0.0:3700"], 2, "give --key FILE"),
        (&["--listen", "ws://127.0.0.1:3700", "--key", "k"], 2, "no effect"),
        (&["--listen", "0.0.0.0:3700", "--key", "token.txt"], 1, "--key token.txt"),
    ] {
        worker(&[arguments, &token].concat()).code(code).stderr(contains(part));
    }
    worker(&["--listen", "ws://127.0.0.1:3700", "--token-file", "none.txt"])
        .code(1)
        .stderr(contains("none.txt"));
    images.write("empty.txt", " \n");
    worker(&["--listen", "ws://127.0.0.1:3700", "--token-file", "empty.txt"])
        .code(1)
        .stderr(contains("empty"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("ws://{}", taken.local_addr().unwrap());
    worker(&[&["--listen", &listen], &token[..]].concat())
        .code(1)
        .stderr(contains("--listen").and(contains("port")));
}
