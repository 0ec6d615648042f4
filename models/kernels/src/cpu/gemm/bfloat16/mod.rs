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
fn packed_length([inner, columns]: [usize; 2]) -> usize {
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

/// Right factors of one size, rounded and packed, one after the other.
#[derive(Clone, Debug)]
pub(crate) struct PackedFactors {
    bfloat16: Bfloat16,
    words: Vec<u32>,
    sizes: [usize; 2],
}

impl PackedFactors {
    /// The `count` factors that `matrix` gives, all of these sizes, packed [in parallel](parallel).
    ///
    /// # Panics
    ///
    /// If one of them has other sizes or is not [compact](Matrix::compact).
    pub(crate) fn new<'a>(
        bfloat16: Bfloat16,
        count: usize,
        sizes @ [rows, columns]: [usize; 2],
        matrix: impl Fn(usize) -> Matrix<'a> + Sync,
    ) -> Self {
        let length = packed_length(sizes);
        let mut buffer = Buffer::new(count * length);
        let words = buffer.shared();
        let chunks = Chunks::of(columns, PANEL).in_groups(PANEL);
        parallel(count * chunks.count(), |task| {
            let (index, columns) = (task / chunks.count(), chunks.range(task % chunks.count()));
            // All panels before it have whole vectors.
            let start = index * length + packed_length([rows, columns.start]);
            let end = start + packed_length([rows, columns.len()]);
            // SAFETY: the panels of all factors are disjoint.
            let words = unsafe { words.slice(start..end) };
            let matrix = matrix(index);
            assert_eq!([matrix.rows, matrix.columns], sizes);
            pack(bfloat16, matrix.block(0..rows, columns), words);
        });
        // SAFETY: the panels have all columns of all factors, and `pack` wrote all of their words.
        Self { bfloat16, words: unsafe { buffer.written() }, sizes }
    }

    /// One of the factors.
    pub(crate) fn get(&self, index: usize) -> RightPanels<'_> {
        let length = packed_length(self.sizes);
        RightPanels::new(self.bfloat16, &self.words[index * length..][..length], self.sizes)
    }
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
