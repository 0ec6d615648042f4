//! Half the image size of pretrained weights, which is worth a try where images would be enlarged several times.

use anyhow::Result;
use vitrine_models::{ImageSize, ModelConfig, Position, Tokenizer};

use super::{Evidence, Overrides, Plan};
use crate::device::FoundDevice;

/// The least enlargement of the images for which half the size is tried. With DINOv2's ViT-S/14, a probe recognizes more at 112
/// pixels than at 224 where images have 32, and nearly as much where they have 64, in a third of the time
/// (`docs/benchmarks.md`); by cross-validation on 500 photos of 100 pixels, it recognizes less.
const MIN_ENLARGEMENT: usize = 3;

impl Plan {
    /// The plan for half the image size, if the user has left the size open, the head is fitted to features, and the images are
    /// much smaller than those of the pretrained weights.
    ///
    /// # Errors
    /// As those of [`new`](Self::new).
    pub fn with_half_size(
        &self,
        overrides: &Overrides,
        evidence: &Evidence<'_>,
        device: &FoundDevice,
    ) -> Result<Option<Self>> {
        let fits_head = self.recipe.fit_head || self.recipe.probe_first;
        if overrides.image_size.is_some() || evidence.pretrained.is_none() || !fits_head {
            return Ok(None);
        }
        let Some(side) = half_side(&self.model, evidence.native_side() as usize) else { return Ok(None) };
        let smaller = Overrides { image_size: Some(side), ..overrides.clone() };
        Self::for_device(&smaller, evidence, device).map(Some)
    }
}

/// Half the side of a model's images in whole patches, if images of `native` pixels would be enlarged several times to its own
/// size, and the model can compute images of another one.
fn half_side(model: &ModelConfig, native: usize) -> Option<usize> {
    let ImageSize { height, width } = model.image_size;
    let is_resizable = model.num_stages() == 1
        && matches!(model.position, Position::Learned | Position::Rotary)
        && model.tokenizer == Tokenizer::Patch;
    if height != width || height < MIN_ENLARGEMENT * native.max(1) || !is_resizable {
        return None;
    }
    let side = height / 2 / model.patch_size * model.patch_size;
    let half = ModelConfig { image_size: ImageSize::square(side), ..model.clone() };
    (side >= native && half.validate().is_ok()).then_some(side)
}

#[cfg(test)]
mod tests {
    use vitrine_models::preset;

    use super::*;

    #[test]
    fn half_the_size_is_tried_for_images_that_would_be_enlarged_several_times() {
        let vit = preset::find("vit_tiny_patch16_224").expect("a preset");
        let of_14 = ModelConfig { patch_size: 14, ..vit.clone() };
        let windows = preset::find("swin_tiny_patch4_window7_224").expect("a preset");
        for (model, native, side) in [
            (&vit, 32, Some(112)),
            (&of_14, 32, Some(112)),
            (&vit, 74, Some(112)),
            (&vit, 75, None),
            (&vit, 224, None),
            (&windows, 32, None),
            // An odd number of patches is rounded down.
            (&ModelConfig { image_size: ImageSize::square(240), ..vit.clone() }, 32, Some(112)),
            (&ModelConfig { image_size: ImageSize { height: 224, width: 448 }, ..vit.clone() }, 32, None),
        ] {
            assert_eq!(half_side(model, native), side, "{} {native}", model.image_size);
        }
    }
}
