//! Matrices in memory, as products read and write them, and the values that a product is added to.

use crate::cpu::threads::Shared;
use std::marker::PhantomData;
use std::ops::Range;

/// A matrix to read, with any strides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix whose first element is the first element of `data`.
    ///
    /// # Panics
    ///
    /// If an element lies outside `data`.
    pub(crate) fn new(
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
    pub(crate) fn row_major(data: &'a [f32], columns: usize) -> Self {
        let rows = data.len().checked_div(columns).unwrap_or(0);
        Self::new(data, [rows, columns], [columns, 1])
    }

    /// The block of these rows and columns.
    pub(crate) fn block(self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let offset = (rows.start * self.row_stride + columns.start * self.column_stride).min(self.data.len());
        Self::new(&self.data[offset..], [rows.len(), columns.len()], [self.row_stride, self.column_stride])
    }

    /// A row as a slice.
    ///
    /// # Panics
    ///
    /// If the elements of a row are not neighbors in memory, or there is no such row.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        assert!(self.column_stride == 1 && row < self.rows);
        &self.data[row * self.row_stride..][..self.columns]
    }

    /// The memory that the matrix was made over, gaps between its rows included.
    pub(crate) fn memory(&self) -> &'a [f32] {
        self.data
    }

    /// Whether the elements of a row or of a column are neighbors in memory.
    pub(crate) fn compact(&self) -> bool {
        self.row_stride == 1 || self.column_stride == 1
    }

    /// The address of the first element.
    pub(crate) fn start(&self) -> *const f32 {
        self.data.as_ptr()
    }

    /// The distances between rows and between columns.
    pub(crate) fn strides(&self) -> (usize, usize) {
        (self.row_stride, self.column_stride)
    }

    #[cfg(test)]
    pub(crate) fn get(&self, row: usize, column: usize) -> f32 {
        self.data[row * self.row_stride + column * self.column_stride]
    }

    /// The transposed matrix, over the same elements.
    pub(crate) fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// A row-major matrix to write, with or without a gap between its rows.
pub(crate) struct MatrixMut<'a> {
    pub(crate) start: *mut f32,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) row_stride: usize,
    marker: PhantomData<&'a mut [f32]>,
}

impl<'a> MatrixMut<'a> {
    /// A matrix over all of `data`, without gaps.
    pub(crate) fn row_major(data: &'a mut [f32], columns: usize) -> Self {
        let rows = data.len().checked_div(columns).unwrap_or(0);
        Self::with_gaps(data, rows, columns, columns)
    }

    /// A matrix over `data` whose rows begin `row_stride` elements apart.
    ///
    /// # Panics
    ///
    /// If `data` is too short.
    pub(crate) fn with_gaps(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(columns <= row_stride && (rows == 0 || (rows - 1) * row_stride + columns <= data.len()));
        Self { start: data.as_mut_ptr(), rows, columns, row_stride, marker: PhantomData }
    }

    /// A matrix that begins at the element `offset` of a buffer that other tasks write, too.
    ///
    /// # Safety
    ///
    /// While the result is in use, no other task may read or write its elements: `columns` elements from
    /// `offset + row * row_stride` on, for each row.
    pub(crate) unsafe fn shared(
        data: Shared<'a>,
        offset: usize,
        [rows, columns]: [usize; 2],
        row_stride: usize,
    ) -> Self {
        // SAFETY: no other task uses the elements of the matrix, as the caller promises, and those in the gaps are
        // never accessed.
        let start =
            unsafe { data.pointer(offset, if rows == 0 { 0 } else { (rows - 1) * row_stride + columns }) };
        Self { start, rows, columns, row_stride, marker: PhantomData }
    }

    /// Checks that this matrix has the size of a product of factors with these `[rows, columns]`.
    ///
    /// # Panics
    ///
    /// If it has another size, or factors of these sizes have no product.
    pub(crate) fn assert_product_of(&self, left: [usize; 2], right: [usize; 2]) {
        assert_eq!(
            (self.rows, self.columns, left[1]),
            (left[0], right[1], right[0]),
            "sizes of a matrix product"
        );
    }

