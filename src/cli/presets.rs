//! `vitrine presets`: the named architectures.

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Device;
use clap::Args;
use vitrine_models::preset;

use super::Status;
use crate::output::outln;
use crate::recipe::NamedRecipe;

/// List the architectures and recipes that `vitrine train` knows by name.
#[derive(Args)]
#[command(after_help = "Example:\n  vitrine presets")]
pub(super) struct Presets {}

impl Presets {
    pub(super) fn run(&self) -> Result<Status> {
        outln!(
            "{:32} {:>11}  {:>7} {:>4} {:>8} {:>9}  about",
            "model",
            "parameters",
            "image",
            "dim",
            "depth",
            "heads"
        )?;
        for entry in preset::all() {
            let config = entry.config();
            let parameters = config.init(&Device::default())?.num_params();
            outln!(
                "{:32} {:>11}  {:>7} {:>4} {:>8} {:>9}  {}",
                entry.name,
                parameters,
                config.image_size.to_string(),
                config.embed_dim,
                config.depth,
                config.num_heads,
                entry.about
            )?;
        }
        outln!("\n{:32} about", "recipe")?;
        for NamedRecipe { name, purpose, .. } in NamedRecipe::all() {
            outln!("{name:32} {purpose}")?;
        }
        Ok(Status::Done)
    }
}
