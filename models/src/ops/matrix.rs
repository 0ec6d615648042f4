//! Matrix products: small ones without packing, large ones on the processor's matrix unit; on the gemm crate where there is neither.

use super::parallel::{Shared, buffer, parallel};
use super::{small, tiles};
use std::marker::PhantomData;
use std::ops::Range;

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
    #[cfg(test)]
    pub(super) fn row_major(data: &'a [f32], columns: usize) -> Self {
        let rows = data.len().checked_div(columns).unwrap_or(0);
        Self::new(data, [rows, columns], [columns, 1])
    }

    /// Some rows and columns.
    pub(super) fn block(self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let offset = (rows.start * self.row_stride + columns.start * self.column_stride).min(self.data.len());
        Self::new(&self.data[offset..], [rows.len(), columns.len()], [self.row_stride, self.column_stride])
    }

    /// Whether its elements lie side by side along a dimension.
    pub(super) fn compact(&self) -> bool {
        self.row_stride == 1 || self.column_stride == 1
    }

    /// The address of the first element.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) fn start(&self) -> *const f32 {
        self.data.as_ptr()
    }

    /// The distances between rows and between columns.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) fn strides(&self) -> (usize, usize) {
        (self.row_stride, self.column_stride)
    }

    #[cfg(test)]
    pub(super) fn get(&self, row: usize, column: usize) -> f32 {
        self.data[row * self.row_stride + column * self.column_stride]
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
    pub(super) start: *mut f32,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
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

    /// Checks that it has the size of a product of factors of these rows and columns.
    ///
    /// # Panics
    ///
    /// If it has not, or there is no such product.
    pub(super) fn assert_product_of(&self, left: [usize; 2], right: [usize; 2]) {
        assert_eq!(
            (self.rows, self.columns, left[1]),
            (left[0], right[1], right[0]),
            "sizes of a matrix product"
        );
    }

    /// Some rows and columns.
    ///
    /// # Panics
    ///
    /// If it has not got them.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub(super) fn block(&mut self, rows: Range<usize>, columns: Range<usize>) -> MatrixMut<'_> {
        assert!(
            rows.start <= rows.end
                && rows.end <= self.rows
                && columns.start <= columns.end
                && columns.end <= self.columns
        );
        let start = self.start.wrapping_add(rows.start * self.row_stride + columns.start);
        MatrixMut { start, rows: rows.len(), columns: columns.len(), marker: PhantomData, ..*self }
    }

    fn fill_rows(&mut self, row: &[f32]) {
        assert_eq!(row.len(), self.columns);
        for index in 0..self.rows {
            // SAFETY: the matrix has this row.
            unsafe {
                self.start.add(index * self.row_stride).copy_from_nonoverlapping(row.as_ptr(), row.len())
            };
        }
    }
}

/// What a product is added to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Existing<'a> {
    /// Nothing: what the output holds is not read.
    Overwrite,
    /// What the output holds.
    Add,
    /// This row, in every row.
    Bias(&'a [f32]),
}

impl Existing<'_> {
    /// For some columns of the output.
    pub(super) fn columns(self, range: Range<usize>) -> Self {
        match self {
            Self::Bias(bias) => Self::Bias(&bias[range]),
            other => other,
        }
    }
}

