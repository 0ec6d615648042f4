//! Client of the Hugging Face Hub: downloads a model repository's configuration and weights, verifies them, and caches
//! them.
//!
//! The cache is the one of Python's `huggingface_hub`, in its layout, so that each program finds what the other has
//! downloaded.

mod cache;
mod client;
pub mod published;
mod repository;
mod settings;
#[cfg(test)]
mod tests;
mod transfer;
pub(crate) mod weights;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail, ensure};

use self::published::{BACKBONES, in_full};
use cache::RepositoryCache;
use client::{Client, Listing, ListingError};
pub use repository::Repository;
use settings::Settings;

use crate::events::{Event, EventSink};
use crate::usage::did_you_mean;

/// The prefix by which users distinguish a repository from a path.
const SCHEME: &str = "hf:";

/// Whether a source is a repository (`hf:...`, or the name of a published backbone) rather than a path.
pub fn is_repository(source: &str) -> bool {
    in_full(source).starts_with(SCHEME)
}

/// Where the weights of a source are, and what they are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The file or folder.
    pub path: PathBuf,
    /// A short name for run folders and titles.
    pub name: String,
    /// The source as files record it: a repository with its commit, `hf:OWNER/NAME@COMMIT`, by which the same weights are
    /// found after the repository has changed, or else as it was named.
    pub source: String,
}

/// Finds the weights of a source. A repository (`hf:OWNER/NAME[@revision]`, or the name of a published backbone) is
/// downloaded first unless it is in the cache; any other source is a path already.
///
/// # Errors
/// If a repository can be neither downloaded nor found in the cache, or a source of the form `OWNER/NAME` or similar to the
/// name of a published backbone is not an existing path.
pub fn locate(source: &str, offline: bool, events: &dyn EventSink) -> Result<Located> {
    let source = &*in_full(source);
    if is_repository(source) {
        let repository: Repository = source.parse()?;
        return Hub::from_environment(offline, events)?.locate(&repository);
    }
    let path = PathBuf::from(source);
    if !path.exists() && source.parse::<Repository>().is_ok() {
        bail!(
            "{source}: there is no such file or folder; for the repository on Hugging Face, write {SCHEME}{source}"
        );
    }
    if !path.exists() && path.components().count() == 1 && path.extension().is_none() {
        let meant = did_you_mean(source, BACKBONES.iter().map(|backbone| backbone.name));
        bail!(
            "{source}: there is no such file, folder, or published backbone{meant}{}",
            if meant.is_empty() { "; `vitrine presets` lists the names" } else { "" }
        );
    }
    let absolute = path.canonicalize().unwrap_or_else(|_| path.clone());
    let name = if absolute.is_dir() { absolute.file_name() } else { absolute.file_stem() };
    let name = name.map_or_else(|| "weights".to_owned(), |name| name.to_string_lossy().into_owned());
    Ok(Located { path, name, source: source.to_owned() })
}

/// Files that describe a model, and are downloaded together with its weights if the repository has them.
const DESCRIPTIONS: [&str; 2] = ["config.json", "preprocessor_config.json"];

/// A connection to Hugging Face or a mirror of it, and the local cache.
pub struct Hub<'a> {
    client: Client<'a>,
    cache: PathBuf,
    offline: bool,
}

impl<'a> Hub<'a> {
    /// A hub with the settings that Python's `huggingface_hub` would read from the environment: `HF_ENDPOINT`,
    /// `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, and `HF_HUB_OFFLINE`. With `offline`,
    /// the network is not used even if the environment allows it.
    ///
    /// # Errors
    /// If a variable has an invalid value, or neither a variable nor a home folder tells where the cache is.
    pub fn from_environment(offline: bool, events: &'a dyn EventSink) -> Result<Self> {
        let mut settings = Settings::read(|name| std::env::var_os(name), std::env::home_dir())?;
        settings.offline |= offline;
        Self::new(settings, ureq::Agent::config_builder(), events)
    }

    /// A hub with explicit settings, independent of the environment.
    fn new(
        settings: Settings,
        agent: ureq::config::ConfigBuilder<ureq::typestate::AgentScope>,
        events: &'a dyn EventSink,
    ) -> Result<Self> {
        let Settings { endpoint, token, cache, offline, pause } = settings;
        Ok(Self { client: Client::new(endpoint, token, pause, agent, events)?, cache, offline })
    }

