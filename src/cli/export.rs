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
    vitrine export model.safetensors --layout hugging-face --output photos-vit/\n  vitrine export runs/photos-hybrid_nano_patch16_128-1 \
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

impl Target {
    /// The library; `None` for ONNX.
    fn library(self) -> Option<Library> {
        match self {
            Self::Timm => Some(Library::Timm),
            Self::HuggingFace => Some(Library::HuggingFace),
            Self::Torchvision => Some(Library::Torchvision),
            Self::Onnx => None,
        }
    }
}

impl Export {
    pub(super) fn run(&self) -> Result<Status> {
        self.model.check()?;
        if self.with_preprocessing && self.layout != Target::Onnx {
            usage!("--with-preprocessing is only for --layout onnx: leave it out");
        }
        self.check_output()?; // before a model is downloaded
        let NamedModel { card, model, files, .. } = self.model.load_anywhere(&Log::text())?;
        self.check_other(&files)?;
        let exported: Exported = match self.layout.library() {
            Some(library) => {
                card.require_classifier(self.model.model.display())?;
                export::export(&card, &model, library, &self.output, self.dtype)?
            }
            None => export::onnx::write(&card, &model, &self.output, self.dtype, self.with_preprocessing)?,
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

    /// Checks that the output is none of the model's files.
    fn check_other<'a>(&self, files: impl IntoIterator<Item = &'a PathBuf>) -> Result<()> {
        if files.into_iter().any(|file| same_file(&self.output, file)) {
            usage!("--output {}: this is the model itself", self.output.display());
        }
        Ok(())
    }

    /// Checks that the model can be written there.
    fn check_output(&self) -> Result<()> {
        let output = &self.output;
        output_file::check_local("--output", output)?;
        self.check_other([&self.model.model])?;
        if let Some(library) = self.layout.library() {
            let is_file = export::check(library, output)?;
            return if is_file {
                output_file::check_weights("--output", output, EXPORTED_KEY)
            } else {
                Ok(())
            };
        }
        export::onnx::check(output)?;
        output_file::check_place("--output", output)?;
        if output.exists() && !export::onnx::is_exported(output) {
            usage!("--output {}: {}", output.display(), output_file::NOT_OURS);
        }
        Ok(())
    }
}
