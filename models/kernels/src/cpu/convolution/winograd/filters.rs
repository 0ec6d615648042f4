//! The transformed filters of a convolution, or the transposed ones: for each place a right factor of products.

use super::factor::Factor;
use crate::cpu::gemm::bfloat16::{RightPanels, pack, packed_length};
use crate::cpu::gemm::{Bfloat16, Epilogue, Matrix, MatrixMut};
use crate::cpu::threads::{Buffer, parallel};

/// The factors of all places, each of these rows and columns.
pub(super) struct Filters {
    sizes: [usize; 2],
    values: Values,
}

enum Values {
    /// Row by row, one place after the other.
    Plain(Vec<f32>),
    /// Rounded and packed, one place after the other.
    Rounded(Bfloat16, Vec<u32>),
}

impl Filters {
    /// The filters with these values, row by row, one place after the other; rounded if there is `bfloat16`.
    pub(super) fn new(
        values: Vec<f32>,
        sizes @ [rows, columns]: [usize; 2],
        bfloat16: Option<Bfloat16>,
    ) -> Self {
        let Some(bfloat16) = bfloat16 else { return Self { sizes, values: Values::Plain(values) } };
        let (places, length) = (values.len() / (rows * columns).max(1), packed_length(sizes));
        let mut buffer = Buffer::new(places * length);
        let words = buffer.shared();
        parallel(places, |place| {
            let matrix = Matrix::new(&values[place * rows * columns..], sizes, [columns, 1]);
            // SAFETY: the places are disjoint.
            pack(bfloat16, matrix, unsafe { words.slice(place * length..(place + 1) * length) });
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
