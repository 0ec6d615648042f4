//! The rules that a configuration must follow, each with an error that names the keys and the way out.

mod bounds;
mod pool;
mod position;

pub(crate) use bounds::parameters;

use crate::{
    BlockStyle, ChannelAttention, ConfigError, GatePlace, ImageSize, Mixer, MlpKind, ModelConfig, Normalizer,
    Pool, Position, PositionPlace, RelativePosition, Tokenizer,
};

type Checked = Result<(), ConfigError>;

fn fail(message: impl Into<String>) -> Checked {
    Err(ConfigError(message.into()))
}

/// An error with this message if `wrong`.
fn refuse(wrong: bool, message: &str) -> Checked {
    if wrong { fail(message) } else { Ok(()) }
}

impl ModelConfig {
    /// Checks that all parts fit together, and that every stated key has an effect.
    ///
    /// # Errors
    /// If they do not. The message names the keys, with their values and the way out.
    ///
    /// # Examples
    ///
    /// ```
    /// use vitrine_models::{ModelConfig, preset};
    ///
    /// let config = preset::find("vit_pico_patch4_32").expect("listed");
    /// assert_eq!(config.validate(), Ok(()));
    ///
    /// let error = ModelConfig { patch_size: 5, ..config }.validate().expect_err("32 is not divisible by 5");
    /// assert_eq!(
    ///     error.to_string(),
    ///     "`image_size` 32x32 is not divisible by `patch_size` 5: patches of 1, 2, 4, 8, 16, 32 would fit"
    /// );
    /// ```
    pub fn validate(&self) -> Checked {
        bounds::check(self)?;
        self.check_sizes()?;
        self.check_tokenizer()?;
        self.check_stages()?;
        bounds::check_together(self)?;
        self.check_tokens()?;
        self.check_position()?;
        self.check_attention()?;
        self.check_mixers()?;
        self.check_numbers()
    }

    fn check_sizes(&self) -> Checked {
        if self.mlp_ratio <= 0.0 {
            return fail(format!("`mlp_ratio` is {}: a number above 0 is needed", self.mlp_ratio));
        }
        let least = |values: &[usize]| values.iter().copied().min().unwrap_or(0);
        for (key, value) in [
            ("image_size", self.image_size.height.min(self.image_size.width)),
            ("channels", self.channels),
            ("num_classes", self.num_classes),
            ("patch_size", self.patch_size),
            ("embed_dim", self.embed_dim),
            ("depth", least(&self.depth.0)),
            ("num_heads", least(&self.num_heads.0)),
            ("mlp_ratio", self.mlp_dim(0)),
            ("mixers", self.mixers.len()),
            ("head_hidden", self.head_hidden.iter().copied().min().unwrap_or(1)),
        ] {
            if value == 0 {
                return fail(format!("`{key}` leaves nothing: it must be at least 1"));
            }
        }
        Ok(())
    }

    fn check_tokenizer(&self) -> Checked {
        self.check_patches()?;
        match self.tokenizer {
            Tokenizer::Patch => Ok(()),
            Tokenizer::ShiftedPatch => refuse(
                self.patch_size < 2,
                "`tokenizer = \"shifted_patch\"` needs a `patch_size` of at least 2",
            ),
            Tokenizer::Convolution { layers, kernel_size } => self.check_convolutions(layers, kernel_size),
            Tokenizer::Residual { width, stride } => self.check_residual_stages(width, stride),
        }
    }

    fn check_patches(&self) -> Checked {
        let ImageSize { height, width } = self.image_size;
        if !height.is_multiple_of(self.patch_size) || !width.is_multiple_of(self.patch_size) {
            let fitting: Vec<String> = (1..=height.min(width))
                .filter(|p| height % p == 0 && width % p == 0)
                .map(|p| p.to_string())
                .collect();
            return fail(format!(
                "`image_size` {} is not divisible by `patch_size` {}: patches of {} would fit",
                self.image_size,
                self.patch_size,
                fitting.join(", ")
            ));
        }
        Ok(())
    }

    fn check_convolutions(&self, layers: usize, kernel_size: usize) -> Checked {
        if kernel_size.is_multiple_of(2) {
            return fail(format!("`tokenizer`: `kernel_size` {kernel_size} must be odd"));
        }
        let patch = u32::try_from(layers).ok().and_then(|layers| 2usize.checked_pow(layers));
        if layers == 0 || patch != Some(self.patch_size) {
            return fail(format!(
                "`tokenizer`: {layers} convolutions halve the image {layers} times, so `patch_size` must be 2 to that \
                 power, and is {}",
                self.patch_size
            ));
        }
        Ok(())
    }

