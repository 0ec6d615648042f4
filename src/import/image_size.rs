//! The image size and the patch size of an imported model: those of its stored tensors, or the user's, for which positions and
//! patch embedding are resampled.

use anyhow::{Result, bail};
use vitrine_models::weights::{
    self, Facts, Layout, NamedTensor, Reading, UnknownArchitecture, check_windows, read_architecture,
};
use vitrine_models::{ImageSize, ModelConfig, Position};

use super::Options;
use crate::usage::usage;

/// Reads the architecture at the image size of the stored positions. If no file states that size, the tensors are first
/// tried as those of the size that the user asks for, then as those of a square.
///
/// # Errors
/// As [`read_architecture`].
pub(super) fn read(
    tensors: &[NamedTensor],
    layout: Layout,
    facts: &Facts,
    asked: Option<ImageSize>,
) -> Result<Reading, UnknownArchitecture> {
    let is_unstated = facts.image_size.is_none();
    let with = |image_size| read_architecture(tensors, layout, &Facts { image_size, ..facts.clone() });
    let reading = with(facts.image_size.or(asked));
    let has_positions = tensors.iter().any(|tensor| tensor.name == "pos_embed");
    // Positions of an unknown size are taken for those of a square, and resampled to the user's size later.
    if reading.is_err() && is_unstated && asked.is_some() && has_positions {
        return with(None).or(reading);
    }
    reading
}

/// Resamples positions and patch embedding for the image size and the patch size that the user asks for, and notes it.
///
/// # Errors
/// If the architecture cannot have these sizes, or has the patch size already.
pub(super) fn resampled(
    reading: Reading,
    tensors: Vec<NamedTensor>,
    asked: Asked,
    layout: Layout,
    notes: &mut Vec<String>,
) -> Result<(Reading, Vec<NamedTensor>)> {
    let config = asked.applied_to(&reading.config)?;
    if config == reading.config {
        return Ok((reading, tensors));
    }
    if let Err(error) = check_windows(&config, layout) {
        usage!("{}: {error}", asked.options());
    }
    let adaptation = weights::adapt(tensors, [&reading.config, &config], true, layout.resampling(&config));
    notes.extend(adaptation.changes);
    Ok((Reading { config, ..reading }, adaptation.tensors))
}

/// What the user asks for in place of the sizes of the stored tensors.
#[derive(Clone, Copy, Default)]
pub(super) struct Asked {
    pub(super) image_size: Option<ImageSize>,
    patch_size: Option<usize>,
}

impl Asked {
    /// The sizes among the options.
    pub(super) fn of(options: &Options) -> Self {
        let image_size = options.image_size.map(|[height, width]| ImageSize { height, width });
        Self { image_size, patch_size: options.patch_size }
    }

    /// An architecture with these sizes in place of its own.
    ///
    /// # Errors
    /// If the architecture cannot have these sizes, or has the patch size already.
    pub(super) fn applied_to(self, of: &ModelConfig) -> Result<ModelConfig> {
        if self.patch_size == Some(of.patch_size) {
            usage!("--patch-size {}: the weights have this size already; leave it out", of.patch_size);
        }
        let config = ModelConfig {
            image_size: self.image_size.unwrap_or(of.image_size),
            patch_size: self.patch_size.unwrap_or(of.patch_size),
            ..of.clone()
        };
        if let Err(error) = config.validate() {
            usage!("{}: {error}", self.options());
        }
        Ok(config)
    }

    /// The options, for messages.
    fn options(self) -> String {
        let size = self.image_size.map(|size| format!("--image-size {size}"));
        let patch = self.patch_size.map(|side| format!("--patch-size {side}"));
        size.into_iter().chain(patch).collect::<Vec<_>>().join(" ")
    }
}