    /// [`Self::fetch`], and the commit that was fetched.
    fn locate(&self, repository: &Repository) -> Result<Located> {
        let path = self.fetch(repository)?;
        let source = repository.at(&RepositoryCache::commit_of(&path)).to_string();
        Ok(Located { path, name: repository.name().to_owned(), source })
    }

    /// Downloads the files that the cache lacks, and returns the folder with the repository's configuration and
    /// weights. If the site cannot be reached, the snapshot that this revision had at the last download is used, and
    /// a warning says so.
    ///
    /// # Errors
    /// If there is no such repository or revision, access to it is restricted, it holds no weights, a download fails or
    /// gives other content than announced, or the site cannot be reached and the cache has no complete snapshot.
    pub fn fetch(&self, repository: &Repository) -> Result<PathBuf> {
        let cache = RepositoryCache::new(&self.cache, repository);
        let folder = cache.root().display();
        if self.offline {
            return cache.complete_snapshot(&repository.revision).ok_or_else(|| {
                anyhow!(
                    "{repository}: not in the cache ({folder}), and the network must not be used (--offline or \
                     HF_HUB_OFFLINE); allow it once, or {}",
                    self.by_hand(repository)
                )
            });
        }
        match self.client.listing(repository) {
            Ok(listing) => {
                if let Some(license) = &listing.license {
                    self.client.events.emit(Event::notice(format!("{repository}: its license is {license}")));
                }
                self.complete_snapshot(&cache, repository, &listing)
            }
            Err(ListingError::Refused(error)) => Err(error),
            Err(ListingError::Unreachable(reason)) => {
                let endpoint = self.client.endpoint();
                let snapshot = cache.complete_snapshot(&repository.revision).ok_or_else(|| {
                    anyhow!(
                        "{repository}: {endpoint} does not answer ({reason}), and the model is not in the cache \
                         ({folder}); set HF_ENDPOINT to a mirror that can be reached, or {}",
                        self.by_hand(repository)
                    )
                })?;
                let message =
                    format!("{endpoint} does not answer ({reason}): using {repository} from the cache");
                self.client.events.emit(Event::Warning { message });
                Ok(snapshot)
            }
        }
    }

    /// How to get a repository's files without this program, for messages.
    fn by_hand(&self, repository: &Repository) -> String {
        format!(
            "download config.json, preprocessor_config.json (if there is one) and model.safetensors (or pytorch_model.bin) by hand \
             from {}/{}/{} into a folder, and give that folder instead of the name",
            self.client.endpoint(),
            repository.owner,
            repository.name
        )
    }

    /// Downloads the files that the snapshot of a commit lacks, and returns its folder. The weights are downloaded
    /// last, so that a snapshot with weights is complete.
    fn complete_snapshot(
        &self,
        cache: &RepositoryCache,
        repository: &Repository,
        listing: &Listing,
    ) -> Result<PathBuf> {
        let listed: BTreeSet<&str> = listing.files.iter().map(String::as_str).collect();
        let weights = weights::choose(|file| listed.contains(file))
            .ok_or_else(|| weights::missing(repository, &listing.files))?;
        let fetch = |file: &str| self.complete_file(cache, repository, &listing.commit, file);
        for file in DESCRIPTIONS.into_iter().filter(|file| listed.contains(file)) {
            fetch(file)?;
        }
        fetch(weights)?;
        let snapshot = cache.snapshot(&listing.commit);
        if weights::is_index(weights) {
            let shards = weights::shards(&snapshot.join(weights))?;
            for shard in &shards {
                ensure!(
                    listed.contains(shard.as_str()),
                    "{repository}: {weights} names {shard}, which is not in the repository: the model is \
                     incomplete"
                );
            }
            shards.iter().try_for_each(|shard| fetch(shard))?;
        }
        cache.set_commit(&repository.revision, &listing.commit)?;
        Ok(snapshot)
    }

    /// Downloads one file unless the snapshot or the cache has it, and links it into the snapshot.
    fn complete_file(
        &self,
        cache: &RepositoryCache,
        repository: &Repository,
        commit: &str,
        file: &str,
    ) -> Result<()> {
        if cache.snapshot(commit).join(file).is_file() {
            return Ok(());
        }
        let remote = self.client.describe(repository, commit, file)?;
        let _lock = cache.lock(&remote.etag, &remote.label, self.client.events)?;
        if !cache.blob(&remote.etag).is_file() {
            let part = cache.partial_blob(&remote.etag);
            self.client.download(&remote, &part)?;
            cache.keep(&remote.etag)?;
        }
        cache.link(&remote.etag, commit, file)
    }
}
