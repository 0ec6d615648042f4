//! Export of models to files that timm, Hugging Face, and torchvision load with strict keys, and that ONNX Runtime runs.

mod card;
mod family;
mod folder;
mod hugging_face;
pub mod onnx;
#[cfg(test)]
mod testing;
mod timm;
mod torchvision;

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::Result;
use vitrine_models::weights::{self, Layout, NamedTensor};
use vitrine_models::{Mixer, ModelConfig, Position, VisionTransformer, position};

use crate::files::has_extension;
use crate::model_file::ModelCard;
use crate::predict::Views;
use crate::usage::usage;
use crate::weights_file::Precision;
use family::Family;

/// The libraries that models are exported to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Library {
    /// timm.
    Timm,
    /// Hugging Face's transformers.
    HuggingFace,
    /// torchvision.
    Torchvision,
}

impl From<Library> for Layout {
    fn from(library: Library) -> Self {
        match library {
            Library::Timm => Self::Timm,
            Library::HuggingFace => Self::HuggingFace,
            Library::Torchvision => Self::Torchvision,
        }
    }
}

/// The result of an export.
pub struct Exported {
    /// The files that were written.
    pub files: Vec<PathBuf>,
    /// A line of Python that opens the model.
    pub usage: String,
    /// What the library does otherwise than this program, one per line.
    pub notes: Vec<String>,
}

/// A text as a string in Python's syntax. That of JSON is one.
fn python_string(text: impl Display) -> String {
    serde_json::Value::String(text.to_string()).to_string()
}

/// Writes a model for another library: for torchvision a `.safetensors` file, for Hugging Face a folder with weights
/// and configurations, for timm either of the two.
///
/// # Errors
/// If the library has no such architecture (the message names the keys that differ), the library needs a file and
/// `output` names a folder or the reverse, or the output cannot be written.
pub fn export(
    card: &ModelCard,
    model: &VisionTransformer,
    library: Library,
    output: &Path,
    precision: Precision,
) -> Result<Exported> {
    let family = Family::of(&card.model, library)?;
    check(library, output)?;
    let mut tensors = weights::to_timm(model);
    tensors.extend(fixed_positions(&card.model));
    let job = Job { card, family, library, output, precision };
    let mut exported = match library {
        Library::Timm => timm::write(&job, &tensors),
        Library::HuggingFace => hugging_face::write(&job, tensors),
        Library::Torchvision => torchvision::write(&job, tensors),
    }?;
    if Views::of(card) != Views::One {
        let note = "`classify` asks this model about several views of each image (test-time augmentation), the library about one";
        exported.notes.push(note.to_owned());
    }
    Ok(exported)
}

/// Checks that an export can write to `output`, and returns whether it writes a single file there.
///
/// # Errors
/// If the library needs a file and `output` names a folder, or the reverse, or a folder is not empty.
pub fn check(library: Library, output: &Path) -> Result<bool> {
    let shown = output.display();
    let is_other = is_other_format(output) && !output.is_dir();
    match (library, is_weights_name(output)) {
        (Library::Torchvision, false) => {
            usage!("--output {shown}: --layout torchvision needs a .safetensors file")
        }
        (Library::HuggingFace, is_file) if is_file || is_other => {
            usage!("--output {shown}: --layout hugging-face needs a folder")
        }
        (_, true) => Ok(true),
        (_, false) if is_other => {
            usage!(
                "--output {shown}: weights are written as .safetensors; give such a name, or that of a folder"
            )
        }
        (_, false) => folder::check(output).map(|()| false),
    }
}

/// Whether the name is that of a file of weights.
fn is_weights_name(path: &Path) -> bool {
    has_extension(path, "safetensors")
}

/// Extensions of weights in formats that are not written.
const OTHER_FORMATS: [&str; 9] = ["pt", "pth", "bin", "ckpt", "npz", "h5", "onnx", "gguf", "pkl"];

/// Whether the name is that of weights in a format that is not written.
fn is_other_format(path: &Path) -> bool {
    OTHER_FORMATS.into_iter().any(|extension| has_extension(path, extension))
}

