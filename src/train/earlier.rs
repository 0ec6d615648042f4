//! What an earlier run wrote down, found without touching it.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::checkpoint;
use super::file_names::{CONFIG, IMAGES};
use super::fixed::check_fixed;
use super::run_config::RunConfig;

/// The configuration in `path`, a run folder or its `config.toml`, and the folder that lists the images of the run, if that is there.
///
/// # Errors
/// When it cannot be read, or a file of the run was changed since it began.
pub fn listed_images(path: &Path) -> Result<(RunConfig, Option<PathBuf>)> {
    let file = if path.is_dir() { path.join(CONFIG) } else { path.to_owned() };
    let config = RunConfig::read(&file)?;
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if file.file_name().is_none_or(|name| name != CONFIG) || !folder.join(IMAGES).is_file() {
        return Ok((config, None));
    }
    if checkpoint::is_saved(folder) {
        check_fixed(folder, &checkpoint::progress(folder)?.fixed)?;
    }
    Ok((config, Some(folder.to_owned())))
}
