//! From the path of a parameter in a model to its key and shape in timm's files.

use crate::{ModelConfig, Tokenizer};

/// Parts of parameter paths in this crate, whose fields are named after their role, and the same parts in timm's keys.
const NAMES: &[(&str, &str)] = &[
    (".pooling.attention.", ".attn_pool."),
    (".pooling.latent.", ".attn_pool.latent."),
    (".pooling.norm.", ".attn_pool.norm."),
    (".pooling.mlp.", ".attn_pool.mlp."),
    (".pooling.sequence.", ".attention_pool."),
    (".pooling.queries.", ".attn_pool.queries."),
    (".pooling.initial.", ".attn_pool.initial."),
    (".pooling.gru.", ".attn_pool.gru."),
    // The queries depend on the classes, as the head does.
    (".pooling.class_queries.", ".head.queries."),
    (".pooling.layers.", ".decoder.layers."),
    (".pooling.final_norm.", ".decoder.norm."),
    (".pooling.", "."),
    (".class_token.", ".cls_token."),
    (".distillation_token.", ".dist_token."),
    (".registers.", ".reg_token."),
    (".position.learned.", ".pos_embed."),
    (".pre_norm.", ".norm_pre."),
    (".tokenizer.", "."),
    (".class_blocks.", ".blocks_token_only."),
    (".mixer_norm.", ".norm1."),
    (".mixer_scale.", ".ls1."),
    (".mlp_norm.", ".norm2."),
    (".mlp_scale.", ".ls2."),
    (".mixer.", ".attn."),
    (".inner.", "."),
    (".separate_bias.", "."),
    (".qk_norm.", "."),
    (".score.query.", ".additive.query."),
    (".score.key.", ".additive.key."),
    (".score.vector.", ".additive.vector."),
    (".score.", "."),
    (".talking_heads.scores.", ".proj_l."),
    (".talking_heads.weights.", ".proj_w."),
    (".relative_position.offsets.table.", ".relative_position_bias_table."),
    (".relative_position.offsets.hidden.", ".cpb_mlp.0."),
    (".relative_position.offsets.output.", ".cpb_mlp.2."),
];

/// The path of a parameter during a traversal of the model: the names and types of the modules around it.
pub(super) struct ParameterPath {
    names: Vec<String>,
    containers: Vec<String>,
    /// Names that depend on the architecture, after [`NAMES`].
    special: Vec<(&'static str, &'static str)>,
    /// The channels of the image, if the patch embedding is stored as a convolution.
    convolution: Option<usize>,
}

impl ParameterPath {
    pub(super) fn new(config: &ModelConfig) -> Self {
        let mut special = match config.num_stages() {
            1 => vec![
                (".stages.0.", "."),
                (".distillation_head.output.", ".head_dist."),
                (".distillation_head.", ".head_dist."),
                (".head.output.", ".head."),
            ],
            _ => vec![(".stages.", ".layers."), (".head.output.", ".head.fc.")],
        };
        if config.class_depth > 0 {
            special.extend([(".ls1.gamma.", ".gamma_1."), (".ls2.gamma.", ".gamma_2.")]);
        }
        let convolution = (config.tokenizer == Tokenizer::Patch).then_some(config.channels);
        Self { names: Vec::new(), containers: Vec::new(), special, convolution }
    }

    pub(super) fn enter(&mut self, name: &str, container: &str) {
        self.names.push(name.to_owned());
        self.containers.push(container.to_owned());
    }

    pub(super) fn exit(&mut self) {
        self.names.pop();
        self.containers.pop();
    }

    /// The parameter's key in timm.
    pub(super) fn key(&self) -> String {
        // Variants of enums, which begin with a capital letter, are no part of a key.
        let fields: Vec<&str> = self
            .names
            .iter()
            .map(String::as_str)
            .filter(|name| !name.starts_with(|c: char| c.is_ascii_uppercase()))
            .collect();
        let key = format!(".{}.", fields.join("."));
        let renamed = NAMES.iter().fold(key, |key, (ours, theirs)| key.replace(ours, theirs));
        // Only the model's own stages, which are at the start of a key, are renamed: tokenizers have stages, too.
        let renamed =
            self.special.iter().fold(renamed, |key, (ours, theirs)| match ours.strip_prefix(".stages") {
                Some(_) => key.strip_prefix(ours).map(|rest| format!("{theirs}{rest}")).unwrap_or(key),
                None => key.replace(ours, theirs),
            });
        renamed.trim_matches('.').to_owned()
    }

    /// Whether the parameter is the `[input, output]` matrix of a linear layer.
    pub(super) fn is_linear_weight(&self, rank: usize) -> bool {
        rank == 2 && self.containers.iter().any(|container| container == "Struct:Linear")
    }

    /// The shape that timm stores for a parameter of this shape.
    pub(super) fn stored_shape(&self, shape: &[usize]) -> Vec<usize> {
        match *shape {
            [input, output] if self.is_linear_weight(2) => match self.convolution {
                Some(channels) if self.names.first().is_some_and(|name| name == "patch_embed") => {
                    let side = (input / channels).isqrt();
                    vec![output, channels, side, side]
                }
                _ => vec![output, input],
            },
            _ => shape.to_vec(),
        }
    }
}
