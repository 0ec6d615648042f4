//! The micro-kernel: a block of rows by a panel of columns.

use super::super::avx512::{LANES, first_lanes, write};
use super::super::view::{Epilogue, MatrixMut};
use super::Bfloat16;
use super::pairs::Pairs;
use std::arch::x86_64::*;
use std::mem::transmute;

/// The rows that are multiplied at a time: as many as the registers have room for, next to a row of a panel.
const ROWS: usize = 6;

/// The product of a left factor and a panel of up to 64 columns: a row of `stride` words for each pair, in whole vectors.
///
/// # Panics
///
/// If the sizes do not fit.
pub(super) fn panel(
    _: Bfloat16,
    out: &MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Pairs<'_>,
    (words, stride): (&[u32], usize),
) {
    let vectors = out.columns.div_ceil(LANES);
    assert!(stride >= vectors * LANES && words.len() >= stride * left.inner, "a panel in whole vectors");
    assert!(out.rows == left.lines, "a row of the output for each row of the left factor");
    let last = (left.lines.max(1) - 1) * left.line_stride + (left.inner.max(1) - 1) * left.inner_stride;
    assert!(left.lines * left.inner == 0 || last < left.words.len(), "a left factor in its memory");
    if let Epilogue::Bias(bias) = epilogue {
        assert!(bias.len() >= out.columns, "a bias for each column");
    }
    let panel = Panel {
        words: words.as_ptr(),
        stride,
        pairs: left.inner,
        mask: first_lanes(out.columns - (vectors.max(1) - 1) * LANES),
        scale,
        epilogue,
    };
    // SAFETY: the CPU has AVX512-BF16, as the value proves; the sizes fit by the assertions.
    unsafe {
        match vectors {
            0 => {}
            1 => panel.rows::<1>(out, left),
            2 => panel.rows::<2>(out, left),
            3 => panel.rows::<3>(out, left),
            4 => panel.rows::<4>(out, left),
            _ => unreachable!("panels have at most four vectors"),
        }
    }
}

/// A panel of the right factor, and how its products are written.
struct Panel<'a> {
    words: *const u32,
    stride: usize,
    pairs: usize,
    /// The columns of the last vector.
    mask: __mmask16,
    scale: f32,
    epilogue: Epilogue<'a>,
}

impl Panel<'_> {
    /// The products of all rows of `left`, one block of rows after the other.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX512-BF16. `out` must have the rows of `left` and the columns of the panel, and the panel `VECTORS` vectors in a
    /// row for each pair.
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn rows<const VECTORS: usize>(&self, out: &MatrixMut<'_>, left: Pairs<'_>) {
        let strides = (left.line_stride, left.inner_stride);
        for row in (0..out.rows).step_by(ROWS) {
            let from = left.words.as_ptr().wrapping_add(row * left.line_stride);
            let to = out.start.wrapping_add(row * out.row_stride);
            // SAFETY: both matrices have as many rows from `from` and `to` on; the panel is as the caller promises.
            unsafe {
                match (out.rows - row).min(ROWS) {
                    1 => self.block::<1, VECTORS>(from, strides, to, out.row_stride),
                    2 => self.block::<2, VECTORS>(from, strides, to, out.row_stride),
                    3 => self.block::<3, VECTORS>(from, strides, to, out.row_stride),
                    4 => self.block::<4, VECTORS>(from, strides, to, out.row_stride),
                    5 => self.block::<5, VECTORS>(from, strides, to, out.row_stride),
                    _ => self.block::<6, VECTORS>(from, strides, to, out.row_stride),
                }
            }
        }
    }

    /// The products of `ROWS` rows.
    ///
    /// # Safety
    ///
    /// - `left` must be valid for reads of `pairs` words, `inner_stride` apart, in each of `ROWS` rows.
    /// - The panel must be valid for reads of `VECTORS` vectors in each of `pairs` rows.
    /// - `out` must be valid for reads and writes of as many elements (those in `mask` of the last vector) in each of `ROWS` rows.
    #[target_feature(enable = "avx512f,avx512bf16")]
    #[inline]
    unsafe fn block<const ROWS: usize, const VECTORS: usize>(
        &self,
        mut left: *const u32,
        (row_stride, inner_stride): (usize, usize),
        out: *mut f32,
        out_stride: usize,
    ) {
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        let mut right = self.words;
        // SAFETY: the loops read `pairs` words of `ROWS` rows of the left factor and `pairs` rows of the panel, and access an output for
        // each sum; all of them are valid, as the caller promises, and the last vector of an output row is masked.
        unsafe {
            for _ in 0..self.pairs {
                let mut values = [_mm512_setzero_si512(); VECTORS];
                for (index, value) in values.iter_mut().enumerate() {
                    *value = _mm512_loadu_si512(right.add(index * LANES).cast());
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let factor = _mm512_set1_epi32(*left.add(row * row_stride) as i32);
                    let factor = transmute::<__m512i, __m512bh>(factor);
                    for (sum, value) in sums.iter_mut().zip(values) {
                        *sum = _mm512_dpbf16_ps(*sum, factor, transmute::<__m512i, __m512bh>(value));
                    }
                }
                left = left.wrapping_add(inner_stride);
                right = right.wrapping_add(self.stride);
            }
            let scale = _mm512_set1_ps(self.scale);
            for (row, sums) in sums.iter().enumerate() {
                for (index, sum) in sums.iter().enumerate() {
                    let mask = if index + 1 < VECTORS { u16::MAX } else { self.mask };
                    let to = out.add(row * out_stride + index * LANES);
                    write(*sum, scale, self.epilogue, index * LANES, to, mask);
                }
            }
        }
    }
}
