//! The folder of explanations: for each image its overlays and arrays, and a page that shows all of them.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::page::{self, Card, Panel};
use super::{Explanation, Map, overlay};
use crate::files::write_atomically;
use crate::usage::usage;

/// The name of the page.
const PAGE: &str = "index.html";
/// The most characters of an input's name in the names of its files.
const LONGEST_STEM: usize = 40;

/// A new folder that explanations are written to.
pub struct OutputFolder {
    path: PathBuf,
    /// The folders that were not there before, from the innermost.
    created: Vec<PathBuf>,
    /// The beginnings of file names that are in use, in lower case, because some file systems do not tell cases apart.
    stems: HashSet<String>,
    cards: Vec<Card>,
}

impl OutputFolder {
    /// Checks that the folder can be created, or is empty.
    ///
    /// # Errors
    /// If there is a file at this path, or the folder is not empty or cannot be read.
    pub fn check(path: &Path) -> Result<()> {
        let shown = path.display();
        if !path.exists() {
            return Ok(());
        }
        if !path.is_dir() {
            usage!("--output {shown}: there is a file; give a folder");
        }
        let mut files = fs::read_dir(path).with_context(|| format!("--output {shown}: cannot be read"))?;
        if files.next().is_some() {
            usage!("--output {shown}: the folder is not empty; choose another one");
        }
        Ok(())
    }

    /// Creates the folder, if it does not exist.
    ///
    /// # Errors
    /// If there is a file at this path, the folder is not empty, or it cannot be created.
    pub fn create(path: &Path) -> Result<Self> {
        Self::check(path)?;
        let is_new = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let created = path.ancestors().take_while(is_new).map(Path::to_owned).collect();
        fs::create_dir_all(path)
            .with_context(|| format!("--output {}: cannot be created", path.display()))?;
        Ok(Self { path: path.to_owned(), created, stems: HashSet::new(), cards: Vec::new() })
    }

    /// Writes the files of one image, whose names begin with that of the image file, and returns this beginning. It is
    /// followed by a number if another input had the same name.
    ///
    /// - `STEM.png`: the image as the model sees it, enlarged if it is small
    /// - `STEM.METHOD.png`: the map over it, with a color bar; with one per head, `STEM.METHOD.headN.png`
    /// - `STEM.METHOD.npy`: the values of the map, `[rows, columns]` or `[heads, rows, columns]`
    /// - `STEM.patch-logits.classes.npy`: the class with the largest logit at each patch
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn add(&mut self, input: &str, explanation: &Explanation) -> Result<String> {
        let stem = self.free_stem(input);
        let image = overlay::enlarged(&explanation.image);
        let original = format!("{stem}.png");
        self.write(&original, &overlay::image_png(&image))?;
        let mut panels = Vec::new();
        for map in &explanation.maps {
            let name = format!("{stem}.{}", map.method.name());
            self.write(&format!("{name}.npy"), &map.npy())?;
            if let Some(classes) = map.classes_npy() {
                self.write(&format!("{name}.classes.npy"), &classes)?;
            }
            let several = map.layers().len() > 1;
            for (head, layer) in map.layers().enumerate() {
                let head = several.then_some(head);
                let file = head.map_or(format!("{name}.png"), |head| format!("{name}.head{head}.png"));
                self.write(&file, &overlay::png(&image, layer, [map.rows, map.columns]))?;
                let (method, is_about_class) = (map.method, map.is_about_class);
                panels.push(Panel { file, method, is_about_class, head, scale: overlay::scale(layer) });
            }
        }
        let (predicted, class) = (explanation.predicted.clone(), explanation.class.clone());
        let counts = explanation.maps.iter().flat_map(counted).collect();
        self.cards.push(Card { input: input.to_owned(), image: original, predicted, class, panels, counts });
        Ok(stem)
    }

    /// Writes the page, and returns its path. `facts` describe the model, as name and value; `classes` are its classes.
    ///
    /// # Errors
    /// If there is no explanation, for which no folder is left behind, or the page cannot be written.
    pub fn finish(self, facts: &[(&str, String)], classes: &[String]) -> Result<PathBuf> {
        if self.cards.is_empty() {
            for folder in &self.created {
                // It stays if somebody else has written into it meanwhile.
                let _ = fs::remove_dir(folder);
            }
            bail!("no image could be explained, so nothing is written");
        }
        let path = self.path.join(PAGE);
        write_atomically(&path, page::render(&self.cards, facts, classes).as_bytes())?;
        Ok(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        write_atomically(&self.path.join(name), bytes)
    }

    /// The input's file name without its extension, in characters that are safe in file names and addresses, and with a
    /// number if it is taken.
    fn free_stem(&mut self, input: &str) -> String {
        let name = Path::new(input).file_stem().unwrap_or_default().to_string_lossy();
        let safe =
            |character: char| if character.is_alphanumeric() || character == '-' { character } else { '_' };
        let stem: String = name.chars().map(safe).take(LONGEST_STEM).collect();
        let numbered = (2..).map(|number| format!("{stem}-{number}"));
        let free =
            std::iter::once(stem.clone()).chain(numbered).find(|stem| self.stems.insert(stem.to_lowercase()));
        free.unwrap_or(stem)
    }
}

/// How often each class has the largest logit of a patch, the most frequent class first.
fn counted(map: &Map) -> Vec<(usize, usize)> {
    let mut counts: Vec<(usize, usize)> = Vec::new();
    for &class in &map.classes {
        match counts.iter_mut().find(|(found, _)| *found == class) {
            Some((_, count)) => *count += 1,
            None => counts.push((class, 1)),
        }
    }
    counts.sort_by_key(|&(class, count)| (std::cmp::Reverse(count), class));
    counts
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn without_an_explanation_nothing_is_left_behind() {
        let place = tempfile::tempdir().unwrap();
        let old = place.path().join("old");
        fs::create_dir(&old).unwrap();
        for name in ["new", "old", "outer/inner", "old/inner"] {
            let error = OutputFolder::create(&place.path().join(name)).unwrap().finish(&[], &[]);
            let error = error.unwrap_err().to_string();
            assert!(error.contains("nothing is written"), "{error}");
            let left: Vec<_> =
                fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
            assert_eq!(left, std::slice::from_ref(&old), "{name}");
            assert!(fs::read_dir(&old).unwrap().next().is_none(), "{name}");
        }
    }

    #[test]
    fn file_names_are_unambiguous_and_safe() {
        let place = tempfile::tempdir().unwrap();
        let mut folder = OutputFolder::create(place.path()).unwrap();
        let names = ["a/cat.png", "b/cat.jpg", "c/Cat.png", "cat-2.png", "../a b\n#%.png", "Füchse.png"];
        let stems: Vec<String> = names.iter().map(|name| folder.free_stem(name)).collect();
        assert_eq!(stems, ["cat", "cat-2", "Cat-3", "cat-2-2", "a_b___", "Füchse"]);
    }
}
