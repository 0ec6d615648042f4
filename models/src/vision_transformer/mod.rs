//! The whole model: tokenizer, positions, stages of blocks, pooling, head (Dosovitskiy et al. 2021; Liu et al. 2021).

mod checkpointing;
mod inference;
mod layout;
mod relevance;
#[cfg(test)]
mod tests;
mod trace;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Dropout, DropoutConfig};
use burn::tensor::{Device, Tensor};

pub use self::relevance::NoMap;
use crate::block::ClassBlock;
use crate::embed::TokenEmbed;
use crate::head::Head;
use crate::linear::normal;
use crate::norm::LayerNorm;
use crate::pooling::{Pooling, normalizes_mean};
use crate::position::PositionEmbedding;
use crate::stage::Stage;
use crate::{BlockStyle, ConfigError, ImageSize, ModelConfig, Pool, PositionPlace};

/// A Vision Transformer, from images to class logits.
#[derive(Module, Debug)]
pub struct VisionTransformer {
    patch_embed: TokenEmbed,
    class_token: Option<Param<Tensor<3>>>,
    distillation_token: Option<Param<Tensor<3>>>,
    registers: Option<Param<Tensor<3>>>,
    position: PositionEmbedding,
    embed_dropout: Dropout,
    /// The norm of all tokens before the first block.
    pre_norm: Option<LayerNorm>,
    stages: Vec<Stage>,
    class_blocks: Vec<ClassBlock>,
    /// The norm of all tokens before the pooling.
    norm: Option<LayerNorm>,
    pooling: Pooling,
    head: Head,
    /// The head of the distillation token.
    distillation_head: Option<Head>,
    #[module(skip)]
    is_quantized: bool,
    #[module(skip)]
    config: ModelConfig,
}

/// What the blocks leave for the final norm and the pooling, `[batch, tokens, dim]` each.
struct BlockTokens {
    /// The tokens after the last block.
    last: Tensor<3>,
    /// Those after an earlier one, if the pooling reads them.
    early: Option<Tensor<3>>,
}

impl ModelConfig {
    /// Builds the model with fresh parameters. It can be trained if the device has autodiff.
    ///
    /// # Errors
    /// If the configuration is not valid: see [`Self::validate`].
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Module;
    /// use burn::tensor::Device;
    /// use vitrine_models::{ModelConfig, preset};
    ///
    /// let config = preset::find("vit_tiny_patch4_32").expect("listed");
    /// let model = config.init(&Device::default())?;
    /// assert_eq!(model.num_params(), 5_362_762);
    ///
    /// let error = ModelConfig { patch_size: 5, ..config }.init(&Device::default()).err();
    /// assert!(error.is_some_and(|error| error.to_string().contains("`patch_size` 5")));
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn init(&self, device: &Device) -> Result<VisionTransformer, ConfigError> {
        self.validate()?;
        Ok(VisionTransformer::new(self, device))
    }
}

impl VisionTransformer {
    /// The model of a validated configuration, with fresh parameters. [`ModelConfig::init`] validates it.
    pub(crate) fn new(config: &ModelConfig, device: &Device) -> Self {
        let (dim, last) = (config.embed_dim, config.last_dim());
        let tokens_are_normalized = !normalizes_mean(config) && config.block != BlockStyle::PostNorm;
        let token = |count: usize, deviation| (count > 0).then(|| normal([1, count, dim], deviation, device));
        // As in timm: a class token that joins the patches before the first block starts near zero.
        let class_deviation = if config.class_depth > 0 { 0.02 } else { 1e-6 };
        Self {
            patch_embed: TokenEmbed::new(config, device),
            class_token: token(config.class_token.into(), class_deviation),
            distillation_token: token(config.distillation_token.into(), 0.02),
            registers: token(config.registers, 1e-6),
            position: PositionEmbedding::new(config, device),
            embed_dropout: DropoutConfig::new(config.dropout).init(),
            pre_norm: config.pre_norm.then(|| LayerNorm::new(dim, config.norm_epsilon, device)),
            stages: (0..config.num_stages()).map(|stage| Stage::new(config, stage, device)).collect(),
            class_blocks: (0..config.class_depth).map(|_| ClassBlock::new(config, device)).collect(),
            norm: tokens_are_normalized.then(|| LayerNorm::new(last, config.norm_epsilon, device)),
            pooling: Pooling::new(config, device),
            head: Head::new(config, device),
            distillation_head: config.distillation_token.then(|| Head::new(config, device)),
            is_quantized: false,
            config: config.clone(),
        }
    }

