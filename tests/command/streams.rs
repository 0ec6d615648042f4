//! Standard output and standard error as closed pipes and on a full disk, and signals.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Images, TINY};

const TRAIN: [&str; 10] =
    ["train", "data", "--model", "tiny.toml", "--epochs", "3", "--batch-size", "8", "--output", "run"];

fn prepared() -> Images {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 10);
    images.fill("data/blue", [30, 30, 200], 10);
    images.write("tiny.toml", TINY);
    images
}

fn program(images: &Images, arguments: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("vitrine"));
    command.current_dir(images.path("")).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A pipe that its reader has closed.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// A device on which every write fails as on a full disk.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// The messages and the exit status of a command, which must not have panicked.
fn ended(output: &Output) -> (String, Option<i32>) {
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!message.contains("panicked"), "{message}");
    (message, output.status.code())
}

#[test]
fn training_continues_if_its_streams_fail() {
    let images = prepared();
    for (streams, status) in [(closed as fn() -> Stdio, 0), (full, 1)] {
        let output = program(&images, &TRAIN).stdout(streams()).stderr(streams()).output().unwrap();
        assert_eq!(ended(&output).1, Some(status));
        let metrics = std::fs::read_to_string(images.path("run/metrics.csv")).unwrap();
        assert_eq!(metrics.lines().count(), 4, "{metrics}");
        assert!(images.path("run/report.html").is_file());
        std::fs::remove_dir_all(images.path("run")).unwrap();
    }
}

#[test]
fn training_continues_if_the_reader_closes_the_pipe_early() {
    let images = prepared();
    let mut child = program(&images, &TRAIN).spawn().unwrap();
    let mut start = [0; 40];
    child.stderr.take().unwrap().read_exact(&mut start).unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(images.path("run/report.html").is_file());
}

#[test]
fn a_full_disk_behind_standard_output_is_an_error_and_a_closed_pipe_is_not() {
    let images = prepared();
    assert!(program(&images, &TRAIN).status().unwrap().success());
    let commands: [&[&str]; 15] = [
        &["--help"],
        &["train", "--help"],
        &["presets"],
        &["presets", "--show", "short"],
        &["devices"],
        &["completions", "bash"],
        &["inspect", "data"],
        &["inspect", "data", "--json"],
        &["inspect", "run"],
        &["inspect", "vit_pico_patch4_32"],
        &["evaluate", "run", "data"],
        &["classify", "run", "data"],
        &["embed", "run", "data"],
        &["similar", "run", "data/red/0.png", "--in", "data"],
        &["export", "run", "--layout", "timm", "--output", "timm.safetensors"],
    ];
    for arguments in commands {
        let (message, status) = ended(&program(&images, arguments).stdout(full()).output().unwrap());
        assert_eq!(status, Some(1), "{arguments:?}: {message}");
        assert!(message.contains("standard output"), "{arguments:?}: {message}");
        let (message, status) = ended(&program(&images, arguments).stdout(closed()).output().unwrap());
        assert_eq!(status, Some(0), "{arguments:?}: {message}");
        let output = program(&images, arguments).stderr(full()).output().unwrap();
        assert_eq!(ended(&output).1, Some(0), "{arguments:?}");
    }
}

#[test]
fn explanations_are_complete_if_standard_output_fails() {
    let images = prepared();
    assert!(program(&images, &TRAIN).status().unwrap().success());
    for (stream, status) in [(closed as fn() -> Stdio, 0), (full, 1)] {
        let mut command = program(&images, &["explain", "run", "data", "--output", "looked"]);
        let (message, ended) = ended(&command.stdout(stream()).output().unwrap());
        assert_eq!(ended, Some(status), "{message}");
        // An image, two overlays, and two arrays for each of 20 images, and the page.
        assert_eq!(std::fs::read_dir(images.path("looked")).unwrap().count(), 20 * 5 + 1);
        std::fs::remove_dir_all(images.path("looked")).unwrap();
    }
}

#[test]
fn a_closed_pipe_keeps_neither_files_from_being_written_nor_the_status_from_telling_what_failed() {
    let images = prepared();
    assert!(program(&images, &TRAIN).status().unwrap().success());
    images.write("broken.png", "no image");
    for (arguments, file, status) in [
        ("embed run broken.png data --format jsonl --html map.html", Some("map.html"), 1),
        ("embed run broken.png data --output rows.npy", Some("rows.npy"), 1),
        ("embed run broken.png data", None, 1),
        ("similar run broken.png data/red/0.png --in data --html page.html", Some("page.html"), 1),
        ("explain run broken.png data/red/0.png --output looked", Some("looked/index.html"), 1),
        ("classify run broken.png data", None, 1),
        ("quantize run --calibration data --output small.safetensors", Some("small.safetensors"), 0),
    ] {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let (message, ended) = ended(&program(&images, &arguments).stdout(closed()).output().unwrap());
        assert_eq!(ended, Some(status), "{arguments:?}: {message}");
        assert!(!message.contains("standard output"), "{arguments:?}: {message}");
        assert!(file.is_none_or(|file| images.path(file).is_file()), "{arguments:?}");
    }
}

