//! What plain transformers and those of stages have in common, read from the shapes of their tensors.

use std::collections::BTreeMap;

use super::{Guess, OpenFact, Read, UnknownArchitecture};
use crate::weights::{Facts, Layout};
use crate::{ModelConfig, preset};

/// The shapes of a model's tensors by timm's names, the stated facts, and what has been guessed and noted so far.
pub(super) struct Reader<'a> {
    pub(super) shapes: BTreeMap<&'a str, &'a [usize]>,
    pub(super) layout: Layout,
    pub(super) facts: &'a Facts,
    pub(super) guesses: Vec<Guess>,
    pub(super) notes: Vec<String>,
}

impl Reader<'_> {
    pub(super) fn has(&self, key: &str) -> bool {
        self.shapes.contains_key(key)
    }

    /// One more than the highest number after `prefix`.
    pub(super) fn count(&self, prefix: &str) -> usize {
        let numbers =
            self.shapes.keys().filter_map(|key| key.strip_prefix(prefix)?.split('.').next()?.parse().ok());
        numbers.max().map_or(0, |highest: usize| highest.saturating_add(1)).min(self.shapes.len())
    }

    /// The width of a token, and the channels and the side of a patch.
    pub(super) fn patch_embedding(&self) -> Read<[usize; 3]> {
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

    /// The rows and columns of a layer of an MLP.
    fn mlp_layer(&self, block: &str, layer: &str) -> Option<[usize; 2]> {
        let shape = self.shapes.get(format!("{block}mlp.{layer}.weight").as_str())?;
        Some([*shape.first()?, *shape.get(1)?])
    }

    /// Whether the first layer of an MLP is twice as wide as the input of the second: SwiGLU.
    pub(super) fn is_gated(&self, block: &str) -> bool {
        match (self.mlp_layer(block, "fc1"), self.mlp_layer(block, "fc2")) {
            (Some([both, _]), Some([_, hidden])) => both == hidden.saturating_mul(2),
            _ => false,
        }
    }

    /// The width of an MLP's hidden values as a multiple of `dim`, if the first layer is `parts` times as wide.
    pub(super) fn mlp_ratio(&self, block: &str, dim: usize, parts: usize) -> Read<f64> {
        match (self.mlp_layer(block, "fc1"), self.mlp_layer(block, "fc2")) {
            (Some([rows, _]), Some([_, hidden])) if rows == hidden.saturating_mul(parts) => {
                let ratio = hidden as f64 / dim as f64;
                // The configuration rounds the width down: the ratio must not be below the quotient.
                Ok(if (dim as f64 * ratio) as usize == hidden { ratio } else { ratio + 1e-9 })
            }
            (Some(_), Some(_)) => fail(format!("the layers of `{block}mlp` do not fit each other")),
            _ => fail(format!("`{block}mlp.fc1.weight` or `{block}mlp.fc2.weight` is missing")),
        }
    }

    pub(super) fn epsilon(&mut self, usual: f64) -> f64 {
        if let Some(stated) = self.facts.norm_epsilon {
            return stated;
        }
        // CLIP's is PyTorch's in all libraries.
        if self.has("norm_pre.weight") {
            return 1e-5;
        }
        // Hugging Face's DINOv2 (which has LayerScale) and SigLIP (attention pooling) have the same epsilon as timm's.
        let is_plain_vit = !self.has("blocks.0.ls1.gamma") && !self.has("attn_pool.latent");
        if self.layout.has_tiny_epsilon() && usual < 1e-5 && is_plain_vit {
            self.guess(
                OpenFact::NormEpsilon,
                "an epsilon of 1e-12 in all norms is guessed, as Hugging Face's ViT has",
            );
            return 1e-12;
        }
        usual
    }

    /// The number of classes of the head at `key`, which takes vectors of width `dim`; `None` if there is no head.
    pub(super) fn head(&self, key: &str, dim: usize) -> Read<Option<usize>> {
        let bias = key.replace("weight", "bias");
        match self.shapes.get(key).copied() {
            Some(&[classes, width]) if width == dim && classes > 0 => Ok(Some(classes)),
            Some(shape) => fail(format!("`{key}` is {shape:?}, and vectors of {dim} reach the head")),
            None if self.has(&bias) => fail(format!("`{bias}` is there and `{key}` is not")),
            None => Ok(None),
        }
    }

    /// Records a guess: `text` says what was guessed and from what.
    pub(super) fn guess(&mut self, fact: OpenFact, text: impl Into<String>) {
        self.guesses.push(Guess { fact, text: text.into() });
    }
}

/// An error that no stated fact would help.
pub(super) fn fail<T>(message: impl Into<String>) -> Read<T> {
    Err(UnknownArchitecture { message: message.into(), open: None })
}

/// An error that goes away if `fact` is stated.
pub(super) fn fail_without<T>(fact: OpenFact, message: impl Into<String>) -> Read<T> {
    Err(UnknownArchitecture { message: message.into(), open: Some(fact) })
}

/// timm's values of everything that no weights tell.
pub(super) fn base() -> ModelConfig {
    preset::find("vit_tiny_patch16_224").expect("a preset")
}
