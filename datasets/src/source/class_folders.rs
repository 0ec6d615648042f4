//! Labels from folder names: one folder per class, either at the top or inside `train/`, `val/`, and `test/`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::LabeledImage;
use crate::error::lines;
use crate::{DatasetError, ImageSource, LeftOut, Split, shown};

/// The layouts that are recognized, for error messages.
const LAYOUTS: &str = "expected one folder per class (cats/1.png, dogs/2.png), or the same inside train/ with val/ \
                       and/or test/";

/// The image files and folders of a folder or an archive. Paths are relative to its root, with `/` between names.
pub(crate) struct Listing {
    /// The folder or archive.
    pub(crate) root: PathBuf,
    /// The images.
    pub(crate) images: BTreeMap<String, ImageSource>,
    /// All folders, including those without images.
    pub(crate) folders: BTreeSet<String>,
}

/// The images of a folder at the top level.
#[derive(Default)]
struct TopFolder {
    /// The path of an image directly in it.
    direct: Option<String>,
    /// Whether a folder inside it has images.
    is_nested: bool,
}

impl Listing {
    /// Removes a single top-level folder that contains everything else, repeatedly. Archives often have one.
    pub(crate) fn unwrapped(mut self) -> Self {
        loop {
            let contents = self.contents();
            let (1, None, Some((name, content))) =
                (contents.len(), self.loose(), contents.into_iter().next())
            else {
                return self;
            };
            if !content.is_nested || content.direct.is_some() || Split::from_word(&name).is_some() {
                return self;
            }
            let below = |path: &str| {
                path.strip_prefix(&name).and_then(|path| path.strip_prefix('/')).map(str::to_owned)
            };
            let images = std::mem::take(&mut self.images).into_iter();
            self.images = images.filter_map(|(path, image)| Some((below(&path)?, image))).collect();
            self.folders = self.folders.iter().filter_map(|path| below(path)).collect();
        }
    }

    /// Every image with its class and split.
    ///
    /// # Errors
    ///
    /// If there are no images, images outside class folders, or class folders without images.
    pub(crate) fn labeled(self, left_out: &LeftOut) -> Result<Vec<LabeledImage>, DatasetError> {
        if self.images.is_empty() {
            let (path, left_out) = (self.root, Box::new(left_out.clone()));
            return Err(DatasetError::NoImages { path, expected: LAYOUTS, left_out });
        }
        let contents = self.contents();
        if let Some(loose) = self.loose() {
            let problem = if contents.is_empty() {
                format!("holds images that are in no class folder: {LAYOUTS}")
            } else {
                format!("the image '{loose}' is in no class folder: move it into one, or elsewhere")
            };
            return Err(self.problem(problem));
        }
        match self.split_folders(&contents)? {
            Some(splits) => {
                self.check_split_folders(&splits, &contents, left_out)?;
                let split_and_class = |path: &str| {
                    let (split, rest) = path.split_once('/')?;
                    Some((*splits.get(split)?, rest.split_once('/')?.0.to_owned()))
                };
                Ok(self.label(split_and_class))
            }
            None => {
                if let (1, Some((name, TopFolder { is_nested: true, .. }))) =
                    (contents.len(), contents.first_key_value())
                {
                    // Both parts have been made printable already, so `display` does not change them.
                    let inner = PathBuf::from(shown(&self.root)).join(name);
                    let problem = format!(
                        "has only one class, '{name}': if the classes are folders inside it, give {}",
                        inner.display()
                    );
                    return Err(self.problem(problem));
                }
                self.check_class_folders("", left_out)?;
                Ok(self.label(|path| Some((Split::Train, path.split_once('/')?.0.to_owned()))))
            }
        }
    }

    /// The images with the split and class that a function derives from their paths.
    fn label(self, split_and_class: impl Fn(&str) -> Option<(Split, String)>) -> Vec<LabeledImage> {
        let labeled = |(path, source): (String, ImageSource)| {
            let (split, class) = split_and_class(&path)?;
            Some(LabeledImage { split, classes: vec![class], source })
        };
        self.images.into_iter().filter_map(labeled).collect()
    }

    /// The first image that is not inside a folder.
    fn loose(&self) -> Option<&str> {
        self.images.keys().map(String::as_str).find(|path| !path.contains('/'))
    }

