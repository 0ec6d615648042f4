//! Requests to the site: the list of a repository's files, and the size, ETag, and address of each file.

use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use serde::Deserialize;
use ureq::Body;
use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, ETAG, LOCATION, RANGE};
use ureq::http::{Method, Request, Response, StatusCode, Uri};

use super::repository::{Repository, is_hexadecimal, is_plain};
use crate::events::EventSink;

/// The largest response body, in bytes, that is read into memory.
pub(super) const TEXT_LIMIT: u64 = 32 << 20;
const MAX_REDIRECTS: usize = 10;
const REPO_COMMIT: &str = "x-repo-commit";
const LINKED_ETAG: &str = "x-linked-etag";
const LINKED_SIZE: &str = "x-linked-size";

/// An HTTP client for one site.
pub(super) struct Client<'a> {
    agent: ureq::Agent,
    endpoint: String,
    origin: WebOrigin,
    token: Option<String>,
    /// The time before the first retry of a download; later retries wait longer.
    pub(super) pause: Duration,
    /// Receives the events of downloads.
    pub(super) events: &'a dyn EventSink,
}

/// The files of a repository at one commit.
pub(super) struct Listing {
    /// The commit's SHA-1, in hexadecimal digits.
    pub(super) commit: String,
    /// Paths of all files, relative to the repository.
    pub(super) files: Vec<String>,
    /// The license that the repository states, such as `apache-2.0`.
    pub(super) license: Option<String>,
}

/// A file of a repository at one commit, as the site describes it before the download.
pub(super) struct RemoteFile {
    pub(super) url: String,
    /// The name for messages.
    pub(super) label: String,
    /// The identifier of the content: usually its SHA-256 or git's SHA-1 of it.
    pub(super) etag: String,
    /// Size in bytes, if the site states it.
    pub(super) size: Option<u64>,
}

/// The reason why a repository could not be listed.
pub(super) enum ListingError {
    /// The site does not respond, or responds that it is overloaded or failing: the cache may help.
    Unreachable(String),
    /// The site denies the request, or its response is no listing: the cache must not be used instead.
    Refused(anyhow::Error),
}

impl<'a> Client<'a> {
    pub(super) fn new(
        endpoint: String,
        token: Option<String>,
        pause: Duration,
        agent: ureq::config::ConfigBuilder<ureq::typestate::AgentScope>,
        events: &'a dyn EventSink,
    ) -> Result<Self> {
        let origin = endpoint.parse().ok().and_then(|uri| WebOrigin::of(&uri)).ok_or_else(|| {
            anyhow!("HF_ENDPOINT: '{endpoint}' is not the address of a site, such as https://huggingface.co")
        })?;
        let config = agent
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("vitrine/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(Duration::from_secs(20)))
            .timeout_connect(Some(Duration::from_secs(20)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)));
        Ok(Self { agent: config.build().into(), endpoint, origin, token, pause, events })
    }

