//! The paths of run folders and data sets.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf, absolute};

use anyhow::{Context, Result, bail};
use vitrine_datasets::is_known_name;

use crate::files::{is_inside, is_standard_output};
use crate::store;
use crate::usage::usage;

/// The folder of the runs without an `--output`.
pub const RUNS: &str = "runs";

/// Checks that `--output` is on the disk.
///
/// # Errors
/// If it is `-` or the URL of an object store.
pub fn check_local(output: &Path) -> Result<()> {
    if is_standard_output(output) {
        usage!("--output -: a run is not printed to standard output; give a folder");
    }
    if store::url(output).is_some() {
        usage!("--output {}: runs are kept on the disk; give a folder", output.display());
    }
    Ok(())
}

/// Checks that the run folder `run` lies outside the data set `data`, so that its files do not become part of the data.
/// Symbolic links are followed.
///
/// # Errors
/// If `data` is a folder and `run` is inside it; the message names both.
pub fn outside(data: &str, run: &Path) -> Result<()> {
    let folder = Path::new(data);
    if !folder.is_dir() {
        return Ok(());
    }
    let name = run.file_name().unwrap_or_default().to_string_lossy();
    if is_inside(run, folder) {
        usage!(
            "the run folder {} would be inside the data set {data} and become part of it; choose another place, such as --output ../{name}",
            run.display()
        );
    }
    Ok(())
}

/// Creates the first folder `STEM-N`, counting from 1, that does not exist yet. Programs that do this at the same time
/// get different folders.
///
/// # Errors
/// If the folder cannot be created.
pub fn first_free(stem: &Path) -> Result<PathBuf> {
    if let Some(parent) = stem.parent() {
        fs::create_dir_all(parent).with_context(|| format!("{}: cannot be created", parent.display()))?;
    }
    for number in 1.. {
        let path = PathBuf::from(format!("{}-{number}", stem.display()));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("{}: cannot be created", path.display()));
            }
        }
    }
    bail!("{}-N: every number is taken; choose a folder with --output", stem.display())
}

/// The absolute path of a file or folder; `None` if it does not exist.
pub fn existing_path(path: &str) -> Option<PathBuf> {
    Path::new(path).exists().then(|| absolute(path).ok()).flatten()
}

/// The absolute path of a data set; `None` if `data` is the name of a known one, which is kept in `data_dir`, or does not exist.
pub fn data_path(data: &str, data_dir: &Path) -> Option<PathBuf> {
    existing_path(data).filter(|_| !is_known_name(data, data_dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_folder_inside_the_data_is_refused_even_through_parent_components() {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().join("data");
        std::fs::create_dir_all(data.join("class")).unwrap();
        let text = data.to_str().unwrap();
        for inside in ["data/run", "data", "data/class/../runs/a", "other/../data/runs/a-1"] {
            let message = outside(text, &place.path().join(inside)).unwrap_err().to_string();
            assert!(message.contains("--output"), "{message}");
        }
        for separate in ["run", "data2/run", "data/../run"] {
            outside(text, &place.path().join(separate)).unwrap();
        }
        outside("shapes", &place.path().join("run")).unwrap();
    }

    #[test]
    fn a_data_set_has_a_path_unless_it_is_known_by_its_name() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("mnist");
        std::fs::create_dir(&folder).unwrap();
        let text = folder.to_str().unwrap();
        assert_eq!(data_path(text, place.path()), Some(folder.clone()));
        for known in ["shapes", "mnist"] {
            assert_eq!(data_path(known, place.path()), None);
        }
    }
}
