//! The architecture that weights under timm's names have: from their shapes, and from what else is known.

use std::collections::BTreeMap;

use super::{Facts, Layout, NamedTensor};
use crate::{
    AttentionOptions, BlockStyle, ConfigError, ImageSize, Mixer, ModelConfig, PerStage, Pool, Position,
    RelativePosition, Score, preset,
};

/// An architecture, and how it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The architecture; of one class where the file has no head.
    pub config: ModelConfig,
    /// Whether the file has a classifier.
    pub has_head: bool,
    /// What changes the logits, is said nowhere and was guessed, a line each, with the way to state it.
    pub guesses: Vec<String>,
    /// What else is worth knowing, a line each.
    pub notes: Vec<String>,
}

/// Why weights are of no architecture that is known here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownArchitecture(String);

impl From<ConfigError> for UnknownArchitecture {
    fn from(error: ConfigError) -> Self {
        Self(format!("the weights describe no model that can be built: {error}"))
    }
}

type Read<T> = Result<T, UnknownArchitecture>;

/// The architecture of tensors under timm's names.
///
/// # Errors
/// When a part that every model has is missing, a shape is impossible, something that shapes cannot tell was not said, or something
/// that was said is not what they tell; the message names the key and the way out.
///
/// # Examples
///
/// ```
/// use burn::tensor::Device;
/// use vitrine_models::weights::{Facts, Layout, read_architecture, to_timm};
/// use vitrine_models::{ModelConfig, preset};
///
/// let config = ModelConfig { depth: 2.into(), ..preset::find("vit_tiny_patch4_32").expect("listed") };
/// let tensors = to_timm(&config.init(&Device::default())?);
/// let reading = read_architecture(&tensors, Layout::Timm, &Facts::default())?;
/// assert_eq!((reading.config, reading.has_head), (config, true));
/// // Shapes do not tell the number of heads.
/// assert_eq!(reading.guesses.len(), 1);
/// let stated = Facts { num_heads: Some(3.into()), ..Facts::default() };
/// assert!(read_architecture(&tensors, Layout::Timm, &stated)?.guesses.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_architecture(tensors: &[NamedTensor], layout: Layout, facts: &Facts) -> Read<Reading> {
    let shapes = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor.shape.as_slice())).collect();
    let mut reader = Reader { shapes, layout, facts, guesses: Vec::new(), notes: Vec::new() };
    let has_stages = reader.count("layers.") > 0;
    let (config, head) = if has_stages { reader.swin()? } else { reader.plain()? };
    let config = ModelConfig { num_classes: head.unwrap_or(1), ..config };
    config.validate()?;
    let contradictions = facts.contradictions(&config, head);
    if !contradictions.is_empty() {
        return fail(format!("the configuration is of other weights: {}", contradictions.join("; ")));
    }
    if let Some(pool) = facts.pool.filter(|pool| *pool != config.pool) {
        return fail(format!(
            "the configuration wants {pool:?} pooling, and the tensors are those of {:?} pooling: this combination is not supported",
            config.pool
        ));
    }
    check_windows(&config, layout)?;
    Ok(Reading { config, has_head: head.is_some(), guesses: reader.guesses, notes: reader.notes })
}

/// Checks that windows are computed as the library does whose layout it is.
///
/// # Errors
/// When windows do not fill the grids, or are larger than one, and that library pads what timm and we do not.
pub fn check_windows(config: &ModelConfig, layout: Layout) -> Result<(), UnknownArchitecture> {
    if layout != Layout::Timm && !windows_fill_grids(config) {
        return fail(format!(
            "windows do not divide the grids of an image of {}, where {} computes other than timm, and we as timm does: choose \
             another image size",
            config.image_size,
            layout.name()
        ));
    }
    if layout.pads_small_grids() && windows_shrink(config) {
        return fail(format!(
            "an image of {} has grids smaller than a window, which {} pads, and we make the window smaller as timm does: choose \
             a larger image size (--image-size)",
            config.image_size,
            layout.name()
        ));
    }
    Ok(())
}

/// Whether every stage's grid is a whole number of windows, and even where it is merged. Where it is not, timm rolls and then pads, the
/// other libraries pad and then roll.
pub fn windows_fill_grids(config: &ModelConfig) -> bool {
    let Some(Mixer::Window(window) | Mixer::ShiftedWindow(window)) = config.mixers.first() else {
        return true;
    };
    (0..config.num_stages()).all(|stage| {
        let is_last = stage + 1 == config.num_stages();
        config
            .stage_grid(stage)
            .iter()
            .all(|side| side.is_multiple_of((*window).min(*side)) && (is_last || side.is_multiple_of(2)))
    })
}

