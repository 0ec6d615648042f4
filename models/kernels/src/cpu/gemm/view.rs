//! Matrices in memory that a product reads and writes, and what becomes of what the output holds.

use crate::cpu::threads::Shared;
use std::marker::PhantomData;
use std::ops::Range;

/// A matrix to read: any strides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix whose first element is the first of `data`.
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

    /// Some rows and columns.
    pub(crate) fn block(self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let offset = (rows.start * self.row_stride + columns.start * self.column_stride).min(self.data.len());
        Self::new(&self.data[offset..], [rows.len(), columns.len()], [self.row_stride, self.column_stride])
    }

    /// A row, whose elements lie side by side.
    ///
    /// # Panics
    ///
    /// If they do not.
    #[inline(always)]
    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        assert!(self.column_stride == 1 && row < self.rows);
        &self.data[row * self.row_stride..][..self.columns]
    }

    /// Whether its elements lie side by side along a dimension.
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

/// A row-major matrix to write, with a gap between its rows or none.
pub(crate) struct MatrixMut<'a> {
    pub(crate) start: *mut f32,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) row_stride: usize,
    marker: PhantomData<&'a mut [f32]>,
}

impl<'a> MatrixMut<'a> {
    /// A matrix without gaps.
    pub(crate) fn row_major(data: &'a mut [f32], columns: usize) -> Self {
        let rows = data.len().checked_div(columns).unwrap_or(0);
        Self::with_gaps(data, rows, columns, columns)
    }

    /// A matrix whose rows start `row_stride` elements apart.
    pub(crate) fn with_gaps(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(columns <= row_stride && (rows == 0 || (rows - 1) * row_stride + columns <= data.len()));
        Self { start: data.as_mut_ptr(), rows, columns, row_stride, marker: PhantomData }
    }

    /// A matrix that starts at `offset` in a buffer that other tasks write too.
    ///
    /// # Safety
    ///
    /// No other part in use at the same time may share an element with it.
    pub(crate) unsafe fn shared(
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
    pub(crate) fn assert_product_of(&self, left: [usize; 2], right: [usize; 2]) {
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

    /// A row, whose elements were written.
    #[inline(always)]
    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows);
        // SAFETY: the matrix has this row, and is borrowed for as long as the row is.
        unsafe {
            std::slice::from_raw_parts_mut(self.start.wrapping_add(row * self.row_stride), self.columns)
        }
    }

    /// Writes the transpose of a matrix whose elements were written.
    ///
    /// # Panics
    ///
    /// If it has another size.
    pub(crate) fn write_transposed(&mut self, other: &mut MatrixMut<'_>) {
        const AT_A_TIME: usize = 16;
        assert_eq!([self.rows, self.columns], [other.columns, other.rows], "sizes of a transposed matrix");
        for first in (0..self.rows).step_by(AT_A_TIME) {
            for column in 0..self.columns {
                let values = &other.row_mut(column)[first..(first + AT_A_TIME).min(self.rows)];
                for (row, value) in (first..).zip(values) {
                    // SAFETY: the matrix has this element, and is borrowed.
                    unsafe { self.start.add(row * self.row_stride + column).write(*value) };
                }
            }
        }
    }

    pub(crate) fn fill_rows(&mut self, row: &[f32]) {
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
pub(crate) enum Epilogue<'a> {
    /// Nothing: what the output holds is not read.
    Overwrite,
    /// What the output holds.
    Accumulate,
    /// This row, in every row.
    Bias(&'a [f32]),
}

impl Epilogue<'_> {
    /// For some columns of the output.
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
        // More rows than are copied at a time, and a part of that.
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
