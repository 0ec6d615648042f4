//! Class names of an imported model.

use std::path::Path;

use anyhow::{Context, Result, bail};
use vitrine_models::weights::Reading;

use super::Options;
use super::config::ModelMetadata;
use crate::files::read_text;
use crate::model_file::class_names::{check_unique, numbered};
use crate::text;
use crate::usage::usage;

/// The names of ImageNet-1k's classes, as torchvision spells them, in the order that all models trained on it have.
const IMAGENET_CLASSES: &str = include_str!("imagenet_classes.txt");

/// The class names: from the user's file, else from the configuration, else ImageNet's if there are 1000 classes, else
/// numbers; none for weights without a head.
///
/// # Errors
/// If a file cannot be read, or has another number of names than the model has classes.
pub(super) fn class_names(
    reading: &Reading,
    metadata: &ModelMetadata,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Vec<String>> {
    let count = reading.config.num_classes;
    if !reading.has_head {
        if options.classes.is_some() {
            usage!("--classes: these weights have no classifier to name classes of");
        }
        return Ok(Vec::new());
    }
    if let Some(path) = &options.classes {
        return read_names(path, count).with_context(|| format!("--classes {}", path.display()));
    }
    match &metadata.classes {
        Some(names) if names.len() == count => {
            let (names, is_changed) = numbered(names);
            if is_changed {
                notes.push(
                    "class names: those that several classes share are followed by the class number, and blank ones are it"
                        .to_owned(),
                );
            }
            Ok(names)
        }
        Some(names) => bail!(
            "the configuration names {} classes, but the head has {count}: name them with --classes",
            names.len()
        ),
        None if count == 1000 => {
            notes
                .push("class names: ImageNet-1k's, because there are 1000; --classes sets others".to_owned());
            Ok(IMAGENET_CLASSES.lines().map(str::to_owned).collect())
        }
        None => {
            notes.push("class names: numbers, because no file names the classes; --classes does".to_owned());
            Ok((0..count).map(|class| class.to_string()).collect())
        }
    }
}

/// Reads a file with one class name per line.
fn read_names(path: &Path, count: usize) -> Result<Vec<String>> {
    let text = read_text(path)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let names: Vec<String> = text.trim_end().lines().map(|line| line.trim().to_owned()).collect();
    if let Some(empty) = names.iter().position(String::is_empty) {
        bail!("line {} is empty: one name per line is needed, {count} in all", empty + 1);
    }
    if names.len() != count {
        bail!("{} needed, one per line, but there are {}", text::count(count, "name"), names.len());
    }
    check_unique(&names)?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use vitrine_models::preset;

    use super::*;

    /// The reading of a model with `classes` classes.
    fn reading(classes: usize, has_head: bool) -> Reading {
        let config = preset::find("vit_pico_patch4_32").unwrap().with_num_classes(classes);
        Reading { config, has_head, guesses: Vec::new(), notes: Vec::new() }
    }

    /// The metadata of a configuration that names the classes.
    fn naming(names: &[&str]) -> ModelMetadata {
        let classes = names.iter().map(|name| (*name).to_owned()).collect();
        ModelMetadata { classes: Some(classes), ..ModelMetadata::default() }
    }

    #[test]
    fn names_are_the_configurations_or_numbers_and_changes_are_noted() {
        for (reading, metadata, expected, is_noted) in [
            (reading(3, true), naming(&["ash", "birch", "cedar"]), vec!["ash", "birch", "cedar"], false),
            (
                reading(3, true),
                naming(&["crane", "dog", "crane"]),
                vec!["crane (0)", "dog", "crane (2)"],
                true,
            ),
            (reading(3, true), ModelMetadata::default(), vec!["0", "1", "2"], true),
            // A backbone has no classes, even if its configuration names some.
            (reading(1, false), naming(&["ash", "birch"]), Vec::new(), false),
        ] {
            let mut notes = Vec::new();
            let names = class_names(&reading, &metadata, &Options::default(), &mut notes).unwrap();
            assert_eq!(names, expected);
            assert_eq!(!notes.is_empty(), is_noted, "{notes:?}");
        }
    }

    #[test]
    fn a_thousand_unnamed_classes_get_imagenets_names() {
        let mut notes = Vec::new();
        let options = Options::default();
        let names =
            class_names(&reading(1000, true), &ModelMetadata::default(), &options, &mut notes).unwrap();
        assert_eq!((names[0].as_str(), names[999].as_str()), ("tench", "toilet tissue"));
        check_unique(&names).unwrap();
        assert!(notes[0].contains("ImageNet"), "{notes:?}");
    }

    #[test]
    fn another_number_of_names_than_logits_is_refused() {
        let metadata = naming(&["ash", "birch"]);
        let error = class_names(&reading(3, true), &metadata, &Options::default(), &mut Vec::new());
        let error = error.unwrap_err().to_string();
        assert!(error.contains('2') && error.contains('3') && error.contains("--classes"), "{error}");
    }

    #[test]
    fn the_users_file_overrides_the_configuration_and_is_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("names.txt");
        let options = Options { classes: Some(path.clone()), ..Options::default() };
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            class_names(&reading(3, true), &naming(&["a", "b", "c"]), &options, &mut Vec::new())
        };
        assert_eq!(read("\u{feff}ash\r\nbirch \r\ncedar\r\n\n").unwrap(), ["ash", "birch", "cedar"]);
        for text in
            ["ash\nbirch\n", "ash\nbirch\ncedar\ndogwood\n", "ash\n\ncedar\n", "ash\nbirch\nash\n", ""]
        {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains("--classes") && error.contains("names.txt"), "{text:?}: {error}");
        }
        std::fs::remove_file(&path).unwrap();
        let error = class_names(&reading(3, true), &ModelMetadata::default(), &options, &mut Vec::new());
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("--classes") && error.contains("names.txt"), "{error}");
    }
}
