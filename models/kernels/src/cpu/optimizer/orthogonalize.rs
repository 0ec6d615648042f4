//! Fused orthogonalization, by the iteration of Newton and Schulz.
//!
//! ```text
//! s = x x^T / norm^2                     or x^T x, whichever is smaller
//! for each iteration, with a, b, c of its own
//!   p = a + b s + c s s                  a polynomial of the squares of the singular values
//!   q = p q                              the product of all polynomials so far
//!   s = p s p                            the squares of the new singular values
//! y = q x / norm
//! ```
//!
//! `s` and `p` are symmetric, so that only half of each is computed. All products but the first and the last are
//! products of square matrices of the smaller side, in the cache; the definition goes through `x` twice per iteration.
//! Squaring loses directions whose singular value is less than a thousandth of the largest one to rounding, but those
//! are still small after a few iterations.
//!
//! Where products [may be rounded](crate::Precision::Bfloat16), `x` is: its products, which are most of the work, are then twice as fast.
//! The squares stay in float32, as rounding them would lose many directions.

use crate::cpu::flex::{self, contiguous, sizes};
use crate::cpu::gemm::bfloat16::PackedFactors;
use crate::cpu::gemm::{Bfloat16, Epilogue, Matrix, MatrixMut, is_for_amx, product, unpacked_product};
use crate::cpu::threads::{Buffer, Chunks, parallel};
use burn::tensor::Tensor;
use std::ops::Range;

/// The number of rows of a product that one task computes.
const SMALLEST_CHUNK: usize = 32;

pub(crate) fn orthogonalize(x: Tensor<3>, polynomials: &[[f32; 3]], epsilon: f32) -> Tensor<3> {
    let x = contiguous(flex::untracked(x));
    let [count, rows, columns] = sizes(&x);
    let whole = Stack { count, rows, columns };
    if count * whole.size() == 0 {
        return flex::wrap(x);
    }
    let data = x.storage::<f32>();
    let side = Stack { count, rows: rows.min(columns), columns: rows.min(columns) };
    let is_wide = rows <= columns;
    let wide = |index| {
        let x = whole.matrix(data, index);
        if is_wide { x } else { x.transposed() }
    };

    let transposed = rounded(count, |index| wide(index).transposed());
    let mut squares = side.symmetric(|index, rows, out| match &transposed {
        Some(transposed) => {
            let x = wide(index);
            let out = out.block(0..rows.len(), 0..rows.end);
            let right = transposed.get(index).first_columns(out.columns);
            right.multiply(out, Epilogue::Overwrite, 1.0, x.block(rows, 0..x.columns));
        }
        None => {
            let x = wide(index);
            product_up_to(rows, out, Epilogue::Overwrite, 1.0, x, x.transposed());
        }
    });
    let mut norms = Vec::with_capacity(count);
    for square in squares.chunks_exact_mut(side.size()) {
        let norm = square.iter().step_by(side.columns + 1).sum::<f32>().sqrt().max(epsilon);
        // Divided twice: the square of the norm may leave the range of float32.
        square.iter_mut().for_each(|value| *value = *value / norm / norm);
        norms.push(norm);
    }
    let mut product_of_all = side.product_of(polynomials, squares);
    for (polynomial, norm) in product_of_all.chunks_exact_mut(side.size()).zip(norms) {
        polynomial.iter_mut().for_each(|value| *value /= norm);
    }
    let factors = |index| {
        let (x, polynomial) = (whole.matrix(data, index), side.matrix(&product_of_all, index));
        if is_wide { (polynomial, x) } else { (x, polynomial.transposed()) }
    };
    let rounded = rounded(count, |index| factors(index).1);
    let output = whole.filled(|index, rows, out| {
        let (left, right) = factors(index);
        let (left, out) = (left.block(rows, 0..left.columns), MatrixMut::row_major(out, whole.columns));
        match &rounded {
            Some(rounded) => rounded.get(index).multiply(out, Epilogue::Overwrite, 1.0, left),
            None => rows_of_product(out, Epilogue::Overwrite, 1.0, left, right),
        }
    });
    flex::wrap(flex::tensor(output, [count, rows, columns]))
}

/// The right factors that `matrix` gives, rounded and packed, if products may be rounded, and these are large enough.
fn rounded<'a>(count: usize, matrix: impl Fn(usize) -> Matrix<'a> + Sync) -> Option<PackedFactors> {
    let Matrix { rows, columns, .. } = matrix(0);
    let bfloat16 = Bfloat16::wanted()?.takes(SMALLEST_CHUNK, rows, columns)?;
    Some(PackedFactors::new(bfloat16, count, [rows, columns], matrix))
}

/// Matrices of one size, one after the other in memory.
#[derive(Clone, Copy)]
struct Stack {
    count: usize,
    rows: usize,
    columns: usize,
}

impl Stack {
    /// The number of elements of a matrix.
    fn size(self) -> usize {
        self.rows * self.columns
    }

