//! `vitrine presets`: the named architectures and recipes, and the values of keys in an architecture file.

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Device;
use clap::Args;
use serde::Serialize;
use vitrine_models::{
    BlockStyle, ChannelGate, GatePlace, MlpKind, Normalizer, Pool, Position, PositionPlace, RelativePosition,
    RotaryCoordinates, Score, preset, preset::Preset,
};

use super::Status;
use crate::cli::output::{out, outln};
use crate::hub::published::{BACKBONES, PublishedBackbone};
use crate::recipe::NamedRecipe;
use crate::usage::{did_you_mean, usage};

/// The version of the program, for the comments in printed files.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// List the architectures, published backbones and recipes that `vitrine train` knows by name, and the choices in an
/// architecture file; or print one of them.
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine presets\n  \
    vitrine presets --show short > my_recipe.toml\n  vitrine train photos/ --recipe my_recipe.toml\n  \
    vitrine presets --show cct_7_3x1 > my_model.toml\n  vitrine train photos/ --model my_model.toml")]
pub(super) struct Presets {
    /// Print the recipe or architecture of this name as TOML, a start for a file of your own: `vitrine train` reads it
    /// back with --recipe or --model.
    #[arg(long, value_name = "NAME")]
    show: Option<String>,
}

impl Presets {
    pub(super) fn run(&self) -> Result<Status> {
        match &self.show {
            Some(name) => out!("{}", file_text(name)?)?,
            None => Self::list()?,
        }
        Ok(Status::Done)
    }

    /// Prints all lists.
    fn list() -> Result<()> {
        list_models()?;
        list_backbones()?;
        list_recipes()?;
        outln!("\n{:32} choices in an architecture file", "key")?;
        for (key, names) in choices()? {
            outln!("{key:32} {}", names.join(", "))?;
        }
        Ok(())
    }
}

/// Prints the architectures.
fn list_models() -> Result<()> {
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
    Ok(())
}

/// Prints the published backbones, with what they have reached on ImageNet.
fn list_backbones() -> Result<()> {
    outln!(
        "\n{:32} {:>11}  {:>7} {:>15} {:>9}  repository on Hugging Face, and how the accuracy was measured",
        "for --pretrained",
        "parameters",
        "image",
        "license",
        "ImageNet"
    )?;
    for PublishedBackbone { name, repository, millions, image_size, license, top1, measured } in BACKBONES {
        outln!(
            "{name:32} {:>11}  {:>7} {license:>15} {:>9}  {repository}; {}",
            format!("{millions:.1} M"),
            format!("{image_size}x{image_size}"),
            format!("{top1:.1}%"),
            measured.described()
        )?;
    }
    Ok(())
}

/// Prints the recipes, with their sources and published results.
fn list_recipes() -> Result<()> {
    outln!("\n{:32} about", "recipe")?;
    for NamedRecipe { name, purpose, source, expected, .. } in NamedRecipe::all() {
        outln!("{name:32} {purpose}")?;
        outln!("{:32}   source: {source}", "")?;
        if let Some(expected) = expected {
            outln!("{:32}   expected: {expected}", "")?;
        }
    }
    Ok(())
}

/// The text of the file for a recipe or an architecture. No recipe has the name of an architecture.
///
/// # Errors
/// If there is no recipe or architecture of this name.
fn file_text(name: &str) -> Result<String> {
    if let Some(named) = NamedRecipe::find(name) {
        return Ok(recipe_file(&named));
    }
    if let Some(preset) = preset::all().into_iter().find(|preset| preset.name == name) {
        return architecture_file(&preset);
    }
    if BACKBONES.iter().any(|backbone| backbone.name == name) {
        usage!(
            "--show {name}: these are published weights, which come with their architecture: `vitrine train DATA --pretrained \
             {name}` starts from them"
        );
    }
    let recipes = NamedRecipe::all().map(|named| named.name);
    let names: Vec<&str> = recipes.chain(preset::all().into_iter().map(|preset| preset.name)).collect();
    usage!(
        "--show {name}: there is no such recipe or architecture{}; `vitrine presets` lists them",
        did_you_mean(name, names)
    );
}

