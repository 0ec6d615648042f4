//! Test-time augmentation: which views of an image a prediction is made from (Krizhevsky et al. 2012, section 4.1).

use anyhow::{Result, bail};
use burn::tensor::Tensor;
use vitrine_models::VisionTransformer;

use crate::model_file::ModelCard;
use crate::output::note;

/// What of an image is classified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Views {
    /// The image as it is.
    #[default]
    One,
    /// The image and its mirror image: their mean logits, for twice the time.
    Mirrored,
}

impl Views {
    /// The logits, `[batch, classes]`, of images, `[batch, channels, height, width]`.
    pub fn logits(self, model: &VisionTransformer, images: Tensor<4>) -> Tensor<2> {
        match self {
            Self::One => model.forward(images),
            Self::Mirrored => {
                let mirrored = images.clone().flip([3]);
                (model.forward(images) + model.forward(mirrored)).mul_scalar(0.5)
            }
        }
    }

    /// Checks that a mirror image is of the same class to the model of `card`; says on standard error if that is not known.
    ///
    /// # Errors
    /// When the model was trained without mirror images.
    pub fn check(self, card: &ModelCard) -> Result<()> {
        match (self, &card.recipe) {
            (Self::One, _) => Ok(()),
            (Self::Mirrored, Some(recipe)) if recipe.augmentation.horizontal_flip > 0.0 => Ok(()),
            (Self::Mirrored, Some(_)) => bail!(
                "--tta also classifies the mirror image, and the model was trained without any (`horizontal_flip` is 0 in its \
                 recipe): mirrored digits, letters, or signs have another class or none; leave it out"
            ),
            (Self::Mirrored, None) => {
                note!(
                    "the model file does not say whether the model was trained with mirror images: use --tta only if mirror images \
                     have the same class"
                );
                Ok(())
            }
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
        let one = values(Views::One.logits(&model, images.clone()));
        assert_eq!(one, values(model.forward(images.clone())));
        let other = values(model.forward(images.clone().flip([3])));
        let both = values(Views::Mirrored.logits(&model, images.clone()));
        for (mean, (a, b)) in both.iter().zip(one.iter().zip(&other)) {
            assert!((mean - (a + b) / 2.0).abs() < 1e-6, "{mean} of {a} and {b}");
        }
        assert_ne!(one, other);
        let mirrored = values(Views::Mirrored.logits(&model, images.flip([3])));
        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
        assert!(both.iter().zip(&mirrored).all(close), "an image and its mirror image are the same to it");
    }
}
