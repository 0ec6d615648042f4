//! `vitrine export`: a model for another library.

use std::path::PathBuf;

use anyhow::Result;
use burn::tensor::Device;
use clap::Args;
use vitrine_models::weights::Layout;

use super::Status;
use super::import::LayoutName;
use crate::{export, model_file, weights_file::Precision};

/// Write a model for timm, Hugging Face or torchvision, which load it with strict keys.
///
/// For Hugging Face PATH is a folder with config.json, preprocessor_config.json and model.safetensors; for torchvision a
/// .safetensors file; for timm either.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine export runs/photos-vit_pico_patch8_96-1 --layout timm --output photos.safetensors\n  \
    vitrine export model.safetensors --layout hugging-face --output photos-vit/"
)]
pub(super) struct Export {
    /// Model file or run folder.
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The library.
    #[arg(long, value_enum, value_name = "LAYOUT")]
    layout: LayoutName,
    /// File or folder to write.
    #[arg(long, value_name = "PATH")]
    output: PathBuf,
    /// How the weights are stored.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    dtype: Precision,
}

impl Export {
    pub(super) fn run(&self) -> Result<Status> {
        let (card, model) = model_file::load(&self.model, &Device::default())?;
        let exported = export::export(&card, &model, Layout::from(self.layout), &self.output, self.dtype)?;
        for file in &exported.files {
            println!("wrote {}", file.display());
        }
        eprintln!("open it with: {}", exported.usage);
        Ok(Status::Done)
    }
}
