//! The plain Vision Transformer (Dosovitskiy et al. 2021): one grid of tokens through all blocks.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor};

use crate::block::Block;
use crate::embed::PatchEmbed;
use crate::head::Head;
use crate::linear::normal;
use crate::norm::LayerNorm;
use crate::position::PositionEmbedding;
use crate::{ModelConfig, Pool};

/// Images to class logits.
#[derive(Module, Debug)]
pub struct VisionTransformer {
    patch_embed: PatchEmbed,
    class_token: Option<Param<Tensor<3>>>,
    registers: Option<Param<Tensor<3>>>,
    position: PositionEmbedding,
    embed_dropout: Dropout,
    blocks: Vec<Block>,
    /// Of all tokens, before the class token is taken.
    norm: Option<LayerNorm>,
    /// Of the mean, after pooling.
    fc_norm: Option<LayerNorm>,
    head: Head,
    channels: usize,
}

impl VisionTransformer {
    /// A model of a validated configuration; [`ModelConfig::init`] checks first.
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        let dim = config.embed_dim;
        let norm = |wanted: bool| wanted.then(|| LayerNorm::new(dim, config.norm_epsilon, device));
        Self {
            patch_embed: PatchEmbed::new(config, device),
            class_token: config.class_token.then(|| normal([1, 1, dim], 1e-6, device)),
            registers: (config.registers > 0).then(|| normal([1, config.registers, dim], 1e-6, device)),
            position: PositionEmbedding::new(config, device),
            embed_dropout: DropoutConfig::new(config.dropout).init(),
            blocks: (0..config.depth).map(|index| Block::new(config, index, device)).collect(),
            norm: norm(config.pool == Pool::ClassToken),
            fc_norm: norm(config.pool == Pool::Mean),
            head: Head::new(config, device),
            channels: config.channels,
        }
    }

    /// Channels of the images.
    pub(crate) fn channels(&self) -> usize {
        self.channels
    }

    /// # Shapes
    /// - images: `[batch, channels, height, width]`, preprocessed as the model was trained
    /// - output: `[batch, num_classes]`
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.head.forward(self.pool(self.features(images)))
    }

    /// The tokens after the last block (normalised where the class token is pooled), as timm's `forward_features`.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, tokens, dim]`: class token, registers, patches in reading order
    pub fn features(&self, images: Tensor<4>) -> Tensor<3> {
        let tokens = self.blocks.iter().fold(self.embed(images), |tokens, block| block.forward(tokens, None));
        self.normalise(tokens)
    }

    /// The logits and every block's attention weights.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - outputs: `[batch, num_classes]`, and one `[batch, heads, tokens, tokens]` a block
    pub fn forward_with_weights(&self, images: Tensor<4>) -> (Tensor<2>, Vec<Tensor<4>>) {
        let mut tokens = self.embed(images);
        let mut maps = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            let (next, weights) = block.forward_with_weights(tokens, None);
            tokens = next;
            maps.push(weights);
        }
        (self.head.forward(self.pool(self.normalise(tokens))), maps)
    }

    /// Draws every parameter that was not used yet: after this, the values depend on nothing that comes later.
    pub fn materialise(&self) {
        struct Touch;
        impl ModuleVisitor for Touch {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let _ = param.val();
            }
        }
        self.visit(&mut Touch);
    }

    fn embed(&self, images: Tensor<4>) -> Tensor<3> {
        let patches = self.patch_embed.forward(images);
        let [batch, _, _] = patches.dims();
        let prefix = [&self.class_token, &self.registers].into_iter().flatten();
        let mut parts: Vec<Tensor<3>> = prefix.map(|token| token.val().repeat_dim(0, batch)).collect();
        let tokens = if parts.is_empty() {
            patches
        } else {
            parts.push(patches);
            Tensor::cat(parts, 1)
        };
        self.embed_dropout.forward(self.position.forward(tokens))
    }

    fn normalise(&self, tokens: Tensor<3>) -> Tensor<3> {
        match &self.norm {
            Some(norm) => norm.forward(tokens),
            None => tokens,
        }
    }

    fn pool(&self, tokens: Tensor<3>) -> Tensor<2> {
        let [_, count, _] = tokens.dims();
        match &self.fc_norm {
            None => tokens.narrow(1, 0, 1).squeeze_dim(1),
            Some(norm) => {
                let prefix = usize::from(self.class_token.is_some())
                    + self.registers.as_ref().map_or(0, |registers| registers.lazy_shape()[1]);
                norm.forward(tokens.narrow(1, prefix, count - prefix).mean_dim(1).squeeze_dim::<2>(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{ImageSize, Position, preset};
    use burn::module::ModuleMapper;
    use burn::tensor::{Distribution, Tolerance};

    fn config() -> ModelConfig {
        ModelConfig {
            image_size: ImageSize { height: 8, width: 12 },
            channels: 2,
            patch_size: 4,
            embed_dim: 24,
            depth: 2,
            num_heads: 3,
            num_classes: 5,
            ..preset::find("vit_pico_patch4_32").unwrap()
        }
    }

    /// Every position, pooling and prefix, on pixels and on patches.
    fn variants() -> Vec<ModelConfig> {
        let mut all = Vec::new();
        for position in [Position::None, Position::Learned, Position::Sinusoidal, Position::Sinusoidal2d] {
            for (pool, class_token) in [(Pool::ClassToken, true), (Pool::Mean, true), (Pool::Mean, false)] {
                for (registers, patch_size) in [(0, 4), (2, 1)] {
                    all.push(ModelConfig {
                        position,
                        pool,
                        class_token,
                        registers,
                        patch_size,
                        head_hidden: vec![7; registers],
                        layer_scale: (registers > 0).then_some(0.1),
                        ..config()
                    });
                }
            }
        }
        all
    }

    #[test]
    fn every_variant_maps_images_to_logits_alone_and_in_a_batch() {
        let device = Device::default();
        for config in variants() {
            let model = config.init(&device).unwrap();
            let images = Tensor::<4>::random([3, 2, 8, 12], Distribution::Default, &device);
            let features = model.features(images.clone());
            assert_eq!(features.dims(), [3, config.num_tokens(), 24], "{config:?}");
            let logits = model.forward(images.clone());
            assert_eq!(logits.dims(), [3, 5]);
            let alone = model.forward(images.narrow(0, 1, 1));
            alone
                .into_data()
                .assert_approx_eq::<f32>(&logits.narrow(0, 1, 1).into_data(), Tolerance::absolute(1e-5));
        }
    }

    /// Larger weights than a fresh model's, so that every part shows in the logits.
    struct Enlarge;
    impl ModuleMapper for Enlarge {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|value| value.mul_scalar(5.0))
        }
    }

    #[test]
    fn without_positions_the_order_of_patches_does_not_matter_and_with_them_it_does() {
        let device = Device::default();
        for position in [Position::None, Position::Learned, Position::Sinusoidal, Position::Sinusoidal2d] {
            let model = ModelConfig { position, ..config() }.init(&device).unwrap().map(&mut Enlarge);
            let images = Tensor::<4>::random([1, 2, 8, 12], Distribution::Normal(0.0, 1.0), &device);
            let swapped =
                Tensor::cat(vec![images.clone().narrow(2, 4, 4), images.clone().narrow(2, 0, 4)], 2);
            let change: f32 = (model.forward(images) - model.forward(swapped)).abs().max().into_scalar();
            match position {
                Position::None => assert!(change < 1e-4, "{change}"),
                _ => assert!(change > 1e-2, "{position:?}: {change}"),
            }
        }
    }

    #[test]
    fn attention_maps_come_with_the_same_logits() {
        let device = Device::default();
        let model = config().init(&device).unwrap();
        let images = Tensor::<4>::random([2, 2, 8, 12], Distribution::Default, &device);
        let (logits, maps) = model.forward_with_weights(images.clone());
        assert_eq!(maps.len(), 2);
        assert_eq!(maps[0].dims(), [2, 3, 6, 6]);
        logits
            .into_data()
            .assert_approx_eq::<f32>(&model.forward(images).into_data(), Tolerance::absolute(1e-5));
    }

    #[test]
    fn dropout_and_drop_path_act_in_training_alone() {
        let device = Device::default();
        let config = ModelConfig { dropout: 0.3, attention_dropout: 0.3, drop_path: 0.5, ..config() };
        let model = config.init(&device.clone().autodiff()).unwrap();
        model.materialise();
        let images = Tensor::<4>::random([2, 2, 8, 12], Distribution::Default, &device);
        let gap = |a: Tensor<2>, b: Tensor<2>| (a - b).abs().max().into_scalar::<f32>();
        let tracked = || Tensor::from_data(images.to_data(), &device.clone().autodiff());
        assert!(gap(model.forward(tracked()), model.forward(tracked())) > 0.0);
        let valid = model.valid();
        assert_eq!(gap(valid.forward(images.clone()), valid.forward(images.clone())), 0.0);
    }
}
