//! Tests of finding, downloading, and unpacking published data sets.

use std::collections::HashMap;

use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::table::remote;
use super::*;
use crate::source::archive::tests::tar_of;
use crate::source::cifar::tests::record;
use crate::source::download::hexadecimal;
use crate::source::download::tests::{answer, downloader, serve};
use crate::source::idx::tests::{encode, gzip};

/// The four files of a small data set in MNIST's format, with one image of each digit.
fn digits() -> [(&'static str, Vec<u8>); 4] {
    let pixels: Vec<u8> = (0..10 * 4).collect();
    let labels: Vec<u8> = (0..10).collect();
    let images = gzip(&encode(0x0803, &[10, 2, 2], &pixels));
    let labels = gzip(&encode(0x0801, &[10], &labels));
    [
        ("train-images-idx3-ubyte.gz", images.clone()),
        ("train-labels-idx1-ubyte.gz", labels.clone()),
        ("t10k-images-idx3-ubyte.gz", images),
        ("t10k-labels-idx1-ubyte.gz", labels),
    ]
}

fn write(folder: &Path, files: &[(&str, Vec<u8>)]) {
    fs::create_dir_all(folder).unwrap();
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).unwrap();
    }
}

fn published(name: &str) -> Published {
    *PUBLISHED.iter().find(|published| published.name == name).unwrap()
}

/// The named data set with other files to download, and the address of a mirror that serves them.
fn served(name: &str, files: &[(&'static str, Vec<u8>)]) -> (Published, String) {
    let hash = |bytes: &[u8]| &*hexadecimal(&Sha256::digest(bytes)).leak();
    let remote = files
        .iter()
        .map(|(name, bytes)| remote("http://example.invalid/", name, bytes.len() as u64, hash(bytes)));
    let published = Published { remote: remote.collect::<Vec<_>>().leak(), ..published(name) };
    let content: HashMap<String, Vec<u8>> =
        files.iter().map(|(file, bytes)| (format!("/{name}/{file}"), bytes.clone())).collect();
    let mirror = serve(files.len(), move |path| match content.get(path) {
        Some(bytes) => answer("200 OK", bytes.len(), bytes),
        None => answer("404 Not SourceData", 0, b""),
    });
    (published, mirror)
}

#[test]
fn hashes_and_names_are_well_formed() {
    for published in PUBLISHED {
        for file in published.remote {
            let is_hash = file.sha256.len() == 64 && file.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
            assert!(is_hash && file.bytes > 0 && file.base_url.ends_with('/'), "{}", file.url());
        }
        assert_eq!(published.folders[0], published.name);
    }
}

#[test]
fn copies_are_found_in_all_usual_places() {
    for (name, folder, class) in [
        ("mnist", "mnist", "3"),
        ("mnist", "MNIST/raw", "3"),
        ("fashion-mnist", "FashionMNIST/raw", "Dress"),
        ("fashion-mnist", "fashion-mnist", "Dress"),
    ] {
        let data_dir = TempDir::new().unwrap();
        write(&data_dir.path().join(folder), &digits());
        let found = published(name).open(data_dir.path(), None, None).unwrap();
        assert_eq!((found.classes[3].as_str(), found.train.len(), found.test.len()), (class, 10, 10));
        assert_eq!(found.flip_safe, name != "mnist");
    }
    for archive in ["cifar-10-binary.tar.gz", "cifar10/cifar-10-binary.tar.gz", "cifar10.tgz"] {
        let data_dir = TempDir::new().unwrap();
        fs::create_dir(data_dir.path().join("cifar10")).unwrap();
        let tar = tar_of(&[("cifar-10-batches-bin/data_batch_1.bin", &record(&[3]))]);
        fs::write(data_dir.path().join(archive), gzip(&tar)).unwrap();
        let found = published("cifar10").open(data_dir.path(), None, None).unwrap();
        assert_eq!((found.classes[3].as_str(), found.train.len()), ("cat", 1), "{archive}");
    }
}

#[test]
fn missing_files_are_downloaded_once() {
    let data_dir = TempDir::new().unwrap();
    let files = digits();
    write(&data_dir.path().join("mnist"), &files[..1]);
    let (published, mirror) = served("mnist", &files);
    let found = published.open(data_dir.path(), Some(&downloader()), Some(&mirror)).unwrap();
    assert_eq!((found.classes.len(), found.train.len()), (10, 10));
    published.open(data_dir.path(), None, None).unwrap();
}

#[test]
fn an_archive_is_downloaded_and_unpacked() {
    let data_dir = TempDir::new().unwrap();
    let batches = published("cifar10")
        .files
        .iter()
        .map(|file| format!("cifar-10-batches-bin/{file}"))
        .collect::<Vec<_>>();
    let batch = record(&[7]);
    let tar = tar_of(&batches.iter().map(|name| (name.as_str(), &batch[..])).collect::<Vec<_>>());
    let (published, mirror) = served("cifar10", &[("cifar-10-binary.tar.gz", gzip(&tar))]);
    let found = published.open(data_dir.path(), Some(&downloader()), Some(&mirror)).unwrap();
    assert_eq!((found.train.len(), found.test.len()), (5, 1));
    let left: Vec<_> = fs::read_dir(data_dir.path().join("cifar10"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["cifar-10-batches-bin"]);
}

#[test]
fn the_error_for_missing_files_names_their_addresses_and_the_folder() {
    let data_dir = TempDir::new().unwrap();
    let folder = data_dir.path().join("mnist");
    write(&folder, &digits()[..2]);
    let refusing = serve(1, |_| answer("404 Not SourceData", 0, b""));
    for (downloader, mirror) in [(None, None), (Some(downloader()), Some(refusing.as_str()))] {
        let error = published("mnist").open(data_dir.path(), downloader.as_ref(), mirror).unwrap_err();
        let message = error.to_string();
        for part in [
            &*data_dir.path().to_string_lossy(),
            &*folder.to_string_lossy(),
            "mnist is not in",
            "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-images-idx3-ubyte.gz",
            "t10k-labels-idx1-ubyte.gz",
        ] {
            assert!(message.contains(part), "{message} lacks {part}");
        }
        assert!(!message.contains("train-images"), "{message}");
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(cause.is_some_and(|cause| cause.contains("404")), downloader.is_some());
    }
}

#[test]
fn another_data_set_in_the_folder_is_refused() {
    let data_dir = TempDir::new().unwrap();
    let folder = data_dir.path().join("mnist");
    let mut files = digits();
    files[3].1 = gzip(&encode(0x0801, &[10], &[25; 10]));
    write(&folder, &files);
    let message = published("mnist").open(data_dir.path(), None, None).unwrap_err().to_string();
    assert!(message.contains(&*folder.to_string_lossy()) && message.contains("labels up to 25"), "{message}");
}