/// The text of a recipe file, with comments on how to use it.
fn recipe_file(named: &NamedRecipe) -> String {
    let NamedRecipe { name, text, .. } = named;
    let by_name = if named.is_whole() {
        "By its name, it is used without flips where they would change the class; from a file, it is used as it is."
    } else {
        "By its name, epochs, batch size, learning rate, and augmentation are adapted to the data and the model; from a file, they\n\
         # are used as they are, with a number of epochs that suits the data if none is stated."
    };
    format!(
        "# The recipe {name} of vitrine {VERSION}. To start one of your own from it:\n\
         #   vitrine presets --show {name} > my_recipe.toml\n\
         #   vitrine train DATA --recipe my_recipe.toml\n\
         # {by_name}\n\
         # Keys that are left out have their defaults; docs/recipes.md describes them.\n\n{text}"
    )
}

/// The text of an architecture file, with comments on how to use it.
fn architecture_file(preset: &Preset) -> Result<String> {
    let Preset { name, about, .. } = preset;
    let text = toml::to_string(&preset.config())?;
    // Training takes the number of classes from the data set.
    let keys: String =
        text.split_inclusive('\n').filter(|line| !line.starts_with("num_classes = ")).collect();
    Ok(format!(
        "# The architecture {name} of vitrine {VERSION}: {about}. To start one of your own from it:\n\
         #   vitrine presets --show {name} > my_model.toml\n\
         #   vitrine train DATA --model my_model.toml\n\
         # The data set says the number of classes; docs/architectures.md describes the keys.\n\n{keys}"
    ))
}

/// The keys of an architecture file whose values are chosen from a list, with that list.
fn choices() -> Result<[(&'static str, Vec<String>); 11]> {
    Ok([
        ("position", names(Position::ALL)?),
        ("rotary.coordinates", names(RotaryCoordinates::ALL)?),
        ("position_place", names(PositionPlace::ALL)?),
        ("pool", names(Pool::EXAMPLES)?),
        ("block", names(BlockStyle::ALL)?),
        ("mlp", names(MlpKind::ALL)?),
        ("attention.score", names(Score::ALL)?),
        ("attention.normalizer", names(Normalizer::ALL)?),
        ("attention.relative_position", names(RelativePosition::ALL)?),
        ("channel_attention.kind", names(ChannelGate::ALL)?),
        ("channel_attention.place", names(GatePlace::ALL)?),
    ])
}

/// The spellings of values in a file.
fn names<T: Serialize>(all: &[T]) -> Result<Vec<String>> {
    let name = |choice: &T| {
        let value = toml::Value::try_from(choice)?;
        Ok(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    };
    all.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeSet;

    use vitrine_models::ModelConfig;

    use super::*;
    use crate::plan::read_model;
    use crate::recipe::Recipe;

    #[test]
    fn every_printed_file_is_read_back_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my.toml");
        let mut names = BTreeSet::new();
        for named in NamedRecipe::all() {
            std::fs::write(&path, file_text(named.name).unwrap()).unwrap();
            assert_eq!(Recipe::read(&path).unwrap(), named.recipe, "{}", named.name);
            // The file in `named/` is a valid recipe without the comments, too.
            std::fs::write(&path, named.text).unwrap();
            assert_eq!(Recipe::read(&path).unwrap(), named.recipe, "{}", named.name);
            assert!(names.insert(named.name), "{} has been listed before", named.name);
        }
        for preset in preset::all() {
            let text = file_text(preset.name).unwrap();
            assert!(text.starts_with("# The architecture") && !text.contains("num_classes"), "{text}");
            std::fs::write(&path, text).unwrap();
            let config = preset.config().with_num_classes(ModelConfig::DEFAULT_CLASSES);
            assert_eq!(read_model(&path).unwrap(), config, "{}", preset.name);
            assert!(names.insert(preset.name), "{} has been listed before", preset.name);
        }
    }

    #[test]
    fn the_error_for_an_unknown_name_suggests_the_most_similar_one() {
        for (name, nearest) in [("fine-tun", "fine-tune"), ("vit_tiny_patch16_225", "vit_tiny_patch16_224")] {
            let error = file_text(name).unwrap_err();
            assert!(crate::usage::UsageError::is_cause_of(&error));
            assert!(error.to_string().contains(&format!("did you mean {nearest}?")), "{error}");
        }
    }
}
