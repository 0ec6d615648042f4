//! Naming layouts of files: how to recognize a library's names, and how to translate them to timm's.

pub mod hugging_face;
mod names;
mod open_clip;
mod parts;
pub mod torchvision;

use super::NamedTensor;
use crate::ModelConfig;
use crate::position::Resampling;
use names::merge_of_next_stage;

listed! {
    /// The names that a library gives to the parameters of a Vision Transformer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Layout {
        /// timm, and libraries that derive from it.
        Timm,
        /// Hugging Face's transformers.
        HuggingFace,
        /// torchvision.
        Torchvision,
        /// Microsoft's Swin and Swin v2, and earlier versions of timm's: patch merging belongs to the previous stage.
        Microsoft,
    }
}

impl Layout {
    /// The name of the layout for users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Timm => "timm",
            Self::HuggingFace => "hugging-face",
            Self::Torchvision => "torchvision",
            Self::Microsoft => "microsoft",
        }
    }

    /// The libraries whose files have this layout, in a few words.
    pub fn about(self) -> &'static str {
        match self {
            Self::Timm => "timm, and what derives from it",
            Self::HuggingFace => "Hugging Face's transformers",
            Self::Torchvision => "torchvision",
            Self::Microsoft => "Microsoft's Swin, and old versions of timm's",
        }
    }

    /// Whether file names are timm's names of architectures.
    pub fn has_timms_file_names(self) -> bool {
        match self {
            Self::Timm | Self::Microsoft => true,
            Self::HuggingFace | Self::Torchvision => false,
        }
    }

    /// Whether the norms of the library's plain ViT have an epsilon of 1e-12; timm's have 1e-6.
    pub(super) fn has_tiny_epsilon(self) -> bool {
        match self {
            Self::HuggingFace => true,
            Self::Timm | Self::Torchvision | Self::Microsoft => false,
        }
    }

    /// The filter by which the library resamples the positions of such a model for images of another size.
    pub fn resampling(self, config: &ModelConfig) -> Resampling {
        match self {
            // A register of DeiT, which has no LayerScale, is its distillation token.
            Self::HuggingFace if config.registers == 0 || config.layer_scale.is_none() => Resampling::Plain,
            Self::HuggingFace | Self::Timm | Self::Torchvision | Self::Microsoft => Resampling::Antialiased,
        }
    }

    /// Whether the library pads a grid that is smaller than a window; timm shrinks the window.
    pub(super) fn pads_small_grids(self) -> bool {
        match self {
            Self::Torchvision => true,
            Self::Timm | Self::HuggingFace | Self::Microsoft => false,
        }
    }

    /// The layout of a file with these keys, recognized by the name of the patch embedding; `None` if there is no such
    /// key.
    ///
    /// # Examples
    ///
    /// ```
    /// use vitrine_models::weights::Layout;
    ///
    /// assert_eq!(Layout::recognize(["cls_token", "patch_embed.proj.weight"]), Some(Layout::Timm));
    /// assert_eq!(Layout::recognize(["class_token", "conv_proj.weight"]), Some(Layout::Torchvision));
    /// assert_eq!(Layout::recognize(["conv1.weight"]), None);
    /// ```
    pub fn recognize<'a>(keys: impl IntoIterator<Item = &'a str> + Clone) -> Option<Self> {
        let any = |test: &dyn Fn(&str) -> bool| keys.clone().into_iter().any(test);
        if any(&|key| key == "conv_proj.weight" || key == "features.0.0.weight") {
            Some(Self::Torchvision)
        } else if any(&|key| hugging_face::PATCH_EMBEDDINGS.iter().any(|end| key.ends_with(end))) {
            Some(Self::HuggingFace)
        } else if any(&|key| key == open_clip::PATCH_EMBEDDING) {
            Some(Self::Timm)
        } else if any(&|key| key == "patch_embed.proj.weight") {
            let old = any(&|key| key.starts_with("layers.0.downsample."));
            Some(if old { Self::Microsoft } else { Self::Timm })
        } else {
            None
        }
    }

    /// The tensors under the names and in the form of the current timm. A tensor with an unknown name keeps it.
    ///
    /// # Examples
    ///
    /// ```
    /// use vitrine_models::weights::{Layout, NamedTensor};
    ///
    /// let name = "encoder.layers.encoder_layer_3.ln_1.bias".to_owned();
    /// let theirs = NamedTensor { name, shape: vec![2], values: vec![0.5, -0.5] };
    /// let timms = Layout::Torchvision.to_timm(vec![theirs]);
    /// assert_eq!(timms[0].name, "blocks.3.norm1.bias");
    /// assert_eq!(timms[0].values, [0.5, -0.5]);
    /// ```
    pub fn to_timm(self, tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
        let tensors = match self {
            Self::Timm => {
                let tensors = open_clip::to_timm_names(tensors);
                hugging_face::join_projections(tensors.into_iter().map(unfused).collect())
            }
            Self::HuggingFace => hugging_face::to_timm_names(tensors),
            Self::Torchvision => torchvision::to_timm_names(tensors),
            Self::Microsoft => tensors.into_iter().map(microsoft).collect(),
        };
        modernize(tensors, self == Self::Timm)
    }
}

