//! Images and results in object stores, and results as Parquet (cargo feature `bulk`).

#![allow(clippy::unwrap_used)]

mod server;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;

use assert_cmd::Command;
use assert_cmd::assert::Assert;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{ListAccessor, Row, RowAccessor};
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;

use self::server::{Fault, Server};
use self::support::{Images, vitrine};

/// A trained model, and a store with its images in the bucket `photos`: those of `red` as objects, in folders and with names that need
/// care, and those of `blue` in a tar archive.
fn store() -> (Images, Server) {
    let (images, server) = (Images::trained(), Server::start());
    for index in 0..12 {
        let bytes = fs::read(images.path(&format!("data/red/{index}.png"))).unwrap();
        server.put(&format!("photos/all/red/a b+ü%20 {index}.png"), &bytes);
    }
    server.put("photos/all/notes.txt", b"no image");
    server.put("photos/all/.hidden/0.png", b"hidden");
    server.put("photos/all/old.heic", b"heic");
    server.put("photos/tars/blue.tar", &tar(&images, "data/blue"));
    (images, server)
}

/// A tar archive of a folder.
fn tar(images: &Images, folder: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_dir_all("blue", images.path(folder)).unwrap();
    archive.into_inner().unwrap()
}

fn s3(images: &Images, server: &Server, command: &str) -> Command {
    let mut run = vitrine(images);
    run.args(command.split(' '))
        .env("AWS_ENDPOINT_URL", format!("http://{}", server.address))
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .env("AWS_REGION", "us-east-1");
    run
}