    fn check_residual_stages(&self, width: usize, stride: usize) -> Checked {
        refuse(width == 0, "`tokenizer`: `width` leaves nothing: it must be at least 1")?;
        refuse(stride == 0, "`tokenizer`: `stride` leaves nothing: it must be at least 1")?;
        let halved = self.patch_size / stride;
        if halved < 2 || !halved.is_power_of_two() || !self.patch_size.is_multiple_of(stride) {
            let of_stride =
                if stride == 1 { String::new() } else { format!(" times the `stride`, {stride}") };
            return fail(format!(
                "`tokenizer`: each stage of `residual` halves the image, so `patch_size` must be 2, 4, 8 or a higher \
                 power of 2{of_stride}, and is {}",
                self.patch_size
            ));
        }
        Ok(())
    }

    fn check_stages(&self) -> Checked {
        let stages = self.num_stages();
        if self.num_heads.stages() != stages {
            return fail(format!(
                "`num_heads` lists {} stages and `depth` {stages}: both need one number per stage",
                self.num_heads.stages()
            ));
        }
        for stage in 0..stages {
            let (dim, heads) = (self.stage_dim(stage), self.num_heads[stage]);
            if !dim.is_multiple_of(heads) {
                return match stages {
                    1 => fail(format!("`embed_dim` {dim} is not divisible by `num_heads` {heads}")),
                    _ => fail(format!(
                        "in stage {} the width {dim} (`embed_dim` times 2 a stage) is not divisible by `num_heads` {heads}",
                        stage + 1
                    )),
                };
            }
            if stage > 0 && self.stage_grid(stage - 1) == [1, 1] {
                return fail(format!(
                    "`depth` lists {stages} stages, but before stage {} a single token is left: take a smaller \
                     `patch_size` or fewer stages",
                    stage + 1
                ));
            }
        }
        if stages == 1 {
            return Ok(());
        }
        refuse(
            self.class_token || self.distillation_token || self.registers > 0,
            "a model of several stages merges patches and has no place for `class_token`, `distillation_token` or \
             `registers`: leave them out (`class_token = false`)",
        )?;
        refuse(
            self.position_place != PositionPlace::Tokens,
            "`position_place = \"query_key\"` and `\"first_query_key\"` need a single stage",
        )
    }

    fn check_tokens(&self) -> Checked {
        refuse(
            self.pool.reads_class_token() && !self.class_token,
            "`pool = \"class_token\"` and `\"class_token_mean\"` need `class_token = true`; or use `pool = \"mean\"`",
        )?;
        refuse(
            self.pool == Pool::NormalizedMean
                && (self.num_stages() > 1 || self.block == BlockStyle::PostNorm),
            "`pool = \"normalized_mean\"` is what `pool = \"mean\"` is in a model of stages or of blocks with \
             `post_norm`: write `mean`",
        )?;
        refuse(
            self.distillation_token && self.pool != Pool::ClassToken,
            "`distillation_token` needs `pool = \"class_token\"`: its head stands next to that one",
        )?;
        self.check_pool()?;
        self.check_two_depths()?;
        if self.class_depth > 0 {
            refuse(
                self.pool != Pool::ClassToken || self.num_stages() > 1,
                "`class_depth` needs `pool = \"class_token\"` and a single stage: its blocks change the class token alone",
            )?;
            refuse(
                self.distillation_token || self.registers > 0,
                "`class_depth` puts the class token after the blocks: leave out `distillation_token` and `registers`",
            )?;
            refuse(self.mlp_norm, "`class_depth` has blocks without `mlp_norm`: leave one of them out")?;
            refuse(self.block != BlockStyle::PreNorm, "`class_depth` needs `block = \"pre_norm\"`")?;
            refuse(
                self.mlp == MlpKind::DepthwiseChannel,
                "`mlp = \"depthwise_channel\"` needs the patches, which the blocks of `class_depth` do not change",
            )?;
        }
        refuse(
            !self.prefix_position && (self.position != Position::Learned || self.num_prefix_tokens() == 0),
            "`prefix_position = false` says something of learned positions of prefix tokens alone: leave it out",
        )
    }

