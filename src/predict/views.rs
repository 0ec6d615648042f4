//! Views: the versions of an image whose answers are averaged (test-time augmentation, Krizhevsky et al. 2012, section
//! 4.1).

use anyhow::Result;
use burn::tensor::Tensor;

use crate::model_file::ModelCard;
use crate::usage::usage;

/// The versions of an image that are passed to the model, and over which its answers are averaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Views {
    /// The image as it is.
    #[default]
    One,
    /// The image and its mirror image, at twice the cost.
    Mirrored,
    /// Only the mirror image. Training uses it to find out whether the model recognizes mirror images as their class.
    MirrorImage,
}

impl Views {
    /// The views that the model of `card` is asked about, unless the user wants others.
    pub fn of(card: &ModelCard) -> Self {
        if card.mirror_views { Self::Mirrored } else { Self::One }
    }

    /// The views in words, after the name of what was measured; nothing for one view.
    pub fn described(self) -> &'static str {
        match self {
            Self::One => "",
            Self::Mirrored => ", each with its mirror image",
            Self::MirrorImage => ", mirrored",
        }
    }

    /// The mean over the views of the answers that `compute` gives.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, width of an answer]`, the shape of `compute`'s output
    pub fn average(self, images: Tensor<4>, compute: impl Fn(Tensor<4>) -> Tensor<2>) -> Tensor<2> {
        let mirrored = |images: Tensor<4>| images.flip([3]);
        match self {
            Self::One => compute(images),
            Self::MirrorImage => compute(mirrored(images)),
            Self::Mirrored => (compute(images.clone()) + compute(mirrored(images))).mul_scalar(0.5),
        }
    }

    /// Checks that the model of `card` was trained with mirror images, if these views contain one. Returns a remark if
    /// its file has no recipe, so that this is unknown.
    ///
    /// # Errors
    /// If these views contain a mirror image and the model was trained without.
    pub fn check(self, card: &ModelCard) -> Result<Option<&'static str>> {
        match (self, &card.recipe) {
            (Self::One, _) => Ok(None),
            (Self::Mirrored, None) if card.mirror_views => Ok(None),
            (Self::Mirrored | Self::MirrorImage, Some(recipe))
                if recipe.augmentation.horizontal_flip > 0.0 =>
            {
                Ok(None)
            }
            (Self::Mirrored | Self::MirrorImage, Some(_)) => usage!(
                "--tta also classifies the mirror image, and the model was trained without any (`horizontal_flip` is 0 in its \
                 recipe): mirrored digits, letters, or signs have another class or none; leave it out"
            ),
            (Self::Mirrored | Self::MirrorImage, None) => Ok(Some(
                "the model file does not say whether the model was trained with mirror images: use --tta only if mirror images \
                 have the same class",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::{Device, Distribution};
    use vitrine_models::preset;

    use super::*;

    #[test]
    fn two_views_give_the_mean_of_two_forward_passes() {
        let device = Device::default();
        let model = preset::find("vit_pico_patch4_32").unwrap().with_num_classes(3).init(&device).unwrap();
        model.initialize();
        let images = Tensor::<4>::random([2, 3, 32, 32], Distribution::Default, &device);
        let values = |logits: Tensor<2>| logits.into_data().iter::<f32>().collect::<Vec<_>>();
        let logits =
            |views: Views, images: Tensor<4>| values(views.average(images, |images| model.forward(images)));
        let one = logits(Views::One, images.clone());
        assert_eq!(one, values(model.forward(images.clone())));
        let other = logits(Views::MirrorImage, images.clone());
        assert_eq!(other, values(model.forward(images.clone().flip([3]))));
        let both = logits(Views::Mirrored, images.clone());
        for (mean, (a, b)) in both.iter().zip(one.iter().zip(&other)) {
            assert!((mean - (a + b) / 2.0).abs() < 1e-6, "{mean} of {a} and {b}");
        }
        assert_ne!(one, other);
        let mirrored = logits(Views::Mirrored, images.flip([3]));
        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
        assert!(both.iter().zip(&mirrored).all(close), "an image and its mirror image get the same answer");
    }
}
