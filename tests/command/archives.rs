//! Archives of images as inputs of `vitrine classify` and others.

use std::collections::BTreeSet;
use std::fs::{self, File};

use flate2::Compression;
use flate2::write::GzEncoder;
use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;

use crate::support::{Images, vitrine};

/// The results of a command that succeeds, line by line.
fn lines(images: &Images, command: &str) -> BTreeSet<String> {
    let run = vitrine(images).args(command.split(' ')).assert().success();
    String::from_utf8(run.get_output().stdout.clone()).unwrap().lines().map(str::to_owned).collect()
}

/// Writes a tar archive of a folder.
fn pack(images: &Images, folder: &str, writer: impl std::io::Write) {
    let mut archive = tar::Builder::new(writer);
    archive.append_dir_all(".", images.path(folder)).unwrap();
    archive.finish().unwrap();
}

#[test]
fn an_archive_without_class_folders_is_embedded_as_images() {
    let images = Images::trained();
    pack(&images, "data/red", File::create(images.path("red.tar")).unwrap());
    let embedded = vitrine(&images).args(["embed", "run", "red.tar"]).assert().success();
    let output = embedded.get_output();
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 12);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no classes"));
}

#[test]
fn the_images_of_an_archive_are_those_of_its_folder() {
    let images = Images::trained();
    images.write("data/notes.txt", "no image");
    images.folder("shards");
    pack(&images, "data", File::create(images.path("shards/a.tar")).unwrap());
    let compressed = File::create(images.path("shards/b.tar.gz")).unwrap();
    pack(&images, "data", GzEncoder::new(compressed, Compression::default()));
    let expected = lines(&images, "classify run data --batch-size 5");
    let within = |archive: &str| -> BTreeSet<String> {
        expected.iter().map(|line| line.replacen("data/", &format!("{archive}/"), 1)).collect()
    };
    assert_eq!(lines(&images, "classify run shards/a.tar --batch-size 5"), within("shards/a.tar"));
    assert_eq!(
        lines(&images, "classify run shards/*.tar* --batch-size 5"),
        &within("shards/a.tar") | &within("shards/b.tar.gz")
    );
    // An archive belongs to a shard as a whole.
    let shards =
        ["0/2", "1/2"].map(|shard| lines(&images, &format!("classify run shards/*.tar* --shard {shard}")));
    assert_eq!(shards.iter().map(BTreeSet::len).sum::<usize>(), 48);
    assert!(shards.iter().all(|lines| lines.len() % 24 == 0));
    vitrine(&images)
        .args("classify run shards/a.tar".split(' '))
        .assert()
        .stderr(contains("shards/a.tar: left out, not images: 1 (shards/a.tar/notes.txt)"));
}

#[test]
fn a_damaged_archive_keeps_no_image_back() {
    let images = Images::trained();
    images.write("data/red/broken.png", "no image");
    pack(&images, "data/red", File::create(images.path("whole.tar")).unwrap());
    let bytes = fs::read(images.path("whole.tar")).unwrap();
    fs::write(images.path("cut.tar"), &bytes[..bytes.len() / 2]).unwrap();
    fs::write(images.path("none.tar"), [0; 1024]).unwrap();
    images.write("fake.tar", "no archive");
    let run = vitrine(&images)
        .args("classify run whole.tar cut.tar none.tar fake.tar gone.tar".split(' '))
        .assert()
        .code(1);
    let rows = String::from_utf8(run.get_output().stdout.clone()).unwrap();
    assert_eq!(rows.matches("whole.tar/").count(), 12);
    let cut = rows.matches("cut.tar/").count();
    assert!((1..12).contains(&cut), "{rows}");
    run.stderr(
        contains("whole.tar/broken.png")
            .and(contains("error: cut.tar: the archive is damaged"))
            .and(contains("none.tar: the archive holds no images"))
            .and(contains("error: fake.tar: the archive is damaged"))
            .and(contains("gone.tar: no such file or folder")),
    );
}

#[cfg(not(feature = "bulk"))]
#[test]
fn what_needs_the_feature_bulk_is_refused_with_its_name() {
    let images = Images::trained();
    for command in [
        "classify run s3://bucket/photos/",
        "classify run data --output gs://bucket/rows.jsonl --format jsonl",
        "classify run data --output rows.parquet --format parquet",
        "embed run https://host/a.png",
        // Before the model is looked for.
        "embed nowhere data --output rows.parquet",
    ] {
        let run = vitrine(&images).args(command.split(' ')).assert().code(2);
        run.stderr(contains("build it with `--features bulk`"));
    }
    let listed =
        vitrine(&images).args(["classify", "run", "-"]).write_stdin("s3://bucket/a.png\n").assert().code(1);
    listed.stderr(contains("error: s3://bucket/a.png: this binary was built without object stores"));
}
