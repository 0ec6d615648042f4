//! The transformed filters of a convolution, or the transposed ones: for each place a right factor of products.

use super::factor::Factor;
use crate::cpu::gemm::bfloat16::PackedFactors;
use crate::cpu::gemm::{Epilogue, Matrix, MatrixMut};

/// The factors of all places.
#[derive(Clone, Debug)]
pub(in super::super) enum Filters {
    /// Each of these rows and columns, row by row, one place after the other.
    Plain(Vec<f32>, [usize; 2]),
    Rounded(PackedFactors),
}

impl Filters {
    /// `out = left * the filters of a place`, which `plain` computes if neither is rounded.
    ///
    /// # Panics
    ///
    /// If only one of them is, or the sizes do not fit.
    pub(super) fn multiply(
        &self,
        place: usize,
        out: MatrixMut<'_>,
        left: Factor<'_>,
        plain: impl FnOnce(MatrixMut<'_>, Matrix<'_>, Matrix<'_>),
    ) {
        match (self, left) {
            (Self::Plain(values, sizes), Factor::Plain(left)) => {
                let [rows, columns] = *sizes;
                let right = Matrix::new(&values[place * rows * columns..], *sizes, [columns, 1]);
                plain(out, left, right);
            }
            (Self::Rounded(factors), Factor::Rounded(_, left)) => {
                factors.get(place).multiply_rounded(out, Epilogue::Overwrite, left);
            }
            _ => panic!("filters and tiles are rounded alike"),
        }
    }
}
