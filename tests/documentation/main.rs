//! The tables of keys in `docs/` say what the code says: names from serde, defaults and ranges from reading and
//! validating configurations, descriptions from doc comments.
//!
//! `VITRINE_BLESS=1 cargo test --locked --test documentation` writes the tables anew.

#![allow(clippy::unwrap_used)]

mod declarations;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use vitrine::recipe::Recipe;
use vitrine_models::ModelConfig;

use declarations::{Declarations, documentation, is_flattened, name_of};
use table::Keys;

/// Reads a value as `T` and writes it as `T` does, with all defaults filled in.
fn resolved<T: Serialize + DeserializeOwned>(value: Value) -> Result<Value, String> {
    let read: T = serde_json::from_value(value).map_err(|error| error.to_string())?;
    serde_json::to_value(read).map_err(|error| error.to_string())
}

/// The error message of a recipe that is not valid.
fn refused_recipe(value: Value) -> Option<String> {
    match serde_json::from_value::<Recipe>(value) {
        Ok(recipe) => recipe.validate().err().map(|error| format!("{error:#}")),
        Err(error) => Some(error.to_string()),
    }
}

/// The error message of an architecture that is not valid.
fn refused_model(value: Value) -> Option<String> {
    match serde_json::from_value::<ModelConfig>(value) {
        Ok(config) => config.validate().err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

/// The generated parts of `docs/recipes.md`, by the names in their markers.
fn recipes(declarations: &Declarations) -> Vec<(&'static str, String)> {
    let sample = json!({
        "progressive_learning": { "until": 0.3 },
        "augmentation": { "rand_augment": {} },
    });
    let keys = Keys { declarations, sample, resolve: resolved::<Recipe>, refuse: refused_recipe };
    vec![
        ("keys", keys.table("Recipe", &[])),
        ("augmentation", keys.table("Augmentation", &["augmentation"])),
        ("values", keys.values(&[("Recipe", ""), ("Augmentation", "augmentation.")])),
    ]
}

/// The generated parts of `docs/architectures.md`, by the names in their markers.
fn architectures(declarations: &Declarations) -> Vec<(&'static str, String)> {
    let sample = json!({
        "image_size": 32, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3,
        "attention": {},
        "rotary": {},
        "channel_attention": { "kind": "squeeze_excitation" },
    });
    let keys = Keys { declarations, sample, resolve: resolved::<ModelConfig>, refuse: refused_model };
    vec![
        ("keys", keys.table("ModelConfig", &[])),
        (
            "values",
            keys.values(&[
                ("ModelConfig", ""),
                ("AttentionOptions", "attention."),
                ("RotaryOptions", "rotary."),
                ("ChannelAttention", "channel_attention."),
            ]),
        ),
    ]
}

/// The generated parts of `docs/results.md`, by the names in their markers.
fn results(declarations: &Declarations) -> Vec<(&'static str, String)> {
    let keys = |name| described(declarations, name);
    vec![
        ("keys", keys("Metrics")),
        ("classes", keys("ClassMetrics")),
        ("labels", keys("MultiLabelMetrics")),
        ("evaluate", keys("Measured")),
        ("series", keys("Scores")),
    ]
}

/// A table of the keys of a struct in JSON, without those of fields that are flattened into it.
fn described(declarations: &Declarations, name: &str) -> String {
    // The document describes these in words, or in a table of their own.
    const APART: [&str; 3] = ["confusion", "multi_label", "metrics"];
    for field in declarations.fields(name).filter(|field| is_flattened(field)) {
        assert!(APART.contains(&name_of(field).as_str()), "{name}.{}", name_of(field));
    }
    let fields = declarations.fields(name).filter(|field| !is_flattened(field));
    let row = |field: &syn::Field| {
        format!("| `{}` | {} |\n", name_of(field), documentation(&field.attrs).replace('|', "\\|"))
    };
    format!("| key | description |\n|---|---|\n{}", fields.map(row).collect::<String>())
}

/// The document with each generated part between its markers.
fn with_parts(document: &str, parts: &[(&str, String)]) -> String {
    let mut whole = document.to_owned();
    for (name, part) in parts {
        let (begin, end) = (format!("<!-- generated: {name} -->\n"), "<!-- end -->");
        let start = whole.find(&begin).unwrap_or_else(|| panic!("the document has no {begin}")) + begin.len();
        let length = whole[start..].find(end).unwrap_or_else(|| panic!("no {end} follows {begin}"));
        whole.replace_range(start..start + length, &format!("\n{part}\n"));
    }
    whole
}

/// Compares a document with its generated parts, or writes them.
fn check(document: &str, parts: &[(&str, String)]) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(document);
    let text = fs::read_to_string(&path).unwrap();
    let generated = with_parts(&text, parts);
    if std::env::var_os("VITRINE_BLESS").is_some() {
        fs::write(&path, generated).unwrap();
        return;
    }
    for (line, (ours, theirs)) in text.lines().zip(generated.lines()).enumerate() {
        assert_eq!(
            ours,
            theirs,
            "docs/{document}, line {}: the code says otherwise; `VITRINE_BLESS=1 cargo test --test documentation` writes \
             the tables anew",
            line + 1
        );
    }
    assert_eq!(text.len(), generated.len(), "docs/{document} has lines that the code does not give");
}

#[test]
fn the_keys_of_recipes_are_documented() {
    check("recipes.md", &recipes(&Declarations::read()));
}

#[test]
fn the_keys_of_architectures_are_documented() {
    check("architectures.md", &architectures(&Declarations::read()));
}

#[test]
fn the_keys_of_results_are_documented() {
    check("results.md", &results(&Declarations::read()));
}
