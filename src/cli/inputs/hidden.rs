//! What a glob pattern finds among hidden files and folders: as in a shell, only those that it names with their dot.

use std::path::{Component, Path, is_separator};

use glob::Pattern;

/// The parts of a pattern that begin with a dot.
pub(super) struct NamedHidden(Vec<Pattern>);

impl NamedHidden {
    /// Those of a pattern, such as `.cache` and `.*.png` of `photos/.cache/*/.*.png`.
    pub(super) fn of(pattern: &str) -> Self {
        let parts = pattern.split(is_separator).filter(|part| part.starts_with('.'));
        Self(parts.filter_map(|part| Pattern::new(part).ok()).collect())
    }

    /// Whether the pattern finds a path: no file or folder in it is hidden, unless the pattern names it.
    pub(super) fn finds(&self, path: &Path) -> bool {
        path.components().all(|component| match component {
            Component::Normal(name) => {
                let name = name.to_string_lossy();
                !name.starts_with('.') || self.0.iter().any(|part| part.matches(&name))
            }
            Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => true,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_files_and_folders_are_found_where_the_pattern_names_them() {
        let finds = |pattern: &str, path: &str| NamedHidden::of(pattern).finds(Path::new(path));
        for (pattern, path, expected) in [
            ("photos/*.jpg", "photos/cat.jpg", true),
            ("photos/*.jpg", "photos/._cat.jpg", false),
            ("../photos/*.jpg", "../photos/cat.jpg", true),
            ("**/*.jpg", "photos/.thumbs/cat.jpg", false),
            ("**/.thumbs/*.jpg", "photos/.thumbs/cat.jpg", true),
            ("**/.thumbs/*.jpg", "photos/.thumbs/._cat.jpg", false),
            ("/home/me/.data/*.jpg", "/home/me/.data/cat.jpg", true),
            ("photos/.*.jpg", "photos/.cat.jpg", true),
            ("photos/.[", "photos/.cat.jpg", false),
        ] {
            assert_eq!(finds(pattern, path), expected, "{pattern} {path}");
        }
    }
}
