//! What classes are called.

use anyhow::{Context, Result, bail};
use vitrine_models::weights::Reading;

use super::Options;
use super::description::Description;
use crate::class_names::{check_unique, numbered};
use crate::files::read_text;

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
                "--classes {}: {} names are needed, one per line, and there are {}",
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
                    "class names: those that several classes share have their number after them".to_owned(),
                );
            }
            return Ok(names);
        }
        Some(names) => bail!(
            "the configuration names {} classes and the head has {count}: --classes names them",
            names.len()
        ),
        None => {}
    }
    if count == 1000 {
        notes.push("class names: ImageNet-1k's, by their number; --classes names others".to_owned());
        return Ok(IMAGENET_CLASSES.lines().map(str::to_owned).collect());
    }
    notes.push("class names: numbers, for nothing names them; --classes does".to_owned());
    Ok((0..count).map(|class| class.to_string()).collect())
}
