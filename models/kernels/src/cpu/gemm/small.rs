//! Products of small matrices, such as the scores of one attention head, on AVX-512: the right factor is read where it lies in the cache,
//! where libraries for large products first copy both factors.
//!
//! ```text
//! for 64 columns (80 where that is all)     4 or 5 vectors of the right factor: first-level cache
//!   for 6 rows (5)                          6 x 4 or 5 x 5 vectors of sums: registers
//!     for each inner element                one row of the right factor in registers, one element of each row of the left broadcast
//!       sums += left[row, inner] * right[inner, columns]
//!     out = epilogue(scale * sums)
//! ```
//!
//! An element is summed in order, each step rounded once: the error of a sum of `n` terms is at most `n * 2^-24` times the sum of their sizes.

use super::view::{Epilogue, Matrix, MatrixMut};

#[cfg(target_arch = "x86_64")]
pub(crate) use super::avx512::Avx512;

/// The proof that the CPU has AVX-512, which no other kind has.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Avx512 {}

/// The proof that [`multiply`] asks for, if it is the way to go for a product: larger ones are faster where both factors are packed.
pub(crate) fn takes(rows: usize, inner: usize, columns: usize) -> Option<Avx512> {
    const LARGEST: usize = 128 * 128 * 128;
    #[cfg(target_arch = "x86_64")]
    let there = Avx512::find();
    #[cfg(not(target_arch = "x86_64"))]
    let there = None;
    there.filter(|_| inner > 0 && rows * inner * columns <= LARGEST && inner * columns <= 128 * 128)
}