    fn matrix(self, data: &[f32], index: usize) -> Matrix<'_> {
        Matrix::new(&data[index * self.size()..], [self.rows, self.columns], [self.columns, 1])
    }

    /// Matrices that `write` writes, a range of rows of one matrix at a time. It must write all elements of these rows.
    fn filled(self, write: impl Fn(usize, Range<usize>, &mut [f32]) + Sync) -> Vec<f32> {
        let mut data = Buffer::new(self.count * self.size());
        let out = data.shared();
        let chunks = Chunks::of(self.rows, SMALLEST_CHUNK);
        parallel(self.count * chunks.count(), |task| {
            let (index, rows) = (task / chunks.count(), chunks.range(task % chunks.count()));
            let first = index * self.rows;
            // SAFETY: the tasks have different matrices or disjoint rows.
            let out =
                unsafe { out.slice((first + rows.start) * self.columns..(first + rows.end) * self.columns) };
            write(index, rows, out);
        });
        // SAFETY: the chunks cover all rows of all matrices, and `write` wrote all of their elements.
        unsafe { data.written() }
    }

    /// Symmetric matrices. `write` writes a range of rows of one matrix at a time, with all columns up to the last of
    /// these rows.
    fn symmetric(self, write: impl Fn(usize, Range<usize>, &mut MatrixMut<'_>) + Sync) -> Vec<f32> {
        let side = self.columns;
        let mut data = Buffer::new(self.count * self.size());
        let out = data.shared();
        let chunks = Chunks::of(side, SMALLEST_CHUNK);
        parallel(self.count * chunks.count(), |task| {
            let (index, rows) = (task / chunks.count(), chunks.range(task % chunks.count()));
            let start = index * self.size();
            // SAFETY: the tasks have different matrices or disjoint rows up to the diagonal, and disjoint columns above
            // it.
            let [mut lower, mut upper] = unsafe {
                [
                    MatrixMut::shared(out, start + rows.start * side, [rows.len(), rows.end], side),
                    MatrixMut::shared(out, start + rows.start, [rows.start, rows.len()], side),
                ]
            };
            write(index, rows.clone(), &mut lower);
            upper.write_transposed(&mut lower.block(0..rows.len(), 0..rows.start));
        });
        // SAFETY: `write` wrote the blocks up to the diagonal, and `write_transposed` the blocks above it.
        unsafe { data.written() }
    }

    /// The products of square matrices.
    fn products(self, left: &[f32], right: &[f32]) -> Vec<f32> {
        self.filled(|index, rows, out| {
            let left = self.matrix(left, index).block(rows, 0..self.columns);
            let out = MatrixMut::row_major(out, self.columns);
            rows_of_product(out, Epilogue::Overwrite, 1.0, left, self.matrix(right, index));
        })
    }

    /// The products of square matrices that are polynomials of the same symmetric matrix: the products are symmetric,
    /// too.
    fn symmetric_products(self, left: &[f32], right: &[f32]) -> Vec<f32> {
        self.symmetric(|index, rows, out| {
            let (left, right) = (self.matrix(left, index), self.matrix(right, index));
            product_up_to(rows, out, Epilogue::Overwrite, 1.0, left, right);
        })
    }

    /// The products of the polynomials of all iterations, by which matrices with these `squares` are multiplied.
    fn product_of(self, polynomials: &[[f32; 3]], mut squares: Vec<f32>) -> Vec<f32> {
        let mut all: Option<Vec<f32>> = None;
        for (iteration, &[a, b, c]) in polynomials.iter().enumerate() {
            let factors = self.symmetric(|index, rows, out| {
                let square = self.matrix(&squares, index);
                for (index, row) in rows.clone().enumerate() {
                    let out = out.row_mut(index);
                    out.iter_mut().zip(square.row(row)).for_each(|(out, square)| *out = b * square);
                    out[row] += a;
                }
                product_up_to(rows, out, Epilogue::Accumulate, c, square, square);
            });
            if iteration + 1 < polynomials.len() {
                squares = self.symmetric_products(&self.symmetric_products(&factors, &squares), &factors);
            }
            all = Some(match all {
                // Both halves are computed: the rounding errors of directions near zero then stay on the side away from
                // `x`.
                Some(before) => self.products(&factors, &before),
                None => factors,
            });
        }
        all.unwrap_or_default()
    }
}

/// A range of rows of a product, with the columns up to the last of these rows.
fn product_up_to(
    rows: Range<usize>,
    out: &mut MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    let right = right.block(0..right.rows, 0..rows.end);
    let out = out.block(0..rows.len(), 0..rows.end);
    rows_of_product(out, epilogue, scale, left.block(rows, 0..left.columns), right);
}

/// A product of [so few rows](SMALLEST_CHUNK) that a copy of the right factor, which all tasks read, would cost a good part
/// of the time of the product.
fn rows_of_product(
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    match is_for_amx(left.rows, left.columns, right.columns) {
        true => product(out, epilogue, scale, left, right),
        false => unpacked_product(out, epilogue, scale, left, right),
    }
}
