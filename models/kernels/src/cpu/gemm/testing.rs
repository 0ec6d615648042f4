//! A check of products against sums in float64.

use super::view::{Epilogue, Matrix, MatrixMut};
use crate::testing::numbers;

/// Checks `multiply` against sums in float64: with row-major and column-major factors, every epilogue, a scale, and
/// gaps between the rows of the output.
///
/// # Panics
///
/// If an element is off by more than `bound` times the sum of its terms' sizes, or a gap is written to.
pub(crate) fn assert_product(
    [rows, inner, columns]: [usize; 3],
    bound: f64,
    multiply: impl Fn(MatrixMut<'_>, Epilogue<'_>, f32, Matrix<'_>, Matrix<'_>),
) {
    let (a, b, bias) = (numbers(rows * inner, 1), numbers(inner * columns, 2), numbers(columns, 3));
    let layouts = |data, [rows, columns]: [usize; 2]| {
        [Matrix::row_major(data, columns), Matrix::row_major(data, rows).transposed()]
    };
    for left in layouts(&a, [rows, inner]) {
        for right in layouts(&b, [inner, columns]) {
            for epilogue in [Epilogue::Overwrite, Epilogue::Accumulate, Epilogue::Bias(&bias)] {
                let (stride, there, scale) = (columns + 3, 7.0, 0.5);
                let mut out = vec![there; rows * stride];
                let target = MatrixMut::with_gaps(&mut out, rows, columns, stride);
                multiply(target, epilogue, scale, left, right);
                for (index, &found) in out.iter().enumerate() {
                    let (row, column) = (index / stride, index % stride);
                    if column >= columns {
                        assert_eq!(found, there, "a gap between rows was written to");
                        continue;
                    }
                    let start = match epilogue {
                        Epilogue::Overwrite => 0.0,
                        Epilogue::Accumulate => there,
                        Epilogue::Bias(bias) => bias[column],
                    };
                    let (mut sum, mut size) = (f64::from(start), f64::from(start.abs()));
                    for step in 0..inner {
                        let term = f64::from(left.get(row, step)) * f64::from(right.get(step, column));
                        sum += f64::from(scale) * term;
                        size += term.abs();
                    }
                    assert!(
                        (f64::from(found) - sum).abs() <= bound * size,
                        "{rows}x{inner}x{columns} {epilogue:?}: row {row}, column {column} is {found}, not {sum}"
                    );
                }
            }
        }
    }
}
