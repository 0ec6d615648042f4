//! A quick survey of a sample of images: their sizes, and whether any has color.

use rayon::prelude::*;
use serde::Serialize;

use super::sizes::{AspectRatios, SizeRange};
use crate::{DatasetError, DecodeLimits, Fault, Sample};

/// Sizes and color of some images of a data set, from which an image size and an augmentation are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Survey {
    /// Range of the sizes of the images that could be decoded.
    pub sizes: SizeRange,
    /// Range of their aspect ratios.
    pub aspect_ratios: AspectRatios,
    /// Whether all of them are gray.
    pub gray: bool,
    /// Number of images that could be decoded.
    pub decoded: usize,
    /// Number of images that could not be decoded.
    pub failed: usize,
}

/// Decodes at most `at_most` images, evenly spaced over the samples, on all threads.
///
/// # Errors
///
/// If no image can be decoded: the error of the first.
pub fn survey(samples: &[Sample], at_most: usize, limits: &DecodeLimits) -> Result<Survey, DatasetError> {
    let count = at_most.min(samples.len());
    let decoded: Vec<Result<(u32, u32, u8), DatasetError>> = (0..count)
        .into_par_iter()
        .map(|index| {
            let image = samples[index * samples.len() / count].source.decode_for_use(limits)?;
            Ok((image.width, image.height, image.channels))
        })
        .collect();
    let images = || decoded.iter().flatten();
    let sizes = || images().map(|&(width, height, _)| (width, height));
    match SizeRange::of(sizes()).zip(AspectRatios::of(sizes())) {
        Some((sizes, aspect_ratios)) => Ok(Survey {
            sizes,
            aspect_ratios,
            gray: images().all(|&(.., channels)| channels == 1),
            decoded: images().count(),
            failed: decoded.iter().filter(|result| result.is_err()).count(),
        }),
        None => Err(decoded.into_iter().find_map(Result::err).unwrap_or_else(|| DatasetError::Image {
            image: "the data set".to_owned(),
            fault: Fault::Other("there are no images to look at".to_owned()),
        })),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use image::{GrayImage, Luma};
    use tempfile::TempDir;

    use super::*;
    use crate::{Extent, OpenOptions, open};

    #[test]
    fn the_images_of_a_survey_are_spread_over_the_samples() {
        let root = TempDir::new().unwrap();
        for (class, size) in [("a", 8), ("b", 16), ("c", 24)] {
            for index in 0..10u8 {
                let path = root.path().join(format!("train/{class}/{index}.png"));
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                GrayImage::from_pixel(size, size, Luma([index])).save(path).unwrap();
            }
        }
        let dataset = open(&root.path().to_string_lossy(), &OpenOptions::default()).unwrap();
        let survey = survey(&dataset.train, 3, &DecodeLimits::default()).unwrap();
        assert_eq!(survey.sizes.width, Extent { min: 8, median: 16, max: 24 });
        assert_eq!((survey.gray, survey.decoded, survey.failed), (true, 3, 0));
    }

    #[test]
    fn a_survey_without_readable_images_is_an_error_that_names_one() {
        let root = TempDir::new().unwrap();
        for path in ["a/1.png", "a/2.png", "b/1.png", "b/2.png"] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "no image").unwrap();
        }
        let dataset = open(&root.path().to_string_lossy(), &OpenOptions::default()).unwrap();
        let message = survey(&dataset.train, 100, &DecodeLimits::default()).unwrap_err().to_string();
        assert!(message.contains(".png"), "{message}");
        assert!(survey(&[], 100, &DecodeLimits::default()).is_err());
    }
}
