//! Models of Hugging Face: the files of a repository, fetched once, checked and kept.
//!
//! They are kept where and how Python's `huggingface_hub` keeps them, so each finds what the other has fetched.

mod cache;
mod client;
mod repository;
mod settings;
#[cfg(test)]
mod tests;
mod transfer;
pub(crate) mod weights;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, anyhow, bail, ensure};

use cache::RepositoryCache;
use client::{Client, Listing, Trouble};
pub use repository::Repository;
use settings::Settings;

use crate::output::note;

/// How users tell a repository from a path.
const SCHEME: &str = "hf:";

/// Whether a source is a repository, which is fetched, and no path.
pub fn is_repository(source: &str) -> bool {
    source.starts_with(SCHEME)
}

/// The file or folder that a source means, fetched where it is a repository (`hf:OWNER/NAME[@revision]`), and what it is called.
///
/// # Errors
/// When a repository cannot be had, or what looks like one is not there as a path.
pub fn locate(source: &str, offline: bool) -> Result<(PathBuf, String)> {
    if is_repository(source) {
        let repository: Repository = source.parse()?;
        return Ok((Hub::from_environment(offline)?.fetch(&repository)?, repository.name().to_owned()));
    }
    let path = PathBuf::from(source);
    if !path.exists() && source.parse::<Repository>().is_ok() {
        bail!(
            "{source}: there is no such file or folder; for the repository on Hugging Face, write {SCHEME}{source}"
        );
    }
    let whole = path.canonicalize().unwrap_or_else(|_| path.clone());
    let name = if whole.is_dir() { whole.file_name() } else { whole.file_stem() };
    let name = name.map_or_else(|| "weights".to_owned(), |name| name.to_string_lossy().into_owned());
    Ok((path, name))
}

/// What describes a model next to its weights.
const DESCRIPTIONS: [&str; 2] = ["config.json", "preprocessor_config.json"];

/// Hugging Face, or a mirror of it, with the cache on this computer.
pub struct Hub {
    client: Client,
    cache: PathBuf,
    offline: bool,
}

impl Hub {
    /// A hub as the environment describes it to Python's `huggingface_hub`: `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME` and `HF_HUB_OFFLINE`. With `offline` the
    /// network stays unused whatever the environment says.
    ///
    /// # Errors
    /// When a variable has a value that cannot be used, or no place for the cache can be told.
    pub fn from_environment(offline: bool) -> Result<Self> {
        let mut settings = Settings::read(|name| std::env::var_os(name), std::env::home_dir())?;
        settings.offline |= offline;
        Self::new(settings, ureq::Agent::config_builder())
    }

    /// A hub that goes by nothing but these settings.
    fn new(
        settings: Settings,
        agent: ureq::config::ConfigBuilder<ureq::typestate::AgentScope>,
    ) -> Result<Self> {
        let Settings { endpoint, token, cache, offline, pause } = settings;
        Ok(Self { client: Client::new(endpoint, token, pause, agent)?, cache, offline })
    }

    /// The folder that holds the repository's configuration and weights. What the cache lacks is fetched; where
    /// the network is down, the last revision that was fetched is used, and standard error says so.
    ///
    /// # Errors
    /// When there is no such repository or revision, it holds no weights, it may not be read, a file does not
    /// arrive or is not the one that was announced, or there is neither a network nor a copy in the cache.
    pub fn fetch(&self, repository: &Repository) -> Result<PathBuf> {
        let cache = RepositoryCache::new(&self.cache, repository);
        let place = cache.root().display();
        if self.offline {
            return cache.complete_snapshot(&repository.revision).ok_or_else(|| {
                anyhow!(
                    "{repository}: not in the cache ({place}), and the network must not be used (--offline or \
                     HF_HUB_OFFLINE); allow it once, or give a folder with the model's files instead"
                )
            });
        }
        match self.client.listing(repository) {
            Ok(listing) => self.complete(&cache, repository, &listing),
            Err(Trouble::Refused(error)) => Err(error),
            Err(Trouble::Unreachable(reason)) => {
                let endpoint = self.client.endpoint();
                let snapshot = cache.complete_snapshot(&repository.revision).ok_or_else(|| {
                    anyhow!(
                        "{repository}: {endpoint} does not answer ({reason}), and the model is not in the cache \
                         ({place}); set HF_ENDPOINT to a mirror that can be reached, or download the files by \
                         hand and give their folder"
                    )
                })?;
                note!("{endpoint} does not answer ({reason}): using {repository} from the cache");
                Ok(snapshot)
            }
        }
    }

    /// The snapshot of a listed commit, after fetching what it lacks. The weights come last: a snapshot of ours
    /// that has them has everything.
    fn complete(
        &self,
        cache: &RepositoryCache,
        repository: &Repository,
        listing: &Listing,
    ) -> Result<PathBuf> {
        let listed: BTreeSet<&str> = listing.files.iter().map(String::as_str).collect();
        let weights = weights::choose(|file| listed.contains(file))
            .ok_or_else(|| weights::missing(repository, &listing.files))?;
        let fetch = |file: &str| self.fetch_file(cache, repository, &listing.commit, file);
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

    /// Sees to it that a snapshot holds one file.
    fn fetch_file(
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
        let _lock = cache.lock(&remote.etag, &remote.label)?;
        if !cache.blob(&remote.etag).is_file() {
            let part = cache.partial_blob(&remote.etag);
            self.client.download(&remote, &part)?;
            cache.keep(&remote.etag)?;
        }
        cache.link(&remote.etag, commit, file)
    }
}
