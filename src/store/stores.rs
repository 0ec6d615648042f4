//! Connections to object stores, kept for the whole process, and the thread that reads from them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, ObjectStore, RetryConfig};
use tokio::runtime::{self, Handle};

use super::failure::in_one_line;
use crate::usage::usage;

/// How often a request that failed is repeated, and what is given up after a minute: failures of servers, broken connections, and too
/// many requests.
const RETRIES: usize = 8;
/// How long a server may be silent, and an upload of a part take.
const PATIENCE: &str = "60 seconds";
/// The limit on a whole request. An archive may take hours.
const LONGEST_REQUEST: &str = "7 days";

/// A store, the path of an object in it, and the beginning of the URLs of all of its objects.
pub(super) struct Place {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) root: String,
    pub(super) path: Path,
}

/// The thread that reads and writes.
///
/// # Errors
/// If it cannot be started.
pub(super) fn handle() -> Result<&'static Handle> {
    static HANDLE: OnceLock<Handle> = OnceLock::new();
    if let Some(handle) = HANDLE.get() {
        return Ok(handle);
    }
    // The first one; one of the others.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("connections to object stores cannot be made")?;
    let handle = runtime.handle().clone();
    thread::Builder::new()
        .name("object stores".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .context("a thread that reads from object stores cannot be started")?;
    Ok(HANDLE.get_or_init(|| handle))
}

/// The place that a URL means.
///
/// # Errors
/// If there is none, or its store cannot be reached with the settings in the environment.
pub(super) fn place(url: &str) -> Result<Place> {
    static KNOWN: OnceLock<Mutex<HashMap<String, Arc<dyn ObjectStore>>>> = OnceLock::new();
    let Some((scheme, rest)) = url.split_once("://") else { usage!("{url}: this is no URL") };
    let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.is_empty() {
        usage!("{url}: it names no {}", if scheme.starts_with("http") { "host" } else { "bucket" });
    }
    if key.starts_with('/') {
        usage!("{url}: names that begin with / cannot be read");
    }
    let path = if scheme.starts_with("http") {
        if key.contains(['?', '#']) {
            usage!("{url}: URLs with a query (?) or a fragment (#) cannot be read");
        }
        if authority.contains('@') {
            usage!("{scheme}://...: URLs with a user or a password cannot be read");
        }
        Path::from_url_path(key)
    } else {
        Path::parse(key.trim_end_matches('/'))
    };
    let path = match path {
        Ok(path) => path,
        Err(error) => usage!("{url}: {error}"),
    };
    let root = format!("{scheme}://{authority}");
    handle()?;
    let known = KNOWN.get_or_init(Mutex::default);
    let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
    let store = match known.get(&root) {
        Some(store) => Arc::clone(store),
        None => {
            let store = match open(scheme, &root) {
                Ok(store) => store,
                Err(error) => usage!("{url}: {}", in_one_line(&error)),
            };
            known.insert(root.clone(), Arc::clone(&store));
            store
        }
    };
    Ok(Place { store, root, path })
}

/// Opens a store with the settings that the environment has for its kind: `AWS_*`, `GOOGLE_*`, or `AZURE_*`.
fn open(scheme: &str, root: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
    /// A builder with what all stores have.
    macro_rules! built {
        ($builder:expr, $key:expr, $may_be_plain:expr) => {{
            let key = $key;
            let builder = $builder
                .with_retry(retries())
                .with_config(key(ClientConfigKey::ReadTimeout), PATIENCE)
                .with_config(key(ClientConfigKey::Timeout), LONGEST_REQUEST);
            let builder = match $may_be_plain {
                true => builder.with_config(key(ClientConfigKey::AllowHttp), "true"),
                false => builder,
            };
            Arc::new(builder.build()?) as Arc<dyn ObjectStore>
        }};
    }
    Ok(match scheme {
        "s3" | "s3a" => {
            let is_plain = is_plain(&["AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"]);
            built!(AmazonS3Builder::from_env().with_url(root), AmazonS3ConfigKey::Client, is_plain)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(root);
            built!(builder, GoogleConfigKey::Client, is_plain(&["GOOGLE_BASE_URL"]))
        }
        "http" | "https" => built!(HttpBuilder::new().with_url(root), |key| key, scheme == "http"),
        _ => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(root);
            built!(builder, AzureConfigKey::Client, is_plain(&["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]))
        }
    })
}

/// Whether one of these environment variables asks for a server without encryption.
fn is_plain(variables: &[&str]) -> bool {
    variables.iter().any(|name| std::env::var(name).is_ok_and(|value| value.starts_with("http://")))
}

fn retries() -> RetryConfig {
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(100),
        max_backoff: Duration::from_secs(10),
        base: 2.0,
    };
    RetryConfig { backoff, max_retries: RETRIES, retry_timeout: Duration::from_secs(60) }
}