/// The reason why no model computes with the tensor of this key; `None` if there is no known reason.
///
/// # Examples
///
/// ```
/// use vitrine_models::weights::unused;
///
/// assert_eq!(unused("mask_token"), Some("used in pre-training alone"));
/// assert_eq!(unused("blocks.0.attn.qkv.weight"), None);
/// ```
pub fn unused(key: &str) -> Option<&'static str> {
    let reasons: [(&str, &[&str]); 5] = [
        (
            "a table that follows from the architecture",
            &["relative_position_index", "relative_coords_table", "attn_mask", "position_ids"],
        ),
        ("used in pre-training alone", &["mask_token"]),
        ("a layer before a head that is not there", &["pooler.dense.weight", "pooler.dense.bias"]),
        ("a layer that timm leaves out too", &["pre_logits.fc.weight", "pre_logits.fc.bias"]),
        ("a count of training steps", &["n_averaged"]),
    ];
    let last = |end: &str| key == end || key.ends_with(&format!(".{end}"));
    // MAE's own files have `decoder_blocks.0.` and transformers' `decoder.decoder_layers.0.`.
    if key.starts_with("decoder_") || key.starts_with("decoder.decoder_") {
        return Some("the decoder of pre-training by masking");
    }
    if key.starts_with("text_model.")
        || open_clip::is_text(key)
        || key == "logit_scale"
        || key == "logit_bias"
    {
        return Some("the text half of the model");
    }
    reasons.into_iter().find(|(_, ends)| ends.iter().any(|end| last(end))).map(|(reason, _)| reason)
}

/// timm's names of separate queries, keys, and values, as those of this crate for the parts of the joint projection.
fn unfused(tensor: NamedTensor) -> NamedTensor {
    let parts = ["q", "k", "v"].map(|part| (format!(".attn.{part}_proj."), format!(".attn.{part}.")));
    let is_block = tensor.name.starts_with("blocks.");
    let part = parts.into_iter().find(|(theirs, _)| is_block && tensor.name.contains(theirs));
    match part {
        Some((theirs, ours)) => NamedTensor { name: tensor.name.replace(&theirs, &ours), ..tensor },
        None => tensor,
    }
}

fn microsoft(tensor: NamedTensor) -> NamedTensor {
    NamedTensor { name: merge_of_next_stage(&tensor.name).replace("head.", "head.fc."), ..tensor }
}

/// The changes that timm's loader makes to files of earlier versions and of the papers' authors.
fn modernize(tensors: Vec<NamedTensor>, is_timm: bool) -> Vec<NamedTensor> {
    // In CaiT, `gamma_1` is still the current name.
    let is_cait = tensors.iter().any(|tensor| tensor.name.starts_with("blocks_token_only."));
    let has = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
    // Hugging Face's DeiT without the distillation head: its distillation token has no head, so that it is a register.
    let unseen_token = has("dist_token") && has("head.weight") && !has("head_dist.weight");
    let registers_have_no_place = tensors.iter().any(|tensor| tensor.name == "register_tokens");
    let mut tensors: Vec<NamedTensor> = tensors
        .into_iter()
        .map(|mut tensor| {
            if !is_cait {
                tensor.name = tensor.name.replace(".gamma_1", ".ls1.gamma").replace(".gamma_2", ".ls2.gamma");
            }
            if tensor.name == "register_tokens" || tensor.name == "storage_tokens" {
                tensor.name = "reg_token".to_owned();
            }
            if unseen_token && tensor.name == "dist_token" {
                tensor.name = "reg_token".to_owned();
            }
            if is_timm {
                flat_patches_to_squares(&mut tensor);
            }
            tensor
        })
        .collect();
    if registers_have_no_place {
        add_class_position(&mut tensors);
    }
    parts::completed(tensors)
}