    /// The architecture.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The same model for images of another size. Both models share their parameters, so that the gradients of one are
    /// gradients of the other.
    ///
    /// # Errors
    /// If the model has parameters for one image size (see [`ModelConfig::fits_all_sizes`]), or the architecture cannot
    /// have this size.
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::{ImageSize, preset};
    ///
    /// let device = Device::default();
    /// let model = preset::find("hybrid_pico_patch4_32").expect("listed").init(&device)?;
    /// let smaller = model.at_size(ImageSize::square(24))?;
    /// assert_eq!(smaller.features(Tensor::ones([1, 3, 24, 24], &device)).dims(), [1, 6 * 6, 128]);
    ///
    /// let learned = preset::find("vit_lite_7_4").expect("listed").init(&device)?;
    /// assert!(learned.at_size(ImageSize::square(24)).is_err()); // it has a position for each patch
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn at_size(&self, image_size: ImageSize) -> Result<Self, ConfigError> {
        let config = ModelConfig { image_size, ..self.config.clone() };
        if !config.fits_all_sizes() {
            return Err(ConfigError(
                "the model has parameters for one image size: only a plain model whose positions are rotary, fixed or none, with \
                 mixers among all tokens, fits others"
                    .to_owned(),
            ));
        }
        config.validate()?;
        let grid = config.grid();
        Ok(Self {
            position: self.position.at_grid(&config),
            stages: self.stages.iter().map(|stage| stage.at_grid(grid)).collect(),
            config,
            ..self.clone()
        })
    }

