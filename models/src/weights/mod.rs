//! Parameters as named arrays, the form in which models are stored and exchanged.

pub mod hugging_face;
mod timm;
pub mod torchvision;

pub use timm::{from_timm, to_timm};

/// One parameter under its stored name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// The key in the file.
    pub name: String,
    /// Lengths of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Row-major values.
    pub values: Vec<f32>,
}

/// Why stored parameters do not fit a model. Every key that is at fault is listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WeightsError {
    /// Parameters of the model that are not stored.
    pub missing: Vec<String>,
    /// Stored keys that the model does not have.
    pub unexpected: Vec<String>,
    /// Keys whose shapes differ, with both shapes.
    pub mismatched: Vec<String>,
}

impl std::error::Error for WeightsError {}

impl std::fmt::Display for WeightsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lists = [
            ("missing", &self.missing),
            ("unexpected", &self.unexpected),
            ("of another shape", &self.mismatched),
        ];
        let parts: Vec<String> = lists
            .into_iter()
            .filter(|(_, keys)| !keys.is_empty())
            .map(|(what, keys)| format!("{} {what}: {}", keys.len(), keys.join(", ")))
            .collect();
        write!(f, "the weights do not fit the architecture ({})", parts.join("; "))
    }
}
