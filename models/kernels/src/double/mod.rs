//! Products of matrices in float64, for what is fitted to convergence. They are computed on the CPU, by the gemm crate.

mod cholesky;
mod covariance;

pub use cholesky::Cholesky;
pub use covariance::covariance;

/// A matrix of float64 to read.
#[derive(Clone, Copy, Debug)]
pub struct DoubleMatrix<'a> {
    values: &'a [f64],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> DoubleMatrix<'a> {
    /// A row-major matrix whose rows begin `row_stride` values apart.
    ///
    /// # Panics
    ///
    /// If an element lies outside `values`, or rows overlap.
    pub fn new(values: &'a [f64], [rows, columns]: [usize; 2], row_stride: usize) -> Self {
        let end =
            rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(row_stride)?.checked_add(columns));
        assert!(columns <= row_stride && end.is_some_and(|end| end <= values.len()));
        Self { values, rows, columns, row_stride, column_stride: 1 }
    }

    /// The transposed matrix, over the same values.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// `out += scale * left * right`, on the calling thread.
///
/// # Shapes
///
/// - out: `[left rows, right columns]`, row by row
///
/// # Panics
///
/// If the shapes do not fit.
///
/// # Examples
///
/// ```
/// use vitrine_kernels::{DoubleMatrix, add_product};
///
/// let (row, column) = ([1.0, 2.0], [3.0, 4.0]);
/// let mut out = [1.0];
/// add_product(&mut out, 2.0, DoubleMatrix::new(&row, [1, 2], 2), DoubleMatrix::new(&column, [2, 1], 1));
/// assert_eq!(out, [23.0]);
/// ```
pub fn add_product(out: &mut [f64], scale: f64, left: DoubleMatrix<'_>, right: DoubleMatrix<'_>) {
    let elements = left.rows.checked_mul(right.columns);
    assert!(left.columns == right.rows && elements == Some(out.len()), "the shapes must fit");
    // SAFETY: `out` has the elements of the product, row by row; those of the factors lie within their values, which `new` checks and
    // `transposed` keeps.
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            out.as_mut_ptr(),
            1,
            right.columns as isize,
            true,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            1.0,
            scale,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_transposed_and_of_strided_matrices_are_exact() {
        let values: Vec<f64> = (0..600).map(|place| f64::from(place * place % 23) - 11.0).collect();
        for [rows, inner, columns] in [[1, 1, 1], [3, 17, 5], [20, 9, 13], [0, 4, 2], [2, 0, 3]] {
            let (left_stride, right_stride) = (inner + 2, columns + 1);
            let left = DoubleMatrix::new(&values, [rows, inner], left_stride);
            let right = DoubleMatrix::new(&values[3..], [inner, columns], right_stride);
            let mut expected = vec![1.0; rows * columns];
            for (place, sum) in expected.iter_mut().enumerate() {
                let (row, column) = (place / columns, place % columns);
                let of = |k: usize| values[row * left_stride + k] * values[3 + k * right_stride + column];
                *sum -= 0.5 * (0..inner).map(of).sum::<f64>();
            }
            let mut out = vec![1.0; rows * columns];
            add_product(&mut out, -0.5, left, right);
            assert_eq!(out, expected);
            // (A B)^T = B^T A^T.
            let mut transposed = vec![1.0; rows * columns];
            add_product(&mut transposed, -0.5, right.transposed(), left.transposed());
            let back: Vec<f64> = (0..rows * columns)
                .map(|place| transposed[place % columns * rows + place / columns])
                .collect();
            assert_eq!(back, expected);
        }
    }

    #[test]
    #[should_panic(expected = "the shapes must fit")]
    fn shapes_that_do_not_fit_are_refused() {
        let values = [0.0; 6];
        let matrix = DoubleMatrix::new(&values, [2, 3], 3);
        add_product(&mut [0.0; 4], 1.0, matrix, matrix);
    }
}
