//! Parameters as named arrays: the form in which models are stored and exchanged.

mod adapt;
mod architecture;
mod facts;
mod layout;
mod patch_size;
mod rotary;
mod timm;

pub use adapt::{Adaptation, adapt};
pub use architecture::{
    Guess, OpenFact, Reading, UnknownArchitecture, check_windows, read_architecture, windows_fill_grids,
    windows_shrink,
};
pub use facts::Facts;
pub use layout::{Layout, hugging_face, torchvision, unused};
pub use rotary::{RotaryPairs, reorder_rotary};
pub use timm::{check, from_timm, from_timm_lazily, is_head, to_timm, zero_head};

/// A parameter under its stored name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// The key in the file.
    pub name: String,
    /// The lengths of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The values in row-major order.
    pub values: Vec<f32>,
}

/// A parameter under its stored name, whose values are read when a model takes them.
pub struct LazyTensor<'a, E> {
    /// The key in the file.
    pub name: String,
    /// The lengths of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Reads the values.
    pub read: ReadValues<'a, E>,
}

/// Puts values in row-major order into the vector, whatever it held before.
pub type ReadValues<'a, E> = Box<dyn FnOnce(&mut Vec<f32>) -> Result<(), E> + 'a>;

impl<E> From<NamedTensor> for LazyTensor<'_, E> {
    fn from(tensor: NamedTensor) -> Self {
        let NamedTensor { name, shape, values } = tensor;
        let read = |to: &mut Vec<f32>| {
            *to = values;
            Ok(())
        };
        Self { name, shape, read: Box::new(read) }
    }
}

/// The error of [`from_timm_lazily`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError<E> {
    /// The parameters do not fit the model.
    Unfit(WeightsError),
    /// The values of a parameter could not be read.
    Unreadable(E),
}

/// A table of whole numbers that a library stores next to its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexTable {
    /// The key in the file.
    pub name: String,
    /// The lengths of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The values in row-major order.
    pub values: Vec<i64>,
}

/// The error for stored parameters that do not fit a model. It lists all keys at fault; the message names the first
/// few.
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
            .map(|(what, keys)| format!("{} {what}: {}", keys.len(), first(keys)))
            .collect();
        write!(f, "the weights do not fit the architecture ({})", parts.join("; "))
    }
}

/// The first few keys, and how many more there are.
fn first(keys: &[String]) -> String {
    const SHOWN: usize = 6;
    let shown = keys.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match keys.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
