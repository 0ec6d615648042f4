//! Products of numbers that are rounded to bfloat16 (eight significant bits), with sums in float32, on AVX512-BF16: an
//! instruction multiplies two pairs of numbers in each lane and adds both products, twice as many as in float32.
//!
//! ```text
//! pack left                                 once: pairs of numbers along the sum, rounded
//!   for 64 columns                          a panel of the right factor, packed: first-level cache
//!     for 6 rows                            6 x 4 vectors of sums: registers
//!       for each pair of inner elements     a row of pairs of the panel: registers; a pair of the left factor: broadcast
//!         sums += left[row, pair] * right[pair, columns]
//!       out = epilogue(scale * sums)
//! ```
//!
//! Rounding changes a number by up to 2^-8 of itself, and by a quarter of that in the mean. The terms of an element are added in the order of the inner elements, two at a
//! time, so that it depends only on its row of the left factor and its column of the right one.

#[cfg(target_arch = "x86_64")]
mod detect;
#[cfg(any(test, not(target_arch = "x86_64")))]
#[cfg_attr(target_arch = "x86_64", allow(dead_code))]
mod elsewhere;
#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(target_arch = "x86_64")]
mod packed;
#[cfg(target_arch = "x86_64")]
mod pairs;

#[cfg(target_arch = "x86_64")]
pub(crate) use detect::Bfloat16;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use elsewhere::{Bfloat16, RightPanels, multiply, multiply_columns, pack};
#[cfg(target_arch = "x86_64")]
pub(crate) use packed::{RightPanels, multiply, multiply_columns, pack};
#[cfg(target_arch = "x86_64")]
pub(crate) use pairs::halves;

use super::amx;
use super::view::Matrix;
use crate::Precision;
use crate::cpu::simd::LANES;
use crate::cpu::threads::{Buffer, Chunks, parallel};

/// The columns of a panel.
pub(crate) const PANEL: usize = super::small::PANEL;

/// With more rows, rounding the left factor for each part of the columns costs more than packing the right factor for all rows.
pub(crate) const FEW_ROWS: usize = 512;

/// The number of words of a [packed](pack) right factor.
pub(crate) fn packed_length([inner, columns]: [usize; 2]) -> usize {
    inner.div_ceil(2) * columns.next_multiple_of(LANES)
}

/// A row-major matrix of numbers that are rounded to bfloat16 already, whose rows have an even number of columns and follow each other.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // nothing there multiplies it
pub(crate) struct Rounded<'a> {
    data: &'a [u16],
    rows: usize,
    columns: usize,
}

impl<'a> Rounded<'a> {
    /// The first `rows` rows of `data`.
    ///
    /// # Panics
    ///
    /// If there are not as many, the number of columns is odd, or the data does not begin a word.
    pub(crate) fn new(data: &'a [u16], [rows, columns]: [usize; 2]) -> Self {
        let data = &data[..rows * columns];
        assert!(columns.is_multiple_of(2) && data.as_ptr().cast::<u32>().is_aligned(), "rows of whole words");
        Self { data, rows, columns }
    }
}

/// The words of a matrix, packed [in parallel](parallel).
///
/// # Panics
///
/// If the matrix is not [compact](Matrix::compact).
pub(crate) fn packed(bfloat16: Bfloat16, matrix: Matrix<'_>) -> Vec<u32> {
    let sizes = [matrix.rows, matrix.columns];
    let mut buffer = Buffer::new(packed_length(sizes));
    let words = buffer.shared();
    let chunks = Chunks::of(matrix.columns, PANEL).in_groups(PANEL);
    parallel(chunks.count(), |index| {
        let columns = chunks.range(index);
        let sizes = [matrix.rows, columns.len()];
        // All panels before it have whole vectors.
        let start = packed_length([matrix.rows, columns.start]);
        // SAFETY: the panels are disjoint.
        let words = unsafe { words.slice(start..start + packed_length(sizes)) };
        pack(bfloat16, matrix.block(0..matrix.rows, columns), words);
    });
    // SAFETY: the panels have all columns.
    unsafe { buffer.written() }
}

impl Bfloat16 {
    /// The instructions, if the CPU has them and does not multiply on AMX.
    pub(crate) fn useful() -> Option<Self> {
        Self::find().filter(|_| !amx::is_present())
    }

    /// The instructions, if the [present](Precision::during) precision lets products be rounded.
    pub(crate) fn wanted() -> Option<Self> {
        match Precision::current() {
            Precision::Float32 => None,
            Precision::Bfloat16 => Self::useful(),
        }
    }

    /// The instructions, if a product of these sizes is faster with them: rounding both factors takes as long as some products.
    pub(crate) fn takes(self, rows: usize, inner: usize, columns: usize) -> Option<Self> {
        (rows.min(columns) >= 24 && inner >= 16).then_some(self)
    }
}
