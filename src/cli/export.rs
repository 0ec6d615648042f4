//! `vitrine export`: writes a model in another library's format.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::Status;
use super::console::Log;
use super::model::ModelArgs;
use crate::cli::aliases;
use crate::cli::output::{note, outln};
use crate::cli::output_file;
use crate::export::{self, Exported, Library};
use crate::files::same_file;
use crate::model_file::EXPORTED_KEY;
use crate::named_model::NamedModel;
use crate::usage::usage;
use crate::weights_file::Precision;

/// Write a model for timm, Hugging Face, or torchvision, which load it with strict keys, or for ONNX Runtime.
///
/// For Hugging Face, PATH is a folder with config.json, preprocessor_config.json, and model.safetensors; for torchvision, a
/// .safetensors file; for timm, either one; for onnx, a .onnx file with an open number of images, and class names and
/// preprocessing in its metadata.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine export runs/photos-vit_tiny_patch8_64-1 --layout timm --output photos.safetensors\n  \
    vitrine export model.safetensors --layout hugging-face --output photos-vit/\n  vitrine export runs/photos-hybrid_nano_patch8_64-1 \
    --layout onnx --with-preprocessing --output photos.onnx"
)]
pub(super) struct Export {
    #[command(flatten)]
    model: ModelArgs,
    /// Library to write the model for.
    #[arg(long, value_enum, value_name = "LAYOUT")]
    layout: Target,
    /// File or folder to write.
    #[arg(long, value_name = "PATH", aliases = aliases::OUTPUT)]
    output: PathBuf,
    /// How the weights are stored.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    dtype: Precision,
    /// Let the graph preprocess images of any size, in bytes (only --layout onnx).
    #[arg(long)]
    with_preprocessing: bool,
}

/// What models are exported to.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Target {
    /// timm.
    Timm,
    /// Hugging Face's transformers.
    HuggingFace,
    /// torchvision.
    Torchvision,
    /// ONNX, operator set 20.
    Onnx,
}

impl Export {
    pub(super) fn run(&self) -> Result<Status> {
        self.model.check()?;
        if self.with_preprocessing && self.layout != Target::Onnx {
            usage!("--with-preprocessing is only for --layout onnx: leave it out");
        }
        if self.layout == Target::Onnx {
            export::onnx::check(&self.output)?; // before a model is downloaded
        }
        if matches!(self.layout, Target::Onnx | Target::Torchvision) {
            output_file::check_place("--output", &self.output)?;
        }
        let NamedModel { card, model, files, .. } = self.model.load_anywhere(&Log::text())?;
        if files.iter().any(|file| same_file(&self.output, file)) {
            usage!("--output {}: this is the model itself", self.output.display());
        }
        if self.layout != Target::Onnx && self.output.is_file() {
            output_file::check_weights("--output", &self.output, EXPORTED_KEY)?;
        }
        let to = |library| {
            card.require_classifier(self.model.model.display())?;
            export::export(&card, &model, library, &self.output, self.dtype)
        };
        let exported: Exported = match self.layout {
            Target::Timm => to(Library::Timm)?,
            Target::HuggingFace => to(Library::HuggingFace)?,
            Target::Torchvision => to(Library::Torchvision)?,
            Target::Onnx => {
                export::onnx::write(&card, &model, &self.output, self.dtype, self.with_preprocessing)?
            }
        };
        for file in &exported.files {
            outln!("wrote {}", file.display())?;
        }
        for line in &exported.notes {
            note!("{line}");
        }
        note!("open it with: {}", exported.usage);
        Ok(Status::Done)
    }
}
