//! Where the heads of queries, keys, values and outputs lie in memory.

use crate::cpu::gemm::{Matrix, MatrixMut};
use crate::cpu::threads::Shared;
use burn::backend::flex::FlexTensor;
use std::ops::Range;

/// One head of one sample.
#[derive(Clone, Copy)]
pub(super) struct Pair {
    pub(super) sample: usize,
    pub(super) head: usize,
}

/// The distances, in elements, between neighbors along each dimension of `[batch, heads, rows, columns]`.
#[derive(Clone, Copy)]
pub(super) struct HeadStrides {
    pub(super) batch: usize,
    pub(super) head: usize,
    pub(super) row: usize,
    pub(super) column: usize,
}

impl HeadStrides {
    /// The strides of `[batch, tokens, parts, heads, head_dim]` in row-major order: 1 part for an output, 3 for packed
    /// q, k and v.
    pub(super) fn packed(tokens: usize, parts: usize, [heads, head_dim]: [usize; 2]) -> Self {
        let token = parts * heads * head_dim;
        Self { batch: tokens * token, head: head_dim, row: token, column: 1 }
    }

    fn offset(&self, pair: Pair, row: usize) -> usize {
        pair.sample * self.batch + pair.head * self.head + row * self.row
    }
}

/// Heads to read.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    pub(super) data: &'a [f32],
    pub(super) strides: HeadStrides,
}

impl<'a> Heads<'a> {
    /// The heads of a tensor `[batch, heads, rows, columns]`, read through its strides.
    ///
    /// # Panics
    ///
    /// If a stride is negative.
    pub(super) fn of(tensor: &'a FlexTensor) -> Self {
        let strides = tensor.layout().strides();
        let stride = |dimension: usize| usize::try_from(strides[dimension]).expect("positive strides");
        let strides = HeadStrides { batch: stride(0), head: stride(1), row: stride(2), column: stride(3) };
        let data = tensor.storage::<f32>();
        Self { data: &data[tensor.layout().start_offset().min(data.len())..], strides }
    }

    /// The `rows` of one head, `columns` wide.
    pub(super) fn rows(&self, pair: Pair, rows: Range<usize>, columns: usize) -> Matrix<'a> {
        let data = &self.data[self.strides.offset(pair, rows.start).min(self.data.len())..];
        Matrix::new(data, [rows.len(), columns], [self.strides.row, self.strides.column])
    }
}

/// Heads that several tasks write at the same time; the columns of a row lie next to each other.
#[derive(Clone, Copy)]
pub(super) struct HeadsMut<'a> {
    pub(super) data: Shared<'a>,
    pub(super) offset: usize,
    pub(super) strides: HeadStrides,
}

impl<'a> HeadsMut<'a> {
    /// The `rows` of one head, `columns` wide.
    ///
    /// # Safety
    ///
    /// While the result is in use, no other task may read or write these rows of `pair`.
    pub(super) unsafe fn rows(&self, pair: Pair, rows: Range<usize>, columns: usize) -> MatrixMut<'a> {
        let offset = self.offset + self.strides.offset(pair, rows.start);
        // SAFETY: no other task uses these rows, as the caller promises.
        unsafe { MatrixMut::shared(self.data, offset, [rows.len(), columns], self.strides.row) }
    }
}