fn stdout(assert: &Assert) -> String {
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

/// The best class of each path, or its error.
fn best(lines: &str) -> BTreeSet<(String, String)> {
    let row = |line: &str| {
        let row: Value = serde_json::from_str(line).unwrap();
        let what = row["predictions"][0]["label"].as_str().or(row["error"].as_str()).unwrap();
        (row["path"].as_str().unwrap().to_owned(), what.to_owned())
    };
    lines.lines().map(row).collect()
}

/// What [`store`] holds.
fn expected() -> BTreeSet<(String, String)> {
    let red = (0..12).map(|index| (format!("s3://photos/all/red/a b+ü%20 {index}.png"), "red".to_owned()));
    let blue =
        (0..12).map(|index| (format!("s3://photos/tars/blue.tar/blue/{index}.png"), "blue".to_owned()));
    red.chain(blue).collect()
}

/// [`expected`], with the image that cannot be decoded.
fn expected_with_heic() -> BTreeSet<(String, String)> {
    let problem = "HEIC images are not supported: convert it to PNG or JPEG".to_owned();
    let mut expected = expected();
    expected.insert(("s3://photos/all/old.heic".to_owned(), problem));
    expected
}

const ALL: &str = "classify run s3://photos/all s3://photos/tars/blue.tar --format jsonl --batch-size 4";

#[test]
fn folders_archives_images_and_lists_of_a_store_are_classified() {
    let (images, server) = store();
    let all = s3(&images, &server, ALL).assert().code(1);
    assert_eq!(best(&stdout(&all)), expected_with_heic());
    all.stderr(contains("left out, not images: 1").and(contains("left out, hidden: 1")));

    let list: String = expected().iter().map(|(path, _)| format!("{path}\n")).collect();
    let list = list.replace("/blue/0.png", "").replace("blue.tar/blue", "gone");
    let listed = s3(&images, &server, "classify run - --format jsonl").write_stdin(list).assert().code(1);
    let rows = best(&stdout(&listed));
    let gone = |(path, what): &&(String, String)| path.contains("gone") && what == "no such object";
    assert_eq!(rows.iter().filter(gone).count(), 11, "{rows:?}");
    assert!(rows.is_superset(&expected()), "{rows:?}");

    let one = format!("classify run http://{}/photos/tars/blue.tar", server.address);
    assert_eq!(stdout(&s3(&images, &server, &one).assert().success()).matches(": blue").count(), 12);
    let embedded =
        s3(&images, &server, "embed run s3://photos/tars/blue.tar --format csv").assert().success();
    assert_eq!(stdout(&embedded).lines().count(), 13);
}

#[test]
fn what_fails_is_tried_again_and_then_named() {
    let (images, server) = store();
    let red = |index: usize| format!("photos/all/red/a b+ü%20 {index}.png");
    let faults = [
        (red(0), Fault::Status(503), 2),
        (red(1), Fault::Truncated, 1),
        (red(2), Fault::Slow, 1),
        (red(3), Fault::Status(429), 1),
        ("photos/tars/blue.tar".to_owned(), Fault::Truncated, 2),
        ("photos".to_owned(), Fault::Status(500), 1),
    ];
    for (path, fault, times) in &faults {
        server.fail(path, *fault, *times);
    }
    let all = s3(&images, &server, ALL).assert().code(1);
    assert_eq!(best(&stdout(&all)), expected_with_heic());
    for (path, ..) in &faults {
        assert_eq!(server.faults_left(path), 0, "{path}");
    }

    server.fail(&red(0), Fault::Status(403), 1000);
    server.fail(&red(1), Fault::Truncated, 1000);
    let part = format!("{ALL} --shard 0/1 --output s3://results/job");
    let all = s3(&images, &server, &part).assert().code(1);
    all.stderr(contains("s3://results/job/part-00000-of-00001.jsonl (25 images, 3 of them with an error)"));
    let part = server.get("results/job/part-00000-of-00001.jsonl").unwrap();
    let rows = best(&String::from_utf8(part).unwrap());
    assert_eq!((rows.len(), rows.intersection(&expected()).count()), (25, 22));
    for (index, words) in [(0, "403"), (1, "it cannot be read")] {
        let path = format!("s3://{}", red(index));
        assert!(rows.iter().any(|(name, what)| *name == path && what.contains(words)), "{rows:?}");
    }
}

#[test]
fn a_store_that_does_not_answer_leaves_no_part() {
    let (images, server) = store();
    let job = |shard: &str| format!("{ALL} --output s3://results/job/ --shard {shard}");
    // Without the list, no shard knows its images; an archive is in one of them.
    server.fail("photos", Fault::Status(403), 1000);
    for shard in ["0/2", "1/2"] {
        let run = s3(&images, &server, &job(shard)).assert().code(1);
        run.stderr(contains("s3://photos/all: images are missing: it cannot be read"));
    }
    server.fail("photos", Fault::Status(403), 0);
    server.fail("photos/tars/blue.tar", Fault::Status(403), 1000);
    let runs = ["0/2", "1/2"].map(|shard| s3(&images, &server, &job(shard)).assert());
    let missing = |run: &&Assert| {
        String::from_utf8_lossy(&run.get_output().stderr)
            .contains("s3://photos/tars/blue.tar: images are missing")
    };
    assert_eq!(runs.iter().filter(missing).count(), 1);
    let parts =
        (0..2).filter(|index| server.get(&format!("results/job/part-0000{index}-of-00002.jsonl")).is_some());
    assert_eq!(parts.count(), 1);

    for index in 0..12 {
        server.fail(&format!("photos/all/red/a b+ü%20 {index}.png"), Fault::Status(403), 1000);
    }
    let none = "classify run s3://photos/all/red --format jsonl --output s3://results/none.jsonl";
    s3(&images, &server, none).assert().code(1).stderr(contains("no results are kept"));
    assert!(server.get("results/none.jsonl").is_none());
    let list: String =
        (0..50).map(|index| format!("s3://photos/all/red/a b+ü%20 {}.png\n", index % 12)).collect();
    let many = s3(&images, &server, "classify run -").write_stdin(list).assert().code(1);
    many.stderr(contains("21 images in a row cannot be read"));

    server.fail("results/rows.jsonl", Fault::Status(403), 1000);
    let run = "classify run data --format jsonl --output s3://results/rows.jsonl";
    let run = s3(&images, &server, run).env("TMPDIR", images.path("data")).assert().code(1);
    run.stderr(
        contains("the results are kept in").and(contains("s3://results/rows.jsonl: cannot be written")),
    );
    let kept = fs::read_dir(images.path("data")).unwrap().map(|entry| entry.unwrap().path());
    let kept: Vec<_> = kept.filter(|path| path.is_file()).collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(fs::read_to_string(&kept[0]).unwrap().lines().count(), 24);
}

#[test]
fn a_large_archive_goes_on_where_it_broke_off() {
    let (images, server) = store();
    // Read in several requests.
    fs::write(images.path("data/blue/0.bin"), vec![7; 20 << 20]).unwrap();
    server.put("photos/tars/large.tar", &tar(&images, "data/blue"));
    // The first one is spent on HEAD, whose answer has no body.
    server.fail("photos/tars/large.tar", Fault::Truncated, 3);
    let run = s3(&images, &server, "classify run s3://photos/tars/large.tar").assert().success();
    assert_eq!(stdout(&run).matches(": blue").count(), 12);
    assert!(server.count("GET photos/tars/large.tar") >= 5);
    let bytes = server.get("photos/tars/large.tar").unwrap();
    server.put("photos/tars/cut.tar", &bytes[..bytes.len() - 1500]);
    s3(&images, &server, "classify run s3://photos/tars/cut.tar")
        .assert()
        .code(1)
        .stderr(contains("cut.tar"));
}

#[test]
fn parts_in_a_store_are_finished_once_and_of_one_job() {
    let (images, server) = store();
    let job = |shard: &str| format!("{ALL} --output s3://results/job/ --shard {shard}");
    let mut rows = BTreeSet::new();
    for index in 0..3 {
        let run = s3(&images, &server, &job(&format!("{index}/3"))).assert();
        run.stdout("").stderr(contains(format!("results/job/part-0000{index}-of-00003.jsonl (")));
        let part = server.get(&format!("results/job/part-0000{index}-of-00003.jsonl")).unwrap();
        let part = best(&String::from_utf8(part).unwrap());
        assert!(rows.is_disjoint(&part));
        rows.extend(part);
    }
    assert_eq!(rows, expected_with_heic());

    server.put("results/job/part-00001-of-00003.jsonl", b"as it was");
    let images_read = server.count("GET photos/all/");
    s3(&images, &server, &job("1/3")).assert().success().stderr(contains("this part is finished"));
    assert_eq!(server.get("results/job/part-00001-of-00003.jsonl").unwrap(), b"as it was");
    assert_eq!(server.count("GET photos/all/"), images_read);

    server.put("results/other/photo.png", b"a photo");
    for (command, words) in [
        (job("0/4"), "number of shards"),
        (format!("{} --top 1", job("0/3")), "options"),
        (format!("{ALL} --shard 0/2 --output s3://results/other"), "not empty"),
        (format!("{ALL} --output s3://results/other/photo.png"), "only what ends in .jsonl is replaced"),
        (format!("{ALL} --output s3://photos/all"), "this is one of the inputs"),
        (format!("{ALL} --output s3://results/"), "this is a folder"),
        ("classify run s3://".to_owned(), "it names no bucket"),
        ("classify run https://host/a.png?signature".to_owned(), "URLs with a query"),
        ("classify run https://user:secret@host/a.png".to_owned(), "https://...: URLs with a user"),
        ("classify run s3://photos//a.png".to_owned(), "names that begin with /"),
        ("classify run data --output https://host/rows.txt".to_owned(), "cannot be written to web servers"),
        (
            "explain run data --output s3://results/looked".to_owned(),
            "only the results of `vitrine classify`",
        ),
        ("classify run data --format parquet".to_owned(), "give --output"),
        ("embed run data --format parquet".to_owned(), "name a file with --output"),
        (
            "embed run data --output s3://results/rows.csv".to_owned(),
            "only the results of `vitrine classify`",
        ),
    ] {
        s3(&images, &server, &command).assert().code(2).stderr(contains(words));
    }
    assert_eq!(server.get("results/other/photo.png").unwrap(), b"a photo");
    for (command, words) in [
        ("classify run s3://photos/nothing", "no such object"),
        ("classify run s3://photos/nothing/", "the folder holds no images"),
        ("classify run s3://photos/tars/blue.zip", "a zip archive can only be read from the disk"),
        ("classify run https://127.0.0.1/photos/", "web servers do not list their files"),
    ] {
        s3(&images, &server, command).assert().code(1).stderr(contains(words));
    }
}

#[test]
fn parquet_has_the_rows_of_json_lines() {
    let (images, server) = store();
    images.write("data/red/broken.png", "no image");
    let text = "classify run data --format jsonl --logits --output rows.jsonl";
    vitrine(&images).args(text.split(' ')).assert().code(1);
    let run = "classify run data --format parquet --logits --output s3://results/rows.parquet";
    s3(&images, &server, run).assert().code(1);
    let bytes = server.get("results/rows.parquet").unwrap();
    File::create(images.path("rows.parquet")).unwrap().write_all(&bytes).unwrap();
    let reader = SerializedFileReader::new(File::open(images.path("rows.parquet")).unwrap()).unwrap();
    let rows: Vec<Row> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    let lines = fs::read_to_string(images.path("rows.jsonl")).unwrap();
    assert_eq!(rows.len(), 25);
    for (row, line) in rows.iter().zip(lines.lines()) {
        assert_same(row, &serde_json::from_str(line).unwrap());
    }
}

#[test]
fn embeddings_in_parquet_are_those_of_csv() {
    let images = Images::trained();
    vitrine(&images).args("embed run data --output rows.parquet".split(' ')).assert().success();
    let csv = vitrine(&images).args("embed run data --format csv".split(' ')).assert().success();
    let reader = SerializedFileReader::new(File::open(images.path("rows.parquet")).unwrap()).unwrap();
    let rows: Vec<Row> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    let csv = stdout(&csv);
    let lines: Vec<&str> = csv.lines().skip(1).collect();
    assert_eq!((rows.len(), lines.len()), (24, 24));
    for (row, line) in rows.iter().zip(lines) {
        let (path, values) = line.split_once(',').unwrap();
        let list = row.get_list(1).unwrap();
        assert_eq!(row.get_string(0).unwrap(), path);
        assert_eq!(list.len(), values.split(',').count());
        for (index, value) in values.split(',').enumerate() {
            assert_eq!(list.get_float(index).unwrap(), value.parse::<f32>().unwrap());
        }
    }
}

/// Asserts that a row has the fields of a line.
fn assert_same(row: &Row, line: &Value) {
    assert_eq!(row.get_string(0).unwrap(), line["path"].as_str().unwrap());
    assert_eq!(row.get_string(1).ok().map(String::as_str), line["error"].as_str());
    let (predictions, logits) = (row.get_list(2).unwrap(), row.get_list(3).unwrap());
    let expected = line["predictions"].as_array().cloned().unwrap_or_default();
    assert_eq!(predictions.len(), expected.len());
    for (index, expected) in expected.iter().enumerate() {
        let group = predictions.get_group(index).unwrap();
        assert_eq!(group.get_string(0).unwrap(), expected["label"].as_str().unwrap());
        assert_eq!(i64::from(group.get_int(1).unwrap()), expected["index"].as_i64().unwrap());
        assert!((group.get_double(2).unwrap() - expected["probability"].as_f64().unwrap()).abs() < 1e-9);
    }
    let expected = line["logits"].as_array().cloned().unwrap_or_default();
    assert_eq!(logits.len(), expected.len());
    for (index, expected) in expected.iter().enumerate() {
        assert!((f64::from(logits.get_float(index).unwrap()) - expected.as_f64().unwrap()).abs() < 1e-5);
    }
}
