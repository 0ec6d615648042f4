//! A model against logits that its own library gave for some images.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use vitrine_datasets::ImageSource;

use crate::Classifier;
use crate::files::read_text;

/// An image and the logits that are expected for it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Relative to the file that lists it.
    pub image: PathBuf,
    /// In the order of the classes.
    pub logits: Vec<f64>,
}

/// One, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum Listed {
    One(Expected),
    Many(Vec<Expected>),
}

/// How far a model is from what was expected for an image.
#[derive(Debug)]
pub struct Difference {
    /// As it is listed.
    pub image: PathBuf,
    /// The largest difference of a logit, relative to the largest expected one.
    pub relative: f64,
    /// The same, as it is.
    pub absolute: f64,
}

/// Reads what is expected: `{"image": "a.png", "logits": [...]}`, or a list of such objects; paths come back relative to the working
/// folder.
///
/// # Errors
/// When the file cannot be read, is of another form, lists nothing, or not `classes` finite logits for each image.
pub fn read(path: &Path, classes: usize) -> Result<Vec<Expected>> {
    let text = read_text(path).with_context(|| format!("--verify {}", path.display()))?;
    let listed: Listed = serde_json::from_str(&text).with_context(|| {
        format!(
            "--verify {}: it must be {{\"image\": \"a.png\", \"logits\": [...]}}, or a list of such objects",
            path.display()
        )
    })?;
    let mut expected = match listed {
        Listed::One(one) => vec![one],
        Listed::Many(many) => many,
    };
    if expected.is_empty() {
        bail!("--verify {}: there are no images in it", path.display());
    }
    for one in &mut expected {
        let image = one.image.display();
        if one.logits.len() != classes {
            bail!(
                "--verify {}: {image} has {} logits, but the model has {classes} classes",
                path.display(),
                one.logits.len()
            );
        }
        if one.logits.iter().any(|logit| !logit.is_finite()) {
            bail!("--verify {}: the logits of {image} are not finite", path.display());
        }
        one.image = path.parent().unwrap_or(Path::new("")).join(&one.image);
    }
    Ok(expected)
}

/// Classifies the images and compares.
///
/// # Errors
/// When an image cannot be read.
pub fn compare(classifier: &Classifier, expected: Vec<Expected>) -> Result<Vec<Difference>> {
    let compared = expected.into_iter().map(|one| {
        let source = ImageSource::File(one.image.clone());
        let logits = classifier.classify(&[source]).into_iter().next().context("no logits")??;
        let gaps = logits.iter().zip(&one.logits).map(|(ours, theirs)| (f64::from(*ours) - theirs).abs());
        // A logit that is no number is as far away as can be.
        let absolute =
            gaps.fold(0.0, |most: f64, gap| if gap.is_nan() { f64::INFINITY } else { most.max(gap) });
        let largest = one.logits.iter().fold(0.0f64, |most, logit| most.max(logit.abs()));
        Ok(Difference { image: one.image, relative: absolute / largest.max(f64::MIN_POSITIVE), absolute })
    });
    compared.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn logits_are_expected_of_one_image_or_of_several_next_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logits.json");
        let read_text = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read(&path, 2)
        };
        let one = r#"{"image": "a.png", "logits": [1, -0.5]}"#;
        for (text, count) in [(one.to_owned(), 1), (format!("[{one}, {one}]"), 2)] {
            let expected = read_text(&text).unwrap();
            assert_eq!(expected.len(), count);
            assert_eq!(
                (&expected[0].image, &expected[0].logits),
                (&folder.path().join("a.png"), &vec![1.0, -0.5])
            );
        }
        for text in [
            "[]",
            "no JSON",
            r#"{"image": 3, "logits": [1, 2]}"#,
            r#"{"image": "a.png", "logits": [1, 2], "surprise": 1}"#,
            r#"{"image": "a.png", "logits": [1]}"#,
            r#"{"image": "a.png", "logits": [1, 2, 3]}"#,
        ] {
            let error = format!("{:#}", read_text(text).unwrap_err());
            assert!(error.contains("--verify") && error.contains("logits.json"), "{text}: {error}");
        }
    }
}