/// The right factor of several products, made ready once.
pub(super) enum Factor<'a> {
    /// For the matrix unit.
    Packed(tiles::RightPanels<'a>),
    /// As it is: the gemm crate packs it for each product.
    Plain(Matrix<'a>),
}

impl<'a> Factor<'a> {
    /// For products with `rows` rows in all.
    pub(super) fn new(matrix: Matrix<'a>, rows: usize) -> Self {
        match tiles::takes(rows, matrix.rows, matrix.columns).filter(|_| matrix.compact()) {
            Some(amx) => Self::Packed(tiles::RightPanels::new(amx, matrix)),
            None => Self::Plain(matrix),
        }
    }

    /// The most rows to multiply at a time so that what is done with a product next finds it in the cache. The gemm crate packs the
    /// factor for each product and wants more.
    pub(super) fn rows_at_a_time(&self) -> usize {
        match self {
            Self::Packed(_) => 192,
            Self::Plain(_) => usize::MAX,
        }
    }

    /// `out = left * self` after what `existing` says, on the calling thread or, for a large product and `threads`, on rayon's pool.
    ///
    /// # Panics
    ///
    /// If the sizes do not fit.
    pub(super) fn multiply(
        &self,
        out: MatrixMut<'_>,
        existing: Existing<'_>,
        left: Matrix<'_>,
        threads: bool,
    ) {
        match self {
            Self::Packed(panels) => panels.after(left, out, existing, 1.0),
            Self::Plain(matrix) => gemm(out, existing, 1.0, left, *matrix, threads),
        }
    }
}

/// `out = left * right` after what `existing` says, [in parallel](parallel), for few rows: whether that was the way to go. If not, nothing is done.
///
/// # Panics
///
/// If the sizes do not fit.
pub(super) fn product_of_few_rows(
    out: Shared<'_>,
    existing: Existing<'_>,
    left: Matrix<'_>,
    right: Matrix<'_>,
) -> bool {
    let (rows, columns) = (left.rows, right.columns);
    let amx = tiles::few_rows(rows, left.columns, columns).filter(|_| left.compact() && right.compact());
    let Some(amx) = amx else { return false };
    let left = tiles::LeftPanels::new(amx, left);
    parallel(columns.div_ceil(tiles::PANEL), |index| {
        let range = index * tiles::PANEL..((index + 1) * tiles::PANEL).min(columns);
        // SAFETY: each task has columns of its own.
        let out = unsafe { MatrixMut::shared(out, range.start, [rows, range.len()], columns) };
        let existing = existing.columns(range.clone());
        left.before(right.block(0..right.rows, range), out, existing, 1.0);
    });
    true
}

/// `left * right` as a row-major buffer, in blocks [in parallel](parallel): for the gradient of a weight over few rows, whose outputs are more than
/// what is summed.
pub(super) fn blocked_product(left: Matrix<'_>, right: Matrix<'_>) -> Vec<f32> {
    const SMALLEST: usize = 64;
    let (rows, columns) = (left.rows, right.columns);
    let wanted = 2 * rayon::current_num_threads();
    let parts = |length: usize, wanted: usize| wanted.min(length / SMALLEST).max(1);
    let column_parts = parts(columns, wanted);
    let row_parts = parts(rows, wanted.div_ceil(column_parts));
    let sizes = [rows.div_ceil(row_parts), columns.div_ceil(column_parts)];
    let part = |index: usize, size: usize, length: usize| {
        (index * size).min(length)..((index + 1) * size).min(length)
    };
    let mut data = buffer(rows * columns);
    let out = Shared::new(&mut data);
    parallel(row_parts * column_parts, |task| {
        let row_range = part(task / column_parts, sizes[0], rows);
        let column_range = part(task % column_parts, sizes[1], columns);
        let offset = row_range.start * columns + column_range.start;
        // SAFETY: the blocks are disjoint.
        let out = unsafe { MatrixMut::shared(out, offset, [row_range.len(), column_range.len()], columns) };
        let left = left.block(row_range, 0..left.columns);
        let right = right.block(0..right.rows, column_range);
        product(out, Existing::Overwrite, 1.0, left, right);
    });
    data
}

/// `out = scale * left * right` after what `existing` says, on the calling thread.
///
/// # Panics
///
/// If the sizes do not fit.
pub(super) fn product(
    out: MatrixMut<'_>,
    existing: Existing<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    let (rows, inner, columns) = (left.rows, left.columns, right.columns);
    if let Some(avx512) = small::takes(rows, inner, columns).filter(|_| right.compact()) {
        small::multiply(avx512, out, existing, scale, left, right);
    } else if let Some(amx) = tiles::takes(rows, inner, columns).filter(|_| left.compact() && right.compact())
    {
        tiles::multiply(amx, out, existing, scale, left, right);
    } else {
        gemm(out, existing, scale, left, right, false);
    }
}

/// [`product`] on the gemm crate, which packs what it reads and so takes any strides; on rayon's pool for a large product and `threads`.
pub(super) fn gemm(
    mut out: MatrixMut<'_>,
    existing: Existing<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
    threads: bool,
) {
    out.assert_product_of([left.rows, left.columns], [right.rows, right.columns]);
    if let Existing::Bias(bias) = existing {
        out.fill_rows(bias);
    }
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
            existing != Existing::Overwrite,
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::testing::numbers;

    /// Checks a way to multiply against sums in float64: factors in both orders of memory, everything that a product may be added to, a
    /// scale, an output with gaps.
    ///
    /// # Panics
    ///
    /// If an element is off by more than `bound` times the sum of its terms' sizes, or a gap is written to.
    pub(in super::super) fn assert_product(
        [rows, inner, columns]: [usize; 3],
        bound: f64,
        multiply: impl Fn(MatrixMut<'_>, Existing<'_>, f32, Matrix<'_>, Matrix<'_>),
    ) {
        let (a, b, bias) = (numbers(rows * inner, 1), numbers(inner * columns, 2), numbers(columns, 3));
        let layouts = |data, [rows, columns]: [usize; 2]| {
            [Matrix::row_major(data, columns), Matrix::row_major(data, rows).transposed()]
        };
        for left in layouts(&a, [rows, inner]) {
            for right in layouts(&b, [inner, columns]) {
                for existing in [Existing::Overwrite, Existing::Add, Existing::Bias(&bias)] {
                    let (stride, there, scale) = (columns + 3, 7.0, 0.5);
                    let mut out = vec![there; rows * stride];
                    let target = MatrixMut::with_gaps(&mut out, rows, columns, stride);
                    multiply(target, existing, scale, left, right);
                    for (index, &found) in out.iter().enumerate() {
                        let (row, column) = (index / stride, index % stride);
                        if column >= columns {
                            assert_eq!(found, there, "a gap");
                            continue;
                        }
                        let start = match existing {
                            Existing::Overwrite => 0.0,
                            Existing::Add => there,
                            Existing::Bias(bias) => bias[column],
                        };
                        let (mut sum, mut size) = (f64::from(start), f64::from(start.abs()));
                        for step in 0..inner {
                            let term = f64::from(left.get(row, step)) * f64::from(right.get(step, column));
                            sum += f64::from(scale) * term;
                            size += term.abs();
                        }
                        assert!(
                            (f64::from(found) - sum).abs() <= bound * size,
                            "{rows}x{inner}x{columns} {existing:?}: row {row}, column {column} is {found}, not {sum}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn products_of_the_gemm_crate_agree_with_exact_ones() {
        for size in [[1, 1, 1], [65, 64, 65], [7, 20, 100], [100, 300, 33]] {
            assert_product(size, 1e-6, |out, existing, scale, left, right| {
                gemm(out, existing, scale, left, right, false);
            });
        }
    }
}
