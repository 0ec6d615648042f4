//! The architecture of a transformer of stages: Swin, Swin v2.

use super::reader::{Reader, base, fail, fail_without};
use super::{OpenFact, Read};
use crate::{
    AttentionOptions, BlockStyle, ImageSize, Mixer, ModelConfig, PerStage, Pool, Position, RelativePosition,
    Score,
};

impl Reader<'_> {
    /// The architecture, and the number of classes if there is a head.
    pub(super) fn swin(&mut self) -> Read<(ModelConfig, Option<usize>)> {
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
        let image_size = self.swin_image_size(stages, patch_size, window);
        let mut config = ModelConfig {
            image_size,
            channels,
            patch_size,
            embed_dim: dim,
            depth: PerStage(depth),
            num_heads: PerStage(num_heads),
            mlp_ratio: self.mlp_ratio("layers.0.blocks.0.", dim, 1)?,
            qkv_bias: is_v2 || self.has("layers.0.blocks.0.attn.qkv.bias"),
            class_token: false,
            pool: Pool::Mean,
            position: Position::None,
            norm_epsilon: self.epsilon(1e-5),
            mlp: self.facts.mlp.unwrap_or_default(),
            embed_norm: self.has("patch_embed.norm.weight"),
            mixers: vec![Mixer::Window(window), Mixer::ShiftedWindow(window)],
            block: if is_v2 { BlockStyle::ResidualPostNorm } else { BlockStyle::PreNorm },
            attention: AttentionOptions {
                score: if is_v2 { Score::Cosine } else { Score::ScaledDot },
                relative_position: is_v2.then_some(RelativePosition::Continuous),
                ..AttentionOptions::default()
            },
            ..base()
        };
        if is_v2 {
            config.pretrained_windows = self.pretrained_windows();
        }
        let last = config.last_dim();
        Ok((config, self.head("head.fc.weight", last)?))
    }

    /// The stated windows before they were enlarged, or none if they are stated to be 0.
    fn pretrained_windows(&mut self) -> Option<PerStage> {
        let Some(sides) = self.facts.pretrained_windows.clone() else {
            let text = "windows are taken as they were in pre-training; timm's names with `12to16` say that they were enlarged";
            self.guess(OpenFact::Window, text);
            return None;
        };
        Some(sides).filter(|sides| sides.0.iter().any(|side| *side > 0))
    }

    /// The stated image size; otherwise a guess, at which the last stage is one window.
    fn swin_image_size(&mut self, stages: usize, patch_size: usize, window: usize) -> ImageSize {
        if let Some(size) = self.facts.image_size {
            return size;
        }
        let last_grid = self.table_side(stages - 1).or(self.facts.last_window).unwrap_or(window);
        let size = ImageSize::square((last_grid * patch_size) << (stages - 1));
        let text = format!("an image size of {size} is guessed, for which the last stage is one window");
        self.guess(OpenFact::ImageSize, text);
        size
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

    /// The side of a stage's windows, from its table of `(2 * side - 1)^2` offsets.
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
            None => fail_without(OpenFact::Window, "shapes of a Swin v2 do not tell the size of its windows"),
        }
    }
}