    /// The block of these rows and columns.
    ///
    /// # Panics
    ///
    /// If the matrix does not have these rows and columns.
    pub(crate) fn block(&mut self, rows: Range<usize>, columns: Range<usize>) -> MatrixMut<'_> {
        assert!(
            rows.start <= rows.end
                && rows.end <= self.rows
                && columns.start <= columns.end
                && columns.end <= self.columns
        );
        let start = self.start.wrapping_add(rows.start * self.row_stride + columns.start);
        MatrixMut { start, rows: rows.len(), columns: columns.len(), marker: PhantomData, ..*self }
    }

    /// A row as a slice. All of its elements must have been written.
    ///
    /// # Panics
    ///
    /// If there is no such row.
    #[inline(always)]
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows);
        // SAFETY: the matrix has this row by the assertion, and is mutably borrowed as long as the row is in use.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.wrapping_add(row * self.row_stride), self.columns)
        }
    }

    /// Copies the transpose of `other` to this matrix. All elements of `other` must have been written.
    ///
    /// # Panics
    ///
    /// If this matrix does not have the size of the transpose.
    pub(crate) fn write_transposed(&mut self, other: &mut MatrixMut<'_>) {
        const AT_A_TIME: usize = 16;
        assert_eq!([self.rows, self.columns], [other.columns, other.rows], "sizes of a transposed matrix");
        for first in (0..self.rows).step_by(AT_A_TIME) {
            for column in 0..self.columns {
                let values = &other.row_mut(column)[first..(first + AT_A_TIME).min(self.rows)];
                for (row, value) in (first..).zip(values) {
                    // SAFETY: the loops stay below the matrix's rows and columns, and the matrix is mutably borrowed.
                    unsafe { self.start.add(row * self.row_stride + column).write(*value) };
                }
            }
        }
    }

    /// Copies `row` to every row.
    ///
    /// # Panics
    ///
    /// If `row` is not as long as the matrix is wide.
    pub(crate) fn fill_rows(&mut self, row: &[f32]) {
        assert_eq!(row.len(), self.columns);
        for index in 0..self.rows {
            // SAFETY: the matrix has this row, and `row` has as many elements by the assertion.
            unsafe {
                self.start.add(index * self.row_stride).copy_from_nonoverlapping(row.as_ptr(), row.len())
            };
        }
    }
}

/// The values that a product is added to before it is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Epilogue<'a> {
    /// Nothing: the output is not read.
    Overwrite,
    /// The elements of the output.
    Accumulate,
    /// This row, which is added to every row of the product.
    Bias(&'a [f32]),
}

impl Epilogue<'_> {
    /// The epilogue for a range of columns of the output.
    pub(crate) fn columns(self, range: Range<usize>) -> Self {
        match self {
            Self::Bias(bias) => Self::Bias(&bias[range]),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transpose_has_each_element_and_leaves_the_gaps_alone() {
        // 35 rows take two whole groups of 16 rows and a part of one.
        for [rows, columns] in [[35, 3], [1, 20], [0, 4]] {
            let mut values: Vec<f32> = (0..rows * columns).map(|index| index as f32).collect();
            let stride = columns + 2;
            let mut data = vec![-1.0; rows * stride];
            MatrixMut::with_gaps(&mut data, rows, columns, stride)
                .write_transposed(&mut MatrixMut::with_gaps(&mut values, columns, rows, rows));
            for (index, &value) in data.iter().enumerate() {
                let (row, column) = (index / stride, index % stride);
                let expected = if column < columns { (column * rows + row) as f32 } else { -1.0 };
                assert_eq!(value, expected, "{rows} x {columns}: row {row}, column {column}");
            }
        }
    }
}