/// `out = scale * left * right` after what `epilogue` says, on the calling thread. An element is summed in the order of the inner elements,
/// each product and sum rounded once: it depends on its row and its column alone.
///
/// # Panics
///
/// If the sizes do not fit, or the right factor's elements lie side by side along neither dimension.
#[cfg(target_arch = "x86_64")]
pub(crate) fn multiply(
    _: Avx512,
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    out.assert_product_of([left.rows, left.columns], [right.rows, right.columns]);
    // SAFETY: the first argument proves that the CPU has AVX-512; the sizes fit, and each matrix lies in its buffer, as `Matrix` and
    // `MatrixMut` check where they are made.
    unsafe { kernel::multiply(out, epilogue, scale, left, right) };
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn multiply(
    avx512: Avx512,
    _: MatrixMut<'_>,
    _: Epilogue<'_>,
    _: f32,
    _: Matrix<'_>,
    _: Matrix<'_>,
) {
    match avx512 {}
}

#[cfg(target_arch = "x86_64")]
mod kernel {
    use super::super::avx512::{LANES, first_lanes, transpose, write};
    use super::{Epilogue, Matrix, MatrixMut};
    use std::arch::x86_64::*;
    use std::cell::RefCell;

    thread_local! {
        /// A right factor with transposed.
        static TRANSPOSED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    }

    /// # Safety
    ///
    /// The CPU has AVX-512, the sizes fit, and the matrices lie in their buffers.
    #[target_feature(enable = "avx512f")]
    pub(crate) unsafe fn multiply(
        out: MatrixMut<'_>,
        epilogue: Epilogue<'_>,
        scale: f32,
        left: Matrix<'_>,
        right: Matrix<'_>,
    ) {
        let (row_stride, column_stride) = right.strides();
        if column_stride == 1 {
            // SAFETY: sizes and CPU are as the caller promises, and the right factor's rows lie `row_stride` elements apart.
            return unsafe { columns(&out, epilogue, scale, left, right.start(), row_stride) };
        }
        assert_eq!(row_stride, 1, "a right factor with a unit stride");
        let width = right.columns.next_multiple_of(LANES);
        TRANSPOSED.with_borrow_mut(|transposed| {
            transposed.resize(transposed.len().max(right.rows.next_multiple_of(LANES) * width), 0.0);
            for column in (0..right.columns).step_by(LANES) {
                for row in (0..right.rows).step_by(LANES) {
                    let start = right.start().wrapping_add(column * column_stride + row);
                    let mask = first_lanes(right.rows - row);
                    let to = transposed[row * width + column..].as_mut_ptr();
                    // SAFETY: the rest is masked; there is room for whole vectors.
                    unsafe { transpose(start, column_stride, right.columns - column, mask, to, width) };
                }
            }
            // SAFETY: sizes and CPU are as the caller promises; `transposed` holds the right factor's rows, `width` elements apart.
            unsafe { columns(&out, epilogue, scale, left, transposed.as_ptr(), width) };
        });
    }

    /// The product in panels of columns, and those in blocks of rows.
    ///
    /// # Safety
    ///
    /// As for [`multiply`]; the right factor's rows lie `stride` elements apart.
    #[target_feature(enable = "avx512f")]
    unsafe fn columns(
        out: &MatrixMut<'_>,
        epilogue: Epilogue<'_>,
        scale: f32,
        left: Matrix<'_>,
        right: *const f32,
        stride: usize,
    ) {
        let mut column = 0;
        while column < out.columns {
            let vectors = (out.columns - column).div_ceil(LANES);
            // five vectors where that is all there is, else four at a time
            let vectors = if vectors == 5 { 5 } else { vectors.min(4) };
            let columns = RightColumns {
                right: right.wrapping_add(column),
                stride,
                inner: left.columns,
                // of the last vector; the others are whole
                mask: first_lanes(out.columns - column - (vectors - 1) * LANES),
                scale,
                epilogue: epilogue.columns(column..(column + vectors * LANES).min(out.columns)),
            };
            // SAFETY: the panel's columns are among those of the output and the right factor, whose sizes fit, as the caller promises.
            unsafe {
                match vectors {
                    1 => columns.rows::<1>(out, column, left),
                    2 => columns.rows::<2>(out, column, left),
                    3 => columns.rows::<3>(out, column, left),
                    4 => columns.rows::<4>(out, column, left),
                    _ => columns.rows::<5>(out, column, left),
                }
            }
            column += vectors * LANES;
        }
    }

    /// Some columns of the right factor.
    struct RightColumns<'a> {
        right: *const f32,
        stride: usize,
        inner: usize,
        mask: __mmask16,
        scale: f32,
        epilogue: Epilogue<'a>,
    }

    impl RightColumns<'_> {
        /// # Safety
        ///
        /// As for [`columns`].
        #[target_feature(enable = "avx512f")]
        unsafe fn rows<const VECTORS: usize>(&self, out: &MatrixMut<'_>, column: usize, left: Matrix<'_>) {
            // as many sums as there are registers for next to a row of the right factor
            let most = if VECTORS == 5 { 5 } else { 6 };
            let mut row = 0;
            while row < out.rows {
                let rows = (out.rows - row).min(most);
                let strides = left.strides();
                let left = left.start().wrapping_add(row * strides.0);
                let to = out.start.wrapping_add(row * out.row_stride + column);
                // SAFETY: `left` and `to` begin a block of `rows` rows that both have.
                unsafe {
                    match rows {
                        1 => self.block::<1, VECTORS>(left, strides, to, out.row_stride),
                        2 => self.block::<2, VECTORS>(left, strides, to, out.row_stride),
                        3 => self.block::<3, VECTORS>(left, strides, to, out.row_stride),
                        4 => self.block::<4, VECTORS>(left, strides, to, out.row_stride),
                        5 => self.block::<5, VECTORS>(left, strides, to, out.row_stride),
                        _ => self.block::<6, VECTORS>(left, strides, to, out.row_stride),
                    }
                }
                row += rows;
            }
        }

        /// # Safety
        ///
        /// As for [`columns`].
        #[target_feature(enable = "avx512f")]
        #[inline]
        unsafe fn block<const ROWS: usize, const VECTORS: usize>(
            &self,
            mut left: *const f32,
            (row_stride, inner_stride): (usize, usize),
            out: *mut f32,
            out_stride: usize,
        ) {
            let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
            let mut right = self.right;
            // SAFETY: there are `inner` elements in each of the `ROWS` rows of the left factor and rows of the right one, and an output for each sum, as
            // the caller promises; the last vector is masked.
            unsafe {
                for _ in 0..self.inner {
                    let mut values = [_mm512_setzero_ps(); VECTORS];
                    for (index, value) in values.iter_mut().enumerate() {
                        let from = right.add(index * LANES);
                        *value = if index + 1 < VECTORS {
                            _mm512_loadu_ps(from)
                        } else {
                            _mm512_maskz_loadu_ps(self.mask, from)
                        };
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let factor = _mm512_set1_ps(*left.add(row * row_stride));
                        for (sum, value) in sums.iter_mut().zip(values) {
                            *sum = _mm512_fmadd_ps(factor, value, *sum);
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
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_product;
    use super::*;

    #[test]
    fn small_products_agree_with_exact_ones() {
        let Some(avx512) = takes(1, 1, 1) else {
            eprintln!("not run: this CPU has no AVX-512");
            return;
        };
        for size in
            [[1, 1, 1], [65, 64, 65], [65, 65, 64], [7, 20, 100], [49, 32, 49], [3, 5, 33], [12, 64, 16]]
        {
            assert!(takes(size[0], size[1], size[2]).is_some());
            assert_product(size, 1e-6, |out, epilogue, scale, left, right| {
                multiply(avx512, out, epilogue, scale, left, right);
            });
        }
    }
}
