//! The Cholesky factor of a symmetric matrix, and what it solves, block by block.

use super::{DoubleMatrix, add_product};
use rayon::prelude::*;

/// The rows of a factor that are finished together, before those below.
const BLOCK: usize = 64;

/// The lower factor `L` of a symmetric, positive definite matrix, which is `L * L^T`.
///
/// # Examples
///
/// ```
/// use vitrine_kernels::Cholesky;
///
/// let factor = Cholesky::new(&[4.0, 2.0, 2.0, 5.0], 2, 1e-12); // L is [[2, 0], [1, 2]]
/// let mut right = [2.0, 5.0];
/// factor.solve_lower(&mut right, 1);
/// assert_eq!(right, [1.0, 2.0]);
/// factor.solve_upper(&mut right, 1);
/// assert_eq!(right, [0.0, 1.0]); // the matrix times this is [2, 5]
/// ```
#[derive(Clone, Debug)]
pub struct Cholesky {
    /// `[width, width]`, of which the upper half is zero.
    factor: Vec<f64>,
    width: usize,
}

impl Cholesky {
    /// The factor of a matrix `[width, width]`, of which the lower half is read. `least` is positive: where rounding leaves less than that
    /// on the diagonal, it counts as `least`.
    ///
    /// # Panics
    ///
    /// If the matrix has another size.
    pub fn new(matrix: &[f64], width: usize, least: f64) -> Self {
        assert_eq!(matrix.len(), width * width, "the matrix is square");
        let mut factor = vec![0.0; width * width];
        let solve = |current: &mut [f64], row: &[f64], column: usize, other: &[f64]| {
            current[column] = (row[column] - dot(&current[..column], &other[..column])) / other[column];
        };
        for first in (0..width).step_by(BLOCK) {
            let last = (first + BLOCK).min(width);
            for row in first..last {
                let (done, rest) = factor.split_at_mut(row * width);
                let (current, of_matrix) = (&mut rest[..width], &matrix[row * width..][..width]);
                for column in first..row {
                    solve(current, of_matrix, column, &done[column * width..][..width]);
                }
                let square = of_matrix[row] - dot(&current[..row], &current[..row]);
                current[row] = square.max(least).sqrt();
            }
            let (done, below) = factor.split_at_mut(last * width);
            let below = below.par_chunks_exact_mut(width).zip(matrix[last * width..].par_chunks_exact(width));
            below.for_each(|(current, of_matrix)| {
                for column in first..last {
                    solve(current, of_matrix, column, &done[column * width..][..width]);
                }
            });
        }
        Self { factor, width }
    }

    /// Multiplies `right`, `[width, columns]`, by the inverse of `L`.
    ///
    /// # Panics
    ///
    /// If `right` has another size.
    pub fn solve_lower(&self, right: &mut [f64], columns: usize) {
        assert_eq!(right.len(), self.width * columns, "the width of the factor");
        if columns == 0 {
            return;
        }
        for first in (0..self.width).step_by(BLOCK) {
            let (done, rest) = right.split_at_mut(first * columns);
            let rows = BLOCK.min(self.width - first);
            let block = &mut rest[..rows * columns];
            let before = DoubleMatrix::new(done, [first, columns], columns);
            add_product(block, -1.0, self.part([first, 0], [rows, first]), before);
            self.solve(block, first, columns);
        }
    }

    /// Multiplies `right`, `[width, columns]`, by the inverse of the transpose of `L`.
    ///
    /// # Panics
    ///
    /// If `right` has another size.
    pub fn solve_upper(&self, right: &mut [f64], columns: usize) {
        assert_eq!(right.len(), self.width * columns, "the width of the factor");
        if columns == 0 {
            return;
        }
        for first in (0..self.width).step_by(BLOCK).rev() {
            let rows = BLOCK.min(self.width - first);
            let (rest, done) = right.split_at_mut((first + rows) * columns);
            let (block, below) = (&mut rest[first * columns..], self.width - first - rows);
            let after = DoubleMatrix::new(done, [below, columns], columns);
            let factor = self.part([first + rows, first], [below, rows]).transposed();
            add_product(block, -1.0, factor, after);
            self.solve_transposed(block, first, columns);
        }
    }

    /// The part of the factor that begins at this row and column.
    fn part(&self, [row, column]: [usize; 2], shape: [usize; 2]) -> DoubleMatrix<'_> {
        DoubleMatrix::new(
            &self.factor[(row * self.width + column).min(self.factor.len())..],
            shape,
            self.width,
        )
    }

    /// Solves the triangle of the factor that begins at `first` for a block of rows.
    fn solve(&self, block: &mut [f64], first: usize, columns: usize) {
        for place in 0..block.len() / columns {
            let (done, rest) = block.split_at_mut(place * columns);
            let factor = &self.factor[(first + place) * self.width + first..][..=place];
            let row = &mut rest[..columns];
            for (factor, done) in factor.iter().zip(done.chunks_exact(columns)) {
                subtract(row, *factor, done);
            }
            row.iter_mut().for_each(|value| *value /= factor[place]);
        }
    }

    /// Solves the transposed triangle, from below.
    fn solve_transposed(&self, block: &mut [f64], first: usize, columns: usize) {
        for place in (0..block.len() / columns).rev() {
            let (before, rest) = block.split_at_mut(place * columns);
            let factor = &self.factor[(first + place) * self.width + first..][..=place];
            let row = &mut rest[..columns];
            row.iter_mut().for_each(|value| *value /= factor[place]);
            for (factor, before) in factor.iter().zip(before.chunks_exact_mut(columns)) {
                subtract(before, *factor, row);
            }
        }
    }
}

fn subtract(values: &mut [f64], factor: f64, others: &[f64]) {
    values.iter_mut().zip(others).for_each(|(value, other)| *value -= factor * other);
}

/// The product of two vectors, in eight sums that the CPU can add at once.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a, a_rest) = a.as_chunks::<8>();
    let (b, b_rest) = b.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (a, b) in a.iter().zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_solutions_undo_a_product_with_the_matrix() {
        for width in [1, 7, 64, 150] {
            let of = |place: usize| ((place * place % 23) as f64 - 11.0) / 23.0;
            let base: Vec<f64> = (0..width * width).map(of).collect();
            // base * base^T + 1
            let mut matrix = vec![0.0; width * width];
            let rows = DoubleMatrix::new(&base, [width, width], width);
            add_product(&mut matrix, 1.0, rows, rows.transposed());
            (0..width).for_each(|place| matrix[place * width + place] += 1.0);
            let vectors: Vec<f64> = (0..width * 3).map(|place| of(place + 5)).collect();
            let mut product = vec![0.0; width * 3];
            let [left, right] = [(&matrix, width), (&vectors, 3)]
                .map(|(values, columns)| DoubleMatrix::new(values, [width, columns], columns));
            add_product(&mut product, 1.0, left, right);
            let factor = Cholesky::new(&matrix, width, 1e-12);
            factor.solve_lower(&mut product, 3);
            factor.solve_upper(&mut product, 3);
            let gap = product.iter().zip(&vectors).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(gap < 1e-9, "{width}: {gap}");
        }
    }

    #[test]
    fn a_singular_matrix_has_a_factor_without_infinities() {
        let factor = Cholesky::new(&[1.0, 1.0, 1.0, 1.0], 2, 1e-6);
        let mut right = [1.0, 2.0];
        factor.solve_lower(&mut right, 1);
        assert!(right.iter().all(|value| value.is_finite()), "{right:?}");
    }
}
