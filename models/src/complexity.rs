//! The cost of a forward pass, from formulas: multiply-adds by kind of layer, and the memory of attention weights.
//!
//! As in timm, matrix products and convolutions are counted; norms, activations, sums and softmax are not. All tokens of all
//! blocks count, although `forward` computes fewer in the last block for a head that reads the class token alone. With `h` by
//! `w` tokens of `C` values, global attention costs `4hwC² + 2(hw)²C`, and attention in windows of `M` by `M` tokens
//! `4hwC² + 2M²hwC` (Liu et al. 2021, equations 1 and 2).

use crate::attention::{Efficient, SpatialGate, product};
use crate::embed::{ConvolutionEmbed, ResidualEmbed};
use crate::position::{ConditionalPosition, CoordinateMlp};
use crate::{ChannelAttention, ChannelGate, GatePlace, MlpKind, ModelConfig, Pool, Position, Tokenizer};

/// The multiply-adds of a forward pass of one image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complexity {
    /// The tokenizer.
    pub tokenizer: u64,
    /// The projections to queries, keys and values, and from the joined heads back to tokens.
    pub projections: u64,
    /// The products of queries with keys, and of attention weights with values.
    pub attention: u64,
    /// The MLPs.
    pub mlp: u64,
    /// Positions that are computed: conditional ones, and those of a network.
    pub positions: u64,
    /// The gates on channels and places.
    pub channel_attention: u64,
    /// Patch merging between stages.
    pub merging: u64,
    /// Pooling and head.
    pub head: u64,
    /// The number of attention weights in all blocks.
    pub attention_weights: u64,
}

impl Complexity {
    /// The cost of a validated configuration.
    ///
    /// # Examples
    ///
    /// ```
    /// use vitrine_models::{Complexity, preset};
    ///
    /// let cost = Complexity::of(&preset::find("vit_tiny_patch16_224").expect("listed"));
    /// let (blocks, tokens, dim) = (12, 1 + 14 * 14, 192);
    /// assert_eq!(cost.projections, blocks * 4 * tokens * dim * dim);
    /// assert_eq!(cost.attention, blocks * 2 * tokens * tokens * dim);
    /// assert_eq!(cost.attention_weights, blocks * 3 * tokens * tokens); // three heads
    /// assert_eq!(cost.total(), 1_253_683_200); // timm publishes 1.26 billion
    /// ```
    pub fn of(config: &ModelConfig) -> Self {
        let mut cost = Self { tokenizer: tokenizer(config), positions: positions(config), ..Self::default() };
        cost.add_tokenizer_gates(config);
        for stage in 0..config.num_stages() {
            if stage > 0 {
                let [rows, columns] = config.stage_grid(stage);
                let copies = if config.tokenizer == Tokenizer::ShiftedPatch { 5 } else { 1 };
                let input = 4 * copies * config.stage_dim(stage - 1);
                cost.merging += product([rows * columns, input, config.stage_dim(stage)]);
            }
            for block in 0..config.depth[stage] {
                cost.add_block(config, stage, block);
            }
        }
        cost.add_class_blocks(config);
        cost.add_head(config);
        cost
    }

    /// All multiply-adds.
    pub fn total(&self) -> u64 {
        self.by_kind().iter().map(|(_, cost)| cost).sum()
    }