    fn check_attention(&self) -> Checked {
        let options = &self.attention;
        refuse(
            options.qk_norm && options.score.normalizes(),
            "`qk_norm` with a `score` that normalizes queries and keys already, as `cosine` does: leave one of them out",
        )?;
        refuse(
            options.normalizer != Normalizer::Softmax && options.talking_heads,
            "`talking_heads` mix weights that sum to 1: they need `normalizer = \"softmax\"`",
        )?;
        refuse(
            options.score.hides_own_token() && options.talking_heads,
            "`talking_heads` would mix what the `score` hides, as `locality` does: choose one of them",
        )?;
        refuse(
            options.talking_heads && self.mixers.iter().any(|mixer| mixer.masks_tokens()),
            "`talking_heads` give hidden tokens a weight again: `mixers` may have no shifted windows or neighborhoods",
        )?;
        let has_pairs = |mixer: &Mixer| mixer.has_windows() || *mixer == Mixer::Global;
        let (windowed, suits) =
            (self.mixers.iter().any(|mixer| mixer.has_windows()), self.mixers.iter().any(has_pairs));
        refuse(
            options.relative_position.is_some() && !suits,
            "`relative_position` is of windows and of attention among all tokens, and `mixers` has neither",
        )?;
        refuse(
            options.relative_position == Some(RelativePosition::None) && !windowed,
            "`relative_position = \"none\"` has no effect without windows: leave it out",
        )?;
        self.check_pretrained_windows(windowed)?;
        self.channel_attention.map_or(Ok(()), |gate| self.check_gate(gate))
    }

    fn check_pretrained_windows(&self, windowed: bool) -> Checked {
        let Some(sides) = &self.pretrained_windows else { return Ok(()) };
        let is_continuous = self.attention.relative_position == Some(RelativePosition::Continuous);
        refuse(
            !windowed || !is_continuous,
            "`pretrained_windows` scales the offsets of `relative_position = \"continuous\"` in windows, of which there are none: \
             leave it out",
        )?;
        if sides.stages() != self.num_stages() || sides.0.iter().any(|side| *side < 2) {
            return fail(format!(
                "`pretrained_windows` is {sides}: {} sides of windows are needed, one for each stage, of at least 2 tokens",
                self.num_stages()
            ));
        }
        Ok(())
    }

    fn check_gate(&self, gate: ChannelAttention) -> Checked {
        refuse(
            !gate.kind.has_bottleneck() && gate.reduction.is_some(),
            "`channel_attention`: `efficient` and `spatial` have no bottleneck and take no `reduction`",
        )?;
        refuse(
            gate.reduction.is_some_and(|reduction| !(1..=self.embed_dim).contains(&reduction)),
            "`channel_attention`: `reduction` must be from 1 to `embed_dim`",
        )?;
        let has_maps = match self.tokenizer {
            Tokenizer::Convolution { .. } | Tokenizer::Residual { .. } => true,
            Tokenizer::Patch | Tokenizer::ShiftedPatch => false,
        };
        refuse(
            gate.place == GatePlace::Tokenizer && !has_maps,
            "`channel_attention`: `place = \"tokenizer\"` needs a `tokenizer` with maps: convolution or residual",
        )
    }

    fn check_mixers(&self) -> Checked {
        let longest = self.depth.0.iter().copied().max().unwrap_or(0);
        if self.mixers.len() > longest {
            return fail(format!(
                "`mixers` lists {} and no stage has more than {longest} blocks (`depth`): the last ones would not be used",
                self.mixers.len()
            ));
        }
        refuse(
            self.adjacency.is_some() && !self.mixers.contains(&Mixer::Adjacency),
            "`adjacency` is of the mixer `adjacency`, and `mixers` does not list it",
        )?;
        self.mixers.iter().try_for_each(|mixer| mixer.check(self))
    }