#[test]
fn the_exit_status_does_not_depend_on_standard_error() {
    let images = prepared();
    for (arguments, status) in [(["inspect", "nowhere"], 1), (["inspect", "--flag"], 2)] {
        for stream in [full(), closed()] {
            let output = program(&images, &arguments).stderr(stream).output().unwrap();
            assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        }
    }
}

#[test]
fn a_closed_pipe_behind_standard_output_causes_no_panic() {
    let images = Images::new();
    let mut child = program(&images, &["presets"]).spawn().unwrap();
    drop(child.stdout.take());
    ended(&child.wait_with_output().unwrap());
}

/// The sizes of the temporary files next to what commands write.
fn temporary(images: &Images) -> Vec<u64> {
    let files = std::fs::read_dir(images.path("")).unwrap().map(Result::unwrap);
    let files = files.filter(|file| file.file_name().to_string_lossy().ends_with(".tmp"));
    files.map(|file| file.metadata().map_or(0, |about| about.len())).collect()
}

/// Waits until a command that goes on by itself has got so far.
fn wait_until(is_there: impl Fn() -> bool, child: &mut Child) {
    let begun = Instant::now();
    while !is_there() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended by itself");
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it has not got so far within a minute");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a command that classifies what it reads in a list, and waits until it has written a result. The list goes on until it is dropped.
fn classifying(command: &mut Command, images: &Images) -> (Child, ChildStdin) {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut list = child.stdin.take().unwrap();
    list.write_all(b"data/red/0.png\n").unwrap();
    wait_until(|| temporary(images).iter().any(|bytes| *bytes > 0), &mut child);
    (child, list)
}

fn signal(name: &str, child: &Child) {
    assert!(Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn a_command_that_is_interrupted_leaves_no_temporary_file() {
    let images = Images::trained();
    let mut command = program(&images, &["classify", "run", "-", "--output", "results.csv"]);
    let (mut child, list) = classifying(&mut command, &images);
    // SIGINT is ignored where a script has started the tests in the background, and SIGHUP where `nohup` has. As from `timeout`, the
    // signal comes twice.
    signal("TERM", &child);
    signal("TERM", &child);
    assert_eq!(child.wait().unwrap().signal(), Some(15), "whoever has started it can tell why it has ended");
    assert!(temporary(&images).is_empty() && !images.path("results.csv").exists());
    drop(list);
}

#[test]
fn a_command_goes_on_at_signals_that_it_was_started_to_ignore() {
    let images = Images::trained();
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' INT TERM HUP; exec \"$@\"", "sh"])
        .arg(assert_cmd::cargo::cargo_bin!("vitrine"));
    command.args(["classify", "run", "-", "--output", "results.csv"]).current_dir(images.path(""));
    let (mut child, list) = classifying(command.stdout(Stdio::null()).stderr(Stdio::null()), &images);
    for name in ["INT", "TERM", "HUP"] {
        signal(name, &child);
    }
    drop(list);
    assert!(child.wait().unwrap().success());
    assert!(temporary(&images).is_empty() && images.path("results.csv").is_file());
}

/// The address of a server that sends the beginning of a file, and nothing more.
fn stalling() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9912422\r\n\r\n").unwrap();
        stream.write_all(&vec![0; 1 << 20]).unwrap();
        // Until the program has ended.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    format!("http://{address}")
}

#[test]
fn a_download_that_is_interrupted_leaves_no_temporary_file() {
    let (images, mirror) = (Images::new(), stalling());
    let mut command =
        program(&images, &["inspect", "mnist", "--data-dir", "kept", "--mirror", mirror.as_str()]);
    for variable in ["ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"] {
        command.env_remove(variable);
    }
    let sizes = || -> Vec<u64> {
        let files = std::fs::read_dir(images.path("kept/mnist")).into_iter().flatten().map(Result::unwrap);
        files.map(|file| file.metadata().map_or(0, |about| about.len())).collect()
    };
    let mut child = command.spawn().unwrap();
    wait_until(|| sizes().iter().any(|bytes| *bytes > 0), &mut child);
    signal("TERM", &child);
    assert_eq!(child.wait().unwrap().signal(), Some(15));
    assert!(sizes().is_empty());
}