    /// The folders at the top level that have images.
    fn contents(&self) -> BTreeMap<String, TopFolder> {
        let mut contents: BTreeMap<String, TopFolder> = BTreeMap::new();
        for path in self.images.keys() {
            let Some((top, rest)) = path.split_once('/') else { continue };
            if !contents.contains_key(top) {
                contents.insert(top.to_owned(), TopFolder::default());
            }
            if let Some(content) = contents.get_mut(top) {
                match rest.contains('/') {
                    true => content.is_nested = true,
                    false => content.direct = content.direct.take().or_else(|| Some(path.clone())),
                }
            }
        }
        contents
    }

    /// The top-level folders that are splits; `None` if the top-level folders are classes.
    ///
    /// Since a class may be named `train`, `val`, or `test`, a folder of such a name counts as a split only if it
    /// contains class folders, or if all top-level folders have such names.
    fn split_folders(
        &self,
        contents: &BTreeMap<String, TopFolder>,
    ) -> Result<Option<BTreeMap<String, Split>>, DatasetError> {
        let are_all_splits = contents.keys().all(|name| Split::from_word(name).is_some());
        let is_split = |content: &TopFolder| are_all_splits || content.is_nested;
        let splits: BTreeMap<String, Split> = contents
            .iter()
            .filter(|(_, content)| is_split(content))
            .filter_map(|(name, _)| Some((name.clone(), Split::from_word(name)?)))
            .collect();
        let mut folders: BTreeMap<Split, &str> = BTreeMap::new();
        for (name, &split) in &splits {
            if let Some(other) = folders.insert(split, name) {
                let problem =
                    format!("has both '{other}' and '{name}' for the {split} split: remove one of them");
                return Err(self.problem(problem));
            }
        }
        Ok((!splits.is_empty()).then_some(splits))
    }

    /// Checks that all images are in class folders inside the split folders, and that no split or class folder is
    /// empty.
    fn check_split_folders(
        &self,
        splits: &BTreeMap<String, Split>,
        contents: &BTreeMap<String, TopFolder>,
        left_out: &LeftOut,
    ) -> Result<(), DatasetError> {
        if let Some(other) = contents.keys().find(|name| !splits.contains_key(*name)) {
            let split = splits.keys().next().map_or("train", String::as_str);
            let problem = format!(
                "the folder '{other}' next to '{split}' holds images that are in no split: move it away"
            );
            return Err(self.problem(problem));
        }
        let is_empty_split = |name: &&String| Split::from_word(name).is_some() && !splits.contains_key(*name);
        if let Some(name) = self.folders.iter().find(is_empty_split) {
            return Err(self.empty("folder", name, left_out));
        }
        for name in splits.keys() {
            if let Some(path) = contents.get(name).and_then(|content| content.direct.as_ref()) {
                let problem = format!("the image '{path}' is in no class folder: {LAYOUTS}");
                return Err(self.problem(problem));
            }
            self.check_class_folders(&format!("{name}/"), left_out)?;
        }
        Ok(())
    }

    /// Checks that every folder directly below `prefix` has images.
    fn check_class_folders(&self, prefix: &str, left_out: &LeftOut) -> Result<(), DatasetError> {
        let mut classes = self
            .folders
            .iter()
            .filter(|path| path.strip_prefix(prefix).is_some_and(|rest| !rest.contains('/')));
        let is_empty = |class: &&String| {
            let below = format!("{class}/");
            self.images.range(below.clone()..).next().is_none_or(|(path, _)| !path.starts_with(&below))
        };
        match classes.find(is_empty) {
            Some(class) => Err(self.empty("class folder", class, left_out)),
            None => Ok(()),
        }
    }

    /// A folder without images; if it may have some that cannot be used, that is said, and not that it can go.
    fn empty(&self, kind: &str, folder: &str, left_out: &LeftOut) -> DatasetError {
        let way_out = if left_out.has_faults() {
            format!(" that can be used{}", lines(left_out.faults()))
        } else {
            ": fill it or remove it".to_owned()
        };
        self.problem(format!("the {kind} '{folder}' holds no images{way_out}"))
    }

