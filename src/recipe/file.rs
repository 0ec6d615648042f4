//! Recipe files, built in or written by a user: the keys of a recipe, and texts that describe it.

use anyhow::Result;
use serde::Deserialize;
use toml::Spanned;

use super::Recipe;
use crate::toml_text;

/// The contents of a recipe file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RecipeFile {
    /// What the recipe does, and which data or models it is for.
    pub(super) purpose: Option<String>,
    /// The publication, or another origin, of the recipe.
    pub(super) source: Option<String>,
    /// The accuracy that a model trained with the recipe reaches, and on which data.
    pub(super) expected: Option<String>,
    /// The recipe.
    pub(super) recipe: Recipe,
}

/// The keys that describe a recipe and have no effect.
#[derive(Deserialize)]
struct RecipeTexts {
    purpose: Option<Spanned<String>>,
    source: Option<Spanned<String>>,
    expected: Option<Spanned<String>>,
}

impl RecipeFile {
    /// Parses the text of a recipe file.
    ///
    /// # Errors
    /// When it is not TOML, or has a key or a value that no recipe can have; the message has the number of the line.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let RecipeTexts { purpose, source, expected } = toml_text::parse(text)?;
        let mut keys = text.to_owned();
        for value in [&purpose, &source, &expected].into_iter().flatten() {
            // `Recipe` refuses these keys. Blanks in their place keep line numbers right in messages; each key begins a
            // line of its own.
            let start = text[..value.span().start].rfind('\n').map_or(0, |newline| newline + 1);
            let place = start..value.span().end;
            let blank = |byte| if byte == b'\n' { '\n' } else { ' ' };
            keys.replace_range(place.clone(), &text[place].bytes().map(blank).collect::<String>());
        }
        let words = |value: Option<Spanned<String>>| value.map(Spanned::into_inner);
        Ok(Self {
            purpose: words(purpose),
            source: words(source),
            expected: words(expected),
            recipe: toml_text::parse(&keys)?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn texts_may_be_anywhere_among_the_keys_or_missing() {
        let expected = Recipe { epochs: Some(7), warmup: 0.25, ..Recipe::default() };
        for text in [
            "epochs = 7\nwarmup = 0.25\n",
            "purpose = \"é\"\nepochs = 7\nexpected = 'x' # measured\nwarmup = 0.25\nsource = \"\"\"one\ntwo\"\"\"",
            "\u{feff}\"source\" = \"a = 'b'\"\n\nepochs = 7\nwarmup = 0.25",
        ] {
            assert_eq!(RecipeFile::parse(text).unwrap().recipe, expected, "{text}");
        }
        let file = RecipeFile::parse("purpose = \"p\"\nsource = \"s\"\n").unwrap();
        assert_eq!((file.purpose, file.source, file.expected), (Some("p".into()), Some("s".into()), None));
        assert_eq!(file.recipe, Recipe::default());
    }

    #[test]
    fn an_error_has_the_line_of_the_file() {
        for (text, part) in [
            ("purpose = \"\"\"a\nb\"\"\"\nepoch = 3", "unknown field `epoch`"),
            ("source = \"s\"\n\npurpose = 3", "invalid type"),
            ("source = \"s\"\n\nwarmup = \"long\"", "invalid type"),
        ] {
            let error = RecipeFile::parse(text).unwrap_err().to_string();
            assert!(error.contains("line 3") && error.contains(part), "{error}");
        }
        // A table of the recipe has no such texts.
        assert!(RecipeFile::parse("[augmentation]\npurpose = \"p\"").is_err());
    }
}
