//! The memory of a step on the CPU, from formulas that were fitted to measured peaks (see the tests).
//!
//! For the backward pass, a block keeps about eight values per channel of each token (norms, queries, keys, values,
//! mixed values, sums) and four per hidden channel of the MLP. Parameters are stored together with their gradients and
//! the optimizer's moments.

use crate::embed::ResidualEmbed;
use crate::validate::parameters;
use crate::{GatePlace, ModelConfig, Normalizer, Pool, Tokenizer};

/// The memory of a step of a model, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepMemory {
    /// One copy of the parameters.
    pub parameters: u64,
    /// The biases of relative positions, which are computed once for inference.
    pub biases: u64,
    /// The intermediate results of one image that a training step keeps for its backward pass.
    pub kept: u64,
    /// The same with gradient checkpointing: the input of each block, and the intermediate results of the largest
    /// block.
    pub kept_with_checkpointing: u64,
    /// The most that a forward pass holds of one image at a time.
    pub forward: u64,
}

impl StepMemory {
    /// An estimate for a validated configuration. No parameters are created.
    ///
    /// # Examples
    ///
    /// ```
    /// use vitrine_models::{StepMemory, preset};
    ///
    /// let memory = StepMemory::of(&preset::find("vit_tiny_patch16_224").expect("listed"));
    /// let moments = 2; // AdamW's
    /// // Parameters, gradients and both moments, and for each image what the backward pass needs.
    /// assert_eq!(memory.training(64, false, moments), 4 * memory.parameters + 64 * memory.kept);
    /// let millions = memory.parameters as f64 / 4e6; // timm counts 5.72
    /// assert!((5.72..6.3).contains(&millions), "{millions}");
    /// assert!(memory.training(64, true, moments) < memory.training(64, false, moments) / 3);
    /// ```
    pub fn of(config: &ModelConfig) -> Self {
        let size = config.image_size;
        let image = (config.channels * size.height * size.width) as u64;
        let (maps, blocks) = (maps(config) + pooling(config), Blocks::of(config));
        Self {
            parameters: 4 * parameters(config) as u64,
            biases: 4 * biases(config),
            kept: 4 * (3 * image + maps + blocks.kept),
            kept_with_checkpointing: 4 * (3 * image + maps + 2 * blocks.inputs + blocks.largest),
            forward: 4 * (2 * image + maps / 2 + blocks.largest / 2),
        }
    }

    /// The bytes of training on batches of `batch` images, with an optimizer that keeps `moments` averages of each
    /// parameter.
    pub fn training(&self, batch: usize, gradient_checkpointing: bool, moments: u64) -> u64 {
        let image = if gradient_checkpointing { self.kept_with_checkpointing } else { self.kept };
        (2 + moments) * self.parameters + image.saturating_mul(batch as u64)
    }

    /// The bytes of a forward pass of `batch` images.
    pub fn inference(&self, batch: usize) -> u64 {
        self.parameters + self.biases + self.forward.saturating_mul(batch as u64)
    }
}

/// The number of values of the biases of relative positions that all blocks keep for inference.
fn biases(config: &ModelConfig) -> u64 {
    let blocks = |stage: usize| (0..config.depth[stage]).map(move |block| (stage, block));
    (0..config.num_stages()).flat_map(blocks).map(|(stage, block)| config.fixed_bias(stage, block)).sum()
}

/// The number of values of one image that a tokenizer of residual stages keeps: two maps of the stem, four maps of each
/// stage, the indices of the pooled values, and for a while the map before the pooling with its gradient, where they are in memory at
/// all. A gate keeps two more maps of each stage.
fn maps(config: &ModelConfig) -> u64 {
    let Tokenizer::Residual { width, .. } = config.tokenizer else { return 0 };
    let area = ResidualEmbed::area(config);
    let stem = area * ResidualEmbed::width(config, width, 0);
    let before_pool = |stage| (area >> (2 * stage)) * ResidualEmbed::width(config, width, stage + 1);
    let is_gated = config.channel_attention.is_some_and(|gate| gate.place == GatePlace::Tokenizer);
    let sixteenths = if is_gated { 17 + 8 } else { 17 };
    let kept: usize =
        (0..ResidualEmbed::stages(config)).map(|stage| before_pool(stage) * sixteenths / 16).sum();
    (2 * stem + kept + 2 * before_pool(0)) as u64
}

/// The number of values of one image that a pooling keeps, if they are more than a few vectors: those of class queries, in
/// each layer as in a block; and for a query that reads by an additive score, one value per channel of each patch.
fn pooling(config: &ModelConfig) -> u64 {
    let stage = config.num_stages() - 1;
    let (dim, hidden) = (config.last_dim(), config.mlp_dim(stage));
    let patches: usize = config.stage_grid(stage).iter().product();
    let kept = match config.pool {
        Pool::ClassToken
        | Pool::Mean
        | Pool::NormalizedMean
        | Pool::ClassTokenMean
        | Pool::TwoDepths { .. }
        | Pool::Sequence => 0,
        Pool::Attention => 2 * patches * dim,
        Pool::Queries(queries) => 2 * patches * dim * queries,
        Pool::Recurrent { steps } => 2 * patches * dim * (1 + steps),
        Pool::ClassQueries { depth } => {
            let classes = config.num_classes;
            let maps = classes * config.num_heads[stage] * (classes + patches);
            depth * (classes * (16 * dim + 4 * hidden) + 2 * patches * dim + 2 * maps)
        }
    };
    kept as u64
}

/// Numbers of values of one image.
#[derive(Default)]
struct Blocks {
    /// The intermediate results of all blocks.
    kept: u64,
    /// The inputs of all blocks.
    inputs: u64,
    /// The intermediate results of the largest block.
    largest: u64,
}

impl Blocks {
    fn of(config: &ModelConfig) -> Self {
        let options = &config.attention;
        let keeps_maps = options.talking_heads
            || options.normalizer != Normalizer::Softmax
            || options.score.keeps_scores()
            || config.attention_dropout > 0.0;
        // Rotated queries and keys, which the fused operation does not keep.
        let rotates = config.rotary_options().is_some_and(|options| options.learned);
        let mut blocks = Self::default();
        for stage in 0..config.num_stages() {
            let [rows, columns] = config.stage_grid(stage);
            let tokens = (config.num_prefix_tokens() + rows * columns) as u64;
            let dim = config.stage_dim(stage) as u64;
            // A gated MLP keeps half as much again.
            let hidden = (config.mlp_dim(stage) * config.mlp.matrices() / 2) as u64;
            for block in 0..config.depth[stage] {
                let maps = config.mixer(block).cost(config, stage).attention_weights;
                let of_mixer = if rotates { 16 * dim } else { 8 * dim };
                let kept = tokens * (of_mixer + 4 * hidden) + if keeps_maps { 4 * maps } else { 0 };
                blocks.kept += kept;
                blocks.inputs += tokens * dim;
                blocks.largest = blocks.largest.max(kept);
            }
        }
        blocks
    }
}