/// Whether a stage's grid is smaller than its windows, which then shrink here and in timm; torchvision pads the grid.
pub fn windows_shrink(config: &ModelConfig) -> bool {
    let Some(Mixer::Window(window) | Mixer::ShiftedWindow(window)) = config.mixers.first() else {
        return false;
    };
    (0..config.num_stages()).any(|stage| config.stage_grid(stage).iter().any(|side| side < window))
}

struct Reader<'a> {
    shapes: BTreeMap<&'a str, &'a [usize]>,
    layout: Layout,
    facts: &'a Facts,
    guesses: Vec<String>,
    notes: Vec<String>,
}

impl Reader<'_> {
    /// A plain transformer: ViT, DeiT, DINOv2, CaiT.
    fn plain(&mut self) -> Read<(ModelConfig, Option<usize>)> {
        let [dim, channels, patch_size] = self.patch_embedding()?;
        let depth = self.count("blocks.");
        if depth == 0 {
            return fail("there are no blocks (`blocks.0.`, ...): this is no Vision Transformer");
        }
        let class_depth = self.count("blocks_token_only.");
        let registers = self.shapes.get("reg_token").map_or(0, |shape| shape.get(1).copied().unwrap_or(0));
        if registers > 1024 {
            return fail(format!("`reg_token` holds {registers} registers, which no model has"));
        }
        let mut config = ModelConfig {
            channels,
            patch_size,
            embed_dim: dim,
            depth: depth.into(),
            mlp_ratio: self.mlp_ratio("blocks.0.", dim)?,
            qkv_bias: self.has("blocks.0.attn.qkv.bias"),
            class_token: self.has("cls_token"),
            distillation_token: self.has("dist_token"),
            registers,
            class_depth,
            position: self.position()?,
            pool: self.plain_pool()?,
            layer_scale: (self.has("blocks.0.ls1.gamma") || self.has("blocks.0.gamma_1")).then_some(1e-5),
            norm_epsilon: self.epsilon(1e-6),
            mlp: self.facts.mlp.unwrap_or_default(),
            attention: AttentionOptions {
                qk_norm: self.has("blocks.0.attn.q_norm.weight"),
                talking_heads: self.has("blocks.0.attn.proj_l.weight"),
                ..AttentionOptions::default()
            },
            num_heads: 1.into(),
            ..base()
        };
        config.num_heads = self.plain_heads(&config)?.into();
        self.grid_of_positions(&mut config)?;
        if self.has("head.weight") && config.pool == Pool::Attention && self.layout == Layout::HuggingFace {
            return Ok((
                config,
                self.leave_out_head("Hugging Face's classifier of SigLIP sees the mean of normalized tokens"),
            ));
        }
        if self.layout == Layout::HuggingFace
            && self.shapes.get("head.weight").is_some_and(|s| s.get(1) == Some(&(2 * dim)))
        {
            return Ok((
                config,
                self.leave_out_head(
                    "Hugging Face's classifier of DINOv2 sees the class token next to the mean",
                ),
            ));
        }
        Ok((config, self.head("head.weight", dim)?))
    }

    /// A transformer of stages: Swin, Swin v2.
    fn swin(&mut self) -> Read<(ModelConfig, Option<usize>)> {
        let [dim, channels, patch_size] = self.patch_embedding()?;
        let stages = self.count("layers.");
        if stages > 8 {
            return fail(format!("{stages} stages (`layers.`): this is no Swin"));
        }
        let depth: Vec<usize> =
            (0..stages).map(|stage| self.count(&format!("layers.{stage}.blocks."))).collect();
        let is_v2 = self.has("layers.0.blocks.0.attn.logit_scale");
        let num_heads = (0..stages).map(|stage| self.swin_heads(stage)).collect::<Read<Vec<usize>>>()?;
        let window = self.window(stages)?;
        let side = |grid: usize| (grid * patch_size) << (stages - 1);
        let image_size = match self.facts.image_size {
            Some(size) => size,
            None => {
                let size = ImageSize::square(side(
                    self.table_side(stages - 1).or(self.facts.last_window).unwrap_or(window),
                ));
                self.guesses.push(format!(
                    "an image size of {size} is guessed, for which the last stage is one window: state it with `vitrine import --image-size`"
                ));
                size
            }
        };
        let attention = AttentionOptions {
            score: if is_v2 { Score::Cosine } else { Score::ScaledDot },
            relative_position: is_v2.then_some(RelativePosition::Continuous),
            ..AttentionOptions::default()
        };
        let config = ModelConfig {
            image_size,
            channels,
            patch_size,
            embed_dim: dim,
            depth: PerStage(depth),
            num_heads: PerStage(num_heads),
            mlp_ratio: self.mlp_ratio("layers.0.blocks.0.", dim)?,
            qkv_bias: is_v2 || self.has("layers.0.blocks.0.attn.qkv.bias"),
            class_token: false,
            pool: Pool::Mean,
            position: Position::None,
            norm_epsilon: self.epsilon(1e-5),
            mlp: self.facts.mlp.unwrap_or_default(),
            embed_norm: self.has("patch_embed.norm.weight"),
            mixers: vec![Mixer::Window(window), Mixer::ShiftedWindow(window)],
            block: if is_v2 { BlockStyle::ResidualPostNorm } else { BlockStyle::PreNorm },
            attention,
            ..base()
        };
        let last = config.last_dim();
        Ok((config, self.head("head.fc.weight", last)?))
    }

    fn has(&self, key: &str) -> bool {
        self.shapes.contains_key(key)
    }

    /// One more than the highest number after `prefix`.
    fn count(&self, prefix: &str) -> usize {
        let numbers =
            self.shapes.keys().filter_map(|key| key.strip_prefix(prefix)?.split('.').next()?.parse().ok());
        numbers.max().map_or(0, |highest: usize| highest.saturating_add(1)).min(self.shapes.len())
    }

    /// Width, channels and side of a patch.
    fn patch_embedding(&self) -> Read<[usize; 3]> {
        match self.shapes.get("patch_embed.proj.weight").copied() {
            Some(&[dim, channels, height, width])
                if height == width && dim > 0 && channels > 0 && height > 0 =>
            {
                Ok([dim, channels, height])
            }
            Some(shape) => fail(format!(
                "`patch_embed.proj.weight` is {shape:?}: a convolution [dim, channels, side, side] is needed"
            )),
            None => fail("`patch_embed.proj.weight` is missing: this is no Vision Transformer"),
        }
    }

    fn mlp_ratio(&self, block: &str, dim: usize) -> Read<f64> {
        let rows = |layer: &str| {
            self.shapes
                .get(format!("{block}mlp.{layer}.weight").as_str())
                .and_then(|s| Some([*s.first()?, *s.get(1)?]))
        };
        match (rows("fc1"), rows("fc2")) {
            (Some([hidden, _]), Some([_, input])) if hidden == input => {
                let ratio = hidden as f64 / dim as f64;
                // Rounded down again where it is used.
                Ok(if (dim as f64 * ratio) as usize == hidden { ratio } else { ratio + 1e-9 })
            }
            (Some(_), Some(_)) => fail(format!("`{block}mlp` is gated (SwiGLU), which is not supported")),
            _ => fail(format!("`{block}mlp.fc1.weight` or `{block}mlp.fc2.weight` is missing")),
        }
    }

    fn epsilon(&mut self, usual: f64) -> f64 {
        if let Some(stated) = self.facts.norm_epsilon {
            return stated;
        }
        // DINOv2 has LayerScale there, SigLIP attention pooling; both have timm's epsilon.
        let is_theirs = !self.has("blocks.0.ls1.gamma") && !self.has("attn_pool.latent");
        if self.layout.has_tiny_epsilon() && usual < 1e-5 && is_theirs {
            self.guesses.push(
                "an epsilon of 1e-12 in all norms is guessed, as Hugging Face's ViT has: state it in a configuration file (--config)"
                    .to_owned(),
            );
            return 1e-12;
        }
        usual
    }

    /// Positions that are not stored may be rotary or relative ones of another architecture: their absence is never inferred.
    fn position(&self) -> Read<Position> {
        match (self.has("pos_embed"), self.facts.learned_position) {
            (true, _) => Ok(Position::Learned),
            (false, Some(false)) => Ok(Position::None),
            (false, _) => fail(
                "there are no learned positions (`pos_embed`): either this tensor is missing, or the model has rotary or relative \
                 positions, which are not supported on import",
            ),
        }
    }

    fn plain_pool(&self) -> Read<Pool> {
        if self.has("attn_pool.latent") {
            Ok(Pool::Attention)
        } else if self.has("fc_norm.weight") {
            Ok(Pool::Mean)
        } else if self.has("cls_token") {
            Ok(Pool::ClassToken)
        } else {
            fail(
                "there is neither a class token (`cls_token`) nor attention pooling (`attn_pool.latent`) nor a norm of the \
                 mean (`fc_norm.weight`): the mean of normalized tokens is not supported",
            )
        }
    }

    fn plain_heads(&mut self, config: &ModelConfig) -> Read<usize> {
        let dim = config.embed_dim;
        let first = |key: &str| self.shapes.get(key).and_then(|shape| shape.first().copied());
        if let Some(heads) = first("blocks.0.attn.proj_l.weight") {
            return Ok(heads);
        }
        if let Some(width) = first("blocks.0.attn.q_norm.weight").filter(|width| *width > 0) {
            return Ok(dim / width);
        }
        if let Some(heads) = &self.facts.num_heads {
            return match heads.0[..] {
                [heads] => Ok(heads),
                _ => fail("the configuration lists heads for several stages, and the tensors have one"),
            };
        }
        let same = |known: &ModelConfig| {
            known.num_stages() == 1
                && known.embed_dim == dim
                && known.depth == config.depth
                && known.patch_size == config.patch_size
        };
        let (heads, why) = if let Some(known) = preset::all().into_iter().find(|known| same(&known.config()))
        {
            (known.config().num_heads[0], format!("as {} has", known.name))
        } else if let 1152 | 1280 | 1408 = dim {
            // Of ViT-H, SoViT-400M and ViT-g.
            (16, format!("as models of width {dim} have"))
        } else if dim.is_multiple_of(64) && dim <= 1024 {
            (dim / 64, "each of the usual width 64".to_owned())
        } else {
            return fail(format!(
                "shapes do not tell the number of heads, and {dim} is not a usual width: state it with `vitrine import --heads`, or put the model's \
                 config.json next to the weights"
            ));
        };
        self.guesses
            .push(format!("{heads} heads are guessed, {why}: state them with `vitrine import --heads`"));
        Ok(heads)
    }

    /// Sets image size, and whether prefix tokens have positions, from the number of positions.
    fn grid_of_positions(&mut self, config: &mut ModelConfig) -> Read<()> {
        let Some(places) = self.shapes.get("pos_embed").map(|shape| shape.get(1).copied().unwrap_or(0))
        else {
            let Some(size) = self.facts.image_size else {
                return fail(
                    "there are no positions, so that nothing tells the image size: state it with `vitrine import --image-size`",
                );
            };
            config.image_size = size;
            return Ok(());
        };
        let prefix = config.num_prefix_tokens();
        let patch = config.patch_size;
        let patches = |size: ImageSize| (size.height / patch) * (size.width / patch);
        let square =
            |count: usize| (count > 0 && count.isqrt().pow(2) == count).then(|| count.isqrt() * patch);
        let size = match self.facts.image_size {
            Some(size) if ![places, places.saturating_sub(prefix)].contains(&patches(size)) => {
                return fail(format!(
                    "image_size: {size} is stated, which {} patches of {patch} pixels and {prefix} further tokens make, and \
                     `pos_embed` holds {places} places",
                    patches(size)
                ));
            }
            Some(size) => Some(size),
            None => {
                places.checked_sub(prefix).and_then(square).or_else(|| square(places)).map(ImageSize::square)
            }
        };
        let Some(size) = size else {
            return fail(format!(
                "`pos_embed` holds {places} places, which are no square grid: state the image size with `vitrine import --image-size`"
            ));
        };
        config.image_size = size;
        config.prefix_position = prefix == 0 || patches(size) != places;
        Ok(())
    }

    fn swin_heads(&self, stage: usize) -> Read<usize> {
        let block = format!("layers.{stage}.blocks.0.attn.");
        let of = |key: &str, axis: usize| {
            self.shapes.get(format!("{block}{key}").as_str()).and_then(|shape| shape.get(axis).copied())
        };
        match of("relative_position_bias_table", 1).or_else(|| of("logit_scale", 0)) {
            Some(heads) => Ok(heads),
            None => fail(format!(
                "`{block}relative_position_bias_table` is missing: this model of stages is no Swin"
            )),
        }
    }

    /// Side of a stage's windows, from its table of `(2 side - 1)^2` offsets.
    fn table_side(&self, stage: usize) -> Option<usize> {
        let key = format!("layers.{stage}.blocks.0.attn.relative_position_bias_table");
        let rows = *self.shapes.get(key.as_str())?.first()?;
        let across = rows.isqrt();
        (across * across == rows && !across.is_multiple_of(2)).then_some(across.div_ceil(2))
    }

    fn window(&self, stages: usize) -> Read<usize> {
        let tables = (0..stages).filter_map(|stage| self.table_side(stage)).max();
        match tables.or(self.facts.window) {
            Some(window) => Ok(window),
            None => fail(
                "shapes of a Swin v2 do not tell the size of its windows: put the model's config.json next to the weights, or name it \
                 (`vitrine import --config`)",
            ),
        }
    }

    /// The number of classes, where there is a head for vectors of width `dim`.
    fn head(&self, key: &str, dim: usize) -> Read<Option<usize>> {
        let bias = key.replace("weight", "bias");
        match self.shapes.get(key).copied() {
            Some(&[classes, width]) if width == dim && classes > 0 => Ok(Some(classes)),
            Some(shape) => fail(format!("`{key}` is {shape:?}, and vectors of {dim} reach the head")),
            None if self.has(&bias) => fail(format!("`{bias}` is there and `{key}` is not")),
            None => Ok(None),
        }
    }

    /// No classes, and why.
    fn leave_out_head(&mut self, why: &str) -> Option<usize> {
        self.notes.push(format!("{why}, which is not supported: it is left out"));
        None
    }
}

