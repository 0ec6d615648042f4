//! `vitrine presets`: what has a name: architectures, recipes, choices of an architecture.

use anyhow::{Context, Result};
use burn::module::Module;
use burn::tensor::Device;
use clap::Args;
use serde::Serialize;
use vitrine_models::{
    BlockStyle, ChannelGate, GatePlace, MlpKind, Normalizer, Pool, Position, PositionPlace, RelativePosition,
    Score, preset,
};

use super::Status;
use crate::output::outln;
use crate::recipe::NamedRecipe;

/// List the architectures and recipes that `vitrine train` knows by name, and the choices in an architecture file.
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
        for NamedRecipe { name, purpose, source, expected, .. } in NamedRecipe::all() {
            outln!("{name:32} {purpose}")?;
            outln!("{:32}   source: {source}", "")?;
            if let Some(expected) = expected {
                outln!("{:32}   expected: {expected}", "")?;
            }
        }
        outln!("\n{:32} choices in an architecture file", "key")?;
        for (key, names) in choices()? {
            outln!("{key:32} {}", names.join(", "))?;
        }
        Ok(Status::Done)
    }
}

/// The keys of an architecture's file that choose from a list, with the names of the choices.
fn choices() -> Result<[(&'static str, Vec<String>); 10]> {
    Ok([
        ("position", names(Position::ALL)?),
        ("position_place", names(PositionPlace::ALL)?),
        ("pool", names(Pool::ALL)?),
        ("block", names(BlockStyle::ALL)?),
        ("mlp", names(MlpKind::ALL)?),
        ("attention.score", names(Score::ALL)?),
        ("attention.normalizer", names(Normalizer::ALL)?),
        ("attention.relative_position", names(RelativePosition::ALL)?),
        ("channel_attention.kind", names(ChannelGate::ALL)?),
        ("channel_attention.place", names(GatePlace::ALL)?),
    ])
}

/// The names as a file spells them.
fn names<T: Serialize>(all: &[T]) -> Result<Vec<String>> {
    let name = |choice: &T| Ok(serde_json::to_value(choice)?.as_str().context("a name")?.to_owned());
    all.iter().map(name).collect()
}
