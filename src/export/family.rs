//! Which architectures other libraries have too, and which library has which.

use anyhow::{Result, bail};
use vitrine_models::weights::{Layout, windows_fill_grids, windows_shrink};
use vitrine_models::{
    AttentionOptions, BlockStyle, Mixer, MlpKind, ModelConfig, Normalizer, Pool, Position, PositionPlace,
    RelativePosition, Score, Tokenizer,
};

use super::is_epsilon;

/// The architectures that other libraries have too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Vit,
    Distilled,
    Cait,
    Swin,
    SwinV2,
}

/// A key of a configuration, and whether others compute what it says. Choices are matched without a wildcard: whoever adds one decides
/// here.
type Part = (&'static str, bool);

impl Family {
    /// The family of a model that the library of the layout computes as we do.
    ///
    /// # Errors
    /// When the library has no such architecture; the message names the keys.
    pub(super) fn of(config: &ModelConfig, layout: Layout) -> Result<Self> {
        let family = Self::nearest(config);
        let ours = family.only_ours(config);
        if !ours.is_empty() {
            bail!("no other library has this architecture, because of its {}", ours.join(", "));
        }
        let missing = family.missing(config, layout);
        if !missing.is_empty() {
            bail!(
                "--layout {}: it has {}, but this model differs in {}",
                layout.name(),
                offer(layout),
                missing.join(", ")
            );
        }
        Ok(family)
    }

    /// The family that an architecture would be of.
    fn nearest(config: &ModelConfig) -> Self {
        match (config.num_stages() > 1, config.block) {
            (true, BlockStyle::ResidualPostNorm) => Self::SwinV2,
            (true, BlockStyle::PreNorm | BlockStyle::PostNorm | BlockStyle::Compact) => Self::Swin,
            (false, _) if config.class_depth > 0 => Self::Cait,
            (false, _) if config.distillation_token => Self::Distilled,
            (false, _) => Self::Vit,
        }
    }

    fn is_staged(self) -> bool {
        match self {
            Self::Swin | Self::SwinV2 => true,
            Self::Vit | Self::Distilled | Self::Cait => false,
        }
    }

    /// The keys of what no other library has.
    fn only_ours(self, config: &ModelConfig) -> Vec<&'static str> {
        refused(self.tokens(config).into_iter().chain(self.blocks(config)).chain(self.attention(config)))
    }

    /// What comes before the blocks and after them.
    fn tokens(self, config: &ModelConfig) -> [Part; 6] {
        let is_staged = self.is_staged();
        [
            (
                "tokenizer",
                match config.tokenizer {
                    Tokenizer::Patch => true,
                    Tokenizer::ShiftedPatch | Tokenizer::Convolution { .. } => false,
                },
            ),
            ("embed_norm", config.embed_norm == is_staged),
            (
                "position",
                match config.position {
                    Position::None => true,
                    Position::Learned | Position::Sinusoidal | Position::Sinusoidal2d => !is_staged,
                    Position::Rotary => false,
                },
            ),
            (
                "position_place",
                match config.position_place {
                    PositionPlace::Tokens => true,
                    PositionPlace::QueryKey => false,
                },
            ),
            (
                "pool",
                match config.pool {
                    Pool::Mean => true,
                    Pool::ClassToken | Pool::Attention => !is_staged,
                    Pool::Sequence => false,
                },
            ),
            ("head_hidden", config.head_hidden.is_empty()),
        ]
    }

    /// The blocks, but for their attention.
    fn blocks(self, config: &ModelConfig) -> [Part; 5] {
        let is_staged = self.is_staged();
        [
            (
                "block",
                match config.block {
                    BlockStyle::PreNorm => true,
                    BlockStyle::ResidualPostNorm => is_staged,
                    BlockStyle::PostNorm | BlockStyle::Compact => false,
                },
            ),
            ("mixers", has_mixers(&config.mixers, is_staged)),
            (
                "mlp",
                match config.mlp {
                    MlpKind::Gelu => true,
                    MlpKind::GeluTanh | MlpKind::Relu | MlpKind::DepthwiseChannel => false,
                },
            ),
            ("channel_attention", config.channel_attention.is_none()),
            (
                "layer_scale",
                match self {
                    Self::Vit | Self::Distilled => true,
                    Self::Cait => config.layer_scale.is_some(),
                    Self::Swin | Self::SwinV2 => config.layer_scale.is_none(),
                },
            ),
        ]
    }

    fn attention(self, config: &ModelConfig) -> [Part; 5] {
        let AttentionOptions { score, normalizer, qk_norm, talking_heads, relative_position } =
            config.attention;
        let is_v2 = self == Self::SwinV2;
        [
            (
                "attention.score",
                match score {
                    Score::ScaledDot => !is_v2,
                    Score::Cosine => is_v2,
                    Score::Dot | Score::Bilinear | Score::Additive | Score::Locality => false,
                },
            ),
            (
                "attention.normalizer",
                match normalizer {
                    Normalizer::Softmax => true,
                    Normalizer::Relu | Normalizer::Hard => false,
                },
            ),
            ("attention.qk_norm", !qk_norm || matches!(self, Self::Vit | Self::Distilled)),
            ("attention.talking_heads", talking_heads == (self == Self::Cait)),
            (
                "attention.relative_position",
                // Without windows it is left out.
                match relative_position.unwrap_or_default() {
                    RelativePosition::None => false,
                    RelativePosition::Table => !is_v2,
                    RelativePosition::Continuous => is_v2,
                },
            ),
        ]
    }

    /// The keys of what the library of the layout lacks, of all that others have.
    fn missing(self, config: &ModelConfig, layout: Layout) -> Vec<&'static str> {
        let is_square = config.image_size.height == config.image_size.width;
        let (fill, shrink) = (windows_fill_grids(config), windows_shrink(config));
        refused(match layout {
            Layout::Timm | Layout::Microsoft => match self {
                Self::Vit => vec![("position", is_added(config.position))],
                Self::Distilled => original(config, 0),
                Self::Cait => vec![("position", is_learned(config.position))],
                Self::Swin | Self::SwinV2 => Vec::new(),
            },
            Layout::HuggingFace => match self {
                // One register that no head sees is DeiT's distillation token.
                Self::Vit => original(config, 1),
                Self::Distilled => original(config, 0),
                Self::Cait => vec![("class_depth", false)],
                Self::Swin | Self::SwinV2 => vec![
                    ("image_size", is_square),
                    ("mixers", fill && (self == Self::SwinV2 || !shrink)),
                    ("norm_epsilon", is_epsilon(config, 1e-5)),
                ],
            },
            Layout::Torchvision => {
                let mut parts = match self {
                    Self::Vit => original(config, 0),
                    Self::Distilled => vec![("distillation_token", false)],
                    Self::Cait => vec![("class_depth", false)],
                    Self::Swin | Self::SwinV2 => vec![("mixers", fill && !shrink)],
                };
                parts.extend([("channels", config.channels == 3), ("image_size", is_square)]);
                parts
            }
        })
    }
}

