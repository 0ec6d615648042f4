//! The transformed filters of a convolution, or the transposed ones: for each place a right factor of products.

use super::factor::Factor;
use crate::cpu::gemm::bfloat16::{RightPanels, pack, packed_length};
use crate::cpu::gemm::{Bfloat16, Epilogue, Matrix, MatrixMut};
use crate::cpu::threads::{Buffer, parallel};

/// The factors of all places, each of these rows and columns.
#[derive(Clone, Debug)]
pub(in super::super) struct Filters {
    sizes: [usize; 2],
    values: Values,
}

#[derive(Clone, Debug)]
enum Values {
    /// Row by row, one place after the other.
    Plain(Vec<f32>),
    /// Rounded and packed, one place after the other.
    Rounded(Bfloat16, Vec<u32>),
}

impl Filters {
    /// The filters with these values, row by row, one place after the other.
    pub(super) fn plain(values: Vec<f32>, sizes: [usize; 2]) -> Self {
        Self { sizes, values: Values::Plain(values) }
    }

    /// The filters of so many places that `matrix` gives, rounded. All have these sizes.
    pub(super) fn rounded<'a>(
        bfloat16: Bfloat16,
        (places, sizes): (usize, [usize; 2]),
        matrix: impl Fn(usize) -> Matrix<'a> + Sync,
    ) -> Self {
        let length = packed_length(sizes);
        let mut buffer = Buffer::new(places * length);
        let words = buffer.shared();
        parallel(places, |place| {
            // SAFETY: the places are disjoint.
            pack(bfloat16, matrix(place), unsafe { words.slice(place * length..(place + 1) * length) });
        });
        // SAFETY: `pack` wrote all words of every place.
        Self { sizes, values: Values::Rounded(bfloat16, unsafe { buffer.written() }) }
    }

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
        let [rows, columns] = self.sizes;
        match (&self.values, left) {
            (Values::Plain(values), Factor::Plain(left)) => {
                let right = Matrix::new(&values[place * rows * columns..], self.sizes, [columns, 1]);
                plain(out, left, right);
            }
            (Values::Rounded(bfloat16, words), Factor::Rounded(_, left)) => {
                let length = packed_length(self.sizes);
                let words = &words[place * length..(place + 1) * length];
                let right = RightPanels::new(*bfloat16, words, self.sizes);
                right.multiply_rounded(out, Epilogue::Overwrite, left);
            }
            _ => panic!("filters and tiles are rounded alike"),
        }
    }
}
