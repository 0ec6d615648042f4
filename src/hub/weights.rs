//! The weights among a repository's files: a single file, or the shards that an index lists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;

use super::client::TEXT_LIMIT;
use super::repository::{Repository, is_plain};

/// Names of files of weights and of indices, in order of preference.
const WEIGHTS: [&str; 4] = [
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
];

/// Chooses which file of weights to use when a repository or folder has several. `holds` tells whether it has a file.
pub(crate) fn choose(holds: impl Fn(&str) -> bool) -> Option<&'static str> {
    WEIGHTS.into_iter().find(|file| holds(file))
}

/// Whether a file is an index, which lists the shards of the weights.
pub(crate) fn is_index(file: &str) -> bool {
    file.ends_with(".index.json")
}

/// The error message for a repository without weights, with the names of the files that it has.
pub(super) fn missing(repository: &Repository, files: &[String]) -> anyhow::Error {
    const LISTED_FILES: usize = 10;
    let mut names: Vec<String> =
        files.iter().take(LISTED_FILES).map(|file| file.escape_debug().to_string()).collect();
    if files.len() > LISTED_FILES {
        names.push(format!("and {} more", files.len() - LISTED_FILES));
    }
    let holds = if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    anyhow!("{repository}: it contains none of {}; it contains {holds}", WEIGHTS.join(", "))
}

/// The shards that an index lists, without duplicates.
///
/// # Errors
/// If the index cannot be read, lists no file, or lists one whose name is not a plain file name.
pub(crate) fn shards(index: &Path) -> Result<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let context = || format!("{}: this list of weight files cannot be read", index.display());
    let mut bytes = Vec::new();
    File::open(index)
        .and_then(|file| file.take(TEXT_LIMIT + 1).read_to_end(&mut bytes))
        .with_context(context)?;
    ensure!(bytes.len() as u64 <= TEXT_LIMIT, "{}: too long for a list of weight files", index.display());
    let parsed: Index = serde_json::from_slice(&bytes).with_context(context)?;
    let shards: BTreeSet<String> = parsed.weight_map.into_values().collect();
    ensure!(!shards.is_empty(), "{}: this list of weight files names none", index.display());
    for shard in &shards {
        ensure!(
            is_plain(shard),
            "{}: '{}' is refused as the name of a weight file: it is not a plain file name",
            index.display(),
            shard.escape_debug()
        );
    }
    Ok(shards)
}

/// Whether a folder holds weights, and if they have an index, all of its shards.
pub(super) fn are_complete(folder: &Path) -> bool {
    let holds = |file: &str| folder.join(file).is_file();
    choose(holds).is_some_and(|file| {
        !is_index(file)
            || shards(&folder.join(file)).is_ok_and(|shards| shards.iter().all(|shard| holds(shard)))
    })
}