fn refused(parts: impl IntoIterator<Item = Part>) -> Vec<&'static str> {
    parts.into_iter().filter(|(_, is_theirs)| !is_theirs).map(|(key, _)| key).collect()
}

/// Whether every mixer is one that others have, and they follow each other as theirs do.
fn has_mixers(mixers: &[Mixer], is_staged: bool) -> bool {
    let is_theirs = |mixer: &Mixer| match mixer {
        Mixer::Global => !is_staged,
        Mixer::Window(_) | Mixer::ShiftedWindow(_) => is_staged,
        Mixer::Neighborhood(_) | Mixer::CrossCovariance => false,
    };
    let in_turn = match *mixers {
        [Mixer::Global] => true,
        [Mixer::Window(a), Mixer::ShiftedWindow(b)] => a == b,
        _ => false,
    };
    in_turn && mixers.iter().all(is_theirs)
}

/// The parts of the first paper's ViT, with at most so many registers.
fn original(config: &ModelConfig, registers: usize) -> Vec<Part> {
    let pool = match config.pool {
        Pool::ClassToken => true,
        Pool::Mean | Pool::Sequence | Pool::Attention => false,
    };
    vec![
        ("position", is_learned(config.position)),
        ("prefix_position", config.prefix_position),
        ("pool", pool),
        ("layer_scale", config.layer_scale.is_none()),
        ("attention.qk_norm", !config.attention.qk_norm),
        ("registers", config.registers <= registers),
    ]
}

fn is_learned(position: Position) -> bool {
    match position {
        Position::Learned => true,
        Position::None | Position::Sinusoidal | Position::Sinusoidal2d | Position::Rotary => false,
    }
}

/// Whether there are positions that are learned ones for another library.
fn is_added(position: Position) -> bool {
    match position {
        Position::Learned | Position::Sinusoidal | Position::Sinusoidal2d => true,
        Position::None | Position::Rotary => false,
    }
}

