//! What the user states of weights, against what their files say.

use std::path::Path;

use anyhow::{Context, Result, bail};
use vitrine_datasets::{Preprocessing, ResizeRule};
use vitrine_models::weights::{Facts, Layout};
use vitrine_models::{ImageSize, PerStage, preset};

use super::config_file;
use super::description::{self, Description};
use super::{Files, Options, timm_config, timm_names};
use crate::usage::usage;

/// What configuration files, names and the user say, in this order of trust from the last to the first.
///
/// # Errors
/// When a file cannot be read or says what is not supported, or two of them contradict each other.
pub(super) fn describe(
    files: &Files,
    layout: Layout,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Description> {
    let mut description = match (&options.config, &files.config) {
        (Some(named), _) => of_config(named)?,
        (None, Some(path)) => {
            notes.push(format!("configuration: {}", path.display()));
            config_file::read(path)?
        }
        (None, None) => of_file_name(files, layout, notes)?,
    };
    if let Some(theirs) = description.layout.filter(|theirs| *theirs != layout) {
        bail!(
            "the configuration is one of {}, but the names of the tensors are those of {}",
            theirs.name(),
            layout.name()
        );
    }
    if let Some(path) = &files.preprocessor {
        notes.push(format!("preprocessing: {}", path.display()));
        config_file::read_preprocessor(path, &mut description)?;
    }
    add_options(options, &mut description)?;
    notes.append(&mut description.notes);
    Ok(description)
}

/// What `--config` names: a preset, timm's name of an architecture, or a file.
fn of_config(named: &str) -> Result<Description> {
    let mut facts = match preset::find(named) {
        Some(preset) => Facts::of(&preset),
        None if timm_names::find(named).is_some() => {
            timm_config::of_name(named).with_context(|| format!("--config {named}"))?
        }
        None => {
            return config_file::read(Path::new(named)).with_context(|| {
                format!("--config {named}: a preset, timm's name for an architecture, or a configuration file is needed")
            });
        }
    };
    // Neither of the two is of a certain size of images: positions tell it, or the user.
    if facts.window.is_none() {
        facts.image_size = None;
    }
    Ok(Description { facts, name: Some(named.to_owned()), ..Description::default() })
}

/// What the name of a file says that is called as timm and Microsoft call its architecture.
fn of_file_name(files: &Files, layout: Layout, notes: &mut Vec<String>) -> Result<Description> {
    let stem = files.weights.first().and_then(|path| path.file_stem()).unwrap_or_default().to_string_lossy();
    if !matches!(layout, Layout::Timm | Layout::Microsoft) {
        return Ok(Description::default());
    }
    if timm_names::has_enlarged_windows(&stem) {
        bail!("{stem}: windows that were enlarged after pre-training are not supported");
    }
    if let Some(part) = timm_names::foreign_part(&stem) {
        bail!(
            "{stem}: according to the file name, this is a model with {part}, which is not supported; if it is another, describe it with --config FILE"
        );
    }
    let Some(named) = timm_names::begin(&stem) else { return Ok(Description::default()) };
    notes.push(format!("according to the file name, this is {}", named.name));
    let facts = timm_config::of_name(named.name)
        .with_context(|| format!("{stem}: according to the file name, this is {}", named.name))?;
    Ok(Description { facts, name: Some(named.name.to_owned()), ..Description::default() })
}

/// Adds what the user states.
fn add_options(options: &Options, description: &mut Description) -> Result<()> {
    let facts = &mut description.facts;
    if let Some(heads) = &options.heads {
        let heads = PerStage(heads.clone());
        if let Some(stated) = facts.num_heads.replace(heads.clone()).filter(|stated| *stated != heads) {
            bail!("--heads {heads}: the configuration states {stated}");
        }
    }
    if let Some([height, width]) = options.image_size {
        let size = ImageSize { height, width };
        if let Some(stated) = facts.image_size.replace(size).filter(|stated| *stated != size) {
            bail!("--image-size {size}: the configuration states {stated}");
        }
    }
    for (option, values, stated) in
        [("--mean", &options.mean, &mut description.mean), ("--std", &options.std, &mut description.std)]
    {
        let Some(values) = values else { continue };
        if let Some(stated) = stated.replace(values.clone()).filter(|stated| !same(stated, values)) {
            bail!("{option} {values:?}: the configuration states {stated:?}");
        }
    }
    Ok(())
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6)
}

/// Puts the share of the scaled image that the user states into a pipeline, and checks what is stated of its channels.
///
/// # Errors
/// When a file states another one.
pub(super) fn add_crop(
    options: &Options,
    description: &Description,
    pipeline: &mut Preprocessing,
) -> Result<()> {
    for (option, values) in [("--mean", &options.mean), ("--std", &options.std)] {
        if let Some(values) = values.as_ref().filter(|values| values.len() != pipeline.channels) {
            usage!(
                "{option}: {} values for a model of {} channels: give one for each",
                values.len(),
                pipeline.channels
            );
        }
    }
    let Some(crop) = options.crop else { return Ok(()) };
    let share = |rule: ResizeRule| match rule {
        ResizeRule::Squash => 1.0,
        ResizeRule::SquashCrop { crop } | ResizeRule::ShorterSide { crop } => crop,
    };
    if let Some(stated) = description.resize.map(share).filter(|stated| (stated - crop).abs() > 1e-4) {
        bail!("--crop {crop}: the configuration states {stated}");
    }
    pipeline.resize = match pipeline.resize {
        ResizeRule::ShorterSide { .. } => ResizeRule::ShorterSide { crop },
        ResizeRule::Squash | ResizeRule::SquashCrop { .. } => description::squash(crop),
    };
    Ok(())
}
