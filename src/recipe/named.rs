//! The recipes that `--recipe` names: files of this folder, built into the program.

use serde::Deserialize;

use super::Recipe;

/// A recipe with a name.
#[derive(Clone, Debug)]
pub struct NamedRecipe {
    /// What `--recipe` calls it.
    pub name: &'static str,
    /// What it does, and for what.
    pub purpose: String,
    /// The recipe, for color images whose mirror image has the same class; what suits other data is up to the
    /// [plan](crate::train::Plan).
    pub recipe: Recipe,
}

/// The names, with their files.
const FILES: [(&str, &str); 4] = [
    ("plain", include_str!("named/plain.toml")),
    ("short", include_str!("named/short.toml")),
    ("long", include_str!("named/long.toml")),
    ("fine-tune", include_str!("named/fine-tune.toml")),
];

/// What one of the files holds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    purpose: String,
    recipe: Recipe,
}

impl NamedRecipe {
    /// All of them, from the plainest to the most special.
    pub fn all() -> impl Iterator<Item = Self> {
        FILES.into_iter().map(|(name, text)| {
            let File { purpose, recipe } = toml::from_str(text).expect("the program's own files are valid");
            Self { name, purpose, recipe }
        })
    }

    /// The one of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::all().find(|named| named.name == name)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_file_is_a_valid_recipe_and_every_file_is_listed() {
        for NamedRecipe { name, purpose, recipe } in NamedRecipe::all() {
            recipe.validate().unwrap();
            assert!(purpose.len() > 20, "{name}: {purpose}");
            assert_eq!(NamedRecipe::find(name).unwrap().recipe, recipe);
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/recipe/named");
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), FILES.len());
        assert!(NamedRecipe::find("nothing").is_none());
    }
}