    fn check_numbers(&self) -> Checked {
        for (key, value) in [
            ("dropout", self.dropout),
            ("attention_dropout", self.attention_dropout),
            ("drop_path", self.drop_path),
        ] {
            if !(0.0..1.0).contains(&value) {
                return fail(format!("`{key}` is {value}: a probability in [0, 1) is needed"));
            }
        }
        refuse(
            self.drop_path > 0.0 && self.depth.sum() == 1 && self.class_depth == 0,
            "`drop_path` rises from 0 in the first block, and `depth` is a single one: leave it out",
        )?;
        if !(self.norm_epsilon > 0.0 && self.norm_epsilon <= 1.0) {
            return fail(format!(
                "`norm_epsilon` is {}: it must be above 0 and at most 1",
                self.norm_epsilon
            ));
        }
        refuse(
            self.layer_scale.is_some_and(|value| !value.is_finite()),
            "`layer_scale` must be a finite number",
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Score;
    use crate::{ChannelGate, RotaryCoordinates, RotaryOptions};

    fn small() -> ModelConfig {
        toml::from_str("image_size = 32\npatch_size = 4\nembed_dim = 48\ndepth = 2\nnum_heads = 3").unwrap()
    }

    #[test]
    fn errors_name_the_keys_that_do_not_fit() {
        type Change = fn(&mut ModelConfig);
        let cases: [(&str, Change); 40] = [
            ("patch_size", |c| c.patch_size = 5),
            ("num_heads", |c| c.num_heads = 5.into()),
            ("num_heads", |c| c.num_heads = [3, 3].into()),
            ("depth", |c| c.depth = 0.into()),
            ("class_token", |c| c.class_token = false),
            ("class_token", |c| {
                c.depth = [2, 2].into();
                c.num_heads = [3, 3].into();
            }),
            ("dropout", |c| c.dropout = 1.0),
            ("drop_path", |c| c.drop_path = f64::NAN),
            ("norm_epsilon", |c| c.norm_epsilon = 0.0),
            ("norm_epsilon", |c| c.norm_epsilon = 1e3),
            ("embed_dim", |c| {
                c.embed_dim = 51;
                c.position = Position::Sinusoidal2d;
            }),
            ("embed_dim", |c| {
                c.embed_dim = 42;
                c.position = Position::Rotary;
            }),
            ("rotary.grid", |c| {
                c.position = Position::Rotary;
                c.rotary = Some(RotaryOptions { grid: Some([0, 8]), ..RotaryOptions::default() });
            }),
            ("rotary.grid", |c| {
                let coordinates = RotaryCoordinates::Centered;
                let grid = Some([8, 8]);
                c.position = Position::Rotary;
                c.rotary = Some(RotaryOptions { coordinates, grid, ..RotaryOptions::default() });
            }),
            ("pretrained_windows", |c| c.pretrained_windows = Some(8.into())),
            ("mixers", |c| c.mixers = vec![Mixer::Window(4)]),
            ("mixers", |c| c.mixers = Vec::new()),
            ("neighborhood", |c| c.mixers = vec![Mixer::Neighborhood(0)]),
            ("kernel_size", |c| c.tokenizer = Tokenizer::Convolution { layers: 2, kernel_size: 2 }),
            ("patch_size", |c| c.tokenizer = Tokenizer::Convolution { layers: 1, kernel_size: 3 }),
            ("stride", |c| c.tokenizer = Tokenizer::Residual { width: 4, stride: 0 }),
            ("stride", |c| c.tokenizer = Tokenizer::Residual { width: 4, stride: 3 }),
            ("width", |c| c.tokenizer = Tokenizer::Residual { width: 0, stride: 1 }),
            ("position_place", |c| {
                c.position = Position::None;
                c.position_place = PositionPlace::QueryKey;
            }),
            ("qk_norm", |c| {
                c.attention.qk_norm = true;
                c.attention.score = Score::Cosine;
            }),
            ("cross_covariance", |c| {
                c.mixers = vec![Mixer::CrossCovariance];
                c.attention.score = Score::Dot;
            }),
            ("relative_position", |c| c.attention.relative_position = Some(RelativePosition::None)),
            ("class_depth", |c| {
                c.class_depth = 2;
                c.registers = 1;
            }),
            ("reduction", |c| {
                c.channel_attention = Some(ChannelAttention {
                    kind: ChannelGate::Spatial,
                    reduction: Some(4),
                    place: GatePlace::Mixer,
                });
            }),
            ("place", |c| {
                c.channel_attention = Some(ChannelAttention {
                    kind: ChannelGate::Spatial,
                    reduction: None,
                    place: GatePlace::Tokenizer,
                });
            }),
            ("full_neighborhood", |c| c.mixers = vec![Mixer::FullNeighborhood(7)]),
            ("graph.neighbors", |c| c.mixers = vec![Mixer::Graph { neighbors: 63 }]),
            ("adjacency", |c| c.mixers = vec![Mixer::Adjacency]),
            ("names a patch beyond", |c| {
                c.mixers = vec![Mixer::Adjacency];
                c.adjacency = Some(vec![[0, 1], [2, 64]]);
            }),
            ("pool.queries", |c| c.pool = Pool::Queries(0)),
            ("pool_score", |c| c.pool_score = Some(Score::Additive)),
            ("pool_score", |c| {
                c.pool = Pool::Attention;
                c.pool_score = Some(Score::Locality);
            }),
            ("head_hidden", |c| {
                c.pool = Pool::ClassQueries { depth: 1 };
                c.head_hidden = vec![8];
            }),
            ("position_place", |c| {
                c.position = Position::Conditional;
                c.position_place = PositionPlace::FirstQueryKey;
            }),
            ("reduction", |c| {
                c.channel_attention = Some(ChannelAttention {
                    kind: ChannelGate::Cbam,
                    reduction: Some(0),
                    place: GatePlace::Mixer,
                });
            }),
        ];
        for (key, spoil) in cases {
            let mut config = small();
            assert_eq!(config.validate(), Ok(()));
            spoil(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(key), "{key}: {error}");
        }
    }
}
