//! `vitrine export`: writes a model in another library's format.

use std::path::PathBuf;

use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::Args;

use super::Status;
use super::import::same_file;
use crate::cli::aliases;
use crate::cli::output::{note, outln};
use crate::export::{self, Library};
use crate::{model_file, weights_file::Precision};

/// Write a model for timm, Hugging Face, or torchvision, which load it with strict keys.
///
/// For Hugging Face, PATH is a folder with config.json, preprocessor_config.json, and model.safetensors; for
/// torchvision, a .safetensors file; for timm, either one.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine export runs/photos-hybrid_patch8_64-1 --layout timm --output photos.safetensors\n  \
    vitrine export model.safetensors --layout hugging-face --output photos-vit/"
)]
pub(super) struct Export {
    /// Model file or run folder.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Library to write the model for.
    #[arg(long, value_enum, value_name = "LAYOUT")]
    layout: Library,
    /// File or folder to write.
    #[arg(long, value_name = "PATH", aliases = aliases::OUTPUT)]
    output: PathBuf,
    /// How the weights are stored.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    dtype: Precision,
}

impl Export {
    pub(super) fn run(&self) -> Result<Status> {
        if same_file(&self.output, &model_file::locate(&self.model)?) {
            bail!("--output {}: this is the model itself", self.output.display());
        }
        let (card, model) = model_file::load(&self.model, &Device::default())?;
        card.require_classifier(self.model.display())?;
        let exported = export::export(&card, &model, self.layout, &self.output, self.dtype)?;
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
