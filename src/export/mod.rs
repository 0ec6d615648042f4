//! Models in the files of other libraries, which load them with strict keys.

mod card;
mod family;
mod hugging_face;
#[cfg(test)]
mod testing;
mod timm;
mod torchvision;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::Value;
use vitrine_models::weights::{self, Layout, NamedTensor};
use vitrine_models::{Mixer, ModelConfig, Position, VisionTransformer, position};

use crate::files::write_atomically;
use crate::model_file::ModelCard;
use crate::weights_file::{self, Precision};
use family::Family;

/// The libraries that models are written for.
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

/// What was written, and how the library opens it.
pub struct Exported {
    /// Every file.
    pub files: Vec<PathBuf>,
    /// Python that opens it.
    pub usage: String,
    /// Where the library's preprocessing differs from ours, one per line.
    pub notes: Vec<String>,
}

/// Writes a model under another library's names: for timm and torchvision one `.safetensors` file (for timm a folder too), for
/// Hugging Face a folder with its configurations.
///
/// # Errors
/// When the library has no such architecture (the message names the parts), the output does not suit, or cannot be written.
pub fn export(
    card: &ModelCard,
    model: &VisionTransformer,
    library: Library,
    output: &Path,
    precision: Precision,
) -> Result<Exported> {
    let family = Family::of(&card.model, library)?;
    let mut tensors = weights::to_timm(model);
    tensors.extend(fixed_positions(&card.model));
    let job = Job { card, family, library, output, precision };
    match library {
        Library::Timm => timm::write(&job, &tensors),
        Library::HuggingFace => hugging_face::write(&job, tensors),
        Library::Torchvision => torchvision::write(&job, tensors),
    }
}

/// What is to be written where.
#[derive(Clone, Copy)]
struct Job<'a> {
    card: &'a ModelCard,
    family: Family,
    library: Library,
    output: &'a Path,
    precision: Precision,
}

impl Job<'_> {
    /// Whether the output is a file of weights rather than a folder.
    fn names_a_file(&self) -> bool {
        self.output.extension().is_some_and(|extension| extension == "safetensors")
    }
}

/// Whether the norm's epsilon is a library's own.
fn is_epsilon(config: &ModelConfig, usual: f64) -> bool {
    (config.norm_epsilon / usual - 1.0).abs() < 1e-6
}

fn window(config: &ModelConfig) -> usize {
    match config.mixers[0] {
        Mixer::Window(side) => side,
        _ => 0,
    }
}

/// Sines and cosines as the learned positions that they are for another library.
fn fixed_positions(config: &ModelConfig) -> Option<NamedTensor> {
    let [rows, columns] = config.grid();
    let values = match config.position {
        Position::Sinusoidal => position::sinusoidal(rows * columns, config.embed_dim),
        Position::Sinusoidal2d => position::sinusoidal_2d(rows, columns, config.embed_dim),
        Position::None | Position::Learned | Position::Rotary => return None,
    };
    Some(NamedTensor {
        name: "pos_embed".to_owned(),
        shape: vec![1, rows * columns, config.embed_dim],
        values,
    })
}

/// A folder that is made for an export.
struct Folder<'a>(&'a Path);

impl<'a> Folder<'a> {
    fn new(path: &'a Path) -> Result<Self> {
        if path.is_file() {
            bail!("--output {}: a file is in the way of the folder", path.display());
        }
        if path.is_dir() && std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("--output {}: the folder is not empty", path.display());
        }
        std::fs::create_dir_all(path)
            .map_err(|error| anyhow::anyhow!("--output {}: cannot be created: {error}", path.display()))?;
        Ok(Self(path))
    }

    fn weights(&self, job: &Job<'_>, tensors: &[NamedTensor]) -> Result<PathBuf> {
        let path = self.0.join("model.safetensors");
        weights_file::save(&path, tensors, &[], job.precision, card::metadata(job)?)?;
        Ok(path)
    }

    fn json(&self, name: &str, value: &Value) -> Result<PathBuf> {
        let path = self.0.join(name);
        write_atomically(&path, serde_json::to_string_pretty(value)?.as_bytes())?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sines_and_cosines_are_written_as_the_positions_that_they_are() {
        for &position in Position::ALL {
            let config = ModelConfig { position, ..testing::vit() };
            let values = match position {
                Position::Sinusoidal => position::sinusoidal(64, 96),
                Position::Sinusoidal2d => position::sinusoidal_2d(8, 8, 96),
                Position::None | Position::Learned | Position::Rotary => {
                    assert_eq!(fixed_positions(&config), None, "{position:?}");
                    continue;
                }
            };
            let expected = NamedTensor { name: "pos_embed".to_owned(), shape: vec![1, 64, 96], values };
            assert_eq!(fixed_positions(&config), Some(expected), "{position:?}");
        }
    }

    #[test]
    fn epsilons_are_compared_as_they_are_printed() {
        for (epsilon, usual, is_usual) in
            [(1e-5, 1e-5, true), (f64::from(1e-5f32), 1e-5, true), (1e-6, 1e-5, false), (2e-6, 1e-6, false)]
        {
            let config = ModelConfig { norm_epsilon: epsilon, ..testing::vit() };
            assert_eq!(is_epsilon(&config, usual), is_usual, "{epsilon} {usual}");
        }
    }

    #[test]
    fn a_folder_is_made_where_nothing_is_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "in the way").unwrap();
        for (name, fits) in [("new/model", true), ("new/model", true), ("file", false), ("", false)] {
            let output = path(name);
            let made = Folder::new(&output);
            assert_eq!(made.is_ok(), fits, "{name}");
            if let Err(error) = made {
                assert!(error.to_string().contains("--output"), "{error}");
            }
        }
        assert!(path("new/model").is_dir());
    }

    #[test]
    fn a_library_is_called_as_its_layout() {
        use clap::ValueEnum;
        for library in Library::value_variants() {
            let value = library.to_possible_value().unwrap();
            assert_eq!(value.get_name(), Layout::from(*library).name());
        }
    }
}
