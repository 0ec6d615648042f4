//! Products of float32 matrices on the processor's matrix unit, AMX, which multiplies bfloat16 and adds up in float32.
//!
//! A float32 has 24 significant bits, a bfloat16 has 8: cut off in three steps, a float32 is the sum of three bfloat16, `x = x1 + x2 + x3`,
//! each less than 2^-7 of the one before; exactly, but for numbers so small (2^-103) that a part is no normal number, which the unit takes
//! as 0. The product is computed as `x1 y1 + (x1 y2 + x2 y1) + (x1 y3 + x2 y2 + x3 y1)`; what is left out is less than 2^-21 of a product,
//! 2^-24 on average, where rounding a sum to float32 is off by up to 2^-24 of the sum each time. Measured over whole matrices the error is
//! no larger than that of sums in float32. (The splitting is that of Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial
//! Intelligence Datatype For Higher-Precision Computations", ARITH 2019, section 3.)
//!
//! The gradient of a weight is a sum over all tokens of a batch that no other gradient is computed from. Its factors are read with two
//! parts of 8 bits, rounded: `x1 y1 + x1 y2 + x2 y1`, half the work; measured, it is about 5e-6 of its norm off. PyTorch calls the two
//! precisions `highest` and `high` (`torch.set_float32_matmul_precision`) and uses the first unless told otherwise;
//! `VITRINE_MATRIX_UNIT=highest` asks for it in all products here too.
//!
//! Factors are packed into panels of two tiles, 16 rows of 16 pairs of bfloat16 each. Inner element `i` of a tile is paired with
//! element `i + 16`, in both factors, so that packing needs no shuffles where memory runs along the right dimension.
//!
//! An infinity times a finite number is NaN here, as the parts of an infinity are not all infinite (nor are those of a number that rounds to
//! one): what is not finite stays so.

use super::matrix::{Existing, Matrix, MatrixMut, Precision};

/// What the environment variable `VITRINE_MATRIX_UNIT` and the processor allow.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Use {
    /// Nothing: the variable is `off`, the processor has no such unit, or the system does not let the program use it.
    Off,
    /// Products as exact as float32's, as the variable is `highest`.
    Highest,
    /// Products as exact as their caller asks.
    AsAsked,
}

fn allowed() -> Use {
    use std::sync::LazyLock;
    static ALLOWED: LazyLock<Use> = LazyLock::new(|| {
        let asked = std::env::var_os("VITRINE_MATRIX_UNIT").unwrap_or_default();
        if asked == "off" || !unit::request() {
            Use::Off
        } else if asked == "highest" {
            Use::Highest
        } else {
            Use::AsAsked
        }
    });
    *ALLOWED
}

fn available() -> bool {
    allowed() != Use::Off
}

impl Precision {
    /// The precision that is computed with where this one is asked for.
    #[cfg_attr(not(all(target_arch = "x86_64", target_os = "linux")), allow(dead_code))]
    fn in_effect(self) -> Self {
        if allowed() == Use::Highest { Self::Highest } else { self }
    }
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

    use super::{Existing, Matrix, MatrixMut, Precision};

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
        _precision: Precision,
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
    use super::super::matrix::{gemm, tests::assert_product};
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

    const PRECISIONS: [Precision; 2] = [Precision::High, Precision::Highest];

    #[test]
    fn products_agree_with_exact_ones() {
        if !available() {
            eprintln!("not run: this processor has no matrix unit");
            return;
        }
        const FLOAT32: f64 = 1e-6;
        for size in SIZES {
            for precision in PRECISIONS {
                let bound = if precision.in_effect() == Precision::Highest { FLOAT32 } else { 2e-5 };
                assert_product(size, bound, |out, existing, scale, left, right| {
                    multiply(out, existing, scale, left, right, precision);
                });
            }
            assert_product(size, FLOAT32, |out, existing, scale, left, right| {
                Panels::right(right).after(left, out, existing, scale);
            });
            assert_product(size, FLOAT32, |out, existing, scale, left, right| {
                Panels::left(left).before(right, out, existing, scale);
            });
        }
    }

    #[test]
    fn errors_over_a_whole_matrix_are_those_that_the_precision_allows() {
        if !available() {
            eprintln!("not run: this processor has no matrix unit");
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
            let on_unit = |precision| {
                relative_error(&|out| multiply(out, Existing::Overwrite, 1.0, left, right, precision))
            };
            let float32 = relative_error(&|out| gemm(out, Existing::Overwrite, 1.0, left, right, false));
            let (high, highest) = (on_unit(Precision::High), on_unit(Precision::Highest));
            let size = format!("{rows}x{inner}x{columns}");
            assert!(highest <= float32, "{size}: {highest:e}, in float32 {float32:e}");
            assert!(high <= 5e-6, "{size}: {high:e}");
        }
    }

    #[test]
    fn what_is_not_finite_stays_so_and_spreads_no_further() {
        if !available() {
            eprintln!("not run: this processor has no matrix unit");
            return;
        }
        let [rows, inner, columns] = [40, 50, 60];
        for special in [
            f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::from_bits(0x7f80_0001),
            f32::from_bits(u32::MAX),
        ] {
            let (mut a, b) = (numbers(rows * inner, 1), numbers(inner * columns, 2));
            a[20 * inner + 30] = special;
            let (left, right) = (Matrix::row_major(&a, inner), Matrix::row_major(&b, columns));
            for precision in PRECISIONS {
                let mut out = vec![0.0; rows * columns];
                let target = MatrixMut::row_major(&mut out, columns);
                multiply(target, Existing::Overwrite, 1.0, left, right, precision);
                for (index, value) in out.iter().enumerate() {
                    assert_eq!(value.is_finite(), index / columns != 20, "element {index} is {value}");
                }
            }
        }
    }
}