fn fail<T>(message: impl Into<String>) -> Read<T> {
    Err(UnknownArchitecture(message.into()))
}

/// What no weights tell: the values of timm.
fn base() -> ModelConfig {
    preset::find("vit_tiny_patch16_224").expect("listed")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::weights::to_timm;
    use burn::tensor::Device;

    /// What the shapes of a preset's weights are read as, with the preset's depth cut to keep the test short.
    fn read(name: &str, facts: &Facts) -> (ModelConfig, Reading) {
        let config = preset::find(name).unwrap();
        let tensors = to_timm(&config.init(&Device::default()).unwrap());
        let reading = read_architecture(&tensors, Layout::Timm, facts).unwrap();
        (config, reading)
    }

    #[test]
    fn presets_are_read_off_the_shapes_of_their_weights() {
        for name in [
            "vit_tiny_patch16_224",
            "deit_tiny_distilled_patch16_224",
            "cait_xxs24_224",
            "swin_tiny_patch4_window7_224",
        ] {
            let (config, reading) = read(name, &Facts::default());
            assert_eq!(reading.config, config, "{name}");
            assert!(reading.has_head);
        }
        let facts = Facts { window: Some(8), image_size: Some(ImageSize::square(256)), ..Facts::default() };
        let (config, reading) = read("swinv2_tiny_window8_256", &facts);
        assert_eq!((reading.config, reading.guesses), (config, Vec::new()));
    }

    #[test]
    fn what_shapes_do_not_tell_is_asked_for() {
        let tensors =
            to_timm(&preset::find("swinv2_tiny_window8_256").unwrap().init(&Device::default()).unwrap());
        let error = read_architecture(&tensors, Layout::Timm, &Facts::default()).unwrap_err().to_string();
        assert!(error.contains("--config"), "{error}");
        let config = ModelConfig { embed_dim: 60, num_heads: 5.into(), depth: 2.into(), ..base() };
        let mut tensors = to_timm(&config.init(&Device::default()).unwrap());
        let error = read_architecture(&tensors, Layout::Timm, &Facts::default()).unwrap_err().to_string();
        assert!(error.contains("heads") && error.contains("--heads"), "{error}");
        let facts = Facts { num_heads: Some(5.into()), ..Facts::default() };
        assert_eq!(read_architecture(&tensors, Layout::Timm, &facts).unwrap().config, config);
        tensors.retain(|tensor| !tensor.name.starts_with("patch_embed"));
        let error = read_architecture(&tensors, Layout::Timm, &facts).unwrap_err().to_string();
        assert!(error.contains("patch_embed.proj.weight"), "{error}");
    }

    #[test]
    fn a_hostile_number_in_a_key_costs_nothing() {
        let tensor = |name: &str, shape: &[usize]| NamedTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            values: Vec::new(),
        };
        let tensors = [
            tensor("patch_embed.proj.weight", &[usize::MAX, 3, 16, 16]),
            tensor("blocks.18446744073709551615.norm1.weight", &[8]),
            tensor("layers.99999999999.blocks.0.norm1.weight", &[8]),
        ];
        assert!(read_architecture(&tensors, Layout::Timm, &Facts::default()).is_err());
    }
}