    fn problem(&self, problem: impl Into<String>) -> DatasetError {
        DatasetError::layout(&self.root, problem)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::Reason;

    fn listing(paths: &[&str]) -> Listing {
        let image = |path: &&str| ImageSource::Encoded { name: (*path).to_owned(), bytes: Arc::from([]) };
        let folders = paths
            .iter()
            .flat_map(|path| path.match_indices('/').map(|(end, _)| path[..end].to_owned()))
            .collect();
        let images =
            paths.iter().filter(|path| !path.ends_with('/')).map(|path| ((*path).to_owned(), image(path)));
        Listing { root: PathBuf::from("pets"), images: images.collect(), folders }
    }

    fn rows(paths: &[&str]) -> Vec<(Split, String)> {
        let labeled = listing(paths).unwrapped().labeled(&LeftOut::default()).unwrap();
        labeled.into_iter().map(|labeled| (labeled.split, labeled.classes.concat())).collect()
    }

    fn message(paths: &[&str]) -> String {
        listing(paths).labeled(&LeftOut::default()).err().unwrap().to_string()
    }

    fn row(split: Split, class: &str) -> (Split, String) {
        (split, class.to_owned())
    }

    #[test]
    fn folders_are_classes_and_images_in_subfolders_belong_to_them() {
        let expected = [row(Split::Train, "cat"), row(Split::Train, "cat"), row(Split::Train, "dog")];
        assert_eq!(rows(&["dog/1.png", "cat/1.png", "cat/persian/2.png"]), expected);
    }

    #[test]
    fn all_usual_names_of_split_folders_are_recognized() {
        for [train, val, test] in [
            ["train", "val", "test"],
            ["Train", "valid", "TEST"],
            ["Training", "Validation", "Testing"],
            ["train_set", "dev", "test_set"],
        ] {
            let paths =
                [format!("{test}/cat/3.png"), format!("{train}/cat/1.png"), format!("{val}/cat/2.png")];
            let mut found = rows(&paths.each_ref().map(String::as_str));
            found.sort();
            assert_eq!(found, [row(Split::Train, "cat"), row(Split::Val, "cat"), row(Split::Test, "cat")]);
        }
    }

    #[test]
    fn a_test_or_val_folder_alone_is_a_data_set() {
        assert_eq!(
            rows(&["test/cat/1.png", "test/dog/2.png"]),
            [row(Split::Test, "cat"), row(Split::Test, "dog")]
        );
        assert_eq!(rows(&["valid/cat/1.png"]), [row(Split::Val, "cat")]);
    }

    #[test]
    fn a_class_may_be_named_train() {
        assert_eq!(
            rows(&["car/1.png", "train/1.png"]),
            [row(Split::Train, "car"), row(Split::Train, "train")]
        );
    }

    #[test]
    fn folders_around_everything_else_are_removed() {
        let expected = [row(Split::Test, "cat"), row(Split::Train, "cat")];
        assert_eq!(rows(&["data/pets/test/cat/2.png", "data/pets/train/cat/1.png"]), expected);
    }

    #[test]
    fn folders_whose_images_cannot_be_used_are_not_called_superfluous() {
        let mut left_out = LeftOut::default();
        left_out.add("emu/1.heic".to_owned(), Reason::Unsupported("HEIC"));
        let labeled = listing(&["cat/1.png", "emu/"]).labeled(&left_out);
        let message = labeled.err().unwrap().to_string();
        assert!(message.contains("'emu'") && message.contains("1 HEIC"), "{message}");
        assert!(!message.contains("remove it"), "{message}");
    }

    #[test]
    fn errors_name_the_misplaced_folder_or_image_and_what_to_do() {
        for (paths, parts) in [
            (&["cat/"][..], &["pets", "no images", "one folder per class"][..]),
            (&["1.png"], &["pets", "in no class folder", "one folder per class"]),
            (&["cat/1.png", "dog/1.png", "stray.png"], &["pets", "'stray.png'", "move"]),
            (&["cat/1.png", "dog/1.png", "emu/"], &["pets", "'emu'", "fill it or remove it"]),
            (&["train/cat/1.png", "train/emu/", "val/cat/1.png"], &["'train/emu'", "fill it or remove it"]),
            (&["train/cat/1.png", "train/2.png"], &["'train/2.png'", "class folder"]),
            (&["train/cat/1.png", "test/1.png"], &["'test/1.png'", "class folder"]),
            (&["train/1.png", "test/1.png"], &["'test/1.png'", "class folder"]),
            (&["train/cat/1.png", "val/"], &["'val'", "fill it or remove it"]),
            (&["train/cat/1.png", "val/cat/1.png", "valid/cat/1.png"], &["'val'", "'valid'", "remove one"]),
            (&["train/cat/1.png", "extra/cat/1.png"], &["'extra'", "move it away"]),
            (&["pets/cat/1.png", "pets/dog/1.png"], &["only one class, 'pets'", "give pets/pets"]),
            (&["test/cat/1.png", "extra/cat/1.png"], &["'extra'", "next to 'test'", "move it away"]),
        ] {
            let message = message(paths);
            for part in parts {
                assert!(message.contains(part), "{paths:?}: {message} lacks {part}");
            }
        }
    }
}
