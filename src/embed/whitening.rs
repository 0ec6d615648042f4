//! Whitening of embeddings (Jégou & Chum 2012): directions in which many images differ count less, so that those that tell single images
//! apart count more.

use rayon::prelude::*;
use vitrine_kernels::{Cholesky, covariance};

use super::Embeddings;

/// With fewer images, the directions in which they differ are not known.
pub const FEWEST_IMAGES: usize = 20;
/// The share of the mean variance that is added to the variance of each direction (shrinkage): those with less are hardly weighed up.
const SHRINKAGE: f64 = 1.0;
/// Embeddings whose variance is a smaller share of the square of their mean are equal, apart from rounding.
const ROUNDING: f64 = 1e-10;
/// The rows that are held in float64 at a time, on one thread.
const ROWS: usize = 256;

/// The whitening of some embeddings: `L^-1 (x - mean)`, where `L L^T` is their covariance and a multiple of the identity.
///
/// # Examples
///
/// ```
/// use vitrine::embed::{Embeddings, Whitening};
///
/// let mut images = Embeddings::new(2);
/// for image in 0..40 {
///     // They differ a thousand times more in the first direction.
///     images.push(image.to_string(), &[5.0 + 10.0 * (image % 8) as f32, 0.01 * (image / 8) as f32]);
/// }
/// let spread = |images: &Embeddings| images.components().shares[0];
/// let before = spread(&images);
/// Whitening::of(&images).expect("images enough that differ").apply(&mut images);
/// assert!(before > 0.999 && spread(&images) < before);
/// ```
#[derive(Clone, Debug)]
pub struct Whitening {
    mean: Vec<f64>,
    factor: Cholesky,
}

impl Whitening {
    /// The whitening that these embeddings suggest; `None` if there are fewer than [`FEWEST_IMAGES`], or all are equal.
    pub fn of(embeddings: &Embeddings) -> Option<Self> {
        Self::within(embeddings, embeddings.dim)
    }

    /// [`Self::of`] for the places of embeddings within a [`Span`](super::Span): `directions` is the width of the embeddings themselves,
    /// among whose directions the mean variance is that of all.
    pub fn within(embeddings: &Embeddings, directions: usize) -> Option<Self> {
        let dim = embeddings.dim;
        if embeddings.len() < FEWEST_IMAGES || dim == 0 {
            return None;
        }
        let mean = embeddings.mean();
        let mut matrix = covariance(&embeddings.values, &mean);
        let total = (0..dim).map(|place| matrix[place * dim + place]).sum::<f64>();
        let of_mean = mean.iter().map(|value| value * value).sum::<f64>();
        // Otherwise rounding would be weighed up.
        let differs = total > ROUNDING * of_mean && total > f64::MIN_POSITIVE;
        if !differs {
            return None;
        }
        let variance = total / directions as f64;
        matrix.iter_mut().step_by(dim + 1).for_each(|diagonal| *diagonal += SHRINKAGE * variance);
        Some(Self { mean, factor: Cholesky::new(&matrix, dim, f64::MIN_POSITIVE) })
    }

    /// Whitens embeddings.
    ///
    /// # Panics
    /// If they have another width.
    pub fn apply(&self, embeddings: &mut Embeddings) {
        let dim = self.mean.len();
        assert_eq!(embeddings.dim, dim, "the width of the embeddings");
        embeddings.values.par_chunks_mut(ROWS * dim).for_each(|rows| {
            let count = rows.len() / dim;
            // A column per image.
            let mut deviations = vec![0.0; rows.len()];
            for (image, row) in rows.chunks_exact(dim).enumerate() {
                for (place, (value, mean)) in row.iter().zip(&self.mean).enumerate() {
                    deviations[place * count + image] = f64::from(*value) - mean;
                }
            }
            self.factor.solve_lower(&mut deviations, count);
            for (image, row) in rows.chunks_exact_mut(dim).enumerate() {
                for (place, value) in row.iter_mut().enumerate() {
                    *value = deviations[place * count + image] as f32;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images with a small value that two have in common, and a large one that is another for these two: 0 and 3, or 6 and 9.
    fn pairs() -> Embeddings {
        let mut images = Embeddings::new(21);
        for image in 0..40 {
            let mut row = [0.0; 21];
            row[image / 2] = 1.0;
            row[20] = 3.0 * (image % 4) as f32;
            images.push(image.to_string(), &row);
        }
        images
    }

    #[test]
    fn what_only_two_images_share_decides() {
        let images = pairs();
        let partners = |images: &Embeddings| {
            let found = images.nearest(images, 1, |query, row| query != row);
            found.iter().enumerate().filter(|(image, found)| found[0].index == image ^ 1).count()
        };
        let mut whitened = images.clone();
        Whitening::of(&images).unwrap().apply(&mut whitened);
        assert_eq!((partners(&images), partners(&whitened)), (30, 40));
    }

    #[test]
    fn the_covariance_of_the_whitened_is_the_identity_where_the_variance_is_large() {
        let images = pairs();
        let mut whitened = images.clone();
        Whitening::of(&images).unwrap().apply(&mut whitened);
        let found = covariance(&whitened.values, &whitened.mean());
        // The factor is lower triangular, so that its last direction is the shared one, without what the others say of it.
        let variance = |place: usize| found[place * 21 + place];
        assert!((0.8..1.0).contains(&variance(20)), "{}", variance(20));
        assert!((0..20).all(|place| variance(place) < 0.1));
        assert!(whitened.mean().iter().all(|mean| mean.abs() < 1e-6));
    }

    #[test]
    fn few_or_equal_images_are_not_whitened() {
        let mut few = pairs();
        few.paths.truncate(FEWEST_IMAGES - 1);
        few.values.truncate((FEWEST_IMAGES - 1) * few.dim);
        assert!(Whitening::of(&few).is_none());
        let mut equal = Embeddings::new(3);
        (0..50u8).for_each(|image| {
            equal.push(image.to_string(), &[1.0, 2.0, 3.0 + f32::from(image % 3) * f32::EPSILON]);
        });
        assert!(Whitening::of(&equal).is_none());
    }
}
