//! The image size of a model that is imported: that of its stored positions, or another one, for which they are resampled.

use anyhow::{Result, bail};
use vitrine_models::weights::{
    self, Facts, Layout, NamedTensor, Reading, UnknownArchitecture, check_windows, read_architecture,
};
use vitrine_models::{ImageSize, ModelConfig, Position};

use super::description::Description;
use crate::usage::usage;

/// The architecture of tensors at the size of their positions. Where no file states this size, `asked`, the user's, may be it or another.
///
/// # Errors
/// As [`read_architecture`].
pub(super) fn read(
    tensors: &[NamedTensor],
    layout: Layout,
    facts: &Facts,
    asked: Option<ImageSize>,
) -> Result<Reading, UnknownArchitecture> {
    let is_open = facts.image_size.is_none();
    let with = |image_size| read_architecture(tensors, layout, &Facts { image_size, ..facts.clone() });
    let reading = with(facts.image_size.or(asked));
    let has_positions = tensors.iter().any(|tensor| tensor.name == "pos_embed");
    // Without a word on their size, positions are those of a square.
    if reading.is_err() && is_open && asked.is_some() && has_positions {
        return with(None).or(reading);
    }
    reading
}

/// The architecture and its tensors for the image size `asked`; `notes` says what was resampled.
///
/// # Errors
/// When the architecture cannot have this size.
pub(super) fn resampled(
    reading: Reading,
    tensors: Vec<NamedTensor>,
    asked: ImageSize,
    layout: Layout,
    notes: &mut Vec<String>,
) -> Result<(Reading, Vec<NamedTensor>)> {
    let config = ModelConfig { image_size: asked, ..reading.config.clone() };
    if let Err(error) = config.validate() {
        usage!("--image-size {asked}: {error}");
    }
    if let Err(error) = check_windows(&config, layout) {
        usage!("--image-size {asked}: {error}");
    }
    let adaptation = weights::adapt(tensors, &reading.config, &config, true);
    notes.extend(adaptation.changes);
    Ok((Reading { config, ..reading }, adaptation.tensors))
}

/// The size in which images are prepared for a model; `asked` says whether the user chose the model's.
///
/// A classifier is of one size. A backbone may be meant for images of another size than its stored positions: libraries resample
/// DINOv2's, of 518 pixels, for the 224 pixels that its preprocessing makes.
///
/// # Errors
/// When the preprocessing of a classifier makes images of another size.
pub(super) fn of_images(
    description: &Description,
    reading: &Reading,
    asked: bool,
    warnings: &mut Vec<String>,
) -> Result<[usize; 2]> {
    let own = reading.config.image_size;
    let own_sides = [own.height, own.width];
    let Some(stated @ [height, width]) = description.image_size.filter(|stated| *stated != own_sides) else {
        return Ok(own_sides);
    };
    if asked {
        return Ok(own_sides);
    }
    if reading.has_head {
        bail!(
            "the preprocessing makes images of {height}x{width}, but the model expects {own}: choose the size with `vitrine import \
             --image-size`, for which positions are resampled"
        );
    }
    let at_stated = ModelConfig { image_size: ImageSize { height, width }, ..reading.config.clone() };
    if reading.config.position == Position::Learned && at_stated.validate().is_ok() {
        return Ok(stated);
    }
    warnings.push(format!(
        "preprocessing for images of {height}x{width} is used for the {own} that the model takes"
    ));
    Ok(own_sides)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use burn::tensor::Device;
    use vitrine_models::preset;
    use vitrine_models::weights::to_timm;

    use super::*;
    use crate::usage::UsageError;

    fn reading(name: &str, has_head: bool) -> Reading {
        let config = ModelConfig { depth: 1.into(), ..preset::find(name).unwrap() };
        Reading { config, has_head, guesses: Vec::new(), notes: Vec::new() }
    }

    fn tensors(config: &ModelConfig) -> Vec<NamedTensor> {
        to_timm(&config.init(&Device::default()).unwrap())
    }

    #[test]
    fn a_classifier_is_of_one_size_and_a_backbone_of_any_that_it_can_have() {
        let (vit, swin) = ("vit_tiny_patch4_32", "swin_pico_patch2_window4_32");
        for (name, stated, has_head, asked, found, warns) in [
            (vit, None, true, false, Some(32), false),
            (vit, Some(32), true, false, Some(32), false),
            (vit, Some(64), true, false, None, false),
            // The user's size counts, whatever the files prepare.
            (vit, Some(64), true, true, Some(32), false),
            (vit, Some(64), false, false, Some(64), false),
            (vit, Some(64), false, true, Some(32), false),
            // No size that patches of 4 pixels divide, and no positions to resample.
            (vit, Some(66), false, false, Some(32), true),
            (swin, Some(64), false, false, Some(32), true),
        ] {
            let description =
                Description { image_size: stated.map(|side| [side; 2]), ..Description::default() };
            let config = preset::find(name).unwrap();
            let reading = Reading { config, ..reading(vit, has_head) };
            let mut warnings = Vec::new();
            let size = of_images(&description, &reading, asked, &mut warnings);
            assert_eq!(size.ok(), found.map(|side| [side; 2]), "{name} {stated:?} {has_head} {asked}");
            assert_eq!(warnings.len(), usize::from(warns), "{warnings:?}");
        }
    }

    #[test]
    fn positions_are_resampled_for_sizes_that_the_architecture_can_have() {
        let from = reading("vit_tiny_patch4_32", true);
        let mut notes = Vec::new();
        let resample = |side, notes: &mut Vec<String>| {
            resampled(from.clone(), tensors(&from.config), ImageSize::square(side), Layout::Timm, notes)
        };
        let (to, resized) = resample(48, &mut notes).unwrap();
        assert_eq!((to.config.image_size, to.has_head), (ImageSize::square(48), true));
        weights::check(&to.config.init(&Device::default()).unwrap(), &resized).unwrap();
        assert_eq!(notes, ["positions resampled from [8, 8] to [12, 12] patches"]);
        let error = resample(42, &mut notes).unwrap_err();
        assert!(
            UsageError::is_cause_of(&error) && error.to_string().contains("--image-size 42x42"),
            "{error}"
        );
        // Where a library pads what windows do not divide, the size is refused.
        let swin = Reading { config: preset::find("swin_tiny_patch4_window7_224").unwrap(), ..from.clone() };
        let asked = ImageSize::square(256);
        let error = resampled(swin, Vec::new(), asked, Layout::HuggingFace, &mut notes).unwrap_err();
        assert!(error.to_string().contains("--image-size 256x256"), "{error}");
    }

    #[test]
    fn a_size_that_no_file_states_is_that_of_the_positions_or_another() {
        let config = reading("vit_tiny_patch4_32", true).config;
        let tensors = tensors(&config);
        let heads = Facts { num_heads: Some(config.num_heads.clone()), ..Facts::default() };
        let size = |facts: &Facts, asked: Option<ImageSize>| {
            read(&tensors, Layout::Timm, facts, asked).map(|reading| reading.config.image_size)
        };
        let square = ImageSize::square;
        for (asked, found) in [
            (None, square(32)),
            (Some(square(32)), square(32)),
            (Some(ImageSize { height: 16, width: 64 }), ImageSize { height: 16, width: 64 }),
            // To be resampled from the size of the positions.
            (Some(square(48)), square(32)),
        ] {
            assert_eq!(size(&heads, asked).unwrap(), found, "{asked:?}");
        }
        // What a file states must be true.
        let stated = Facts { image_size: Some(square(48)), ..heads };
        assert!(size(&stated, Some(square(32))).is_err());
    }
}
