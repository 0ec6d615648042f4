//! The architecture of weights under timm's names, read from their shapes and from stated facts.

mod plain;
mod reader;
mod swin;
#[cfg(test)]
mod tests;
mod windows;

pub use windows::{check_windows, windows_fill_grids, windows_shrink};

use std::fmt::{self, Display};

use super::{Facts, Layout, NamedTensor};
use crate::{ConfigError, ModelConfig};
use reader::Reader;

/// An architecture, and how certain it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// The architecture; with one class if the file has no head.
    pub config: ModelConfig,
    /// Whether the file has a classifier.
    pub has_head: bool,
    /// Facts that change the logits, are stated nowhere, and were guessed.
    pub guesses: Vec<Guess>,
    /// What else is worth knowing, one sentence each.
    pub notes: Vec<String>,
}

listed! {
    /// A fact about an architecture that the shapes of its weights may leave open, so that it must be stated in
    /// [`Facts`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OpenFact {
        /// [`Facts::num_heads`].
        NumHeads,
        /// [`Facts::image_size`].
        ImageSize,
        /// [`Facts::window`].
        Window,
        /// [`Facts::norm_epsilon`].
        NormEpsilon,
        /// [`Facts::mlp`].
        Activation,
        /// [`Facts::rotary`], or that there are no positions.
        Positions,
    }
}

/// A guess: its [`Display`] says what was guessed and from what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guess {
    /// The fact that was guessed, and should be stated.
    pub fact: OpenFact,
    text: String,
}

impl Display for Guess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why weights have no architecture that this crate knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct UnknownArchitecture {
    message: String,
    /// The fact that helps if it is stated, or stated otherwise; `None` if none does.
    pub open: Option<OpenFact>,
}

impl From<ConfigError> for UnknownArchitecture {
    fn from(error: ConfigError) -> Self {
        let message = format!("the weights describe no model that can be built: {error}");
        Self { message, open: None }
    }
}

type Read<T> = Result<T, UnknownArchitecture>;

/// Reads the architecture of tensors under timm's names.
///
/// # Errors
/// If a part that every model has is missing, a shape is impossible, a fact that shapes leave open is not stated, or a
/// stated fact contradicts the shapes. The message names the key.
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
        return reader::fail(format!("the configuration is of other weights: {}", contradictions.join("; ")));
    }
    if let Some(pool) = facts.pool.filter(|pool| *pool != config.pool) {
        return reader::fail(format!(
            "the configuration wants {pool:?} pooling, and the tensors are those of {:?} pooling: this combination is not supported",
            config.pool
        ));
    }
    check_windows(&config, layout)?;
    Ok(Reading { config, has_head: head.is_some(), guesses: reader.guesses, notes: reader.notes })
}