/// The arguments of an export.
#[derive(Clone, Copy)]
struct Job<'a> {
    card: &'a ModelCard,
    family: Family,
    library: Library,
    output: &'a Path,
    precision: Precision,
}

impl Job<'_> {
    /// Whether the output is a single file of weights rather than a folder.
    fn output_is_file(&self) -> bool {
        is_weights_name(self.output)
    }
}

/// Whether the epsilon of a model's norms is `epsilon`, up to rounding.
fn is_epsilon(config: &ModelConfig, epsilon: f64) -> bool {
    (config.norm_epsilon / epsilon - 1.0).abs() < 1e-6
}

/// The side of a Swin's windows, in tokens.
fn window_side(config: &ModelConfig) -> usize {
    match config.mixers[0] {
        Mixer::Window(side) => side,
        _ => 0,
    }
}

/// Sinusoidal positions as a tensor, because another library stores them as learned positions; `None` for other kinds.
fn fixed_positions(config: &ModelConfig) -> Option<NamedTensor> {
    let [rows, columns] = config.grid();
    let values = match config.position {
        Position::Sinusoidal => position::sinusoidal(rows * columns, config.embed_dim),
        Position::Sinusoidal2d => position::sinusoidal_2d(rows, columns, config.embed_dim),
        Position::None
        | Position::Learned
        | Position::Rotary
        | Position::Conditional
        | Position::CoordinateMlp => return None,
    };
    Some(NamedTensor {
        name: "pos_embed".to_owned(),
        shape: vec![1, rows * columns, config.embed_dim],
        values,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sinusoidal_positions_are_exported_as_a_tensor() {
        for &position in Position::ALL {
            let config = ModelConfig { position, ..testing::vit() };
            let values = match position {
                Position::Sinusoidal => position::sinusoidal(64, 96),
                Position::Sinusoidal2d => position::sinusoidal_2d(8, 8, 96),
                Position::None
                | Position::Learned
                | Position::Rotary
                | Position::Conditional
                | Position::CoordinateMlp => {
                    assert_eq!(fixed_positions(&config), None, "{position:?}");
                    continue;
                }
            };
            let expected = NamedTensor { name: "pos_embed".to_owned(), shape: vec![1, 64, 96], values };
            assert_eq!(fixed_positions(&config), Some(expected), "{position:?}");
        }
    }

    #[test]
    fn epsilons_are_compared_up_to_rounding() {
        for (epsilon, expected, is_equal) in
            [(1e-5, 1e-5, true), (f64::from(1e-5f32), 1e-5, true), (1e-6, 1e-5, false), (2e-6, 1e-6, false)]
        {
            let config = ModelConfig { norm_epsilon: epsilon, ..testing::vit() };
            assert_eq!(is_epsilon(&config, expected), is_equal, "{epsilon} {expected}");
        }
    }

    #[test]
    fn an_output_must_be_what_the_library_reads() {
        for (library, output, is_file) in [
            (Library::Timm, "model.safetensors", Some(true)),
            (Library::Timm, "MODEL.SAFETENSORS", Some(true)),
            (Library::Timm, "model.pth", None),
            (Library::HuggingFace, "model.onnx", None),
            (Library::Timm, "model.v2", Some(false)),
            (Library::Timm, "model", Some(false)),
            (Library::HuggingFace, "model", Some(false)),
            (Library::HuggingFace, "model.safetensors", None),
            (Library::Torchvision, "model.safetensors", Some(true)),
            (Library::Torchvision, "model", None),
        ] {
            let checked = check(library, Path::new(output));
            assert_eq!(checked.as_ref().ok(), is_file.as_ref(), "{library:?} {output}");
            assert!(checked.err().is_none_or(|error| error.to_string().contains("--output model")));
        }
    }

    #[test]
    fn a_library_has_the_name_of_its_layout() {
        use clap::ValueEnum;
        for library in Library::value_variants() {
            let value = library.to_possible_value().unwrap();
            assert_eq!(value.get_name(), Layout::from(*library).name());
        }
    }
}