/// Reshapes a patch embedding that is stored as a matrix `[dim, 3 * side * side]` to a convolution.
fn flat_patches_to_squares(tensor: &mut NamedTensor) {
    if let ("patch_embed.proj.weight", &[dim, values]) = (tensor.name.as_str(), tensor.shape.as_slice()) {
        let side = (values / 3).isqrt();
        if 3 * side * side == values {
            tensor.shape = vec![dim, 3, side, side];
        }
    }
}

/// Adds the position of the class token to the class token itself. DINOv2 with registers has a position for the class
/// token and none for the registers (timm's `checkpoint_filter_fn`).
fn add_class_position(tensors: &mut [NamedTensor]) {
    let find = |tensors: &[NamedTensor], name: &str| tensors.iter().position(|tensor| tensor.name == name);
    let (Some(token), Some(position)) = (find(tensors, "cls_token"), find(tensors, "pos_embed")) else {
        return;
    };
    let dim = tensors[token].values.len();
    let [1, places, width] = tensors[position].shape[..] else { return };
    if width != dim || places < 2 {
        return;
    }
    let first: Vec<f32> = tensors[position].values.drain(..dim).collect();
    tensors[position].shape[1] -= 1;
    tensors[token].values.iter_mut().zip(first).for_each(|(token, place)| *token += place);
}

#[cfg(test)]
mod tests {
    use super::names::merge_of_previous_stage;
    use super::*;

    fn tensor(name: &str, shape: &[usize]) -> NamedTensor {
        let count: usize = shape.iter().product();
        NamedTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            values: (0..count).map(|value| value as f32).collect(),
        }
    }

    #[test]
    fn layouts_are_recognized_by_keys() {
        let cases: [(&[&str], Option<Layout>); 8] = [
            (&["cls_token", "patch_embed.proj.weight"], Some(Layout::Timm)),
            (&["patch_embed.proj.weight", "layers.1.downsample.norm.weight"], Some(Layout::Timm)),
            (&["patch_embed.proj.weight", "layers.0.downsample.norm.weight"], Some(Layout::Microsoft)),
            (&["conv_proj.weight"], Some(Layout::Torchvision)),
            (&["features.0.0.weight"], Some(Layout::Torchvision)),
            (&["vit.embeddings.patch_embeddings.projection.weight"], Some(Layout::HuggingFace)),
            (&["vision_model.embeddings.patch_embedding.weight"], Some(Layout::HuggingFace)),
            (&["conv1.weight"], None),
        ];
        for (keys, layout) in cases {
            assert_eq!(Layout::recognize(keys.iter().copied()), layout, "{keys:?}");
        }
    }

    #[test]
    fn microsofts_merging_belongs_to_the_stage_that_it_begins() {
        let names = |tensors: Vec<NamedTensor>| -> Vec<String> {
            Layout::Microsoft.to_timm(tensors).into_iter().map(|tensor| tensor.name).collect()
        };
        let theirs = ["layers.0.downsample.norm.bias", "layers.0.blocks.1.norm1.bias", "head.bias"];
        assert_eq!(
            names(theirs.map(|name| tensor(name, &[1])).into()),
            ["layers.1.downsample.norm.bias", "layers.0.blocks.1.norm1.bias", "head.fc.bias"]
        );
        assert_eq!(merge_of_previous_stage("layers.3.downsample.norm.bias"), "layers.2.downsample.norm.bias");
    }

    #[test]
    fn a_class_token_includes_its_position_if_registers_have_none() {
        let tensors = vec![
            tensor("register_tokens", &[1, 2, 2]),
            tensor("cls_token", &[1, 1, 2]),
            tensor("pos_embed", &[1, 5, 2]),
        ];
        let tensors = Layout::Timm.to_timm(tensors);
        assert_eq!(tensors[0].name, "reg_token");
        assert_eq!(tensors[1].values, [0.0, 2.0]);
        assert_eq!(
            (tensors[2].shape.as_slice(), tensors[2].values[..2].to_vec()),
            (&[1, 4, 2][..], vec![2.0, 3.0])
        );
    }

    #[test]
    fn tensors_that_no_model_computes_with_have_a_reason() {
        assert!(unused("layers.0.blocks.1.attn.relative_position_index").is_some());
        assert!(unused("decoder.decoder_layers.0.layernorm_before.bias").is_some());
        assert!(unused("decoder.layers.0.norm1.bias").is_none());
        assert!(unused("text_model.encoder.layers.0.mlp.fc1.weight").is_some());
        assert!(unused("blocks.0.attn.qkv.weight").is_none());
        assert!(unused("layers.0.blocks.0.attn.logit_scale").is_none());
    }
}
