//! The covariance of rows of features.

use super::{DoubleMatrix, add_product};
use rayon::prelude::*;

/// The rows that are held in float64 at a time.
const ROWS: usize = 1024;
/// The features whose part is computed at a time, on one thread.
const FEATURES: usize = 64;

/// The covariance of rows `[rows, width]` around `mean`, which has the width: `[width, width]`, the mean over rows. Zeros without rows. The
/// result does not depend on the number of threads.
///
/// # Panics
///
/// If the rows are not whole.
///
/// # Examples
///
/// ```
/// let rows = [1.0, 0.0, 3.0, 4.0];
/// assert_eq!(vitrine_kernels::covariance(&rows, &[2.0, 2.0]), [1.0, 2.0, 2.0, 4.0]);
/// ```
pub fn covariance(rows: &[f32], mean: &[f64]) -> Vec<f64> {
    let width = mean.len();
    let mut sums = vec![0.0; width * width];
    if width == 0 {
        return sums;
    }
    assert!(rows.len().is_multiple_of(width), "the rows must be whole");
    let count = rows.len() / width;
    let mut deviations = vec![0.0; width * ROWS.min(count)];
    for rows in rows.chunks(ROWS * width) {
        let x = &mut deviations[..rows.len()];
        x.par_chunks_exact_mut(width).zip(rows.par_chunks_exact(width)).for_each(|(x, row)| {
            let values = row.iter().zip(mean);
            x.iter_mut().zip(values).for_each(|(x, (value, mean))| *x = f64::from(*value) - mean);
        });
        // Whole blocks on the diagonal; what is right of them is copied at the end.
        let images = rows.len() / width;
        sums.par_chunks_mut(FEATURES * width).enumerate().for_each(|(block, sums)| {
            let (features, of_block) = (block * FEATURES, sums.len() / width);
            let left = DoubleMatrix::new(&x[features..], [images, of_block], width).transposed();
            let others = features + of_block;
            let mut products = vec![0.0; of_block * others];
            add_product(&mut products, 1.0, left, DoubleMatrix::new(x, [images, others], width));
            for (sums, products) in sums.chunks_exact_mut(width).zip(products.chunks_exact(others)) {
                sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
            }
        });
    }
    for row in 0..width {
        for column in 0..=row {
            let value = sums[row * width + column] / count.max(1) as f64;
            sums[row * width + column] = value;
            sums[column * width + row] = value;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_mean_of_products_of_deviations() {
        let (count, width) = (1500, 70);
        let rows: Vec<f32> = (0..count * width).map(|place| ((place * place % 31) as f32) - 12.0).collect();
        let mean: Vec<f64> = (0..width).map(|place| place as f64 / 70.0).collect();
        let found = covariance(&rows, &mean);
        for (a, b) in [(0, 0), (69, 0), (0, 69), (64, 63), (30, 65)] {
            let product = |row: &[f32]| (f64::from(row[a]) - mean[a]) * (f64::from(row[b]) - mean[b]);
            let expected = rows.chunks_exact(width).map(product).sum::<f64>() / count as f64;
            assert!((found[a * width + b] - expected).abs() < 1e-9 * expected.abs().max(1.0));
        }
        assert!(covariance(&[], &[]).is_empty());
        assert_eq!(covariance(&[], &[1.0]), [0.0]);
    }
}