    /// The URL of the site.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Requests the list of a repository's files.
    pub(super) fn listing(&self, repository: &Repository) -> Result<Listing, ListingError> {
        let Repository { owner, name, revision } = repository;
        let revision = revision.replace('/', "%2F");
        let url = format!("{}/api/models/{owner}/{name}/revision/{revision}", self.endpoint);
        let unreachable = |error: ureq::Error| ListingError::Unreachable(error.to_string());
        let response = self.get(&url, 0).map_err(unreachable)?;
        let status = response.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(ListingError::Unreachable(status.to_string()));
        }
        if status != StatusCode::OK {
            return Err(ListingError::Refused(self.refusal(repository, &url, &response)));
        }
        let body = match response.into_body().into_with_config().limit(TEXT_LIMIT).read_to_vec() {
            Ok(body) => body,
            Err(error @ ureq::Error::BodyExceedsLimit(_)) => {
                return Err(ListingError::Refused(anyhow!("{repository}: {url}: {error}")));
            }
            Err(error) => return Err(unreachable(error)),
        };
        Listing::parse(&body).map_err(|error| {
            let hint = "is HF_ENDPOINT the address of Hugging Face or a mirror of it?";
            ListingError::Refused(anyhow!(
                "{repository}: {url} does not describe a repository ({error}); {hint}"
            ))
        })
    }

    /// Requests the size, ETag, and URL of a file.
    pub(super) fn describe(&self, repository: &Repository, commit: &str, file: &str) -> Result<RemoteFile> {
        let url =
            format!("{}/{}/{}/resolve/{commit}/{file}", self.endpoint, repository.owner, repository.name);
        let label = format!("{file} of {repository}");
        // Large files are described by the response that redirects to their storage. Neither the storage nor a redirect
        // before it, from a repository's former name or a mirror, describes them.
        let response = self
            .send(&Method::HEAD, &url, 0, |response| response.headers().contains_key(LINKED_ETAG))
            .map_err(|error| {
                anyhow!("{label}: {} does not answer ({error}); run it again to continue", self.endpoint)
            })?;
        let status = response.status();
        if !status.is_success() && !status.is_redirection() {
            return Err(self.refusal(repository, &url, &response));
        }
        let commits = header(&response, REPO_COMMIT);
        ensure!(
            commits.is_none_or(|found| found == commit),
            "{label}: {} answers for the commit {}, not {commit}",
            self.endpoint,
            commits.unwrap_or_default().escape_debug()
        );
        let tag = header(&response, LINKED_ETAG)
            .or_else(|| status.is_success().then(|| header(&response, ETAG.as_str()))?);
        let etag = tag.map(|tag| tag.trim_start_matches("W/").trim_matches('"')).filter(|tag| is_plain(tag));
        let Some(etag) = etag else {
            bail!(
                "{label}: {} does not say which content it has; is HF_ENDPOINT the address of Hugging Face or a \
                 mirror of it?",
                self.endpoint
            );
        };
        let size = header(&response, LINKED_SIZE)
            .or_else(|| status.is_success().then(|| header(&response, CONTENT_LENGTH.as_str()))?)
            .and_then(|size| size.parse().ok());
        Ok(RemoteFile { etag: etag.to_owned(), size, url, label })
    }

    /// Downloads a file from byte `from` on, following redirects.
    pub(super) fn get(&self, url: &str, from: u64) -> Result<Response<Body>, ureq::Error> {
        self.send(&Method::GET, url, from, |_| false)
    }

    /// Sends a request and follows redirects until a response is `enough` or no redirect. The token is sent only to the
    /// site itself, not to servers that it redirects to.
    fn send(
        &self,
        method: &Method,
        url: &str,
        from: u64,
        enough: impl Fn(&Response<Body>) -> bool,
    ) -> Result<Response<Body>, ureq::Error> {
        let mut uri: Uri = url.parse().map_err(ureq::http::Error::from)?;
        for _ in 0..=MAX_REDIRECTS {
            // Compression would change lengths and byte ranges.
            let mut request = Request::builder().method(method).uri(&uri).header(ACCEPT_ENCODING, "identity");
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            if let Some(token) =
                self.token.as_ref().filter(|_| WebOrigin::of(&uri).as_ref() == Some(&self.origin))
            {
                request = request.header(AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = self.agent.run(request.body(())?)?;
            match redirect(&uri, &response).filter(|_| !enough(&response)) {
                Some(next) => uri = next,
                None => return Ok(response),
            }
        }
        Err(ureq::Error::TooManyRedirects)
    }

    /// The error message for a response without success.
    fn refusal(&self, repository: &Repository, url: &str, response: &Response<Body>) -> anyhow::Error {
        let Repository { owner, name, revision } = repository;
        let token = match self.token {
            Some(_) => "check the name, and whether the token may read it",
            None => "check the name, or set HF_TOKEN",
        };
        match (header(response, "x-error-code"), response.status().as_u16()) {
            (Some("RevisionNotFound"), _) => anyhow!(
                "{repository}: the repository has no revision '{revision}': give one of its branches, tags or \
                 commits after the @"
            ),
            (Some("GatedRepo"), _) | (_, 403) => anyhow!(
                "{repository}: its owner restricts access to it: accept the terms at {}/{owner}/{name}, and \
                 set HF_TOKEN to a token of that account",
                self.endpoint
            ),
            (Some("EntryNotFound"), _) => anyhow!("{repository}: {url} does not exist"),
            (_, 401 | 404) if revision == "main" => {
                anyhow!("{repository}: there is no such repository, or it is private: {token}")
            }
            (_, 401 | 404) => {
                anyhow!("{repository}: there is no such repository or revision, or it is private: {token}")
            }
            _ => anyhow!("{repository}: {url} answers {}; try again later", response.status()),
        }
    }
}

impl Listing {
    /// Parses the site's description of a repository.
    fn parse(body: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct ModelInfo {
            sha: String,
            siblings: Vec<Sibling>,
            #[serde(default)]
            tags: Vec<String>,
            #[serde(default, rename = "cardData")]
            card: Card,
        }
        #[derive(Default, Deserialize)]
        struct Card {
            license_name: Option<String>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let info: ModelInfo = serde_json::from_slice(body)?;
        ensure!(is_hexadecimal(&info.sha, 40), "its sha is not a commit");
        let files: Vec<String> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        if let Some(file) = files.iter().find(|file| escapes_folder(file)) {
            bail!("the file name '{}' is refused", file.escape_debug());
        }
        let tag = info.tags.iter().find_map(|tag| tag.strip_prefix("license:"));
        let license = info.card.license_name.as_deref().or(tag);
        Ok(Self { commit: info.sha, files, license: license.map(|name| name.escape_debug().to_string()) })
    }
}

/// Whether a file name could lead out of a folder on some operating system.
fn escapes_folder(file: &str) -> bool {
    file.contains('\\') || file.starts_with('/') || file.split('/').any(|part| part == "..")
}

/// The value of a header, if it is text.
pub(super) fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

/// The target of a redirect; `None` for any other response.
fn redirect(from: &Uri, response: &Response<Body>) -> Option<Uri> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let target: Uri = header(response, LOCATION.as_str())?.parse().ok()?;
    if target.scheme().is_some() {
        return Some(target);
    }
    let mut parts = from.clone().into_parts();
    parts.path_and_query = target.into_parts().path_and_query;
    Uri::from_parts(parts).ok()
}

/// The origin of a URL: scheme, host, and port (RFC 6454).
#[derive(PartialEq)]
struct WebOrigin {
    is_https: bool,
    host: String,
    port: u16,
}

impl WebOrigin {
    fn of(uri: &Uri) -> Option<Self> {
        let is_https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Some(Self { is_https, host: uri.host()?.to_ascii_lowercase(), port })
    }
}
