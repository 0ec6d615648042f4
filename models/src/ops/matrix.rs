//! Matrix products on the gemm crate, which packs what it reads and so takes any strides.

use super::parallel::{Shared, buffer, parallel};
use std::marker::PhantomData;

/// A matrix to read: any strides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix<'a> {
    data: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix whose first element is the first of `data`.
    pub(super) fn new(
        data: &'a [f32],
        [rows, columns]: [usize; 2],
        [row_stride, column_stride]: [usize; 2],
    ) -> Self {
        assert!(
            rows == 0 || columns == 0 || (rows - 1) * row_stride + (columns - 1) * column_stride < data.len()
        );
        Self { data, rows, columns, row_stride, column_stride }
    }

    /// A row-major matrix.
    pub(super) fn row_major(data: &'a [f32], columns: usize) -> Self {
        let rows = data.len().checked_div(columns).unwrap_or(0);
        Self::new(data, [rows, columns], [columns, 1])
    }

    /// Some rows and columns.
    fn block(self, row: usize, rows: usize, column: usize, columns: usize) -> Self {
        let offset = (row * self.row_stride + column * self.column_stride).min(self.data.len());
        Self::new(&self.data[offset..], [rows, columns], [self.row_stride, self.column_stride])
    }

    /// The transposed matrix, over the same elements.
    pub(super) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// A row-major matrix to write, with a gap between its rows or none.
pub(super) struct MatrixMut<'a> {
    start: *mut f32,
    rows: usize,
    columns: usize,
    row_stride: usize,
    marker: PhantomData<&'a mut [f32]>,
}

impl<'a> MatrixMut<'a> {
    /// A matrix without gaps.
    pub(super) fn row_major(data: &'a mut [f32], columns: usize) -> Self {
        let rows = data.len().checked_div(columns).unwrap_or(0);
        Self::with_gaps(data, rows, columns, columns)
    }

    /// A matrix whose rows start `row_stride` elements apart.
    pub(super) fn with_gaps(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(columns <= row_stride && (rows == 0 || (rows - 1) * row_stride + columns <= data.len()));
        Self { start: data.as_mut_ptr(), rows, columns, row_stride, marker: PhantomData }
    }

    /// A matrix that starts at `offset` in a buffer that other tasks write too.
    ///
    /// # Safety
    ///
    /// No other part in use at the same time may share an element with it.
    pub(super) unsafe fn shared(
        data: Shared<'a>,
        offset: usize,
        [rows, columns]: [usize; 2],
        row_stride: usize,
    ) -> Self {
        // SAFETY: as the caller promises; the elements in the gaps are never touched.
        let start =
            unsafe { data.pointer(offset, if rows == 0 { 0 } else { (rows - 1) * row_stride + columns }) };
        Self { start, rows, columns, row_stride, marker: PhantomData }
    }
}

/// What a product does with the elements that the output already holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Existing {
    Overwrite,
    Add,
}

/// `out = scale * left * right`, or `out += ...`, on the calling thread or, for a large product and `threads`, on the pool.
///
/// # Panics
///
/// If the sizes do not fit.
pub(super) fn product(
    out: MatrixMut<'_>,
    existing: Existing,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
    threads: bool,
) {
    assert_eq!(
        (out.rows, out.columns, left.columns),
        (left.rows, right.columns, right.rows),
        "sizes of a matrix product"
    );
    let work = left.rows * left.columns * right.columns;
    let parallelism = if threads && work >= 192 * 192 * 192 {
        gemm::Parallelism::Rayon(0)
    } else {
        gemm::Parallelism::None
    };
    // SAFETY: all three matrices lie within their buffers (checked where they are made), and the output is borrowed mutably.
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            out.start,
            1,
            out.row_stride as isize,
            existing == Existing::Add,
            left.data.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.data.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            1.0f32,
            scale,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// `out = scale * left * right` on the calling thread.
///
/// # Panics
///
/// If the sizes do not fit.
pub(super) fn multiply(out: MatrixMut<'_>, scale: f32, left: Matrix<'_>, right: Matrix<'_>) {
    product(out, Existing::Overwrite, scale, left, right, false);
}

/// `left * right` as a row-major buffer, in blocks on the pool: for the gradient of a weight, whose inner dimension is the longest by far.
///
/// There gemm's own threads, which meet after every few hundred steps of the inner dimension, reach two thirds of this speed.
pub(super) fn blocked_product(left: Matrix<'_>, right: Matrix<'_>) -> Vec<f32> {
    const SMALLEST: usize = 48;
    let (rows, columns) = (left.rows, right.columns);
    let threads = rayon::current_num_threads();
    let parts = |length: usize, wanted: usize| wanted.min(length / SMALLEST).max(1);
    // the shorter side first
    let (row_parts, column_parts) = if rows <= columns {
        let row_parts = parts(rows, 2 * threads);
        (row_parts, parts(columns, (2 * threads).div_ceil(row_parts)))
    } else {
        let column_parts = parts(columns, 2 * threads);
        (parts(rows, (2 * threads).div_ceil(column_parts)), column_parts)
    };
    let (row_size, column_size) = (rows.div_ceil(row_parts), columns.div_ceil(column_parts));
    let mut data = buffer(rows * columns);
    let out = Shared::new(&mut data);
    parallel(row_parts * column_parts, |task| {
        let row = (task / column_parts * row_size).min(rows);
        let column = (task % column_parts * column_size).min(columns);
        let (row_count, column_count) = (row_size.min(rows - row), column_size.min(columns - column));
        // SAFETY: the blocks are disjoint.
        let out =
            unsafe { MatrixMut::shared(out, row * columns + column, [row_count, column_count], columns) };
        multiply(
            out,
            1.0,
            left.block(row, row_count, 0, left.columns),
            right.block(0, right.rows, column, column_count),
        );
    });
    data
}
