//! The architecture of a plain transformer: ViT, DeiT, DINOv2, DINOv3, CaiT, CLIP, SigLIP, BEiT.

use super::reader::{Reader, base, fail, fail_without};
use super::{OpenFact, Read};
use crate::weights::Layout;
use crate::weights::rotary::FREQUENCIES;
use crate::{
    AttentionOptions, ImageSize, MlpKind, ModelConfig, Pool, Position, RelativePosition, RotaryOptions,
    preset,
};

/// BEiT's table of the first block.
const RELATIVE_POSITIONS: &str = "blocks.0.attn.relative_position_bias_table";
/// The rows of such a table that are not for two patches, if there is a class token.
const ROWS_OF_PREFIX: usize = 3;

impl Reader<'_> {
    /// The architecture, and the number of classes if there is a head.
    pub(super) fn plain(&mut self) -> Read<(ModelConfig, Option<usize>)> {
        let config = self.plain_config()?;
        let head = self.head("head.weight", config.embedding_dim())?;
        Ok((config, head))
    }

    fn plain_config(&mut self) -> Read<ModelConfig> {
        let [dim, channels, patch_size] = self.patch_embedding()?;
        let depth = self.count("blocks.");
        if depth == 0 {
            return fail("there are no blocks (`blocks.0.`, ...): this is no Vision Transformer");
        }
        let (position, rotary) = self.position()?;
        let (mlp_ratio, mlp) = self.plain_mlp(dim)?;
        let mut config = ModelConfig {
            channels,
            patch_size,
            embed_dim: dim,
            depth: depth.into(),
            mlp_ratio,
            qkv_bias: self.has("blocks.0.attn.qkv.bias"),
            class_token: self.has("cls_token"),
            distillation_token: self.has("dist_token"),
            registers: self.registers()?,
            class_depth: self.count("blocks_token_only."),
            position,
            rotary,
            pre_norm: self.has("norm_pre.weight"),
            pool: self.plain_pool(dim)?,
            layer_scale: (self.has("blocks.0.ls1.gamma") || self.has("blocks.0.gamma_1")).then_some(1e-5),
            norm_epsilon: self.epsilon(1e-6),
            mlp,
            mlp_norm: self.has("blocks.0.mlp.norm.weight"),
            attention: AttentionOptions {
                qk_norm: self.has("blocks.0.attn.q_norm.weight"),
                talking_heads: self.has("blocks.0.attn.proj_l.weight"),
                relative_position: self.has(RELATIVE_POSITIONS).then_some(RelativePosition::Table),
                ..AttentionOptions::default()
            },
            num_heads: 1.into(),
            ..base()
        };
        config.num_heads = self.plain_heads(&config)?.into();
        self.grid_of_positions(&mut config)?;
        Ok(config)
    }

    fn registers(&self) -> Read<usize> {
        match self.shapes.get("reg_token").map_or(0, |shape| shape.get(1).copied().unwrap_or(0)) {
            registers if registers > 1024 => {
                fail(format!("`reg_token` holds {registers} registers, which no model has"))
            }
            registers => Ok(registers),
        }
    }

    /// Learned positions, or none if that is stated, or if there are relative ones. A model without stored positions may have rotary
    /// ones and thus be of another architecture: no positions are never inferred.
    fn position(&self) -> Read<(Position, Option<RotaryOptions>)> {
        let states_learned = self.facts.rotary.is_some_and(|(options, _)| options.learned);
        if self.has(FREQUENCIES) && !states_learned {
            return fail_without(
                OpenFact::Positions,
                format!(
                    "`{FREQUENCIES}` holds learned rotary positions, whose axes and pairs a configuration must state"
                ),
            );
        }
        match (self.has("pos_embed"), self.facts.rotary, self.facts.learned_position) {
            (true, None, _) => Ok((Position::Learned, None)),
            (true, Some((options, _)), _) => Ok((Position::Learned, Some(options))),
            (false, Some((options, _)), _) => {
                let stated = (options != RotaryOptions::default()).then_some(options);
                Ok((Position::Rotary, stated))
            }
            (false, None, Some(false)) => Ok((Position::None, None)),
            (false, None, _) if self.has(RELATIVE_POSITIONS) => Ok((Position::None, None)),
            (false, None, _) => fail_without(
                OpenFact::Positions,
                "there are no learned positions (`pos_embed`): either this tensor is missing, or the model has rotary positions, as \
                 DINOv3, which its configuration states",
            ),
        }
    }

    /// The ratio of the MLPs and their kind. Shapes tell a gate, and the facts tell the activation.
    fn plain_mlp(&mut self, dim: usize) -> Read<(f64, MlpKind)> {
        let stated = self.facts.mlp.unwrap_or_default();
        let is_gated = self.is_gated("blocks.0.");
        match (is_gated, self.facts.mlp) {
            (true, Some(MlpKind::SwiGlu) | None) => {
                Ok((self.mlp_ratio("blocks.0.", dim, 2)?, MlpKind::SwiGlu))
            }
            (true, Some(_)) => {
                fail("the configuration states MLPs without a gate, and `blocks.0.mlp` is gated")
            }
            (false, Some(MlpKind::SwiGlu)) => {
                fail("the configuration states gated MLPs (SwiGLU), and `blocks.0.mlp` has no gate")
            }
            (false, None) if self.has("norm_pre.weight") => {
                let ratio = self.mlp_ratio("blocks.0.", dim, 1)?;
                self.guess(
                    OpenFact::Activation,
                    "GELU is guessed; OpenAI's CLIP has its approximation instead, as timm's names with `quickgelu` say",
                );
                Ok((ratio, stated))
            }
            (false, _) => Ok((self.mlp_ratio("blocks.0.", dim, 1)?, stated)),
        }
    }

    /// The pooling, from its tensors. The facts tell whether the mean of normalized tokens replaces the class token.
    fn plain_pool(&self, dim: usize) -> Read<Pool> {
        let width = self.shapes.get("head.weight").and_then(|shape| shape.get(1));
        if self.shapes.keys().any(|key| key.starts_with("attn_pool.")) {
            // Hugging Face's classifier of SigLIP leaves the pooling out.
            let is_left_out = self.layout == Layout::HuggingFace && width.is_some();
            Ok(if is_left_out { Pool::NormalizedMean } else { Pool::Attention })
        } else if self.has("fc_norm.weight") {
            Ok(Pool::Mean)
        } else if !self.has("cls_token") {
            match self.facts.pool {
                Some(Pool::NormalizedMean) => Ok(Pool::NormalizedMean),
                _ => fail(
                    "there is neither a class token (`cls_token`) nor attention pooling (`attn_pool.latent`) nor a norm of the mean \
                     (`fc_norm.weight`), and no configuration states the mean of normalized tokens",
                ),
            }
        } else if width == Some(&(2 * dim)) {
            Ok(Pool::ClassTokenMean)
        } else {
            Ok(match self.facts.pool {
                Some(pool @ (Pool::NormalizedMean | Pool::ClassTokenMean))
                    if width.is_none_or(|width| *width == dim) =>
                {
                    pool
                }
                _ => Pool::ClassToken,
            })
        }
    }

    /// The number of heads: from the tensors of some architectures, from the stated facts, or guessed from the width.
    fn plain_heads(&mut self, config: &ModelConfig) -> Read<usize> {
        let dim = config.embed_dim;
        let first = |key: &str| self.shapes.get(key).and_then(|shape| shape.first().copied());
        let of_table = self.shapes.get(RELATIVE_POSITIONS).and_then(|shape| shape.get(1).copied());
        if let Some(heads) = of_table.or_else(|| first("blocks.0.attn.proj_l.weight")) {
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
        let (heads, reason) = self.usual_heads(config)?;
        self.guess(OpenFact::NumHeads, format!("{heads} heads are guessed, {reason}"));
        Ok(heads)
    }

    /// The number of heads that models of this width usually have, and the reason to believe so.
    fn usual_heads(&self, config: &ModelConfig) -> Read<(usize, String)> {
        let dim = config.embed_dim;
        let same = |known: &ModelConfig| {
            known.num_stages() == 1
                && known.embed_dim == dim
                && known.depth == config.depth
                && known.patch_size == config.patch_size
        };
        if let Some(known) = preset::all().into_iter().find(|known| same(&known.config())) {
            Ok((known.config().num_heads[0], format!("as {} has", known.name)))
        } else if let 1152 | 1280 | 1408 = dim {
            // SoViT-400M, ViT-H and ViT-g.
            Ok((16, format!("as models of width {dim} have")))
        } else if dim.is_multiple_of(64) && dim <= 1024 {
            Ok((dim / 64, "each of the usual width 64".to_owned()))
        } else {
            fail_without(
                OpenFact::NumHeads,
                format!("shapes do not tell the number of heads, and {dim} is not a usual width"),
            )
        }
    }

    /// Sets the image size, and whether prefix tokens have positions, from the number of positions.
    fn grid_of_positions(&mut self, config: &mut ModelConfig) -> Read<()> {
        let Some(places) = self.shapes.get("pos_embed").map(|shape| shape.get(1).copied().unwrap_or(0))
        else {
            let Some(size) = self.size_of_table(config)?.or(self.facts.image_size) else {
                let message = "there are no positions, so that nothing tells the image size";
                return fail_without(OpenFact::ImageSize, message);
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
            Some(size) => size,
            None => match places.checked_sub(prefix).and_then(square).or_else(|| square(places)) {
                Some(side) => ImageSize::square(side),
                None => {
                    let message = format!("`pos_embed` holds {places} places, which are no square grid");
                    return fail_without(OpenFact::ImageSize, message);
                }
            },
        };
        config.image_size = size;
        config.prefix_position = prefix == 0 || patches(size) != places;
        Ok(())
    }

    /// The image size that a table of relative positions is for: the stated one, if it fits, or else a square.
    fn size_of_table(&self, config: &ModelConfig) -> Read<Option<ImageSize>> {
        let rows = self.shapes.get(RELATIVE_POSITIONS).and_then(|shape| shape.first().copied());
        let Some(rows) = rows else { return Ok(None) };
        let patch = config.patch_size;
        let further = if config.num_prefix_tokens() > 0 { ROWS_OF_PREFIX } else { 0 };
        let needed = |size: ImageSize| {
            let [height, width] = [size.height / patch, size.width / patch];
            (2 * height)
                .saturating_sub(1)
                .saturating_mul((2 * width).saturating_sub(1))
                .saturating_add(further)
        };
        let side = rows.saturating_sub(further).isqrt().div_ceil(2) * patch;
        let size = self.facts.image_size.unwrap_or(ImageSize::square(side));
        if side == 0 || needed(size) != rows {
            return fail(format!(
                "`{RELATIVE_POSITIONS}` has {rows} rows, and images of {size} with patches of {patch} pixels need {}",
                needed(size)
            ));
        }
        Ok(Some(size))
    }
}
