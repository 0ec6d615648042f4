//! The metadata of an import source, from its configuration files, its file name, and the user's options.
//!
//! An option may state what no file states. An option that contradicts a file is an error.

use std::path::Path;

use anyhow::{Context, Result, bail};
use vitrine_datasets::{Preprocessing, ResizeRule};
use vitrine_models::weights::{Facts, Layout};
use vitrine_models::{PerStage, preset};

use super::Options;
use super::config::{self, ModelMetadata, TimmArchitecture};
use super::files::SourceFiles;
use crate::usage::usage;

/// What states the metadata of a file that is no export of this program, for messages.
pub(super) const CONFIGURATION: &str = "the configuration";

/// Reads the metadata from `--config`, or else `config.json`, or else the file name, and adds
/// `preprocessor_config.json` and the options for heads and channels.
///
/// # Errors
/// If a file cannot be read or describes something unsupported, or two sources contradict each other.
pub(super) fn metadata(
    files: &SourceFiles,
    layout: Layout,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<ModelMetadata> {
    let mut metadata = match (&options.config, &files.config) {
        (Some(named), _) => of_config(named)?,
        (None, Some(path)) => {
            notes.push(format!("configuration: {}", path.display()));
            config::read(path)?
        }
        (None, None) => of_file_name(files, layout, notes)?,
    };
    if let Some(stated) = metadata.layout.filter(|stated| *stated != layout) {
        bail!(
            "the configuration is one of {}, but the names of the tensors are those of {}",
            stated.name(),
            layout.name()
        );
    }
    if let Some(path) = &files.preprocessor {
        notes.push(format!("preprocessing: {}", path.display()));
        config::read_preprocessor(path, &mut metadata)?;
    }
    add_options(options, &mut metadata, CONFIGURATION)?;
    Ok(metadata)
}

/// The metadata that `--config` names: a preset, timm's name of an architecture, or a file.
fn of_config(named: &str) -> Result<ModelMetadata> {
    let mut facts = match preset::find(named) {
        Some(preset) => Facts::of(&preset),
        None if TimmArchitecture::find(named).is_some() => {
            config::facts_of_timm_name(named).with_context(|| format!("--config {named}"))?
        }
        None => {
            return config::read(Path::new(named)).with_context(|| {
                format!("--config {named}: a preset, timm's name for an architecture, or a configuration file is needed")
            });
        }
    };
    // The image size of a preset or name is only a default, so the stored positions or the user decide it. Swin has no
    // positions.
    if facts.window.is_none() {
        facts.image_size = None;
    }
    Ok(ModelMetadata { facts, name: Some(named.to_owned()), ..ModelMetadata::default() })
}

/// The metadata that follows from a file name of timm's or Microsoft's, which begins with the name of the architecture.
fn of_file_name(files: &SourceFiles, layout: Layout, notes: &mut Vec<String>) -> Result<ModelMetadata> {
    let stem = files.weights.first().and_then(|path| path.file_stem()).unwrap_or_default().to_string_lossy();
    if !layout.has_timms_file_names() {
        return Ok(ModelMetadata::default());
    }
    let known = TimmArchitecture::of_file_name(&stem);
    if config::has_enlarged_windows(&stem) && known.is_none() {
        bail!(
            "{stem}: according to the file name, windows were enlarged; --config, as with the name of a model of timm, tells from which"
        );
    }
    if let Some(feature) = config::unsupported_feature(&stem).filter(|_| known.is_none()) {
        bail!(
            "{stem}: according to the file name, this is a model with {feature}, which is not supported; if it is another, describe it with --config FILE"
        );
    }
    let Some(architecture) = known else {
        return Ok(ModelMetadata::default());
    };
    notes.push(format!("according to the file name, this is {}", architecture.name));
    let facts = config::facts_of_timm_name(architecture.name)
        .with_context(|| format!("{stem}: according to the file name, this is {}", architecture.name))?;
    Ok(ModelMetadata { facts, name: Some(architecture.name.to_owned()), ..ModelMetadata::default() })
}

/// Adds the options for heads, mean, and standard deviation to the metadata, which `source` states.
///
/// # Errors
/// If the source states other values.
pub(super) fn add_options(options: &Options, metadata: &mut ModelMetadata, source: &str) -> Result<()> {
    let facts = &mut metadata.facts;
    if let Some(heads) = &options.heads {
        let heads = PerStage(heads.clone());
        if let Some(stated) = facts.num_heads.replace(heads.clone()).filter(|stated| *stated != heads) {
            usage!("--heads {heads}: {source} states {stated}");
        }
    }
    for (option, values, stated) in
        [("--mean", &options.mean, &mut metadata.mean), ("--std", &options.std, &mut metadata.std)]
    {
        let Some(values) = values else { continue };
        if let Some(stated) = stated.replace(values.clone()).filter(|stated| !are_close(stated, values)) {
            usage!("{option} {values:?}: {source} states {stated:?}");
        }
    }
    Ok(())
}

fn are_close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6)
}

