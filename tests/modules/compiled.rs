//! Every source file is compiled: cargo or a `mod` names it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::Visit;

use super::sources;

/// Folders whose files are crates of their own, as are those named `main.rs` in a folder there.
const OF_CRATES: [&str; 8] = [
    "tests",
    "benches",
    "examples",
    "models/tests",
    "datasets/examples",
    "bindings/c/tests",
    "bindings/python/tests",
    "bindings/python",
];

/// Whether cargo compiles a file for itself.
fn is_crate_root(name: &str) -> bool {
    let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
    let is_of_main =
        file == "main.rs" && folder.rsplit_once('/').is_some_and(|(above, _)| OF_CRATES.contains(&above));
    matches!(file, "lib.rs") || name == "src/main.rs" || OF_CRATES.contains(&folder) || is_of_main
}

/// A visitor that finds the files that the modules of a file are in.
struct Declarations {
    /// The folder of the file.
    folder: PathBuf,
    /// The folder of the modules that are declared where the visitor is.
    of_children: PathBuf,
    /// Where each module may be.
    files: Vec<PathBuf>,
}

impl<'a> Visit<'a> for Declarations {
    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        let name = item.ident.to_string();
        if item.content.is_some() {
            let outer = self.of_children.clone();
            self.of_children.push(name);
            syn::visit::visit_item_mod(self, item);
            self.of_children = outer;
            return;
        }
        let path = item.attrs.iter().find_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(syn::MetaNameValue { path, value: syn::Expr::Lit(value), .. })
                if path.is_ident("path") =>
            {
                match &value.lit {
                    syn::Lit::Str(path) => Some(path.value()),
                    _ => None,
                }
            }
            _ => None,
        });
        match path {
            Some(path) => self.files.push(self.folder.join(path)),
            None => {
                self.files.push(self.of_children.join(format!("{name}.rs")));
                self.files.push(self.of_children.join(name).join("mod.rs"));
            }
        }
    }
}

/// The files, of those given, that neither cargo compiles nor a module declares.
fn compiled_by_nothing(files: &BTreeMap<String, String>) -> Vec<&String> {
    let mut compiled: BTreeSet<String> = files.keys().filter(|name| is_crate_root(name)).cloned().collect();
    let mut waiting: Vec<String> = compiled.iter().cloned().collect();
    while let Some(name) = waiting.pop() {
        let file = Path::new(&name);
        let folder = file.parent().expect("a file is in a folder").to_owned();
        let is_of_folder = is_crate_root(&name) || file.ends_with("mod.rs");
        let of_children = if is_of_folder { folder.clone() } else { file.with_extension("") };
        let mut found = Declarations { folder, of_children, files: Vec::new() };
        found.visit_file(&syn::parse_file(&files[&name]).expect("the code compiles"));
        for path in found.files {
            let mut parts: Vec<String> = Vec::new();
            for part in path.iter().map(|part| part.to_string_lossy().into_owned()) {
                if part != ".." {
                    parts.push(part);
                } else {
                    parts.pop();
                }
            }
            let name = parts.join("/");
            if files.contains_key(&name) && compiled.insert(name.clone()) {
                waiting.push(name);
            }
        }
    }
    files.keys().filter(|name| !compiled.contains(*name)).collect()
}

#[test]
fn every_source_file_is_compiled() {
    let folders = ["src", "tests", "benches", "examples", "models", "datasets", "bindings"];
    let mut files: BTreeMap<String, String> = folders.into_iter().flat_map(sources).collect();
    // Fuzz targets are a workspace of their own.
    files.retain(|name, _| !name.starts_with("datasets/fuzz/") && !name.contains("/target/"));
    assert!(files.len() > 500, "hardly any sources were found: {}", files.len());
    assert_eq!(compiled_by_nothing(&files), Vec::<&String>::new(), "no `mod` declares these files");
}

#[test]
fn files_that_no_module_declares_are_found() {
    let files = [
        ("src/lib.rs", "mod a; mod b { mod c; } #[path = \"../other/d.rs\"] mod d;"),
        ("src/a/mod.rs", "#[cfg(test)] mod tests;"),
        ("src/a/tests.rs", ""),
        ("src/b/c.rs", "mod e;"),
        ("src/b/c/e.rs", ""),
        ("src/b/e.rs", ""),
        ("other/d.rs", ""),
        ("src/tests.rs", ""),
        ("tests/runs/main.rs", "mod one;"),
        ("tests/runs/one.rs", ""),
        ("tests/runs/two.rs", ""),
    ];
    let files = files.map(|(name, text)| (name.to_owned(), text.to_owned())).into();
    assert_eq!(compiled_by_nothing(&files), ["src/b/e.rs", "src/tests.rs", "tests/runs/two.rs"]);
}
