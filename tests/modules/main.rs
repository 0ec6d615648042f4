//! Tests of the structure of the code: imports between files form no cycle, crates depend only on the crates below
//! them, and unsafe code is confined to a few places.

mod compiled;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::Visit;
use syn::{Item, UseTree};

/// The path of a module from the crate's root, such as `["attention", "mask"]`.
type Module = Vec<String>;

/// The names in a module: those that it defines, and those that it imports, each with the imported path.
#[derive(Default)]
struct Contents {
    defined: BTreeSet<String>,
    imported: BTreeMap<String, Segments>,
}

/// The segments of a path in code, such as `["crate", "attention", "Mask"]`.
type Segments = Vec<String>;

/// The modules of a crate, and all paths in their code.
#[derive(Default)]
struct Crate {
    modules: BTreeMap<Module, Contents>,
    /// Every path in the code outside tests, with the module that it occurs in.
    named: Vec<(Module, Segments)>,
}

impl Crate {
    /// Reads all files in the folder of a `lib.rs`, except for tests.
    fn read(source: &Path) -> Self {
        let mut tree = Self::default();
        for file in walkdir::WalkDir::new(source).sort_by_file_name() {
            let file = file.expect("the sources can be read").into_path();
            let module = module_of(source, &file);
            let is_test = module.iter().any(|name| name == "tests" || name == "testing");
            if file.extension().is_some_and(|extension| extension == "rs") && !is_test && module != ["main"] {
                tree.add(module, &fs::read_to_string(&file).expect("a source file"));
            }
        }
        tree
    }

    fn add(&mut self, module: Module, text: &str) {
        let file = syn::parse_file(text).expect("the code compiles");
        let mut reader = Reader { contents: Contents::default(), named: Vec::new(), inline: 0 };
        reader.visit_file(&file);
        self.named.extend(reader.named.into_iter().map(|path| (module.clone(), path)));
        // A folder without `mod.rs` is a module, too.
        for length in 0..module.len() {
            self.modules.entry(module[..length].to_vec()).or_default();
        }
        self.modules.insert(module, reader.contents);
    }

    /// The module that defines the item at `path`, as seen from the module `from`; `None` for other crates.
    fn resolve(&self, from: &Module, path: &[String]) -> Option<Module> {
        let (mut module, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.clone(), &path[1..]),
            "super" => (from.split_last()?.1.to_vec(), &path[1..]),
            _ => (from.clone(), path),
        };
        while let Some((name, after)) = rest.split_first() {
            let child = [module.clone(), vec![name.clone()]].concat();
            let contents = &self.modules[&module];
            if name == "super" {
                module = module.split_last()?.1.to_vec();
            } else if self.modules.contains_key(&child) {
                module = child;
            } else if contents.defined.contains(name) {
                return Some(module);
            } else if let Some(elsewhere) =
                contents.imported.get(name).filter(|elsewhere| elsewhere[0] != *name)
            {
                return self.resolve(&module, &[elsewhere.as_slice(), after].concat());
            } else if path.len() == rest.len() {
                // The name of another crate, or a name of the language.
                return None;
            } else {
                return Some(module);
            }
            rest = after;
        }
        Some(module)
    }

    /// The dependencies of each module, except those between parents and their children. A module that is deeper than
    /// `depth` counts as the folder at that depth.
    fn dependencies(&self, depth: usize) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut dependencies: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        let folder = |module: &Module| module[..module.len().min(depth)].to_vec();
        for (module, path) in &self.named {
            let Some(used) = self.resolve(module, path) else { continue };
            let (module, used) = (folder(module), folder(&used));
            if !used.starts_with(&module) && !module.starts_with(&used) {
                dependencies.entry(module).or_default().insert(used);
            }
        }
        dependencies
    }

    /// A cycle of modules in which each depends on the next, if there is one.
    fn cycle(&self, depth: usize) -> Option<Vec<String>> {
        let dependencies = self.dependencies(depth);
        dependencies.keys().find_map(|start| {
            let mut paths: Vec<Vec<&Module>> = vec![vec![start]];
            let mut seen = BTreeSet::new();
            while let Some(path) = paths.pop() {
                for next in path.last().and_then(|last| dependencies.get(*last)).into_iter().flatten() {
                    if next == start {
                        return Some(path.iter().map(|module| module.join("::")).collect());
                    }
                    if seen.insert(next) {
                        paths.push([path.as_slice(), &[next]].concat());
                    }
                }
            }
            None
        })
    }
}

