//! Tests of the cache: its layout, which files are downloaded, and when the network is not needed.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use tempfile::TempDir;

use super::site::{COMMIT, CannedResponse, Site, git_sha1, sha256};
use super::*;
use crate::hub::cache;

#[test]
fn a_snapshot_is_laid_out_as_by_pythons_huggingface_hub() {
    let setup = Setup::new(plain_site());
    let folder = setup.fetch().unwrap();
    assert_eq!(folder, setup.root().join("snapshots").join(COMMIT));
    assert_eq!(names(&folder), ["config.json", "model.safetensors", "preprocessor_config.json"]);
    assert_eq!(fs::read(folder.join("config.json")).unwrap(), CONFIG);
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
    let mut blobs = [sha256(WEIGHTS), git_sha1(CONFIG), git_sha1(b"{}")];
    blobs.sort();
    assert_eq!(setup.blobs(), blobs);
    assert_eq!(fs::read_to_string(setup.root().join("refs/main")).unwrap(), COMMIT);
    #[cfg(unix)]
    {
        let link = fs::read_link(folder.join("model.safetensors")).unwrap();
        assert_eq!(link, Path::new("../../blobs").join(sha256(WEIGHTS)));
    }
}

#[test]
fn all_shards_of_an_index_are_downloaded() {
    let setup = Setup::new(sharded_site(INDEX));
    let folder = setup.fetch().unwrap();
    assert_eq!(
        names(&folder),
        [
            "config.json",
            "model-1-of-2.safetensors",
            "model-2-of-2.safetensors",
            "model.safetensors.index.json"
        ]
    );
    assert_eq!(fs::read(folder.join("model-2-of-2.safetensors")).unwrap(), b"second");
}

#[test]
fn pytorch_weights_are_downloaded_only_without_safetensors() {
    let setup = Setup::new(Site::new(&[("pytorch_model.bin", WEIGHTS), ("tf_model.h5", b"")]));
    assert_eq!(names(&setup.fetch().unwrap()), ["pytorch_model.bin"]);
}

#[test]
fn a_revision_is_requested_and_its_commit_recorded() {
    let setup = Setup::new(plain_site());
    setup.hub.fetch(&repository("hf:owner/name@refs/pr/1")).unwrap();
    assert_eq!(setup.server.take_requests()[0].path, "/api/models/owner/name/revision/refs%2Fpr%2F1");
    assert_eq!(fs::read_to_string(setup.root().join("refs/refs/pr/1")).unwrap(), COMMIT);
    setup.hub.fetch(&repository(&format!("owner/name@{COMMIT}"))).unwrap();
    assert_eq!(names(&setup.root().join("refs")), ["refs"]);
}

#[test]
fn the_recorded_source_has_the_commit_and_is_found_after_the_branch_has_moved() {
    let setup = Setup::new(plain_site());
    let recorded = format!("hf:owner/name@{COMMIT}");
    let located = Located {
        path: setup.root().join("snapshots").join(COMMIT),
        name: "name".to_owned(),
        source: recorded.clone(),
    };
    for named in ["hf:owner/name", "owner/name@refs/pr/1", recorded.as_str()] {
        assert_eq!(setup.hub.locate(&repository(named)).unwrap(), located);
    }
    fs::write(setup.root().join("refs/main"), "f".repeat(40)).unwrap();
    let offline = hub_with(&setup.server.url(), setup.cache.path(), true, None);
    assert!(offline.locate(&repository("hf:owner/name")).is_err(), "the commit of the branch is not here");
    assert_eq!(offline.locate(&repository(&recorded)).unwrap(), located);
}

#[test]
fn a_source_that_is_a_path_is_recorded_as_it_was_named() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("weights.pth");
    fs::write(&file, WEIGHTS).unwrap();
    let source = file.to_str().unwrap().to_owned();
    let located = locate(&source, true, &Quiet).unwrap();
    assert_eq!(located, Located { path: file, name: "weights".to_owned(), source });
}

#[test]
fn cached_files_are_not_downloaded_again() {
    let setup = Setup::new(plain_site());
    let folder = setup.fetch().unwrap();
    setup.server.take_requests();
    assert_eq!(setup.fetch().unwrap(), folder);
    assert_eq!(setup.server.take_requests().len(), 1);

    // If only the links are lost, the contents are found in the cache.
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(setup.fetch().unwrap(), folder);
    let requests = setup.server.take_requests();
    assert!(requests[1..].iter().all(|request| request.method == "HEAD"), "{requests:?}");
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);

    // If the contents are lost, they are downloaded again and the dangling links replaced.
    fs::remove_dir_all(setup.root().join("blobs")).unwrap();
    setup.fetch().unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
}

#[test]
fn offline_only_the_cache_is_used() {
    let setup = Setup::new(sharded_site(INDEX));
    let offline = hub_with(&setup.server.url(), setup.cache.path(), true, None);
    let name = repository("owner/name");
    let message = offline.fetch(&name).unwrap_err().to_string();
    assert_all(&message, &["hf:owner/name", "not in the cache", "--offline", "HF_HUB_OFFLINE", "folder"]);

    let folder = setup.fetch().unwrap();
    setup.server.take_requests();
    assert_eq!(offline.fetch(&name).unwrap(), folder);
    assert_eq!(offline.fetch(&repository(&format!("owner/name@{COMMIT}"))).unwrap(), folder);
    assert!(offline.fetch(&repository("owner/name@other")).is_err());
    assert!(setup.server.take_requests().is_empty());

    fs::remove_file(folder.join("model-2-of-2.safetensors")).unwrap();
    assert!(offline.fetch(&name).is_err(), "a shard is missing");
}

#[test]
fn the_cache_is_used_if_the_site_cannot_be_reached() {
    let setup = Setup::new(plain_site());
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let lonely = hub_with(&format!("http://{dead}"), setup.cache.path(), false, None);
    let name = repository("owner/name");
    let message = lonely.fetch(&name).unwrap_err().to_string();
    assert_all(
        &message,
        &[
            "hf:owner/name",
            &dead.to_string(),
            "refused",
            "HF_ENDPOINT",
            "by hand",
            "/owner/name into a folder",
        ],
    );
    let folder = setup.fetch().unwrap();
    assert_eq!(lonely.fetch(&name).unwrap(), folder);

    setup.server.site.lock().unwrap().instead.insert("/api/".to_owned(), CannedResponse::new(503, ""));
    assert_eq!(setup.fetch().unwrap(), folder);
}

#[test]
fn a_copy_replaces_a_link_where_links_are_impossible() {
    let folder = TempDir::new().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::write(&from, WEIGHTS).unwrap();
    cache::copy(&from, &to).unwrap();
    assert_eq!(fs::read(&to).unwrap(), WEIGHTS);
    assert_eq!(names(folder.path()), ["from", "to"]);
}
