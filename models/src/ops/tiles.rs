//! Products of float32 matrices on the processor's matrix unit, AMX, which multiplies bytes and adds up in 32 bits, exactly.
//!
//! The elements of a row of the left factor, or of a column of the right one, are divided by a common unit and rounded to integers of 24
//! bits. An integer is three digits, each a signed byte: `x = x1 2^16 + x2 2^8 + x3`. The product is computed as
//! `x1 y1 2^32 + (x1 y2 + x2 y1) 2^24 + (x1 y3 + x2 y2 + x3 y1) 2^16`. What is left out and what rounding takes are together less than 2^-21
//! of the product of the row's and the column's largest elements, for each term: where sizes are alike, the error over a whole matrix is no
//! larger than that of sums in float32, but unlike there, small elements lose bits beside large ones. (The scheme is that of Ootomo, Ozaki
//! and Yokota, "DGEMM on Integer Matrix Multiplication Unit", arXiv:2306.11975, section 3.)
//!
//! Factors are packed into panels of two tiles, 16 lines of 16 words of four digits each. Inner elements `i`, `i + 16`, `i + 32` and
//! `i + 48` of a tile share a word, in both factors, so that packing needs few shuffles.
//!
//! A row or column with an element that is not finite gives nothing that is. One whose largest element is less than 2^-105 loses precision,
//! as do products whose largest elements' product is no normal float32.

use super::matrix::{Existing, Matrix, MatrixMut};

/// Whether the processor has such a unit, the system lets the program use it, and the environment does too.
fn available() -> bool {
    use std::sync::LazyLock;
    static AVAILABLE: LazyLock<bool> = LazyLock::new(|| {
        std::env::var_os("VITRINE_MATRIX_UNIT").is_none_or(|value| value != "off") && unit::request()
    });
    *AVAILABLE
}

/// Whether a product is one for the matrix unit: an element that is used in fewer products takes longer to pack than the unit saves.
pub(super) fn takes(rows: usize, inner: usize, columns: usize) -> bool {
    available() && rows >= 96 && inner >= 64 && columns >= 64
}

/// Whether a left factor of these rows is better packed once, and the right one by each task for the columns that it computes: a few
/// rows do not make up for a right factor that is packed to memory and read back.
pub(super) fn few_rows(rows: usize, inner: usize, columns: usize) -> bool {
    const LARGEST: usize = 256 * 1024;
    takes(rows, inner, columns) && rows * inner <= LARGEST
}

/// Rows of a left factor or columns of a right one that are packed together: two tiles, as two by two tiles of sums make the best use of the
/// unit's eight registers.
pub(super) const PANEL: usize = 32;

/// Rows that fill the unit, as outer elements (whole panels) and as inner ones (a whole tile).
pub(super) const GROUP: usize = 64;

pub(super) use unit::{Panels, multiply};

// Elsewhere `elsewhere` is the unit; tests compile it everywhere.
#[cfg(any(test, not(all(target_arch = "x86_64", target_os = "linux"))))]
#[cfg_attr(all(target_arch = "x86_64", target_os = "linux"), allow(dead_code))]
mod elsewhere;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
use elsewhere as unit;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod kernel;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod pack;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod unit;

#[cfg(test)]
mod tests {
    use super::super::matrix::{gemm, tests::assert_product};
    use super::*;
    use crate::testing::numbers;

    /// Rows, inner elements and columns: whole panels, single tiles, edges of every kind, several slabs of inner elements, more than the
    /// caches hold.
    const SIZES: [[usize; 3]; 12] = [
        [64, 64, 64],
        [32, 32, 32],
        [16, 16, 128],
        [65, 64, 65],
        [65, 65, 64],
        [17, 40, 100],
        [100, 33, 49],
        [8, 600, 9],
        [300, 513, 33],
        [33, 1030, 70],
        [33, 1030, 500],
        [1100, 65, 33],
    ];

    /// Whether there is nothing to test here; says so.
    fn absent() -> bool {
        if !available() {
            eprintln!("not run: this processor has no matrix unit");
        }
        !available()
    }

    #[test]
    fn products_agree_with_exact_ones() {
        if absent() {
            return;
        }
        const FLOAT32: f64 = 1e-6;
        for size in SIZES {
            assert_product(size, FLOAT32, multiply);
            assert_product(size, FLOAT32, |out, existing, scale, left, right| {
                Panels::right(right).after(left, out, existing, scale);
            });
            assert_product(size, FLOAT32, |out, existing, scale, left, right| {
                Panels::left(left).before(right, out, existing, scale);
            });
        }
    }

