//! Features of images with their classes.

use std::sync::OnceLock;

use vitrine_kernels::covariance;

/// Features of images with the class of each image, and the mean and the variance of each feature.
#[derive(Clone, Debug)]
pub struct Samples<'a> {
    /// `[images, width]`.
    features: &'a [f32],
    labels: &'a [usize],
    classes: usize,
    mean: Vec<f64>,
    variances: Vec<f64>,
    covariance: OnceLock<Vec<f64>>,
}

impl<'a> Samples<'a> {
    /// Samples of `classes` classes.
    ///
    /// # Shapes
    /// - features: `[images, width]`, row by row
    /// - labels: `[images]`
    ///
    /// # Panics
    /// If there are no images, the shapes disagree, or a label is not below `classes`.
    pub fn new(features: &'a [f32], labels: &'a [usize], classes: usize) -> Self {
        let images = labels.len();
        assert!(
            images > 0 && !features.is_empty() && features.len().is_multiple_of(images),
            "features must be [{images}, width]"
        );
        assert!(labels.iter().all(|&label| label < classes), "there are {classes} classes");
        let width = features.len() / images;
        let mean = mean_of(features.chunks_exact(width), width);
        let mut variances = vec![0.0; width];
        for row in features.chunks_exact(width) {
            let squares = row.iter().zip(&mean).map(|(value, mean)| (f64::from(*value) - mean).powi(2));
            variances.iter_mut().zip(squares).for_each(|(sum, square)| *sum += square / images as f64);
        }
        Self { features, labels, classes, mean, variances, covariance: OnceLock::new() }
    }

    /// Number of images.
    #[expect(clippy::len_without_is_empty, reason = "there always is one")]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Number of features of an image.
    pub fn width(&self) -> usize {
        self.mean.len()
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The class of each image.
    pub fn labels(&self) -> &[usize] {
        self.labels
    }

    /// The features of an image, `[width]`.
    ///
    /// # Panics
    /// If there is no such image.
    pub fn row(&self, image: usize) -> &[f32] {
        &self.features[image * self.width()..][..self.width()]
    }

    /// The mean of each feature, `[width]`.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// The variance of each feature, `[width]`.
    pub fn variances(&self) -> &[f64] {
        &self.variances
    }

    /// The covariance of the features, `[width, width]`. It is computed when it is first asked for.
    pub(super) fn covariance(&self) -> &[f64] {
        self.covariance.get_or_init(|| covariance(self.features, &self.mean))
    }
}

/// The mean of rows of `width` values; zero without rows.
pub(super) fn mean_of<'a>(rows: impl Iterator<Item = &'a [f32]>, width: usize) -> Vec<f64> {
    let (mut sums, mut count) = (vec![0.0; width], 0usize);
    for row in rows {
        count += 1;
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    sums.iter().map(|sum| sum / count.max(1) as f64).collect()
}