/// Sets the pipeline's center crop to the one that the user states, and checks that `--mean` and `--std` have a value
/// per channel.
///
/// # Errors
/// If `source`, which states the metadata, states another crop, or the number of channels differs.
pub(super) fn add_crop(
    options: &Options,
    metadata: &ModelMetadata,
    pipeline: &mut Preprocessing,
    source: &str,
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
    if let Some(stated) = metadata.resize.map(share).filter(|stated| (stated - crop).abs() > 1e-4) {
        usage!("--crop {crop}: {source} states {stated}");
    }
    pipeline.resize = match pipeline.resize {
        ResizeRule::ShorterSide { .. } => ResizeRule::ShorterSide { crop },
        ResizeRule::Squash | ResizeRule::SquashCrop { .. } => config::squash(crop),
        // Only a file states this rule. The check above has refused any crop below 1.
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

    fn files(weights: &str) -> SourceFiles {
        SourceFiles { weights: vec![PathBuf::from(weights)], config: None, preprocessor: None }
    }

    #[test]
    fn config_names_a_preset_an_architecture_of_timm_or_a_file() {
        let preset = of_config("vit_tiny_patch16_224").unwrap();
        assert_eq!((preset.facts.embed_dim, preset.facts.image_size), (Some(192), None));
        assert_eq!(preset.name.as_deref(), Some("vit_tiny_patch16_224"));
        let swin = of_config("swin_tiny_patch4_window7_224").unwrap().facts;
        assert_eq!((swin.window, swin.image_size), (Some(7), Some(ImageSize::square(224))));
        let siglip = of_config("vit_base_patch16_siglip_224").unwrap().facts;
        assert_eq!((siglip.pool, siglip.image_size), (Some(Pool::Attention), None));
        let error = format!("{:#}", of_config("nowhere.json").unwrap_err());
        assert!(error.contains("--config nowhere.json"), "{error}");
    }

    #[test]
    fn file_names_of_timm_and_microsoft_tell_the_architecture() {
        for (weights, layout, expected) in [
            ("vit_tiny_patch16_224-1a2b.safetensors", Layout::Timm, Some("vit_tiny_patch16_224")),
            ("deit-tiny-distilled-patch16-224.pth", Layout::Timm, Some("deit_tiny_distilled_patch16_224")),
            (
                "swinv2_base_patch4_window12to16_192to256_22kto1k_ft.pth",
                Layout::Microsoft,
                Some("swinv2_base_window12to16_192to256"),
            ),
            ("vit_tiny_patch16_224-1a2b.safetensors", Layout::HuggingFace, None),
            ("model.safetensors", Layout::Timm, None),
        ] {
            let mut notes = Vec::new();
            let metadata = of_file_name(&files(weights), layout, &mut notes).unwrap();
            assert_eq!(metadata.name.as_deref(), expected, "{weights}");
            assert_eq!(notes.len(), usize::from(expected.is_some()), "{notes:?}");
        }
        for (weights, expected) in [
            ("my_swinv2_window12to16.pth", "window12to16"),
            ("eva02_base_patch16_clip_224.safetensors", "`scale_attn_inner`"),
        ] {
            let found = of_file_name(&files(weights), Layout::Microsoft, &mut Vec::new());
            let error = format!("{:#}", found.unwrap_err());
            assert!(error.contains(expected), "{weights}: {error}");
        }
    }

    #[test]
    fn a_configuration_of_another_library_than_the_tensors_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("config.json");
        std::fs::write(&config, r#"{"model_type": "vit"}"#).unwrap();
        let files = SourceFiles { config: Some(config), ..files("model.safetensors") };
        let collect = |layout| metadata(&files, layout, &Options::default(), &mut Vec::new());
        assert_eq!(collect(Layout::HuggingFace).unwrap().facts.embed_dim, Some(768));
        let error = collect(Layout::Timm).unwrap_err().to_string();
        assert!(error.contains("hugging-face") && error.contains("timm"), "{error}");
    }

    #[test]
    fn options_complete_the_files_and_may_not_contradict_them() {
        let none = Options::default;
        for (options, name) in [
            (Options { heads: Some(vec![3]), ..none() }, "--heads"),
            (Options { mean: Some(vec![0.5; 3]), ..none() }, "--mean"),
            (Options { std: Some(vec![0.5; 3]), ..none() }, "--std"),
        ] {
            let mut metadata = ModelMetadata::default();
            add_options(&options, &mut metadata, CONFIGURATION).unwrap();
            // Equal values are no contradiction.
            add_options(&options, &mut metadata, CONFIGURATION).unwrap();
            let heads = &metadata.facts.num_heads;
            let stated = [heads.is_some(), metadata.mean.is_some(), metadata.std.is_some()];
            assert_eq!(stated.iter().filter(|stated| **stated).count(), 1, "{name}");
            let mut other = ModelMetadata {
                facts: Facts { num_heads: Some(4.into()), ..Facts::default() },
                mean: Some(vec![0.25; 3]),
                std: Some(vec![0.25; 3]),
                ..ModelMetadata::default()
            };
            let error = add_options(&options, &mut other, CONFIGURATION).unwrap_err().to_string();
            assert!(error.contains(name), "{name}: {error}");
        }
    }

    #[test]
    fn the_stated_crop_is_used_unless_a_file_states_another() {
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
            let metadata = ModelMetadata { resize: stated, ..ModelMetadata::default() };
            let mut pipeline = pipeline(resize);
            add_crop(&options, &metadata, &mut pipeline, CONFIGURATION).map(|()| pipeline.resize)
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
        // The number of channels is known only now, so clap cannot check it.
        let options = Options { mean: Some(vec![0.5]), ..Options::default() };
        let mut pipeline = pipeline(shorter(0.9));
        let error = add_crop(&options, &ModelMetadata::default(), &mut pipeline, CONFIGURATION).unwrap_err();
        assert!(UsageError::is_cause_of(&error) && error.to_string().contains("--mean"), "{error}");
    }
}
