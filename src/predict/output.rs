//! The kinds of answers that a model can give for an image: logits, an embedding, or a layout.

use burn::tensor::Tensor;
use vitrine_models::VisionTransformer;

use super::Views;

/// The kind of answer, one vector for each image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// The logits of all classes, in the order of the class names.
    #[default]
    Logits,
    /// The pooled embedding that the head classifies: timm's `forward_head(x, pre_logits=True)` for a head without
    /// hidden layers.
    Embedding,
    /// What lies where in the image ([`VisionTransformer::layout`]).
    Layout,
}

impl Output {
    /// Computes the answers, averaged over the views of each image.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, classes]` for logits, `[batch, embedding_dim]` for embeddings, `[batch, layout_dim]` for layouts
    pub fn compute(self, model: &VisionTransformer, views: Views, images: Tensor<4>) -> Tensor<2> {
        views.average(images, |images| match self {
            Self::Logits => model.forward(images),
            Self::Embedding => model.embedding(images),
            Self::Layout => model.layout(images),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::{Device, Distribution};
    use vitrine_models::preset;

    use super::*;

    #[test]
    fn an_answer_is_the_mean_over_the_views() {
        let device = Device::default();
        let model = preset::find("vit_pico_patch4_32").unwrap().with_num_classes(3).init(&device).unwrap();
        model.initialize();
        let images = Tensor::<4>::random([2, 3, 32, 32], Distribution::Default, &device);
        for (output, width) in [(Output::Logits, 3), (Output::Embedding, 96), (Output::Layout, 2 * 16 * 96)] {
            let of = |views| output.compute(&model, views, images.clone());
            assert_eq!(of(Views::One).dims(), [2, width]);
            let mean = (of(Views::One) + of(Views::MirrorImage)).div_scalar(2.0);
            let difference: f32 = (mean - of(Views::Mirrored)).abs().max().into_scalar();
            assert!(difference < 1e-6, "{output:?}: {difference}");
        }
    }
}
