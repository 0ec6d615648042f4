//! What the user states of weights, against what their files say.

use std::path::Path;

use anyhow::{Context, Result, bail};
use vitrine_datasets::{Preprocessing, ResizeRule};
use vitrine_models::weights::{Facts, Layout};
use vitrine_models::{PerStage, preset};

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
    if !layout.has_timms_file_names() {
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
        ResizeRule::Squash | ResizeRule::Letterbox => 1.0,
        ResizeRule::SquashCrop { crop } | ResizeRule::ShorterSide { crop } => crop,
    };
    if let Some(stated) = description.resize.map(share).filter(|stated| (stated - crop).abs() > 1e-4) {
        bail!("--crop {crop}: the configuration states {stated}");
    }
    pipeline.resize = match pipeline.resize {
        ResizeRule::ShorterSide { .. } => ResizeRule::ShorterSide { crop },
        ResizeRule::Squash | ResizeRule::SquashCrop { .. } => description::squash(crop),
        // Only a file says so, and with it that nothing is cut off.
        ResizeRule::Letterbox => ResizeRule::Letterbox,
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::PathBuf;

    use vitrine_datasets::{CropRounding, Interpolation};
    use vitrine_models::{ImageSize, Pool};

    use super::*;
    use crate::usage::UsageError;

    fn files(weights: &str) -> Files {
        Files { weights: vec![PathBuf::from(weights)], config: None, preprocessor: None }
    }

    #[test]
    fn a_configuration_is_a_preset_a_name_of_timms_or_a_file() {
        let preset = of_config("vit_tiny_patch16_224").unwrap();
        assert_eq!((preset.facts.embed_dim, preset.facts.image_size), (Some(192), None));
        assert_eq!(preset.name.as_deref(), Some("vit_tiny_patch16_224"));
        let swin = of_config("swin_tiny_patch4_window7_224").unwrap().facts;
        assert_eq!((swin.window, swin.image_size), (Some(7), Some(ImageSize::square(224))));
        let timms = of_config("vit_base_patch16_siglip_224").unwrap().facts;
        assert_eq!((timms.pool, timms.image_size), (Some(Pool::Attention), None));
        let error = format!("{:#}", of_config("nowhere.json").unwrap_err());
        assert!(error.contains("--config nowhere.json"), "{error}");
    }

    #[test]
    fn files_are_taken_for_what_they_are_called_by_timm_and_microsoft() {
        for (weights, layout, expected) in [
            ("vit_tiny_patch16_224-1a2b.safetensors", Layout::Timm, Some("vit_tiny_patch16_224")),
            ("deit-tiny-distilled-patch16-224.pth", Layout::Timm, Some("deit_tiny_distilled_patch16_224")),
            ("vit_tiny_patch16_224-1a2b.safetensors", Layout::HuggingFace, None),
            ("model.safetensors", Layout::Timm, None),
        ] {
            let mut notes = Vec::new();
            let description = of_file_name(&files(weights), layout, &mut notes).unwrap();
            assert_eq!(description.name.as_deref(), expected, "{weights}");
            assert_eq!(notes.len(), usize::from(expected.is_some()), "{notes:?}");
        }
        for (weights, part) in [
            ("swinv2_base_patch4_window12to16_192to256_22kto1k_ft.pth", "window12to16"),
            ("vit_small_patch16_rope_224.safetensors", "rotary positions"),
        ] {
            let found = of_file_name(&files(weights), Layout::Microsoft, &mut Vec::new());
            let error = format!("{:#}", found.unwrap_err());
            assert!(error.contains(part), "{weights}: {error}");
        }
    }

    #[test]
    fn a_configuration_of_another_library_than_the_names_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.json");
        std::fs::write(&config, r#"{"model_type": "vit"}"#).unwrap();
        let files = Files { config: Some(config), ..files("model.safetensors") };
        let describe = |layout| describe(&files, layout, &Options::default(), &mut Vec::new());
        assert_eq!(describe(Layout::HuggingFace).unwrap().facts.embed_dim, Some(768));
        let error = describe(Layout::Timm).unwrap_err().to_string();
        assert!(error.contains("hugging-face") && error.contains("timm"), "{error}");
    }

    #[test]
    fn what_the_user_states_fills_up_what_files_say_and_does_not_overrule_them() {
        let none = Options::default;
        for (options, name) in [
            (Options { heads: Some(vec![3]), ..none() }, "--heads"),
            (Options { mean: Some(vec![0.5; 3]), ..none() }, "--mean"),
            (Options { std: Some(vec![0.5; 3]), ..none() }, "--std"),
        ] {
            let mut description = Description::default();
            add_options(&options, &mut description).unwrap();
            // Twice the same is no contradiction.
            add_options(&options, &mut description).unwrap();
            let heads = &description.facts.num_heads;
            let stated = [heads.is_some(), description.mean.is_some(), description.std.is_some()];
            assert_eq!(stated.iter().filter(|stated| **stated).count(), 1, "{name}");
            let mut other = Description {
                facts: Facts { num_heads: Some(4.into()), ..Facts::default() },
                mean: Some(vec![0.25; 3]),
                std: Some(vec![0.25; 3]),
                ..Description::default()
            };
            let error = add_options(&options, &mut other).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn a_crop_is_put_into_the_pipeline_unless_a_file_states_another() {
        let pipeline = |resize| Preprocessing {
            image_size: [32; 2],
            channels: 3,
            resize,
            interpolation: Interpolation::Bicubic,
            mean: vec![0.5; 3],
            std: vec![0.5; 3],
            crop_rounding: CropRounding::HalfToEven,
        };
        let add = |crop, stated, resize| -> Result<ResizeRule> {
            let options = Options { crop, ..Options::default() };
            let description = Description { resize: stated, ..Description::default() };
            let mut pipeline = pipeline(resize);
            add_crop(&options, &description, &mut pipeline).map(|()| pipeline.resize)
        };
        let shorter = |crop| ResizeRule::ShorterSide { crop };
        let squash = |crop| ResizeRule::SquashCrop { crop };
        for (crop, before, after) in [
            (None, shorter(0.9), shorter(0.9)),
            (Some(0.8), shorter(0.9), shorter(0.8)),
            (Some(0.8), squash(0.9), squash(0.8)),
            (Some(0.8), ResizeRule::Squash, squash(0.8)),
            (Some(1.0), squash(0.9), ResizeRule::Squash),
        ] {
            assert_eq!(add(crop, None, before).unwrap(), after, "{crop:?} of {before:?}");
        }
        assert_eq!(add(Some(0.9), Some(shorter(0.9)), shorter(0.9)).unwrap(), shorter(0.9));
        for stated in [shorter(0.9), squash(0.9), ResizeRule::Squash, ResizeRule::Letterbox] {
            let error = add(Some(0.8), Some(stated), stated).unwrap_err().to_string();
            assert!(error.contains("--crop 0.8"), "{error}");
        }
        // One value of a mean for each channel: clap does not know how many there are.
        let options = Options { mean: Some(vec![0.5]), ..Options::default() };
        let error = add_crop(&options, &Description::default(), &mut pipeline(shorter(0.9))).unwrap_err();
        assert!(UsageError::is_cause_of(&error) && error.to_string().contains("--mean"), "{error}");
    }
}
