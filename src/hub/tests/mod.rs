mod settings;
mod site;

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use site::{Answer, COMMIT, Request, Server, Site, git_sha1, sha256};

const WEIGHTS: &[u8] = b"these bytes stand for a great many numbers";
const CONFIG: &[u8] = b"{\"model_type\": \"vit\"}";

fn plain_site() -> Site {
    Site::new(&[
        ("README.md", b"# A model"),
        ("config.json", CONFIG),
        ("model.safetensors", WEIGHTS),
        ("onnx/model.onnx", b"not wanted"),
        ("preprocessor_config.json", b"{}"),
        ("pytorch_model.bin", b"not wanted either"),
    ])
}

fn sharded_site(index: &str) -> Site {
    Site::new(&[
        ("config.json", CONFIG),
        ("model.safetensors.index.json", index.as_bytes()),
        ("model-1-of-2.safetensors", b"first"),
        ("model-2-of-2.safetensors", b"second"),
    ])
}

const INDEX: &str = r#"{"metadata": {}, "weight_map": {"a": "model-1-of-2.safetensors",
    "b": "model-2-of-2.safetensors", "c": "model-1-of-2.safetensors"}}"#;

fn hub_with(endpoint: &str, cache: &Path, offline: bool, token: Option<&str>) -> Hub {
    let settings = Settings {
        endpoint: endpoint.to_owned(),
        token: token.map(str::to_owned),
        cache: cache.to_owned(),
        offline,
        pause: Duration::ZERO,
    };
    Hub::new(settings, ureq::Agent::config_builder().proxy(None)).unwrap()
}

/// A server, an empty cache and what connects them.
struct Setup {
    server: Server,
    cache: TempDir,
    hub: Hub,
}

impl Setup {
    fn new(site: Site) -> Self {
        let (server, cache) = (Server::start(site), TempDir::new().unwrap());
        let hub = hub_with(&server.url(), cache.path(), false, None);
        Self { server, cache, hub }
    }

    fn fetch(&self) -> Result<PathBuf> {
        self.hub.fetch(&repository("hf:owner/name"))
    }

    fn refusal(&self) -> String {
        format!("{:#}", self.fetch().unwrap_err())
    }

    fn root(&self) -> PathBuf {
        self.cache.path().join("models--owner--name")
    }

    fn blobs(&self) -> Vec<String> {
        names(&self.root().join("blobs"))
    }

    /// The downloads of large files since the last question: where each began.
    fn ranges(&self) -> Vec<Option<String>> {
        let requests = self.server.take_requests().into_iter();
        let downloads = requests.filter(|request| request.path.starts_with("/storage/"));
        downloads.map(|request| request.headers.get("range").cloned()).collect()
    }
}

fn repository(text: &str) -> Repository {
    text.parse().unwrap()
}

/// The names in a folder, sorted; none where there is no folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn assert_all(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "'{part}' is missing in: {message}");
    }
}

