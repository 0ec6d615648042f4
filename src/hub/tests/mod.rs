//! Tests of the hub against a local server.

mod cache;
mod refusals;
mod settings;
mod site;
mod transfer;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::events::Quiet;
use site::{Server, Site};

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

fn hub_with(endpoint: &str, cache: &Path, offline: bool, token: Option<&str>) -> Hub<'static> {
    let settings = Settings {
        endpoint: endpoint.to_owned(),
        token: token.map(str::to_owned),
        cache: cache.to_owned(),
        offline,
        pause: Duration::ZERO,
    };
    Hub::new(settings, ureq::Agent::config_builder().proxy(None), &Quiet).unwrap()
}

/// A server, an empty cache, and a hub that uses both.
struct Setup {
    server: Server,
    cache: TempDir,
    hub: Hub<'static>,
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

    /// The message of the error that fetching must give.
    fn refusal(&self) -> String {
        format!("{:#}", self.fetch().unwrap_err())
    }

    fn root(&self) -> PathBuf {
        self.cache.path().join("models--owner--name")
    }

    fn blobs(&self) -> Vec<String> {
        names(&self.root().join("blobs"))
    }

    /// The ranges that the downloads of large files since the last call asked for.
    fn ranges(&self) -> Vec<Option<String>> {
        let requests = self.server.take_requests().into_iter();
        let downloads = requests.filter(|request| request.path.starts_with("/storage/"));
        downloads.map(|request| request.headers.get("range").cloned()).collect()
    }
}

fn repository(text: &str) -> Repository {
    text.parse().unwrap()
}

/// The names in a folder, sorted; empty if there is no folder.
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