/// The module of a file: `attention` for `attention/mod.rs` and `attention.rs`, the root for `lib.rs`.
fn module_of(source: &Path, file: &Path) -> Module {
    let inside = file.strip_prefix(source).expect("a file of the folder").with_extension("");
    let mut module: Module = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    module
}

/// A visitor that collects the definitions, the imports, and the paths in one file.
struct Reader {
    contents: Contents,
    named: Vec<Segments>,
    /// The number of inline modules around the code that is being visited.
    inline: usize,
}

impl Reader {
    /// Collects a path. `super` that leads from an inline module to its file becomes `self`.
    fn name(&mut self, mut path: Segments) {
        let supers = path.iter().take(self.inline).take_while(|name| *name == "super").count();
        path[..supers].fill("self".to_owned());
        path.dedup_by(|a, b| a == "self" && b == "self");
        self.named.push(path);
    }

    fn import(&mut self, tree: &UseTree, before: &[String]) {
        let mut path = before.to_vec();
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.import(&part.tree, &path);
            }
            UseTree::Group(group) => group.items.iter().for_each(|item| self.import(item, before)),
            UseTree::Name(name) if name.ident == "self" => {
                self.contents.imported.insert(path.last().expect("a path before self").clone(), path.clone());
                self.name(path);
            }
            UseTree::Name(name) => {
                path.push(name.ident.to_string());
                self.contents.imported.insert(name.ident.to_string(), path.clone());
                self.name(path);
            }
            UseTree::Rename(rename) => {
                path.push(rename.ident.to_string());
                self.contents.imported.insert(rename.rename.to_string(), path.clone());
                self.name(path);
            }
            UseTree::Glob(_) => self.name(path),
        }
    }
}

