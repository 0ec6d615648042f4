//! Recipes by name: TOML files that are built into the program.

use super::Recipe;
use super::file::RecipeFile;

/// A recipe with a name.
#[derive(Clone, Debug)]
pub struct NamedRecipe {
    /// The name for `--recipe`.
    pub name: &'static str,
    /// What the recipe does, and which data or models it is for.
    pub purpose: String,
    /// The paper and the code that the recipe is from, or how it was chosen.
    pub source: String,
    /// The accuracy that a model trained with the recipe reaches, and on which data, if that is published or measured.
    pub expected: Option<String>,
    /// The text of the recipe file, in the form that `--recipe` reads.
    pub text: &'static str,
    /// The recipe for color images whose mirror images have the same class. The [plan](crate::plan::Plan) adapts it to
    /// other data.
    pub recipe: Recipe,
}

/// Names and files. Two names may share a file.
const FILES: [(&str, &str); 8] = [
    ("plain", include_str!("plain.toml")),
    ("short", include_str!("short.toml")),
    ("long", include_str!("long.toml")),
    ("fine-tune", include_str!("fine-tune.toml")),
    ("cct", include_str!("cct.toml")),
    ("vit-lite", include_str!("cct.toml")),
    ("sl-vit", include_str!("sl-vit.toml")),
    ("swin-small-data", include_str!("sl-vit.toml")),
];

impl NamedRecipe {
    /// All named recipes, from the simplest to the most specialized.
    pub fn all() -> impl Iterator<Item = Self> {
        FILES.into_iter().map(|(name, text)| {
            let RecipeFile { purpose, source, expected, recipe } =
                RecipeFile::parse(text).expect("the program's own files are valid");
            let [purpose, source] = [purpose, source].map(Option::unwrap_or_default);
            Self { name, purpose, source, expected, text, recipe }
        })
    }

    /// Whether the recipe keeps its length, batch size, learning rate, and crop for all data. Published recipes do,
    /// because their results depend on these; they state a number of epochs. Other recipes are adapted to the data.
    pub fn is_whole(&self) -> bool {
        self.recipe.epochs.is_some()
    }

    /// The recipe of this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::all().find(|named| named.name == name)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use vitrine_datasets::AutoAugment;

    use super::*;

    #[test]
    fn published_recipes_have_the_numbers_of_their_papers() {
        let recipe = |name| NamedRecipe::find(name).unwrap().recipe;
        let cct = recipe("cct");
        assert_eq!((cct.batch_size, cct.learning_rate, cct.weight_decay), (128, 5.5e-4, 0.06));
        let last = cct.learning_rate * cct.final_learning_rate;
        let epochs = cct.epochs.unwrap() as f64;
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 0.01, "{a} {b}");
        close(last, 1e-5);
        close(cct.warmup * epochs, 10.0);
        close(cct.augmentation.mix_until * epochs, 175.0);
        let small = recipe("sl-vit");
        assert_eq!((small.epochs, small.batch_size, small.warmup), (Some(300), 128, 0.1));
        assert_eq!(small.augmentation.auto_augment, Some(AutoAugment::Cifar10));
    }

    #[test]
    fn every_file_is_a_valid_recipe_and_every_file_is_listed() {
        for named in NamedRecipe::all() {
            let NamedRecipe { name, purpose, source, expected, recipe, .. } = &named;
            recipe.validate().unwrap();
            assert!(purpose.len() > 20 && source.len() > 10, "{name}: {purpose}; {source}");
            assert_eq!(&NamedRecipe::find(name).unwrap().recipe, recipe);
            // A published recipe without its result could not be checked.
            assert!(expected.is_some() || !named.is_whole(), "{name}");
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/recipe/named");
        let listed: BTreeSet<&str> = FILES.into_iter().map(|(_, text)| text).collect();
        let is_recipe =
            |file: &std::fs::DirEntry| file.path().extension().is_some_and(|extension| extension == "toml");
        let files =
            std::fs::read_dir(folder).unwrap().filter(|file| is_recipe(file.as_ref().unwrap())).count();
        assert_eq!(files, listed.len());
        assert!(NamedRecipe::find("nothing").is_none());
    }
}
