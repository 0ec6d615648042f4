//! What classes are called.

use anyhow::{Context, Result, bail};
use vitrine_models::weights::Reading;

use super::Options;
use super::description::Description;
use crate::files::read_text;
use crate::model_file::class_names::{check_unique, numbered};

/// ImageNet-1k's classes in the order of all models trained on it, as torchvision names them.
const IMAGENET_CLASSES: &str = include_str!("imagenet_classes.txt");

/// The names of a model's classes: the user's, the configuration's, ImageNet's, or numbers.
///
/// # Errors
/// When the user's file cannot be read or has another number of names.
pub(super) fn class_names(
    reading: &Reading,
    description: &Description,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<Vec<String>> {
    let count = reading.config.num_classes;
    if let Some(path) = &options.classes {
        let text = read_text(path).with_context(|| format!("--classes {}", path.display()))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let names: Vec<String> = text.trim_end().lines().map(|line| line.trim().to_owned()).collect();
        if names.len() != count || names.iter().any(String::is_empty) {
            bail!(
                "--classes {}: {} names are needed, one per line, but there are {}",
                path.display(),
                count,
                names.iter().filter(|name| !name.is_empty()).count()
            );
        }
        check_unique(&names).with_context(|| format!("--classes {}", path.display()))?;
        return Ok(names);
    }
    if !reading.has_head {
        return Ok(vec!["none".to_owned()]);
    }
    match &description.classes {
        Some(names) if names.len() == count => {
            let (names, is_changed) = numbered(names);
            if is_changed {
                notes.push(
                    "class names: those that several classes share are followed by the class number"
                        .to_owned(),
                );
            }
            return Ok(names);
        }
        Some(names) => bail!(
            "the configuration names {} classes, but the head has {count}: name them with --classes",
            names.len()
        ),
        None => {}
    }
    if count == 1000 {
        notes.push("class names: ImageNet-1k's, because there are 1000; --classes sets others".to_owned());
        return Ok(IMAGENET_CLASSES.lines().map(str::to_owned).collect());
    }
    notes.push("class names: numbers, because no file names the classes; --classes does".to_owned());
    Ok((0..count).map(|class| class.to_string()).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use vitrine_models::preset;

    use super::*;

    /// What was read of a model of so many classes.
    fn reading(classes: usize, has_head: bool) -> Reading {
        let config = preset::find("vit_pico_patch4_32").unwrap().with_num_classes(classes);
        Reading { config, has_head, guesses: Vec::new(), notes: Vec::new() }
    }

    /// A configuration that names the classes.
    fn naming(names: &[&str]) -> Description {
        let classes = names.iter().map(|name| (*name).to_owned()).collect();
        Description { classes: Some(classes), ..Description::default() }
    }

    #[test]
    fn names_are_the_configurations_or_numbers_and_what_was_made_up_is_noted() {
        for (reading, description, expected, is_noted) in [
            (reading(3, true), naming(&["ash", "birch", "cedar"]), vec!["ash", "birch", "cedar"], false),
            (
                reading(3, true),
                naming(&["crane", "dog", "crane"]),
                vec!["crane (0)", "dog", "crane (2)"],
                true,
            ),
            (reading(3, true), Description::default(), vec!["0", "1", "2"], true),
            // A backbone has none, whatever its configuration says.
            (reading(1, false), naming(&["ash", "birch"]), vec!["none"], false),
        ] {
            let mut notes = Vec::new();
            let names = class_names(&reading, &description, &Options::default(), &mut notes).unwrap();
            assert_eq!(names, expected);
            assert_eq!(!notes.is_empty(), is_noted, "{notes:?}");
        }
    }

    #[test]
    fn a_thousand_classes_without_names_are_imagenets() {
        let mut notes = Vec::new();
        let options = Options::default();
        let names = class_names(&reading(1000, true), &Description::default(), &options, &mut notes).unwrap();
        assert_eq!((names[0].as_str(), names[999].as_str()), ("tench", "toilet tissue"));
        check_unique(&names).unwrap();
        assert!(notes[0].contains("ImageNet"), "{notes:?}");
    }

    #[test]
    fn names_that_are_not_as_many_as_the_logits_are_refused() {
        let description = naming(&["ash", "birch"]);
        let error = class_names(&reading(3, true), &description, &Options::default(), &mut Vec::new());
        let error = error.unwrap_err().to_string();
        assert!(error.contains('2') && error.contains('3') && error.contains("--classes"), "{error}");
    }

    #[test]
    fn a_file_of_names_comes_before_the_configuration_and_is_checked() {
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
        let error = class_names(&reading(3, true), &Description::default(), &options, &mut Vec::new());
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("--classes") && error.contains("names.txt"), "{error}");
    }
}