impl<'a> Visit<'a> for Reader {
    fn visit_item(&mut self, item: &'a Item) {
        let (attributes, name) = match item {
            Item::Const(item) => (&item.attrs, Some(&item.ident)),
            Item::Enum(item) => (&item.attrs, Some(&item.ident)),
            Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
            Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
            Item::Static(item) => (&item.attrs, Some(&item.ident)),
            Item::Struct(item) => (&item.attrs, Some(&item.ident)),
            Item::Trait(item) => (&item.attrs, Some(&item.ident)),
            Item::Type(item) => (&item.attrs, Some(&item.ident)),
            Item::Impl(item) => (&item.attrs, None),
            Item::Mod(item) => (&item.attrs, None),
            Item::Use(item) => (&item.attrs, None),
            _ => return,
        };
        if attributes.iter().any(is_test) {
            return;
        }
        self.contents.defined.extend(name.map(ToString::to_string));
        syn::visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        self.inline += 1;
        syn::visit::visit_item_mod(self, item);
        self.inline -= 1;
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.import(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.name(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }
}

fn is_test(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let condition = list.tokens.to_string().replace(' ', "");
    list.path.is_ident("cfg") && (condition == "test" || condition.starts_with("all(test,"))
}

/// The folder of each crate, and the crates of the workspace that its manifest and code may name.
const MAY_NAME: [(&str, &[&str]); 6] = [
    (".", &["vitrine", "vitrine-models", "vitrine-kernels", "vitrine-datasets"]),
    ("models", &["vitrine-models", "vitrine-kernels"]),
    ("models/kernels", &["vitrine-kernels"]),
    ("datasets", &["vitrine-datasets"]),
    ("bindings/c", &["vitrine", "vitrine-models", "vitrine-datasets"]),
    ("bindings/python", &["vitrine", "vitrine-models", "vitrine-datasets"]),
];

/// The folders of crates whose `lib.rs` must forbid unsafe code.
const FORBID_UNSAFE: [&str; 2] = ["models", "datasets"];

/// The files and folders of the program that may have unsafe code: for the allocator's option, signals, and a memory
/// map.
const MAY_BE_UNSAFE: [&str; 3] = ["src/allocator.rs", "src/signals.rs", "src/weights_file/"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A visitor that finds unsafe code, also in the arguments of macros.
#[derive(Default)]
struct UnsafeCode {
    found: bool,
}

impl<'a> Visit<'a> for UnsafeCode {
    fn visit_expr_unsafe(&mut self, _: &'a syn::ExprUnsafe) {
        self.found = true;
    }

    fn visit_signature(&mut self, signature: &'a syn::Signature) {
        self.found |= matches!(signature.safety, syn::Safety::Unsafe(_));
        syn::visit::visit_signature(self, signature);
    }

    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        self.found |= item.unsafety.is_some();
        syn::visit::visit_item_impl(self, item);
    }

    fn visit_item_foreign_mod(&mut self, _: &'a syn::ItemForeignMod) {
        self.found = true;
    }

    fn visit_macro(&mut self, called: &'a syn::Macro) {
        let tokens = called.tokens.to_string();
        self.found |= tokens.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
    }
}

/// The source files below a folder of the repository: path, with slashes, and text.
fn sources(folder: &str) -> impl Iterator<Item = (String, String)> {
    walkdir::WalkDir::new(root().join(folder)).sort_by_file_name().into_iter().filter_map(|file| {
        let path = file.expect("the sources can be read").into_path();
        let name =
            path.strip_prefix(root()).expect("a file of the repository").to_string_lossy().replace('\\', "/");
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        is_source.then(|| (name, fs::read_to_string(&path).expect("a source file")))
    })
}

fn has_unsafe_code(text: &str) -> bool {
    let mut code = UnsafeCode::default();
    code.visit_file(&syn::parse_file(text).expect("the code compiles"));
    code.found
}

#[test]
fn crates_name_only_crates_below_them() {
    for (folder, may_name) in MAY_NAME {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a manifest");
        let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
        let sections = ["dependencies", "dev-dependencies", "build-dependencies"];
        let dependencies = sections.iter().filter_map(|section| manifest.get(*section)?.as_table());
        for name in dependencies.flat_map(toml::Table::keys).filter(|name| name.starts_with("vitrine")) {
            assert!(may_name.contains(&name.as_str()), "{folder}/Cargo.toml depends on {name}");
        }
        let source = root().join(folder).join("src");
        for (module, path) in Crate::read(&source).named {
            let name = path[0].replace('_', "-");
            let is_crate = MAY_NAME.iter().any(|(_, names)| names.contains(&name.as_str()));
            let is_other = is_crate && !may_name.contains(&name.as_str());
            assert!(!is_other, "{folder}: {} names {}", module.join("::"), path.join("::"));
        }
    }
}

#[test]
fn unsafe_code_is_in_the_kernels_and_three_files_of_the_program() {
    for folder in FORBID_UNSAFE {
        let text = fs::read_to_string(root().join(folder).join("src/lib.rs")).expect("a library");
        let forbids = syn::parse_file(&text).expect("the code compiles").attrs.iter().any(|attribute| {
            matches!(&attribute.meta, syn::Meta::List(list)
                if list.path.is_ident("forbid") && list.tokens.to_string() == "unsafe_code")
        });
        assert!(forbids, "{folder}/src/lib.rs lacks #![forbid(unsafe_code)]");
    }
    for (name, text) in sources("src").chain(sources("bindings/python/src")) {
        let may_be_unsafe = MAY_BE_UNSAFE.iter().any(|place| name.starts_with(place));
        assert!(may_be_unsafe || !has_unsafe_code(&text), "{name} holds unsafe code");
    }
}

#[test]
fn unsafe_code_is_found_in_blocks_functions_impls_and_macros() {
    for code in [
        "fn f() { unsafe { g() } }",
        "struct A; impl A { unsafe fn f() {} }",
        "struct A; unsafe impl Send for A {}",
        "fn f() { println!(\"{}\", unsafe { g() }) }",
    ] {
        assert!(has_unsafe_code(code), "{code}");
    }
    assert!(!has_unsafe_code("//! No unsafe code.\nfn f() { g(\"unsafe\") }"));
}

#[test]
fn imports_form_no_cycle() {
    for folder in ["src", "models/src", "models/kernels/src", "datasets/src"] {
        let source = root().join(folder);
        let tree = Crate::read(&source);
        assert!(
            tree.modules.len() > 10 && tree.dependencies(usize::MAX).len() > 10,
            "{folder}: hardly any modules or dependencies were found"
        );
        let cycle = [usize::MAX, 1].into_iter().find_map(|depth| tree.cycle(depth));
        assert!(
            cycle.is_none(),
            "{folder}: the modules {cycle:?} form a cycle: move the code that they share to a file of its own"
        );
    }
}

#[test]
fn a_cycle_through_reexported_names_is_found() {
    let mut tree = Crate::default();
    let module = |path: &str| -> Module {
        PathBuf::from(path).iter().map(|part| part.to_string_lossy().into_owned()).collect()
    };
    tree.add(module(""), "mod a; mod b; pub use b::Thing;");
    tree.add(module("a"), "use crate::Thing; pub fn f(thing: Thing) {}");
    tree.add(module("b"), "mod c; pub use c::Thing;");
    tree.add(module("b/c"), "pub struct Thing; #[cfg(all(test, x))] mod tests { use crate::a::f; }");
    assert_eq!(tree.cycle(usize::MAX), None);
    tree.add(module("b/c"), "pub struct Thing; fn g() { crate::a::f(Thing) }");
    assert_eq!(tree.cycle(usize::MAX), Some(vec!["a".to_owned(), "b::c".to_owned()]));
}

/// What code names that writes to the terminal.
const PRINTERS: [&str; 12] = [
    "print!",
    "println!",
    "eprint!",
    "eprintln!",
    "dbg!",
    "note!",
    "out!",
    "outln!",
    "stdout(",
    "stderr(",
    "ProgressBar",
    "cli::output",
];

/// The first name in the code of a file, tests and comments apart, that writes to the terminal.
fn printer(text: &str) -> Option<&'static str> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let is_word = |before: &str| !before.ends_with(|last: char| last.is_alphanumeric() || last == '_');
    PRINTERS.into_iter().find(|name| code.match_indices(name).any(|(place, _)| is_word(&code[..place])))
}

#[test]
fn only_the_command_line_writes_to_the_terminal() {
    for folder in ["src", "models/src", "models/kernels/src", "datasets/src"] {
        for (name, text) in sources(folder) {
            let is_test =
                name.ends_with("/tests.rs") || name.contains("/tests/") || name.contains("/testing/");
            if !name.starts_with("src/cli/") && !is_test {
                assert_eq!(printer(&text), None, "{name} writes to the terminal: emit an event instead");
            }
        }
    }
}

#[test]
fn printers_are_found_in_code_but_not_in_comments_and_tests() {
    assert_eq!(printer("fn f() { println!(\"a\") }"), Some("println!"));
    assert_eq!(printer("fn f() { io::stderr().write_all(b\"a\") }"), Some("stderr("));
    assert_eq!(
        printer("/// println!(\"a\")\nfn f() { layout!() }\n#[cfg(test)]\nmod tests { dbg!(1) }"),
        None
    );
    assert_eq!(printer("#[cfg(test)]\nmod tests;\nfn f() { println!(\"a\") }"), Some("println!"));
}
