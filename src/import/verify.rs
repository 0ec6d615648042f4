//! Comparison of an imported model's logits with those that its own library computed for the same images.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use vitrine_datasets::ImageSource;

use crate::Classifier;
use crate::files::read_text;

/// An image and its expected logits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// Path of the image; in the file, relative to the file.
    pub image: PathBuf,
    /// One per class, in the order of the classes.
    pub logits: Vec<f64>,
}

/// The content of a file of expected logits.
#[derive(Deserialize)]
#[serde(untagged)]
enum ExpectedFile {
    One(Expected),
    Many(Vec<Expected>),
}

/// The difference between computed and expected logits of an image.
#[derive(Debug)]
pub struct Difference {
    /// Path of the image.
    pub image: PathBuf,
    /// The largest absolute difference, divided by the largest magnitude of an expected logit.
    pub relative: f64,
    /// The largest absolute difference; infinite if a logit is NaN.
    pub absolute: f64,
}

/// Reads a file of expected logits: `{"image": "a.png", "logits": [...]}`, or a list of such objects. The paths in the
/// result are joined to the file's folder.
///
/// # Errors
/// If the file cannot be read, has another form, lists no image, or has other than `classes` finite logits for one.
pub fn read(path: &Path, classes: usize) -> Result<Vec<Expected>> {
    let text = read_text(path).with_context(|| format!("--verify {}", path.display()))?;
    let content: ExpectedFile = serde_json::from_str(&text).with_context(|| {
        format!(
            "--verify {}: it must be {{\"image\": \"a.png\", \"logits\": [...]}}, or a list of such objects",
            path.display()
        )
    })?;
    let mut expected = match content {
        ExpectedFile::One(one) => vec![one],
        ExpectedFile::Many(many) => many,
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

/// Classifies the images and compares their logits with the expected ones.
///
/// # Errors
/// If an image cannot be read.
pub fn compare(classifier: &Classifier, expected: &[Expected]) -> Result<Vec<Difference>> {
    let compared = expected.iter().map(|one| {
        let source = ImageSource::File(one.image.clone());
        let logits = classifier.classify(&[source]).into_iter().next().context("no logits")??;
        let gaps = logits.iter().zip(&one.logits).map(|(ours, theirs)| (f64::from(*ours) - theirs).abs());
        // `f64::max` would ignore NaN.
        let absolute =
            gaps.fold(0.0, |most: f64, gap| if gap.is_nan() { f64::INFINITY } else { most.max(gap) });
        let largest = one.logits.iter().fold(0.0f64, |most, logit| most.max(logit.abs()));
        let relative = absolute / largest.max(f64::MIN_POSITIVE);
        Ok(Difference { image: one.image.clone(), relative, absolute })
    });
    compared.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_lists_one_image_or_several_relative_to_its_folder() {
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