#[test]
fn a_model_is_laid_out_as_python_does() {
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
fn git_names_contents_as_git_does() {
    // `printf 'hello\n' | git hash-object --stdin`
    assert_eq!(git_sha1(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
}

#[test]
fn a_sharded_model_comes_whole() {
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
fn pytorch_weights_are_the_second_choice() {
    let setup = Setup::new(Site::new(&[("pytorch_model.bin", WEIGHTS), ("tf_model.h5", b"")]));
    assert_eq!(names(&setup.fetch().unwrap()), ["pytorch_model.bin"]);
}

#[test]
fn a_revision_is_asked_for_and_noted() {
    let setup = Setup::new(plain_site());
    setup.hub.fetch(&repository("hf:owner/name@refs/pr/1")).unwrap();
    assert_eq!(setup.server.take_requests()[0].path, "/api/models/owner/name/revision/refs%2Fpr%2F1");
    assert_eq!(fs::read_to_string(setup.root().join("refs/refs/pr/1")).unwrap(), COMMIT);
    setup.hub.fetch(&repository(&format!("owner/name@{COMMIT}"))).unwrap();
    assert_eq!(names(&setup.root().join("refs")), ["refs"]);
}

#[test]
fn what_is_in_the_cache_is_not_fetched_again() {
    let setup = Setup::new(plain_site());
    let folder = setup.fetch().unwrap();
    setup.server.take_requests();
    assert_eq!(setup.fetch().unwrap(), folder);
    assert_eq!(setup.server.take_requests().len(), 1);

    // A snapshot without its links finds the contents.
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(setup.fetch().unwrap(), folder);
    let requests = setup.server.take_requests();
    assert!(requests[1..].iter().all(|request| request.method == "HEAD"), "{requests:?}");
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);

    // Links without their contents are made anew.
    fs::remove_dir_all(setup.root().join("blobs")).unwrap();
    setup.fetch().unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
}

#[test]
fn a_broken_download_goes_on_where_it_stopped() {
    let setup = Setup::new(Site { cuts: vec![10, 0, 5], ..plain_site() });
    let folder = setup.fetch().unwrap();
    let from = |byte: usize| Some(format!("bytes={byte}-"));
    assert_eq!(setup.ranges(), [None, from(10), from(10), from(15)]);
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
    assert_eq!(setup.blobs().len(), 3);
}

#[test]
fn the_next_call_continues_what_this_one_gave_up() {
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
fn a_server_that_cannot_continue_is_asked_for_everything() {
    let setup = Setup::new(Site { cuts: vec![10], ignores_ranges: true, ..plain_site() });
    let folder = setup.fetch().unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);

    // Its copy ends where ours does already.
    let setup = Setup::new(plain_site());
    setup.server.site.lock().unwrap().swapped.insert("model.safetensors".to_owned(), WEIGHTS[..9].to_vec());
    assert_all(&setup.refusal(), &["interrupted", "9 of 42 bytes"]);
    setup.server.site.lock().unwrap().swapped.clear();
    setup.ranges();
    let folder = setup.fetch().unwrap();
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), WEIGHTS);
}

#[test]
fn a_beginning_of_something_else_is_thrown_away() {
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

    // Small files go by git's hash.
    let setup = Setup::new(plain_site());
    let other: Vec<u8> = CONFIG.iter().rev().copied().collect();
    setup.server.site.lock().unwrap().swapped.insert("config.json".to_owned(), other.clone());
    assert_all(&setup.refusal(), &["config.json", &git_sha1(CONFIG), &git_sha1(&other), "not kept"]);
    assert!(setup.blobs().is_empty());
}

#[test]
fn offline_means_the_cache() {
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
fn without_a_network_the_cache_helps() {
    let setup = Setup::new(plain_site());
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let lonely = hub_with(&format!("http://{dead}"), setup.cache.path(), false, None);
    let name = repository("owner/name");
    let message = lonely.fetch(&name).unwrap_err().to_string();
    assert_all(
        &message,
        &["hf:owner/name", &dead.to_string(), "refused", "HF_ENDPOINT", "download the files by hand"],
    );
    let folder = setup.fetch().unwrap();
    assert_eq!(lonely.fetch(&name).unwrap(), folder);

    setup.server.site.lock().unwrap().instead.insert("/api/".to_owned(), Answer::new(503, ""));
    assert_eq!(setup.fetch().unwrap(), folder);
}

#[test]
fn an_answer_that_is_no_listing_is_explained() {
    let code = |status, code: &str| Answer::new(status, "").with("x-error-code", code);
    let sha = |sha: &str| Answer::new(200, format!(r#"{{"sha": "{sha}", "siblings": []}}"#));
    for (answer, parts) in [
        (Answer::new(401, ""), ["no such repository, or it is private", "HF_TOKEN"]),
        (code(404, "RepoNotFound"), ["no such repository, or it is private", "HF_TOKEN"]),
        (code(404, "RevisionNotFound"), ["no revision 'main'", "branches"]),
        (Answer::new(403, ""), ["accept the terms at http", "/owner/name"]),
        (code(401, "GatedRepo"), ["accept the terms at http", "HF_TOKEN"]),
        (Answer::new(400, ""), ["400", "/api/models/owner/name"]),
        (Answer::new(200, "<html>Log in to this network</html>"), ["does not describe a", "HF_ENDPOINT"]),
        (Answer::new(200, "{}"), ["does not describe a", "HF_ENDPOINT"]),
        (Answer::new(200, vec![b' '; (32 << 20) + 1]), ["/api/models", "limit"]),
        (sha("../../../../etc"), ["does not describe a", "commit"]),
        (sha(COMMIT), ["model.safetensors", "contains nothing"]),
    ] {
        let setup = Setup::new(plain_site());
        setup.server.site.lock().unwrap().instead.insert("/api/".to_owned(), answer);
        let message = setup.refusal();
        assert_all(&message, &parts);
        assert_all(&message, &["hf:owner/name"]);
        assert!(names(setup.cache.path()).is_empty());
    }
}

#[test]
fn a_file_that_may_not_be_read_is_explained() {
    let setup = Setup::new(plain_site());
    let gated = Answer::new(403, "").with("x-error-code", "GatedRepo");
    setup.server.site.lock().unwrap().instead.insert("/owner/".to_owned(), gated);
    assert_all(&setup.refusal(), &["hf:owner/name", "accept the terms", "HF_TOKEN"]);
}

#[test]
fn a_repository_without_weights_is_named_with_what_it_holds() {
    let mut site = Site::new(&[("config.json", CONFIG), ("model.onnx", b"")]);
    site.extra_names = (0..20).map(|number| format!("weights\u{1b}{number}")).collect();
    let message = Setup::new(site).refusal();
    assert_all(&message, &["hf:owner/name", "pytorch_model.bin", "config.json, model.onnx", "and 12 more"]);
    assert!(!message.contains('\u{1b}'));
}

#[test]
fn only_the_site_sees_the_token() {
    let storage = Server::start(plain_site());
    for host in ["127.0.0.1", "localhost"] {
        let mut site = plain_site();
        site.token = Some("secret".to_owned());
        site.storage = Some(format!("http://{host}:{}", storage.port));
        let setup = Setup::new(site);
        assert_all(&setup.refusal(), &["private", "HF_TOKEN"]);
        let wrong = hub_with(&setup.server.url(), setup.cache.path(), false, Some("wrong"));
        let message = wrong.fetch(&repository("owner/name")).unwrap_err().to_string();
        assert_all(&message, &["private", "whether the token"]);

        setup.server.take_requests();
        let hub = hub_with(&setup.server.url(), setup.cache.path(), false, Some("secret"));
        hub.fetch(&repository("owner/name")).unwrap();
        let has_token = |request: &Request| request.headers.contains_key("authorization");
        assert!(setup.server.take_requests().iter().all(has_token));
        let requests = storage.take_requests();
        assert_eq!(requests.len(), 1);
        assert!(!has_token(&requests[0]), "{requests:?}");
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for name in ["../model.safetensors", "/etc/model.safetensors", "a/../../b", "..\\b", "C:\\b"] {
        let mut site = plain_site();
        site.extra_names = vec![name.to_owned()];
        let setup = Setup::new(site);
        assert_all(&setup.refusal(), &["hf:owner/name", "is refused"]);
        assert!(names(setup.cache.path()).is_empty());

        let index = serde_json::json!({"weight_map": {"a": name}}).to_string();
        let setup = Setup::new(sharded_site(&index));
        assert_all(&setup.refusal(), &["index.json", "is refused"]);
        assert_eq!(setup.blobs().len(), 2);
    }
    let missing = r#"{"weight_map": {"a": "model-3-of-3.safetensors"}}"#;
    assert_all(&Setup::new(sharded_site(missing)).refusal(), &["model-3-of-3.safetensors", "incomplete"]);
    assert_all(&Setup::new(sharded_site(r#"{"weight_map": {}}"#)).refusal(), &["names none"]);
    assert_all(&Setup::new(sharded_site("[]")).refusal(), &["cannot be read"]);
}

#[test]
fn tags_that_cannot_name_a_content_are_refused() {
    let described = |tag: &str| Answer::new(200, CONFIG).with("x-linked-etag", tag);
    for (answer, part) in [
        (described("\"../../../x\""), "which content"),
        (described("\"\""), "which content"),
        (Answer::new(200, CONFIG), "which content"),
        (described("\"a\"").with("x-repo-commit", "fedc"), "answers for the commit fedc"),
        (Answer::new(302, "").with("location", "/owner/again"), "redirect"),
    ] {
        let setup = Setup::new(plain_site());
        setup.server.site.lock().unwrap().instead.insert("/owner/".to_owned(), answer);
        assert_all(&setup.refusal(), &["config.json of hf:owner/name", part]);
        assert!(!setup.root().exists());
    }

    // One that is no hash leaves the length to compare.
    let setup = Setup::new(Site::new(&[("model.safetensors", WEIGHTS)]));
    let answer = Answer::new(200, WEIGHTS).with("etag", "\"abc-5\"");
    setup.server.site.lock().unwrap().instead.insert("/owner/".to_owned(), answer);
    assert_eq!(fs::read(setup.fetch().unwrap().join("model.safetensors")).unwrap(), WEIGHTS);
    assert_eq!(setup.blobs(), ["abc-5"]);
}

#[test]
fn two_at_once_fetch_a_file_once() {
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

#[test]
fn a_copy_stands_in_for_a_link() {
    let folder = TempDir::new().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::write(&from, WEIGHTS).unwrap();
    cache::copy(&from, &to).unwrap();
    assert_eq!(fs::read(&to).unwrap(), WEIGHTS);
    assert_eq!(names(folder.path()), ["from", "to"]);
}
