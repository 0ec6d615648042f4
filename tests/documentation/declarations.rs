//! The structs and enums of the sources, with their doc comments and the names that serde gives them.

use std::collections::BTreeMap;
use std::path::Path;

use syn::{
    Attribute, Expr, Field, Fields, GenericArgument, Item, ItemEnum, ItemStruct, Lit, Meta, PathArguments,
    Type,
};

/// All structs of the three crates that serde reads or writes, and all enums that it reads, by name.
pub(crate) struct Declarations {
    structs: BTreeMap<String, Vec<ItemStruct>>,
    enums: BTreeMap<String, Vec<ItemEnum>>,
}

/// A value that a key may have.
pub(crate) struct Variant {
    /// As a file spells it.
    pub(crate) spelling: String,
    /// Its doc comment.
    pub(crate) about: String,
}

impl Declarations {
    /// Parses all sources.
    pub(crate) fn read() -> Self {
        let mut all = Self { structs: BTreeMap::new(), enums: BTreeMap::new() };
        for folder in ["src", "models/src", "datasets/src"] {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
            for entry in walkdir::WalkDir::new(root) {
                let path = entry.unwrap().into_path();
                if path.extension().is_some_and(|extension| extension == "rs") {
                    let file = syn::parse_file(&std::fs::read_to_string(path).unwrap()).unwrap();
                    file.items.into_iter().for_each(|item| all.add(item));
                }
            }
        }
        all
    }

    /// Keeps a struct or an enum of serde's.
    fn add(&mut self, item: Item) {
        let item = match item {
            // `listed!` declares an enum.
            Item::Macro(item) => {
                syn::parse2(item.mac.tokens).map_or(Item::Verbatim(Default::default()), Item::Enum)
            }
            other => other,
        };
        match item {
            Item::Struct(item) if derives(&item.attrs, &["Deserialize", "Serialize"]) => {
                self.structs.entry(item.ident.to_string()).or_default().push(item);
            }
            Item::Enum(item) if derives(&item.attrs, &["Deserialize"]) => {
                self.enums.entry(item.ident.to_string()).or_default().push(item);
            }
            _ => {}
        }
    }

    /// The fields of a struct.
    pub(crate) fn fields(&self, name: &str) -> impl Iterator<Item = &Field> {
        let found = self.structs.get(name).map_or(&[][..], Vec::as_slice);
        assert_eq!(found.len(), 1, "structs that are called {name}");
        found[0].fields.iter()
    }

    /// Whether a struct has this name.
    pub(crate) fn is_struct(&self, name: &str) -> bool {
        self.structs.contains_key(name)
    }

    /// The values of an enum with this name, if there is one that serde reads by its names.
    pub(crate) fn variants(&self, name: &str) -> Option<Vec<Variant>> {
        let found = self.enums.get(name)?;
        assert_eq!(found.len(), 1, "enums that are called {name}");
        let case = serde_value(&found[0].attrs, "rename_all")?;
        let variant = |variant: &syn::Variant| {
            let name = serde_value(&variant.attrs, "rename")
                .unwrap_or_else(|| in_case(&variant.ident.to_string(), &case));
            let mut about = documentation(&variant.attrs);
            let spelling = match &variant.fields {
                Fields::Unit => format!("\"{name}\""),
                Fields::Unnamed(_) => format!("{{ {name} = N }}"),
                Fields::Named(fields) => {
                    let keys: Vec<String> = fields.named.iter().map(name_of).collect();
                    for field in &fields.named {
                        about += &format!(" `{}`: {}", name_of(field), documentation(&field.attrs));
                    }
                    format!("{{ {name} = {{ {} }} }}", keys.join(", "))
                }
            };
            Variant { spelling, about }
        };
        Some(found[0].variants.iter().map(variant).collect())
    }
}