    #[test]
    fn errors_over_a_whole_matrix_are_no_larger_than_those_of_float32() {
        if absent() {
            return;
        }
        for [rows, inner, columns] in [[128, 192, 96], [96, 768, 64], [96, 4160, 64]] {
            let (a, b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
            let (left, right) = (Matrix::row_major(&a, inner), Matrix::row_major(&b, columns));
            let relative_error = |multiply: &dyn Fn(MatrixMut<'_>)| {
                let mut out = vec![0.0; rows * columns];
                multiply(MatrixMut::row_major(&mut out, columns));
                let (mut error, mut norm) = (0.0, 0.0);
                for (index, &found) in out.iter().enumerate() {
                    let (row, column) = (index / columns, index % columns);
                    let exact: f64 = (0..inner)
                        .map(|step| f64::from(left.get(row, step)) * f64::from(right.get(step, column)))
                        .sum();
                    error += (f64::from(found) - exact).powi(2);
                    norm += exact.powi(2);
                }
                (error / norm).sqrt()
            };
            let on_unit = relative_error(&|out| multiply(out, Existing::Overwrite, 1.0, left, right));
            let float32 = relative_error(&|out| gemm(out, Existing::Overwrite, 1.0, left, right, false));
            assert!(on_unit <= float32, "{rows}x{inner}x{columns}: {on_unit:e}, in float32 {float32:e}");
        }
    }

    #[test]
    fn rows_and_columns_of_any_size_keep_their_precision() {
        if absent() {
            return;
        }
        let [rows, inner, columns] = [48, 100, 40];
        let power = |index: usize, step: i32| 2.0f32.powi(step * (index as i32 - 20));
        let (mut a, mut b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
        let exact = |row: usize, column: usize| -> f64 {
            (0..inner)
                .map(|step| f64::from(a[row * inner + step]) * f64::from(b[step * columns + column]))
                .sum()
        };
        let exact: Vec<f64> =
            (0..rows * columns).map(|index| exact(index / columns, index % columns)).collect();
        a.iter_mut().enumerate().for_each(|(index, value)| *value *= power(index / inner, 2));
        b.iter_mut().enumerate().for_each(|(index, value)| *value *= power(index % columns, -2));
        let mut out = vec![0.0; rows * columns];
        let (left, right) = (Matrix::row_major(&a, inner), Matrix::row_major(&b, columns));
        multiply(MatrixMut::row_major(&mut out, columns), Existing::Overwrite, 1.0, left, right);
        for (index, (&found, &exact)) in out.iter().zip(&exact).enumerate() {
            let (row, column) = (index / columns, index % columns);
            let found = f64::from(found / power(row, 2) / power(column, -2));
            // 100 terms of at most 1
            assert!((found - exact).abs() < 2e-5, "row {row}, column {column}: {found}, not {exact}");
        }
    }

    #[test]
    fn errors_are_relative_to_the_largest_elements() {
        if absent() {
            return;
        }
        let [rows, inner, columns] = [33, 200, 40];
        let (mut a, mut b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
        // a large element of each row meets small ones of the columns
        a.chunks_exact_mut(inner).for_each(|row| row[7] *= 1024.0);
        b[7 * columns..8 * columns].iter_mut().for_each(|value| *value /= 1024.0);
        assert_near(&a, &b, [rows, inner, columns]);
    }

    #[test]
    fn the_largest_digits_and_sums_fit() {
        if absent() {
            return;
        }
        for largest in [1.0, -1.0, f32::MAX.sqrt() / 64.0, 1e-15] {
            for inner in [512, 1030] {
                assert_near(&vec![largest; 40 * inner], &vec![largest.abs(); inner * 40], [40, inner, 40]);
            }
        }
        // zeros, and elements at the ends of the range beside a factor that brings them back
        for (left, right) in [(0.0, 1.0), (f32::MAX, 1e-30), (-f32::MAX, 3e-32), (1e-31, 1e30)] {
            assert_near(&vec![left; 40 * 64], &vec![right; 64 * 40], [40, 64, 40]);
        }
    }

    /// Checks products against sums in float64: an error of 2^-21 of the product of the largest elements for each term.
    fn assert_near(a: &[f32], b: &[f32], [rows, inner, columns]: [usize; 3]) {
        let (left, right) = (Matrix::row_major(a, inner), Matrix::row_major(b, columns));
        let mut out = vec![0.0; rows * columns];
        multiply(MatrixMut::row_major(&mut out, columns), Existing::Overwrite, 1.0, left, right);
        for (index, &found) in out.iter().enumerate() {
            let (row, column) = (index / columns, index % columns);
            let terms =
                (0..inner).map(|step| (f64::from(left.get(row, step)), f64::from(right.get(step, column))));
            let largest = |value: f64, other: f64| value.max(other.abs());
            let (sum, row_largest, column_largest) = terms
                .fold((0.0, 0.0, 0.0), |(sum, x, y), (left, right)| {
                    (sum + left * right, largest(x, left), largest(y, right))
                });
            let bound = inner as f64 * row_largest * column_largest / f64::from(1 << 21);
            assert!(
                (f64::from(found) - sum).abs() <= bound,
                "row {row}, column {column}: {found:e}, not {sum:e}"
            );
        }
    }

    #[test]
    fn what_is_not_finite_stays_so_and_spreads_no_further() {
        if absent() {
            return;
        }
        let [rows, inner, columns] = [40, 600, 60];
        for special in [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::from_bits(0x7f80_0001),
            f32::from_bits(u32::MAX),
        ] {
            let (mut a, b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
            a[20 * inner + 530] = special;
            let (left, right) = (Matrix::row_major(&a, inner), Matrix::row_major(&b, columns));
            let mut out = vec![0.0; rows * columns];
            multiply(MatrixMut::row_major(&mut out, columns), Existing::Overwrite, 1.0, left, right);
            for (index, value) in out.iter().enumerate() {
                assert_eq!(value.is_finite(), index / columns != 20, "element {index} is {value}");
            }
            let mut out = vec![0.0; columns * rows];
            let (left, right) = (right.transposed(), left.transposed());
            multiply(MatrixMut::row_major(&mut out, rows), Existing::Overwrite, 1.0, left, right);
            for (index, value) in out.iter().enumerate() {
                assert_eq!(value.is_finite(), index % rows != 20, "element {index} is {value}");
            }
            Panels::right(right).after(left, MatrixMut::row_major(&mut out, rows), Existing::Overwrite, 1.0);
            for (index, value) in out.iter().enumerate() {
                assert_eq!(value.is_finite(), index % rows != 20, "packed, element {index} is {value}");
            }
        }
    }
}
