//! Products of float32 matrices on the processor's matrix unit, AMX, which multiplies bfloat16 and adds up in float32.
//!
//! A float32 has 24 significant bits, a bfloat16 has 8: cut off in three steps, a float32 is the sum of three bfloat16, `x = x1 + x2 + x3`,
//! each less than 2^-7 of the one before; exactly, but for numbers so small (2^-103) that a part is no normal number, which the unit takes
//! as 0. The product is computed as `x1 y1 + (x1 y2 + x2 y1) + (x1 y3 + x2 y2 + x3 y1)`; what is left out is less than 2^-21 of a product,
//! 2^-24 on average, where rounding a sum to float32 is off by up to 2^-24 of the sum each time. Measured over whole matrices the error is
//! no larger than that of sums in float32. (The splitting is that of Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial
//! Intelligence Datatype For Higher-Precision Computations", ARITH 2019, section 3.)
//!
//! Factors are packed into panels of two tiles, 16 rows of 16 pairs of bfloat16 each. Inner element `i` of a tile is paired with
//! element `i + 16`, in both factors, so that packing needs no shuffles where memory runs along the right dimension.
//!
//! An infinity times a finite number is NaN here, as the parts of an infinity are not all infinite: what is not finite stays so.

use super::matrix::{Existing, Matrix, MatrixMut};

/// Whether products run on the matrix unit: the processor has one, the system lets the program use it, and the environment variable
/// `VITRINE_MATRIX_UNIT` is not `off`.
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

pub(super) use unit::{Panels, multiply};

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod unit {
    //! Elsewhere there is no such unit, or no known way to ask for it.

    use super::{Existing, Matrix, MatrixMut};

    pub(in super::super) fn request() -> bool {
        false
    }

    #[derive(Debug)]
    pub(in super::super) enum Panels {}

    impl Panels {
        pub(in super::super) fn left(_: Matrix<'_>) -> Self {
            unreachable!("there is no matrix unit")
        }

        pub(in super::super) fn right(_: Matrix<'_>) -> Self {
            unreachable!("there is no matrix unit")
        }

        pub(in super::super) fn after(&self, _: Matrix<'_>, _: MatrixMut<'_>, _: Existing<'_>, _: f32) {
            match *self {}
        }

        pub(in super::super) fn before(&self, _: Matrix<'_>, _: MatrixMut<'_>, _: Existing<'_>, _: f32) {
            match *self {}
        }
    }

    pub(in super::super) fn multiply(
        _out: MatrixMut<'_>,
        _existing: Existing<'_>,
        _scale: f32,
        _left: Matrix<'_>,
        _right: Matrix<'_>,
    ) {
        unreachable!("there is no matrix unit")
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod kernel;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod pack;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod unit;

#[cfg(test)]
mod tests {
    use super::super::matrix::{on_vectors, tests::assert_product};
    use super::*;
    use crate::testing::numbers;

    /// Rows, inner elements and columns: whole panels, single tiles, edges of every kind, several slabs of inner elements.
    const SIZES: [[usize; 3]; 10] = [
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
    ];

    #[test]
    fn products_are_as_exact_as_float32() {
        if !available() {
            eprintln!("not run: this processor has no matrix unit");
            return;
        }
        for size in SIZES {
            assert_product(size, multiply);
            assert_product(size, |out, existing, scale, left, right| {
                Panels::right(right).after(left, out, existing, scale);
            });
            assert_product(size, |out, existing, scale, left, right| {
                Panels::left(left).before(right, out, existing, scale);
            });
        }
    }

    #[test]
    fn errors_over_a_whole_matrix_are_no_larger_than_in_float32() {
        if !available() {
            eprintln!("not run: this processor has no matrix unit");
            return;
        }
        for [rows, inner, columns] in [[128, 192, 96], [96, 768, 64]] {
            let (a, b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
            let (left, right) = (Matrix::row_major(&a, inner), Matrix::row_major(&b, columns));
            let squared_error = |multiply: fn(MatrixMut<'_>, Existing<'_>, f32, Matrix<'_>, Matrix<'_>)| {
                let mut out = vec![0.0; rows * columns];
                let target = MatrixMut::row_major(&mut out, columns);
                multiply(target, Existing::Overwrite, 1.0, left, right);
                let error = out.iter().enumerate().map(|(index, &found)| {
                    let (row, column) = (index / columns, index % columns);
                    let exact: f64 = (0..inner)
                        .map(|step| f64::from(left.get(row, step)) * f64::from(right.get(step, column)))
                        .sum();
                    (f64::from(found) - exact).powi(2)
                });
                error.sum::<f64>()
            };
            let (unit, vectors) = (squared_error(multiply), squared_error(on_vectors));
            assert!(unit <= vectors, "{rows}x{inner}x{columns}: {unit:e}, in float32 {vectors:e}");
        }
    }

    #[test]
    fn what_is_not_finite_stays_so_and_spreads_no_further() {
        if !available() {
            eprintln!("not run: this processor has no matrix unit");
            return;
        }
        let [rows, inner, columns] = [40, 50, 60];
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)] {
            let (mut a, b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
            a[20 * inner + 30] = special;
            let mut out = vec![0.0; rows * columns];
            let (left, right) = (Matrix::row_major(&a, inner), Matrix::row_major(&b, columns));
            multiply(MatrixMut::row_major(&mut out, columns), Existing::Overwrite, 1.0, left, right);
            for (index, value) in out.iter().enumerate() {
                assert_eq!(value.is_finite(), index / columns != 20, "element {index} is {value}");
            }
        }
    }
}
