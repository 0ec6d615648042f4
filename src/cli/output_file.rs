//! Checks of a file that a command shall write, before anything is computed: nothing that the user has is replaced by mistake.

use std::path::Path;

use anyhow::Result;

use super::inputs::InputArgs;
use crate::files::same_file;
use crate::model_file::{self, ModelCard};
use crate::usage::usage;
use crate::weights_file;

/// Checks that a file can be written to `path`, which the option names. A file that is there is only replaced if its name has one of
/// `extensions`, and it is neither a model nor one of the inputs.
///
/// # Errors
/// If it cannot be written there, or would replace such a file. The message begins with the option and the path.
pub(super) fn check(
    (option, path): (&str, &Path),
    extensions: &[&str],
    model: &Path,
    inputs: &InputArgs,
) -> Result<()> {
    check_place(option, path)?;
    let shown = path.display();
    if !path.is_file() {
        return Ok(());
    }
    if model_file::locate(model).is_ok_and(|model| same_file(path, &model)) {
        usage!("{option} {shown}: this is the model itself");
    }
    if inputs.name(path) {
        usage!("{option} {shown}: this is one of the inputs; choose another name");
    }
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if !extensions.iter().any(|known| extension.eq_ignore_ascii_case(known)) {
        usage!(
            "{option} {shown}: this file exists, and only files whose names end in .{} are replaced; delete it, or choose another name",
            extensions.join(", .")
        );
    }
    if weights_file::open(path).is_ok_and(|file| ModelCard::is_in(&file.metadata)) {
        usage!("{option} {shown}: this is a model; choose another name");
    }
    Ok(())
}

/// Checks that the path, which the option names, is no folder, and is in one that exists.
///
/// # Errors
/// As the description says. The message begins with the option and the path.
pub(super) fn check_place(option: &str, path: &Path) -> Result<()> {
    let shown = path.display();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if path.is_dir() {
        usage!("{option} {shown}: this is a folder; give a file");
    }
    if folder.is_some_and(|folder| !folder.is_dir()) {
        usage!("{option} {shown}: there is no such folder");
    }
    Ok(())
}
