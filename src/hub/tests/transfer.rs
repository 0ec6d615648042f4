//! Tests of downloads: interruptions, wrong content, and concurrent calls.

use std::fs;
use std::thread;

use super::site::{COMMIT, Site, git_sha1, sha256};
use super::*;

#[test]
fn an_interrupted_download_continues_where_it_stopped() {
    let setup = Setup::new(Site { cuts: vec![10, 0, 5], ..plain_site() });
    let folder = setup.fetch().unwrap();
    let from = |byte: usize| Some(format!("bytes={byte}-"));
    assert_eq!(setup.ranges(), [None, from(10), from(10), from(15)]);
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
    assert_eq!(setup.blobs().len(), 3);
}

#[test]
fn a_later_call_continues_a_download_that_was_given_up() {
    let setup = Setup::new(Site { cuts: vec![3; 5], ..plain_site() });
    assert_all(&setup.refusal(), &["model.safetensors of hf:owner/name", "interrupted", "run it again"]);
    assert_eq!(setup.ranges().len(), 5);
    assert!(setup.blobs().contains(&format!("{}.incomplete", sha256(WEIGHTS))));
    assert!(names(&setup.root().join("refs")).is_empty());
    let folder = setup.fetch().unwrap();
    assert_eq!(setup.ranges(), [Some("bytes=15-".to_owned())]);
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
}

#[test]
fn a_server_without_ranges_is_asked_for_the_whole_file() {
    let setup = Setup::new(Site { cuts: vec![10], ignores_ranges: true, ..plain_site() });
    let folder = setup.fetch().unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);

    // The server has a shorter file than announced, which ends before the announced size.
    let setup = Setup::new(plain_site());
    setup.server.site.lock().unwrap().swapped.insert("model.safetensors".to_owned(), WEIGHTS[..9].to_vec());
    assert_all(&setup.refusal(), &["interrupted", "9 of 42 bytes"]);
    setup.server.site.lock().unwrap().swapped.clear();
    setup.ranges();
    let folder = setup.fetch().unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
}

#[test]
fn first_bytes_of_another_file_are_discarded() {
    for beginning in [vec![0; 20], vec![0; WEIGHTS.len()], vec![0; 2 * WEIGHTS.len()]] {
        let setup = Setup::new(plain_site());
        let blobs = setup.root().join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{}.incomplete", sha256(WEIGHTS))), beginning).unwrap();
        let folder = setup.fetch().unwrap();
        assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
    }
}

#[test]
fn a_file_with_another_hash_is_refused() {
    let other: Vec<u8> = WEIGHTS.iter().rev().copied().collect();
    let longer = [WEIGHTS, b"more"].concat();
    let other_hash = sha256(&other);
    for (file, bytes, parts) in [
        ("model.safetensors", &other, ["SHA-256", &sha256(WEIGHTS), &other_hash]),
        ("model.safetensors", &longer, ["model.safetensors", "at least 43 bytes", "not 42"]),
    ] {
        let setup = Setup::new(plain_site());
        setup.server.site.lock().unwrap().swapped.insert(file.to_owned(), bytes.clone());
        let message = setup.refusal();
        assert_all(&message, &parts);
        assert_all(&message, &[file, "not kept"]);
        assert_eq!(setup.blobs().len(), 2, "only the two descriptions");
        assert!(!setup.root().join("snapshots").join(COMMIT).join(file).exists());
        assert!(names(&setup.root().join("refs")).is_empty());
    }

    // Small files have git's SHA-1 as their ETag.
    let setup = Setup::new(plain_site());
    let other: Vec<u8> = CONFIG.iter().rev().copied().collect();
    setup.server.site.lock().unwrap().swapped.insert("config.json".to_owned(), other.clone());
    assert_all(&setup.refusal(), &["config.json", &git_sha1(CONFIG), &git_sha1(&other), "not kept"]);
    assert!(setup.blobs().is_empty());
}

#[test]
fn concurrent_calls_download_a_file_once() {
    let setup = Setup::new(plain_site());
    thread::scope(|scope| {
        let fetches: Vec<_> = (0..4).map(|_| scope.spawn(|| setup.fetch())).collect();
        for fetch in fetches {
            let folder = fetch.join().unwrap().unwrap();
            assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
        }
    });
    assert_eq!(setup.ranges(), [None]);
}