    /// Each kind of layer with its multiply-adds.
    pub fn by_kind(&self) -> [(&'static str, u64); 8] {
        [
            ("tokenizer", self.tokenizer),
            ("positions", self.positions),
            ("projections", self.projections),
            ("attention", self.attention),
            ("mlp", self.mlp),
            ("channel attention", self.channel_attention),
            ("merging", self.merging),
            ("head", self.head),
        ]
    }

    /// The bytes of the attention weights of all blocks in float32. Inference on the CPU keeps none of them.
    pub fn attention_bytes(&self) -> u64 {
        4 * self.attention_weights
    }

    fn add_block(&mut self, config: &ModelConfig, stage: usize, block: usize) {
        let dim = config.stage_dim(stage);
        let [rows, columns] = config.stage_grid(stage);
        let patches = rows * columns;
        let tokens = config.num_prefix_tokens() + patches;
        let mixer = config.mixer(block).cost(config, stage);
        self.projections += mixer.projections;
        self.attention += mixer.attention;
        self.attention_weights += mixer.attention_weights;
        let hidden = config.mlp_dim(stage);
        self.mlp += match config.mlp {
            MlpKind::Gelu | MlpKind::GeluTanh | MlpKind::QuickGelu | MlpKind::Relu | MlpKind::SwiGlu => {
                product([config.mlp.matrices(), tokens, dim, hidden])
            }
            MlpKind::DepthwiseChannel => 2 * product([patches, dim, hidden]) + product([9, hidden, patches]),
        };
        if config.mlp == MlpKind::DepthwiseChannel && config.num_prefix_tokens() > 0 {
            self.mlp += 2 * product([dim, (dim / 4).max(1)]);
        }
        if let Some(in_block) = config.channel_attention.filter(|gate| gate.place != GatePlace::Tokenizer) {
            self.channel_attention += gate(in_block, dim, patches);
        }
    }

    fn add_tokenizer_gates(&mut self, config: &ModelConfig) {
        let Some(on_maps) = config.channel_attention.filter(|gate| gate.place == GatePlace::Tokenizer) else {
            return;
        };
        let widths: Vec<usize> = match config.tokenizer {
            Tokenizer::Patch | Tokenizer::ShiftedPatch => Vec::new(),
            Tokenizer::Convolution { layers, .. } => {
                (1..=layers).map(|after| ConvolutionEmbed::width(config, layers, after)).collect()
            }
            Tokenizer::Residual { width, .. } => {
                let stages = 1..=ResidualEmbed::stages(config);
                stages.map(|after| ResidualEmbed::width(config, width, after)).collect()
            }
        };
        let size = config.image_size;
        for (layer, width) in widths.into_iter().enumerate() {
            let places = (size.height >> (layer + 1)) * (size.width >> (layer + 1));
            self.channel_attention += gate(on_maps, width, places);
        }
    }

    fn add_class_blocks(&mut self, config: &ModelConfig) {
        let [rows, columns] = config.grid();
        let (tokens, dim) = (1 + rows * columns, config.embed_dim);
        for _ in 0..config.class_depth {
            self.projections += 2 * product([dim, dim]) + 2 * product([tokens, dim, dim]);
            self.attention += 2 * product([tokens, dim]);
            self.mlp += product([config.mlp.matrices(), dim, config.mlp_dim(0)]);
        }
    }

    fn add_head(&mut self, config: &ModelConfig) {
        let stage = config.num_stages() - 1;
        let [rows, columns] = config.stage_grid(stage);
        let patches = rows * columns;
        self.head += config.pool.cost(config, patches);
        let mut width = config.embedding_dim();
        let mut layers = 0;
        for &next in config.head_hidden.iter().chain([&config.num_classes]) {
            layers += product([width, next]);
            width = next;
        }
        self.head += match config.pool {
            // The logits of class queries are no matrix product: each query has a vector of its own.
            Pool::ClassQueries { .. } => 0,
            Pool::ClassToken
            | Pool::Mean
            | Pool::NormalizedMean
            | Pool::ClassTokenMean
            | Pool::TwoDepths { .. }
            | Pool::Sequence
            | Pool::Attention
            | Pool::Queries(_)
            | Pool::Recurrent { .. } => layers * (1 + u64::from(config.distillation_token)),
        };
    }
}

/// The multiply-adds of a gate of `dim` channels at this many places.
fn gate(config: ChannelAttention, dim: usize, places: usize) -> u64 {
    let narrow = (dim / config.reduction()).max(1);
    let spatial = product([2 * SpatialGate::KERNEL.pow(2), places]);
    match config.kind {
        ChannelGate::SqueezeExcitation => 2 * product([dim, narrow]),
        ChannelGate::Efficient => product([dim, Efficient::kernel(dim)]),
        ChannelGate::Cbam => 4 * product([dim, narrow]) + spatial,
        ChannelGate::Spatial => spatial,
    }
}

/// The multiply-adds of positions, for a batch of one image.
fn positions(config: &ModelConfig) -> u64 {
    let patches = |stage| config.stage_grid(stage).iter().product();
    match config.position {
        Position::None
        | Position::Learned
        | Position::Sinusoidal
        | Position::Sinusoidal2d
        | Position::Rotary => 0,
        Position::Conditional => (0..config.num_stages())
            .map(|stage| ConditionalPosition::cost(config.stage_dim(stage), patches(stage)))
            .sum(),
        Position::CoordinateMlp => CoordinateMlp::cost(config.embed_dim, patches(0)),
    }
}

fn tokenizer(config: &ModelConfig) -> u64 {
    let [rows, columns] = config.grid();
    let patch = |copies| {
        product([rows * columns, copies * config.channels * config.patch_size.pow(2), config.embed_dim])
    };
    match config.tokenizer {
        Tokenizer::Patch => patch(1),
        Tokenizer::ShiftedPatch => patch(5),
        Tokenizer::Convolution { layers, kernel_size } => {
            let size = config.image_size;
            let mut inputs = config.channels;
            (0..layers)
                .map(|layer| {
                    let outputs = ConvolutionEmbed::width(config, layers, layer + 1);
                    let places = (size.height >> layer) * (size.width >> layer);
                    let cost = product([places, inputs, kernel_size.pow(2), outputs]);
                    inputs = outputs;
                    cost
                })
                .sum()
        }
        Tokenizer::Residual { width, stride } => {
            let area = ResidualEmbed::area(config);
            let width = |after| ResidualEmbed::width(config, width, after);
            let stages = (0..ResidualEmbed::stages(config))
                .map(|stage| {
                    let (places, inputs, outputs) = (area >> (2 * stage), width(stage), width(stage + 1));
                    product([places, 9 * inputs, outputs]) + product([places / 4, 9 * outputs, outputs])
                })
                .sum::<u64>();
            product([area, ResidualEmbed::kernel(stride).pow(2) * config.channels, width(0)]) + stages
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{ImageSize, Mixer, preset, testing};
    use burn::tensor::{Device, Tensor};
    use vitrine_kernels::testing::multiply_adds_of;

    #[test]
    fn totals_are_those_that_timm_publishes() {
        for (name, giga) in [
            ("vit_tiny_patch16_224", 1.26),
            ("vit_small_patch16_224", 4.61),
            ("vit_base_patch16_224", 17.58),
            ("vit_large_patch16_224", 61.60),
            ("vit_small_patch32_224", 1.15),
            ("vit_base_patch32_224", 4.41),
            ("vit_base_patch8_224", 78.22),
            ("deit_tiny_distilled_patch16_224", 1.27),
            ("cait_xxs24_224", 2.53),
            ("swin_tiny_patch4_window7_224", 4.51),
            ("swin_small_patch4_window7_224", 8.77),
            ("swin_base_patch4_window7_224", 15.47),
            ("swinv2_tiny_window8_256", 5.96),
        ] {
            let total = Complexity::of(&preset::find(name).unwrap()).total() as f64 / 1e9;
            assert!((total / giga - 1.0).abs() < 0.02, "{name}: {total:.3} here, {giga} there");
        }
    }

    #[test]
    fn everything_grows_with_the_square_of_the_tokens_and_windows_linearly() {
        let cost = |side: usize, mixer| {
            let config = ModelConfig {
                image_size: ImageSize::square(side),
                patch_size: 1,
                depth: 1.into(),
                mixers: vec![mixer],
                ..preset::find("vit_pico_patch4_32").unwrap()
            };
            let cost = Complexity::of(&config);
            cost.projections + cost.attention
        };
        let c = 96;
        for (side, m) in [(8u64, 4u64), (16, 4), (32, 8)] {
            let hw = side * side;
            assert_eq!(cost(side as usize, Mixer::Global), 4 * hw * c * c + 2 * hw * hw * c);
            assert_eq!(cost(side as usize, Mixer::Window(m as usize)), 4 * hw * c * c + 2 * m * m * hw * c);
        }
    }

    #[test]
    fn formulas_count_the_products_of_a_forward_pass() {
        let device = Device::default();
        let small = ["swin_pico_patch2_window4_32", "cct_2_3x2", "cct_7_3x1", "sl_vit", "cvt_7_4"];
        let presets = small.map(|name| preset::find(name).unwrap());
        for config in testing::variants().into_iter().chain(presets) {
            let model = config.init(&device).unwrap();
            let ImageSize { height, width } = config.image_size;
            let images = Tensor::<4>::zeros([1, config.channels, height, width], &device);
            let counted = multiply_adds_of(|| model.classify(model.all_tokens(images.clone())));
            assert_eq!(Complexity::of(&config).total(), counted, "{config:?}");
            let needed = multiply_adds_of(|| model.forward(images));
            let reads_all = config.pool != Pool::ClassToken || config.class_depth > 0;
            assert!(
                needed == counted || (needed < counted && !reads_all),
                "{needed} of {counted}: {config:?}"
            );
        }
    }
}