/// What the library of a layout has.
fn offer(layout: Layout) -> &'static str {
    match layout {
        Layout::Timm | Layout::Microsoft => {
            "ViT with positions, DeiT and CaiT with learned ones, Swin and Swin v2"
        }
        Layout::HuggingFace => {
            "ViT with a class token and at most one register, learned positions and no LayerScale; distilled DeiT; Swin and Swin v2 with a \
             `norm_epsilon` of 1e-5, of square images whose grids are whole numbers of windows, none of them smaller than a window of Swin"
        }
        Layout::Torchvision => {
            "ViT with only a class token, learned positions and neither LayerScale nor registers; Swin and Swin v2 whose grids are \
             whole numbers of windows and none of them smaller than one; all of them for square color images"
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use vitrine_models::{ChannelAttention, ChannelGate, GatePlace, ImageSize, preset};

    use super::*;

    const ALL: &[Layout] = &[Layout::Timm, Layout::HuggingFace, Layout::Torchvision];
    const TIMM_AND_HUGGING_FACE: &[Layout] = &[Layout::Timm, Layout::HuggingFace];
    const TIMM_AND_TORCHVISION: &[Layout] = &[Layout::Timm, Layout::Torchvision];
    const TIMM: &[Layout] = &[Layout::Timm];
    const NONE: &[Layout] = &[];

    /// The first paper's, which every library has.
    fn vit() -> ModelConfig {
        ModelConfig {
            class_token: true,
            pool: Pool::ClassToken,
            position: Position::Learned,
            ..preset::find("vit_pico_patch4_32").unwrap()
        }
    }

    fn cait() -> ModelConfig {
        let attention = AttentionOptions { talking_heads: true, ..AttentionOptions::default() };
        ModelConfig { class_depth: 1, layer_scale: Some(0.1), attention, ..vit() }
    }

    fn swin() -> ModelConfig {
        preset::find("swin_pico_patch2_window4_32").unwrap()
    }

    fn swin_v2() -> ModelConfig {
        ModelConfig {
            block: BlockStyle::ResidualPostNorm,
            attention: AttentionOptions {
                score: Score::Cosine,
                relative_position: Some(RelativePosition::Continuous),
                ..AttentionOptions::default()
            },
            ..swin()
        }
    }

    fn windows(config: ModelConfig, side: usize) -> ModelConfig {
        ModelConfig { mixers: vec![Mixer::Window(side), Mixer::ShiftedWindow(side)], ..config }
    }

    fn with_attention(mut config: ModelConfig, change: impl FnOnce(&mut AttentionOptions)) -> ModelConfig {
        change(&mut config.attention);
        config
    }

    /// Checks which libraries take a model, and that the part is named for which the others refuse it.
    fn assert_taken(config: &ModelConfig, by: &[Layout], part: &str) {
        assert_eq!(config.validate(), Ok(()), "{part}");
        let family = Family::nearest(config);
        for &layout in ALL {
            match Family::of(config, layout) {
                Ok(found) => {
                    assert!(by.contains(&layout), "{layout:?} takes it in spite of {part}: {config:?}");
                    assert_eq!(found, family);
                }
                Err(error) => {
                    assert!(!by.contains(&layout), "{layout:?}: {error}");
                    let parts = [family.only_ours(config), family.missing(config, layout)].concat();
                    assert!(parts.contains(&part), "{layout:?}: {part} is not in {parts:?}");
                    assert!(error.to_string().contains(part), "{layout:?}: {part} is not in: {error}");
                }
            }
        }
    }

    #[test]
    fn every_family_is_of_the_libraries_that_have_it() {
        for (config, family, by, part) in [
            (vit(), Family::Vit, ALL, ""),
            (
                ModelConfig { distillation_token: true, ..vit() },
                Family::Distilled,
                TIMM_AND_HUGGING_FACE,
                "distillation_token",
            ),
            (cait(), Family::Cait, TIMM, "class_depth"),
            (swin(), Family::Swin, ALL, ""),
            (swin_v2(), Family::SwinV2, ALL, ""),
        ] {
            assert_eq!(Family::nearest(&config), family);
            assert_taken(&config, by, part);
        }
    }

    #[test]
    fn every_score_is_taken_where_it_is_computed() {
        for &score in Score::ALL {
            let (usual, v2) = match score {
                Score::ScaledDot => (ALL, NONE),
                Score::Cosine => (NONE, ALL),
                Score::Dot | Score::Bilinear | Score::Additive | Score::Locality => (NONE, NONE),
            };
            for (config, by) in [(vit(), usual), (swin(), usual), (swin_v2(), v2)] {
                let config = with_attention(config, |attention| attention.score = score);
                assert_taken(&config, by, "attention.score");
            }
        }
    }

    #[test]
    fn every_normalizer_is_taken_where_it_is_computed() {
        for &normalizer in Normalizer::ALL {
            let by = match normalizer {
                Normalizer::Softmax => ALL,
                Normalizer::Relu | Normalizer::Hard => NONE,
            };
            for config in [vit(), swin(), swin_v2()] {
                let config = with_attention(config, |attention| attention.normalizer = normalizer);
                assert_taken(&config, by, "attention.normalizer");
            }
        }
    }

    #[test]
    fn every_relative_position_is_taken_where_it_is_computed() {
        for kind in RelativePosition::ALL.iter().copied().map(Some).chain([None]) {
            let (usual, v2) = match kind {
                None | Some(RelativePosition::Table) => (ALL, NONE),
                Some(RelativePosition::Continuous) => (NONE, ALL),
                Some(RelativePosition::None) => (NONE, NONE),
            };
            for (config, by) in [(swin(), usual), (swin_v2(), v2)] {
                let config = with_attention(config, |attention| attention.relative_position = kind);
                assert_taken(&config, by, "attention.relative_position");
            }
        }
    }

    #[test]
    fn every_position_and_its_place_are_taken_where_they_are_computed() {
        for &position in Position::ALL {
            let (plain, staged) = match position {
                Position::None => (NONE, ALL),
                Position::Learned => (ALL, NONE),
                Position::Sinusoidal | Position::Sinusoidal2d => (TIMM, NONE),
                Position::Rotary => (NONE, NONE),
            };
            assert_taken(&ModelConfig { position, ..vit() }, plain, "position");
            let swin = ModelConfig { position, ..swin() };
            // Windows cannot rotate.
            assert_eq!(swin.validate().is_err(), position == Position::Rotary);
            if swin.validate().is_ok() {
                assert_taken(&swin, staged, "position");
            }
        }
        for &position_place in PositionPlace::ALL {
            let by = match position_place {
                PositionPlace::Tokens => ALL,
                PositionPlace::QueryKey => NONE,
            };
            assert_taken(&ModelConfig { position_place, ..vit() }, by, "position_place");
        }
    }

    #[test]
    fn every_pooling_is_taken_where_it_is_computed() {
        for &pool in Pool::ALL {
            let (plain, staged) = match pool {
                Pool::ClassToken => (ALL, NONE),
                Pool::Mean => (TIMM, ALL),
                Pool::Attention => (TIMM, NONE),
                Pool::Sequence => (NONE, NONE),
            };
            assert_taken(&ModelConfig { pool, ..vit() }, plain, "pool");
            let swin = ModelConfig { pool, ..swin() };
            // Stages have no class token.
            assert_eq!(swin.validate().is_err(), pool == Pool::ClassToken);
            if swin.validate().is_ok() {
                assert_taken(&swin, staged, "pool");
            }
        }
    }

    #[test]
    fn every_block_and_mlp_is_taken_where_it_is_computed() {
        for &block in BlockStyle::ALL {
            let (plain, staged, part) = match block {
                BlockStyle::PreNorm => (ALL, ALL, "block"),
                BlockStyle::PostNorm | BlockStyle::Compact => (NONE, NONE, "block"),
                // It would be Swin v2, which has another score.
                BlockStyle::ResidualPostNorm => (NONE, NONE, "attention.score"),
            };
            assert_taken(&ModelConfig { block, ..vit() }, plain, "block");
            assert_taken(&ModelConfig { block, ..swin() }, staged, part);
            let v2 = if block == BlockStyle::ResidualPostNorm { ALL } else { NONE };
            assert_taken(&ModelConfig { block, ..swin_v2() }, v2, "attention.score");
        }
        for &mlp in MlpKind::ALL {
            let by = match mlp {
                MlpKind::Gelu => ALL,
                MlpKind::GeluTanh | MlpKind::Relu | MlpKind::DepthwiseChannel => NONE,
            };
            for config in [vit(), swin()] {
                assert_taken(&ModelConfig { mlp, ..config }, by, "mlp");
            }
        }
    }

    #[test]
    fn mixers_are_global_or_windows_that_take_turns() {
        let pico = || preset::find("vit_pico_patch4_32").unwrap();
        for (config, mixers, by) in [
            (vit(), vec![Mixer::Global], ALL),
            (vit(), vec![Mixer::Neighborhood(1)], NONE),
            (vit(), vec![Mixer::CrossCovariance], NONE),
            (vit(), vec![Mixer::Global, Mixer::CrossCovariance], NONE),
            (pico(), vec![Mixer::Window(4)], NONE),
            (pico(), vec![Mixer::ShiftedWindow(4)], NONE),
            (pico(), vec![Mixer::Window(4), Mixer::ShiftedWindow(4)], NONE),
            (swin(), vec![Mixer::Window(4), Mixer::ShiftedWindow(4)], ALL),
            (swin(), vec![Mixer::Window(4), Mixer::ShiftedWindow(2)], NONE),
            (swin(), vec![Mixer::ShiftedWindow(4), Mixer::Window(4)], NONE),
            (swin(), vec![Mixer::Window(4)], NONE),
            (swin(), vec![Mixer::Global], NONE),
            (swin(), vec![Mixer::Neighborhood(1)], NONE),
            (swin(), vec![Mixer::CrossCovariance], NONE),
        ] {
            assert_taken(&ModelConfig { mixers, ..config }, by, "mixers");
        }
    }

    #[test]
    fn every_other_part_is_named_where_it_is_refused() {
        let gate = ChannelAttention { kind: ChannelGate::Cbam, reduction: None, place: GatePlace::Mlp };
        let convolution = Tokenizer::Convolution { layers: 2, kernel_size: 3 };
        let [wide, wider] = [48, 64].map(|width| ImageSize { height: 32, width });
        let qk_norm = |attention: &mut AttentionOptions| attention.qk_norm = true;
        let talking_heads = |attention: &mut AttentionOptions| attention.talking_heads ^= true;
        for (config, by, part) in [
            (ModelConfig { tokenizer: Tokenizer::ShiftedPatch, ..vit() }, NONE, "tokenizer"),
            (ModelConfig { tokenizer: Tokenizer::ShiftedPatch, ..swin() }, NONE, "tokenizer"),
            (ModelConfig { tokenizer: convolution, ..vit() }, NONE, "tokenizer"),
            (ModelConfig { channel_attention: Some(gate), ..vit() }, NONE, "channel_attention"),
            (ModelConfig { head_hidden: vec![8], ..vit() }, NONE, "head_hidden"),
            (ModelConfig { embed_norm: true, ..vit() }, NONE, "embed_norm"),
            (ModelConfig { embed_norm: false, ..swin() }, NONE, "embed_norm"),
            (with_attention(vit(), qk_norm), TIMM, "attention.qk_norm"),
            (with_attention(swin(), qk_norm), NONE, "attention.qk_norm"),
            (with_attention(cait(), qk_norm), NONE, "attention.qk_norm"),
            (with_attention(vit(), talking_heads), NONE, "attention.talking_heads"),
            (with_attention(cait(), talking_heads), NONE, "attention.talking_heads"),
            (ModelConfig { layer_scale: Some(0.1), ..vit() }, TIMM, "layer_scale"),
            (ModelConfig { layer_scale: Some(0.1), ..swin() }, NONE, "layer_scale"),
            (ModelConfig { layer_scale: None, ..cait() }, NONE, "layer_scale"),
            (ModelConfig { registers: 1, ..vit() }, TIMM_AND_HUGGING_FACE, "registers"),
            (ModelConfig { registers: 2, ..vit() }, TIMM, "registers"),
            (ModelConfig { prefix_position: false, ..vit() }, TIMM, "prefix_position"),
            (ModelConfig { channels: 1, ..vit() }, TIMM_AND_HUGGING_FACE, "channels"),
            (ModelConfig { image_size: wide, ..vit() }, TIMM_AND_HUGGING_FACE, "image_size"),
            (ModelConfig { image_size: wider, ..swin() }, TIMM, "image_size"),
            (ModelConfig { norm_epsilon: 1e-6, ..swin() }, TIMM_AND_TORCHVISION, "norm_epsilon"),
            // They do not divide the grid, or are larger than the last one.
            (windows(swin(), 3), TIMM, "mixers"),
            (windows(swin(), 8), TIMM, "mixers"),
            (windows(swin_v2(), 8), TIMM_AND_HUGGING_FACE, "mixers"),
        ] {
            assert_taken(&config, by, part);
        }
    }
}