    /// Computes the logits.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`, preprocessed as in training
    /// - output: `[batch, num_classes]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor, Tolerance};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default();
    /// let model = preset::find("vit_pico_patch4_32").expect("listed").init(&device)?;
    /// let images = Tensor::<4>::random([3, 3, 32, 32], Distribution::Default, &device);
    /// let logits = model.forward(images.clone());
    /// assert_eq!(logits.dims(), [3, 10]);
    /// // The images of a batch do not influence each other.
    /// let alone = model.forward(images.narrow(0, 1, 1)).into_data();
    /// logits.narrow(0, 1, 1).into_data().assert_approx_eq::<f32>(&alone, Tolerance::absolute(1e-5));
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.classify(self.read_tokens(images))
    }

    /// The tokens after the last block, as in timm's `forward_features`: normalized, unless the pooling normalizes
    /// their mean.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, tokens, dim]`: class token, distillation token, registers, patches in reading order
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::{ModelConfig, preset};
    ///
    /// let device = Device::default();
    /// let plain = preset::find("vit_lite_7_4").expect("listed"); // has a class token
    /// let config = ModelConfig { registers: 4, depth: 2.into(), ..plain };
    /// let tokens = config.init(&device)?.features(Tensor::ones([2, 3, 32, 32], &device));
    /// assert_eq!(tokens.dims(), [2, 1 + 4 + 8 * 8, 256]);
    /// let (variance, mean) = tokens.var_mean_bias(2);
    /// assert!(mean.abs().max().into_scalar::<f32>() < 1e-4);
    /// assert!(variance.max().into_scalar::<f32>() < 1.0 + 1e-4);
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn features(&self, images: Tensor<4>) -> Tensor<3> {
        let tokens = self.all_tokens(images);
        match self.early_block() {
            Some(_) => tokens.narrow(1, 0, self.config.num_tokens()),
            None => tokens,
        }
    }

    /// All tokens that the pooling may read: the [features](Self::features), and after them the tokens of the block that it reads
    /// besides.
    pub(crate) fn all_tokens(&self, images: Tensor<4>) -> Tensor<3> {
        let (tokens, position) = self.embed(images);
        let blocks = self.blocks();
        let forward = |index: usize, tokens| {
            let (stage, block): (&Stage, usize) = blocks[index];
            stage.forward_block(block, tokens, &position)
        };
        self.finish(self.through_blocks(tokens, forward))
    }

    /// The number of blocks after which the pooling reads tokens besides those after the last one.
    fn early_block(&self) -> Option<usize> {
        match self.config.pool {
            Pool::TwoDepths { early } => Some(early),
            Pool::ClassToken
            | Pool::Mean
            | Pool::NormalizedMean
            | Pool::ClassTokenMean
            | Pool::Sequence
            | Pool::Attention
            | Pool::Queries(_)
            | Pool::Recurrent { .. }
            | Pool::ClassQueries { .. } => None,
        }
    }

    /// The tokens after all blocks, of which `forward` computes each, counted over all stages from 0.
    fn through_blocks(
        &self,
        mut tokens: Tensor<3>,
        mut forward: impl FnMut(usize, Tensor<3>) -> Tensor<3>,
    ) -> BlockTokens {
        let mut early = None;
        for index in 0..self.config.depth.sum() {
            tokens = forward(index, tokens);
            if self.early_block() == Some(index + 1) {
                early = Some(tokens.clone());
            }
        }
        BlockTokens { last: tokens, early }
    }

    /// The pooled embedding, which the head classifies: timm's `forward_head(features, pre_logits=True)` for a pooling that timm has and a
    /// head without hidden layers. For a distilled model, the mean of the class and the distillation token. For class queries,
    /// whose head takes one vector per class, the mean of the patches.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, embedding_dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default();
    /// let model = preset::find("vit_pico_patch4_32").expect("listed").init(&device)?;
    /// assert_eq!(model.embedding(Tensor::ones([2, 3, 32, 32], &device)).dims(), [2, 96]);
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn embedding(&self, images: Tensor<4>) -> Tensor<2> {
        let tokens = self.read_tokens(images);
        match &self.distillation_head {
            None => self.pooling.forward(tokens),
            Some(_) => {
                let distilled = tokens.clone().narrow(1, 1, 1).squeeze_dim::<2>(1);
                (self.pooling.forward(tokens) + distilled).div_scalar(2.0)
            }
        }
    }

    /// The weights by which the pooling reads the patches, as [`Pooling::weights`].
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, heads or 1, rows, patches]`; one row per class for class queries
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::{ModelConfig, Pool, preset};
    ///
    /// let device = Device::default();
    /// let plain = preset::find("vit_pico_patch4_32").expect("listed"); // 10 classes, 3 heads, 64 patches
    /// let model = ModelConfig { pool: Pool::ClassQueries { depth: 1 }, ..plain }.init(&device)?;
    /// let weights = model.pooling_weights(Tensor::ones([2, 3, 32, 32], &device)).expect("queries read patches");
    /// assert_eq!(weights.dims(), [2, 3, 10, 64]);
    /// assert!((weights.sum_dim(3) - 1.0).abs().max().into_scalar::<f32>() < 1e-5);
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn pooling_weights(&self, images: Tensor<4>) -> Option<Tensor<4>> {
        self.pooling.weights(self.features(images))
    }

    /// The logits and every block's attention weights.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - outputs: `[batch, num_classes]`, and for each block the weights of its
    ///   [`TokenMixer`](crate::attention::TokenMixer), which are `[batch, heads, tokens, tokens]` for global attention
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default();
    /// let model = preset::find("vit_pico_patch4_32").expect("listed").init(&device)?;
    /// let images = Tensor::<4>::random([1, 3, 32, 32], Distribution::Default, &device);
    /// let (logits, maps) = model.forward_with_weights(images);
    /// assert_eq!((logits.dims(), maps.len()), ([1, 10], 4));
    /// for map in maps {
    ///     assert_eq!(map.dims(), [1, 3, 64, 64]);
    ///     assert!((map.sum_dim(3) - 1.0).abs().max().into_scalar::<f32>() < 1e-5);
    /// }
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn forward_with_weights(&self, images: Tensor<4>) -> (Tensor<2>, Vec<Tensor<4>>) {
        let (tokens, maps) = self.tokens_and_weights(images, &[]);
        (self.classify(tokens), maps)
    }

    /// Those of the [features](Self::features) that the head reads: all, or the class token and the distillation token, without
    /// which the last block need not compute the others.
    fn read_tokens(&self, images: Tensor<4>) -> Tensor<3> {
        let (tokens, position) = self.embed(images);
        let forward = |block, tokens| self.block_output(block, tokens, &position);
        self.finish(self.through_blocks(tokens, forward))
    }

    /// The tokens after a block, counted over all stages from 0. After the last one, only those that the head reads.
    fn block_output(&self, index: usize, tokens: Tensor<3>, position: &Option<Tensor<3>>) -> Tensor<3> {
        let blocks = self.blocks();
        let (stage, block) = blocks[index];
        let reads_first = matches!(self.pooling, Pooling::ClassToken(_)) && self.class_blocks.is_empty();
        if index + 1 == blocks.len() && reads_first {
            let count = 1 + usize::from(self.distillation_token.is_some());
            return stage.forward_first(block, count, tokens, position);
        }
        stage.forward_block(block, tokens, position)
    }

    /// The blocks of all stages, in order.
    fn blocks(&self) -> Vec<(&Stage, usize)> {
        self.stages.iter().flat_map(|stage| (0..stage.depth()).map(move |block| (stage, block))).collect()
    }

    /// Draws every parameter that has not been used yet, so that later random numbers do not influence their values.
    pub fn initialize(&self) {
        struct Touch;
        impl ModuleVisitor for Touch {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let _ = param.val();
            }
        }
        self.visit(&mut Touch);
    }

    /// The tokens that enter the first block, and the position vectors that blocks add to the input of queries and
    /// keys.
    fn embed(&self, images: Tensor<4>) -> (Tensor<3>, Option<Tensor<3>>) {
        let patches = self.patch_embed.forward(images);
        let [batch, patch_count, dim] = patches.dims();
        let joins_later = self.config.class_depth > 0;
        let class_token = self.class_token.as_ref().filter(|_| !joins_later);
        let prefix: Vec<&Param<Tensor<3>>> =
            [class_token, self.distillation_token.as_ref(), self.registers.as_ref()]
                .into_iter()
                .flatten()
                .collect();
        let prefix_count = self.config.num_prefix_tokens();
        let join = |patches: Tensor<3>| {
            if prefix.is_empty() {
                return patches;
            }
            let mut parts: Vec<Tensor<3>> =
                prefix.iter().map(|token| token.val().repeat_dim(0, batch)).collect();
            parts.push(patches);
            Tensor::cat(parts, 1)
        };
        let (tokens, position) = match (self.position.vectors(), self.config.position_place) {
            (None, _) => (join(patches), None),
            (Some(vectors), PositionPlace::Tokens) if vectors.dims()[1] == patch_count => {
                (join(patches + vectors), None)
            }
            (Some(vectors), PositionPlace::Tokens) => (join(patches) + vectors, None),
            (Some(vectors), PositionPlace::QueryKey | PositionPlace::FirstQueryKey) => {
                let missing = prefix_count + patch_count - vectors.dims()[1];
                let nothing = Tensor::zeros([1, missing, dim], &vectors.device());
                let vectors = if missing == 0 { vectors } else { Tensor::cat(vec![nothing, vectors], 1) };
                (join(patches), Some(vectors))
            }
        };
        let tokens = self.embed_dropout.forward(tokens);
        match &self.pre_norm {
            Some(norm) => (norm.forward(tokens), position),
            None => (tokens, position),
        }
    }

    /// The steps after the last stage: the class blocks of CaiT, and the final norm. Behind the tokens of the last block are those of an
    /// earlier one, if the pooling reads them.
    fn finish(&self, BlockTokens { last, early }: BlockTokens) -> Tensor<3> {
        let last = self.finish_tokens(last);
        match early {
            Some(early) => Tensor::cat(vec![last, self.finish_tokens(early)], 1),
            None => last,
        }
    }

    fn finish_tokens(&self, patches: Tensor<3>) -> Tensor<3> {
        let [batch, _, _] = patches.dims();
        let tokens = match &self.class_token {
            Some(token) if !self.class_blocks.is_empty() => {
                let start = token.val().repeat_dim(0, batch);
                let token = self
                    .class_blocks
                    .iter()
                    .fold(start, |token, block| block.forward(token, patches.clone()));
                Tensor::cat(vec![token, patches], 1)
            }
            _ => patches,
        };
        match &self.norm {
            Some(norm) => norm.forward(tokens),
            None => tokens,
        }
    }

    /// The logits from the tokens after the last block.
    pub(crate) fn classify(&self, tokens: Tensor<3>) -> Tensor<2> {
        match &self.distillation_head {
            None => match &self.pooling {
                Pooling::ClassQueries(decoder) => self.head.forward_class_queries(decoder.forward(tokens)),
                pooling => self.head.forward(pooling.forward(tokens)),
            },
            Some(head) => {
                let distilled = tokens.clone().narrow(1, 1, 1).squeeze_dim::<2>(1);
                (self.head.forward(self.pooling.forward(tokens)) + head.forward(distilled)).div_scalar(2.0)
            }
        }
    }
}