/// Whether the attributes of an item derive one of these traits.
fn derives(attributes: &[Attribute], traits: &[&str]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("derive") => {
            let tokens = list.tokens.to_string();
            let last = |path: &str| path.rsplit("::").next().unwrap_or_default().trim().to_owned();
            tokens.split(',').any(|derived| traits.contains(&last(derived).as_str()))
        }
        _ => false,
    })
}

/// Whether a field's keys stand in place of the field.
pub(crate) fn is_flattened(field: &Field) -> bool {
    let mut found = false;
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        attribute
            .parse_nested_meta(|meta| {
                found |= meta.path.is_ident("flatten");
                if meta.input.peek(syn::Token![=]) {
                    meta.value()?.parse::<Expr>()?;
                }
                Ok(())
            })
            .expect("serde's attributes are names and values");
    }
    found
}

/// The key of a field.
pub(crate) fn name_of(field: &Field) -> String {
    serde_value(&field.attrs, "rename").unwrap_or_else(|| field.ident.as_ref().unwrap().to_string())
}

/// The name of a field's type, inside of `Option` and `Vec`.
pub(crate) fn type_of(kind: &Type) -> Option<String> {
    let Type::Path(path) = kind else { return None };
    let last = path.path.segments.last()?;
    match (&last.arguments, last.ident.to_string().as_str()) {
        (PathArguments::AngleBracketed(inner), "Option" | "Vec") => match inner.args.first()? {
            GenericArgument::Type(inner) => type_of(inner),
            _ => None,
        },
        (_, name) => Some(name.to_owned()),
    }
}

/// A doc comment as one line of Markdown, in which links to items are only code.
pub(crate) fn documentation(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(doc) if doc.path.is_ident("doc") => text_of(&doc.value),
        _ => None,
    });
    let text = lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>().join(" ");
    without_item_links(&text)
}

/// `` [`name`](path) `` and `` [`name`] `` become `` `name` ``; links to addresses stay.
fn without_item_links(text: &str) -> String {
    let mut pieces = text.split("[`");
    let mut plain = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (code, after) = piece.split_once("`]").expect("a link to an item ends");
        let after = match after.strip_prefix('(') {
            Some(target) => target.split_once(')').expect("the target of a link ends").1,
            None => after,
        };
        plain += &format!("`{}`{after}", code.trim_start_matches("Self::"));
    }
    plain
}

/// The text of `key = "text"` in the serde attributes of an item.
fn serde_value(attributes: &[Attribute], key: &str) -> Option<String> {
    let mut found = None;
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        attribute
            .parse_nested_meta(|meta| {
                if meta.input.peek(syn::Token![=]) {
                    let value: Expr = meta.value()?.parse()?;
                    if meta.path.is_ident(key) {
                        found = text_of(&value);
                    }
                }
                Ok(())
            })
            .expect("serde's attributes are names and values");
    }
    found
}

fn text_of(value: &Expr) -> Option<String> {
    match value {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// A variant's name in the case of serde's `rename_all`.
fn in_case(name: &str, case: &str) -> String {
    let separator = match case {
        "lowercase" => "",
        "snake_case" => "_",
        "kebab-case" => "-",
        other => panic!("rename_all = \"{other}\" is not expected"),
    };
    let mut spelling = String::new();
    for character in name.chars() {
        if character.is_uppercase() && !spelling.is_empty() {
            spelling += separator;
        }
        spelling.extend(character.to_lowercase());
    }
    spelling
}

#[test]
fn names_are_spelled_as_serde_spells_them() {
    assert_eq!(in_case("MacroF1", "kebab-case"), "macro-f1");
    assert_eq!(in_case("ResidualPostNorm", "snake_case"), "residual_post_norm");
    assert_eq!(in_case("Cifar10", "lowercase"), "cifar10");
    assert_eq!(
        without_item_links("see [`Self::a`](x::a), [`b`] and [c](http://c)"),
        "see `a`, `b` and [c](http://c)"
    );
}