/// The height and width in pixels to which preprocessing brings images, if a size is `stated`. `asked` tells whether the user chose the
/// model's size.
///
/// For a classifier, this is the model's size. The preprocessing of a backbone may be for another size than its stored
/// positions: DINOv2 has positions for 518 pixels and preprocessing for 224, and libraries resample the positions.
///
/// # Errors
/// If the preprocessing of a classifier is for another size, and the user has not chosen one.
pub(super) fn of_images(
    stated: Option<[usize; 2]>,
    reading: &Reading,
    asked: bool,
    warnings: &mut Vec<String>,
) -> Result<[usize; 2]> {
    let own = reading.config.image_size;
    let own_sides = [own.height, own.width];
    let Some(stated @ [height, width]) = stated.filter(|stated| *stated != own_sides) else {
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
    let fits = matches!(reading.config.position, Position::Learned | Position::Rotary);
    if fits && at_stated.validate().is_ok() {
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
    fn preprocessing_of_another_size_is_refused_for_classifiers_and_kept_for_backbones() {
        let (vit, swin) = ("vit_tiny_patch4_32", "swin_pico_patch2_window4_32");
        for (name, stated, has_head, asked, found, warns) in [
            (vit, None, true, false, Some(32), false),
            (vit, Some(32), true, false, Some(32), false),
            (vit, Some(64), true, false, None, false),
            // The user's size overrides that of the files.
            (vit, Some(64), true, true, Some(32), false),
            (vit, Some(64), false, false, Some(64), false),
            (vit, Some(64), false, true, Some(32), false),
            // Patches of 4 pixels do not divide 66, and a Swin has no positions to resample.
            (vit, Some(66), false, false, Some(32), true),
            (swin, Some(64), false, false, Some(32), true),
        ] {
            let stated = stated.map(|side: usize| [side; 2]);
            let config = preset::find(name).unwrap();
            let reading = Reading { config, ..reading(vit, has_head) };
            let mut warnings = Vec::new();
            let size = of_images(stated, &reading, asked, &mut warnings);
            assert_eq!(size.ok(), found.map(|side| [side; 2]), "{name} {stated:?} {has_head} {asked}");
            assert_eq!(warnings.len(), usize::from(warns), "{warnings:?}");
        }
    }

    #[test]
    fn positions_are_resampled_for_valid_sizes_and_other_sizes_refused() {
        let from = reading("vit_tiny_patch4_32", true);
        let mut notes = Vec::new();
        let resample = |side: usize, patch_size, notes: &mut Vec<String>| {
            let asked = Asked { image_size: Some(ImageSize::square(side)), patch_size };
            resampled(from.clone(), tensors(&from.config), asked, Layout::Timm, notes)
        };
        let (to, resized) = resample(48, None, &mut notes).unwrap();
        assert_eq!((to.config.image_size, to.has_head), (ImageSize::square(48), true));
        weights::check(&to.config.init(&Device::default()).unwrap(), &resized).unwrap();
        assert_eq!(notes, ["positions resampled from [8, 8] to [12, 12] patches"]);
        let (to, resized) = resample(32, Some(8), &mut notes).unwrap();
        assert_eq!(to.config.grid(), [4, 4]);
        weights::check(&to.config.init(&Device::default()).unwrap(), &resized).unwrap();
        let changes = [
            "patch embedding resized from 4 to 8 pixels",
            "positions resampled from [8, 8] to [4, 4] patches",
        ];
        assert_eq!(notes[1..], changes);
        for (side, patch_size, part) in [
            (32, 5, "--image-size 32x32 --patch-size 5: `image_size`"),
            (32, 4, "--patch-size 4: the weights have this size"),
        ] {
            let error = resample(side, Some(patch_size), &mut notes).unwrap_err();
            assert!(UsageError::is_cause_of(&error) && error.to_string().contains(part), "{error}");
        }
        let error = resample(42, None, &mut notes).unwrap_err();
        assert!(
            UsageError::is_cause_of(&error) && error.to_string().contains("--image-size 42x42"),
            "{error}"
        );
        // Hugging Face pads grids that windows do not divide, which computes something else.
        let swin = Reading { config: preset::find("swin_tiny_patch4_window7_224").unwrap(), ..from.clone() };
        let asked = Asked { image_size: Some(ImageSize::square(256)), ..Asked::default() };
        let error = resampled(swin, Vec::new(), asked, Layout::HuggingFace, &mut notes).unwrap_err();
        assert!(error.to_string().contains("--image-size 256x256"), "{error}");
    }

    #[test]
    fn an_unstated_size_is_the_users_if_the_positions_fit_it_and_a_square_otherwise() {
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
            // The positions do not fit, so they are read as those of a square and resampled later.
            (Some(square(48)), square(32)),
        ] {
            assert_eq!(size(&heads, asked).unwrap(), found, "{asked:?}");
        }
        // A size that a file states is not corrected.
        let stated = Facts { image_size: Some(square(48)), ..heads };
        assert!(size(&stated, Some(square(32))).is_err());
    }
}
