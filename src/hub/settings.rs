//! Settings of the hub from environment variables, read as Python's `huggingface_hub` reads them.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

/// The settings of a hub.
pub(super) struct Settings {
    /// URL of the site, without a `/` at the end.
    pub(super) endpoint: String,
    /// The user's access token; public repositories need none.
    pub(super) token: Option<String>,
    /// The folder that holds a folder per repository.
    pub(super) cache: PathBuf,
    /// Whether the network must not be used.
    pub(super) offline: bool,
    /// The time before the first retry of a download; later retries wait longer.
    pub(super) pause: Duration,
}

impl Settings {
    /// Reads the settings from the variables of an environment. An empty variable counts as unset.
    ///
    /// # Errors
    /// If a token is invalid or cannot be read, or there is no home folder for the cache.
    pub(super) fn read(variable: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Result<Self> {
        let value = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| value(name).map(|value| value.to_string_lossy().trim().to_owned());
        let path = |name: &str| value(name).map(|value| expand(value, home.as_deref()));
        let is_on = |name: &str| text(name).is_some_and(|text| is_true(&text));

        let cache_home = path("XDG_CACHE_HOME").or_else(|| Some(home.as_ref()?.join(".cache")));
        let hf_home = path("HF_HOME").or_else(|| Some(cache_home?.join("huggingface")));
        let cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(hf_home.as_ref()?.join("hub")))
            .ok_or_else(|| {
                anyhow!("there is no home folder to keep models in: set HF_HOME to a folder for them")
            })?;
        let token = if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            None
        } else if let Some(token) = text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")) {
            checked_token(&token).context("HF_TOKEN")?
        } else {
            let file = path("HF_TOKEN_PATH").or_else(|| Some(hf_home?.join("token")));
            file.map_or(Ok(None), |file| stored_token(&file))?
        };
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            cache,
            offline: is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"),
            pause: Duration::from_secs(1),
        })
    }
}

fn is_true(text: &str) -> bool {
    ["1", "true", "yes", "on"].iter().any(|word| text.eq_ignore_ascii_case(word))
}

/// Replaces a leading `~` of a path by the home folder.
fn expand(path: OsString, home: Option<&Path>) -> PathBuf {
    let path = PathBuf::from(path);
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

/// The token that `hf auth login` has stored in a file, if there is one.
fn stored_token(file: &Path) -> Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => checked_token(&text).with_context(|| file.display().to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| {
            format!("{}: the token cannot be read; set HF_TOKEN, or HF_TOKEN_PATH", file.display())
        }),
    }
}

/// A token without surrounding white space; `None` if nothing remains.
fn checked_token(text: &str) -> Result<Option<String>> {
    let token = text.trim();
    ensure!(
        token.bytes().all(|byte| byte.is_ascii_graphic()),
        "this is not a token: it has characters that tokens do not have"
    );
    Ok(Some(token).filter(|token| !token.is_empty()).map(str::to_owned))
}
