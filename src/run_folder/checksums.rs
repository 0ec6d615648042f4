//! Checksums of a run's fixed files, so that resuming notices an edited configuration or image list.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::file_names::{CONFIG, IMAGES, TRAINED_ON};
use crate::files::read_text;

/// Checksums of the files that stay the same throughout a run, by file name: the list of images with their splits, the
/// list of training images, and `config.toml` without the keys that may change (the run's length and the paths of its
/// data).
///
/// # Errors
/// If a file cannot be read.
pub(super) fn fixed_files(run: &Path) -> Result<BTreeMap<String, String>> {
    let mut config: toml::Table = toml::from_str(&read_text(&run.join(CONFIG))?)?;
    for key in ["data", "data_path", "data_dir", "max_file_size", "pretrained_path", "lengthened"] {
        config.remove(key);
    }
    if let Some(recipe) = config.get_mut("recipe").and_then(toml::Value::as_table_mut) {
        for key in ["epochs", "time_seconds"] {
            recipe.remove(key);
        }
    }
    let mut fixed = BTreeMap::from([(CONFIG.to_owned(), checksum(toml::to_string(&config)?.as_bytes()))]);
    for name in [IMAGES, TRAINED_ON] {
        let path = run.join(name);
        match fs::read(&path) {
            Ok(content) => _ = fixed.insert(name.to_owned(), checksum(&content)),
            // A missing file is reported by whichever function reads it next.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("{}: cannot be read", path.display()));
            }
        }
    }
    Ok(fixed)
}

/// Checks the fixed files of the run folder `run` against `written`, the checksums that `RunFolder::fixed` returned
/// when the run began.
///
/// # Errors
/// If a file was changed or cannot be read; the message names it and the way out.
pub fn check_fixed(run: &Path, written: &BTreeMap<String, String>) -> Result<()> {
    if written.is_empty() {
        return Ok(());
    }
    let found = fixed_files(run)?;
    let changed = |name: &String| found.get(name).is_some_and(|checksum| *checksum != written[name]);
    let Some(name) = written.keys().find(|name| changed(name)) else { return Ok(()) };
    let exception = if name == CONFIG {
        "; only its length (--epochs, --time) and the location of its data may change"
    } else {
        ""
    };
    bail!(
        "{file}: was damaged or changed since the run began{exception}: put back what was there, or start a new run with \
         --pretrained {run} to keep what its best model has learned",
        file = run.join(name).display(),
        run = run.display()
    )
}

/// The SHA-256 of a file's content, in hexadecimal.
pub(super) fn checksum(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}
