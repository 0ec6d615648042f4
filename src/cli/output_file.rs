//! Checks of a file that a command shall write, before anything is computed: nothing that the user has is replaced by mistake.

use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::inputs::InputArgs;
use crate::embed;
use crate::files::{AtomicFile, folder_of, is_standard_output, same_file};
use crate::model_file;
use crate::run_folder;
use crate::store;
use crate::usage::usage;
use crate::weights_file::{self, StoredTensor};

/// The format of a file: the `stated` one, or the one whose name its extension is; `None` if neither is known.
///
/// # Errors
/// If the name says another one than is stated.
pub(super) fn format<F: ValueEnum + PartialEq>(output: &Path, stated: Option<F>) -> Result<Option<F>> {
    let extension = output.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let named = F::from_str(extension, true).ok();
    if let (Some(stated), Some(named)) = (&stated, &named)
        && stated != named
    {
        let [named, stated] =
            [named, stated].map(|format| format.to_possible_value().map(|value| value.get_name().to_owned()));
        usage!(
            "--output {}: its name says {}, and --format says {}; leave out --format, or choose another name",
            output.display(),
            named.unwrap_or_default(),
            stated.unwrap_or_default()
        );
    }
    Ok(stated.or(named))
}

/// Checks that a file can be written to `path`, which the option names. A file that is there is only replaced if its name has one of
/// `extensions`, and it has no weights and is none of the inputs.
///
/// # Errors
/// If it cannot be written there, or would replace such a file. The message begins with the option and the path.
pub(super) fn check(
    (option, path): (&str, &Path),
    extensions: &[&str],
    model: &Path,
    inputs: &InputArgs,
) -> Result<()> {
    check_folder(option, path)?;
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
    check_place(option, path)?;
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    if !extensions.iter().any(|known| extension.eq_ignore_ascii_case(known)) {
        usage!(
            "{option} {shown}: this file exists, and only files whose names end in .{} are replaced; delete it, or choose another name",
            extensions.join(", .")
        );
    }
    match weights_file::open(path) {
        Ok(file) if !file.metadata.contains_key(embed::DESCRIPTION) => {
            usage!("{option} {shown}: this file has the weights of a model; choose another name")
        }
        Err(_) if extension.eq_ignore_ascii_case("safetensors") => {
            usage!(
                "{option} {shown}: this file exists, and cannot be read; delete it, or choose another name"
            )
        }
        _ => Ok(()),
    }
}

/// Checks that the path, which the option names, is no folder, is in one that can be written, and is no file of a run.
///
/// # Errors
/// As the description says. The message begins with the option and the path.
pub(super) fn check_place(option: &str, path: &Path) -> Result<()> {
    check_folder(option, path)?;
    if path.exists() && run_folder::is_run(folder_of(path)) {
        usage!(
            "{option} {}: this file belongs to a run, and is not replaced; choose another name",
            path.display()
        );
    }
    Ok(())
}

/// Checks that the path is no folder, device, or pipe, and is in a folder in which files can be written.
pub(super) fn check_folder(option: &str, path: &Path) -> Result<()> {
    check_local(option, path)?;
    let shown = path.display();
    if path.is_dir() {
        usage!("{option} {shown}: this is a folder; give a file");
    }
    if path.exists() && !path.is_file() {
        usage!(
            "{option} {shown}: this is a device or a pipe, which a file would replace; choose another name"
        );
    }
    if !folder_of(path).is_dir() {
        usage!("{option} {shown}: there is no such folder");
    }
    // The temporary file is removed again.
    AtomicFile::create(path).map(drop).with_context(|| option.to_owned())
}

/// Checks that results, which are printed without `--output`, shall be written to a file, and not to `-`, which is standard output for
/// other programs.
///
/// # Errors
/// If the path is `-`. The message begins with the option and the path.
pub(super) fn check_results(path: &Path) -> Result<()> {
    if is_standard_output(path) {
        usage!("--output -: leave --output out to print the results to standard output");
    }
    Ok(())
}

/// Checks that the path, which the option names, is on the disk.
///
/// # Errors
/// If it is `-` or the URL of an object store. The message begins with the option and the path.
pub(super) fn check_local(option: &str, path: &Path) -> Result<()> {
    if is_standard_output(path) {
        usage!("{option} -: this is not printed to standard output; give a name");
    }
    if store::url(path).is_some() {
        usage!(
            "{option} {}: only the results of `vitrine classify` can be written to object stores",
            path.display()
        );
    }
    Ok(())
}

/// [`check_place`] of a file of weights: a file that is there is only replaced if its metadata has `key`.
///
/// # Errors
/// As there, or if it would replace another file.
pub(super) fn check_weights(option: &str, path: &Path, key: &str) -> Result<()> {
    check_place(option, path)?;
    let has_key = || weights_file::open(path).is_ok_and(|file| file.metadata.contains_key(key));
    if path.exists() && !has_key() {
        usage!("{option} {}: {NOT_OURS}", path.display());
    }
    Ok(())
}

/// What is said of a file that no such command wrote.
pub(super) const NOT_OURS: &str =
    "this file exists, and was not written by such a command; delete it, or choose another name";

/// [`check_weights`] of a model file that is made from other weights: one that training wrote is not replaced.
///
/// # Errors
/// As there, or if it would replace such a model.
pub(super) fn check_model(option: &str, path: &Path) -> Result<()> {
    check_weights(option, path, model_file::KEY)?;
    let is_trained = || model_file::read_card(path).is_ok_and(|card| card.recipe.is_some());
    // Training writes weights of 32 bits; the others are made from those.
    let is_narrow =
        || weights_file::open(path).is_ok_and(|file| file.tensors.iter().any(StoredTensor::is_narrow));
    if path.exists() && is_trained() && !is_narrow() {
        usage!("{option} {}: this is a trained model; delete it, or choose another name", path.display());
    }
    Ok(())
}
