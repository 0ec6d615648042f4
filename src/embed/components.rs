//! The first two principal components of embeddings (Hotelling 1933): the directions in which they vary most.

use rayon::prelude::*;

use super::Embeddings;
use crate::eigenvectors::leading;

/// The first two principal components.
#[derive(Clone, Debug, PartialEq)]
pub struct Components {
    /// The place of each row: its coordinate along each component, from the mean of all rows.
    pub places: Vec<[f64; 2]>,
    /// The share of the variance that each component has, from 0 to 1.
    pub shares: [f64; 2],
}

impl Embeddings {
    /// The first two principal components, as scikit-learn's `PCA(2)` gives them: the sign of a component is such that the
    /// largest entry of its direction is positive. If all rows are equal, all places and shares are 0.
    ///
    /// # Examples
    ///
    /// ```
    /// use vitrine::embed::Embeddings;
    ///
    /// let mut embeddings = Embeddings::new(3);
    /// for row in [[1.0, 5.0, 0.0], [3.0, 5.0, 0.0], [5.0, 5.0, 0.0]] {
    ///     embeddings.push(String::new(), &row);
    /// }
    /// let components = embeddings.components();
    /// assert!((components.places[2][0] - 2.0).abs() < 1e-6 && (components.shares[0] - 1.0).abs() < 1e-6);
    /// ```
    pub fn components(&self) -> Components {
        let dim = self.dim;
        if self.is_empty() || dim == 0 {
            return Components { places: Vec::new(), shares: [0.0; 2] };
        }
        let mean = self.mean();
        let covariance = vitrine_kernels::covariance(&self.values, &mean);
        let total: f64 = (0..dim).map(|place| covariance[place * dim + place]).sum();
        let found = leading(&covariance, dim, 2);
        let mut shares = [0.0; 2];
        for (share, pair) in shares.iter_mut().zip(&found) {
            *share = if total > 0.0 { (pair.value / total).clamp(0.0, 1.0) } else { 0.0 };
        }
        let along = |row: &[f32], vector: &[f64]| -> f64 {
            row.iter()
                .zip(&mean)
                .zip(vector)
                .map(|((value, mean), entry)| (f64::from(*value) - mean) * entry)
                .sum()
        };
        let place = |row: &[f32]| {
            std::array::from_fn(|axis| found.get(axis).map_or(0.0, |pair| along(row, &pair.vector)))
        };
        Components { places: self.values.par_chunks_exact(dim).map(place).collect(), shares }
    }

    /// The mean of all rows: `[dim]`.
    pub(super) fn mean(&self) -> Vec<f64> {
        let mut mean = vec![0.0; self.dim];
        for row in self.values.chunks_exact(self.dim) {
            mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        mean.iter_mut().for_each(|sum| *sum /= self.len() as f64);
        mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn embeddings<const D: usize>(rows: &[[f32; D]]) -> Embeddings {
        let mut embeddings = Embeddings::new(D);
        rows.iter().for_each(|row| embeddings.push(String::new(), row));
        embeddings
    }

    #[test]
    fn places_and_shares_are_those_of_scikit_learn() {
        // sklearn.decomposition.PCA(2).fit_transform of these rows, and explained_variance_ratio_.
        let rows = embeddings(&[
            [1.0, 2.0, 0.5, -1.0],
            [0.0, -1.5, 2.0, 3.0],
            [4.0, 0.25, -1.0, 0.0],
            [-2.0, 1.0, 1.0, 1.5],
            [0.5, 3.0, -0.5, 2.0],
        ]);
        let found = rows.components();
        let expected = [
            [1.39871849, 1.20886862],
            [-2.58480205, -2.42828000],
            [3.42473744, -1.64185689],
            [-2.46588316, 1.11199412],
            [0.22722928, 1.74927414],
        ];
        for (found, expected) in found.places.iter().zip(expected) {
            for axis in 0..2 {
                assert!((found[axis] - expected[axis]).abs() < 1e-5, "{found:?} for {expected:?}");
            }
        }
        for (found, expected) in found.shares.iter().zip([0.56986354, 0.30860413]) {
            assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
        }
    }

    #[test]
    fn equal_rows_and_single_dimensions_have_places_too() {
        let equal = embeddings(&[[1.0, 2.0]; 3]).components();
        assert_eq!((equal.places, equal.shares), (vec![[0.0; 2]; 3], [0.0; 2]));
        let one = embeddings(&[[1.0], [3.0]]).components();
        assert_eq!((one.places, one.shares), (vec![[-1.0, 0.0], [1.0, 0.0]], [1.0, 0.0]));
        assert!(Embeddings::new(2).components().places.is_empty());
    }
}
