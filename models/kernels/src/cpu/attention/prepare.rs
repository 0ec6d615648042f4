//! The preparation of the queries and keys of one head for their dot product, and its backward pass: rotation,
//! normalization, a factor.
//!
//! Prepared rows lie in scratch memory, which stays in the cache while the products of a head read it. The backward
//! pass prepares them again, so that only the packed projection is kept. Gradients are changed in place, right after a
//! product wrote them.

use crate::cpu::gemm::{Matrix, MatrixMut};
use crate::cpu::simd::{LANES, sum, vectorized};

/// The least length that a vector is divided by.
const SHORTEST: f32 = 1e-12;

/// The number of pairs that are rotated at a time: heads of width 32 have 8 pairs along each axis.
const PAIRS: usize = 8;

/// The steps that prepare queries and keys.
#[derive(Clone, Copy)]
pub(crate) struct Preparation<'a> {
    /// A factor of the scores of each head.
    pub(crate) factors: Option<&'a [f32]>,
    /// Cosines and sines of the angles of all tokens: `[tokens, head_dim / 2]` each.
    pub(crate) rotation: Option<[&'a [f32]; 2]>,
    /// Whether each query and key is normalized to length 1.
    pub(crate) normalize: bool,
}

/// Prepared queries or keys of one head.
#[derive(Clone, Copy)]
pub(super) struct Prepared<'a> {
    pub(super) rows: Matrix<'a>,
    /// The inverse length that each row had, if rows were normalized.
    rates: &'a [f32],
}

/// Memory for prepared rows.
pub(super) struct Scratch {
    rows: Vec<f32>,
    rates: Vec<f32>,
}

impl Scratch {
    pub(super) fn new(rows: usize, columns: usize) -> Self {
        Self { rows: vec![0.0; rows * columns], rates: vec![0.0; rows] }
    }
}

impl<'a> Prepared<'a> {
    /// Rows without preparation.
    pub(super) fn unchanged(rows: Matrix<'a>) -> Self {
        Self { rows, rates: &[] }
    }
}

impl Preparation<'_> {
    /// Prepares the queries or keys `x` of one head, which begin with that of the token `first`.
    pub(super) fn apply<'s>(&self, x: Matrix<'_>, first: usize, scratch: &'s mut Scratch) -> Prepared<'s> {
        let angles = first * x.columns / 2..(first + x.rows) * x.columns / 2;
        let rotation = self.rotation.map(|tables| tables.map(|table| &table[angles.clone()]));
        let rows = &mut scratch.rows[..x.rows * x.columns];
        let rates = &mut scratch.rates[..x.rows];
        prepare(x, rotation, self.normalize, rows, rates);
        Prepared { rows: Matrix::new(rows, [x.rows, x.columns], [x.columns, 1]), rates }
    }

    /// Changes the gradients of the prepared queries and keys of a head into the gradients of the rows before
    /// preparation, in place; returns the gradient of the head's factor. The gradient of the queries comes without the
    /// factor.
    pub(super) fn backward(
        &self,
        head: usize,
        [dq, dk]: [Option<MatrixMut<'_>>; 2],
        [q, k]: [Prepared<'_>; 2],
    ) -> f32 {
        let mut dfactor = 0.0;
        if let Some(mut dq) = dq {
            if let Some(factors) = self.factors {
                dfactor = multiply_rows(&mut dq, q.rows, factors[head]);
            }
            prepare_backward(&mut dq, q.rows, q.rates, self.rotation, self.normalize);
        }
        if let Some(mut dk) = dk {
            prepare_backward(&mut dk, k.rows, k.rates, self.rotation, self.normalize);
        }
        dfactor
    }
}

vectorized! {
    /// Copies rows to `output`, and rotates and normalizes them there; writes the inverse length that each had to
    /// `rates`.
    fn prepare(x: Matrix<'_>, rotation: Option<[&[f32]; 2]>, normalize: bool, output: &mut [f32], rates: &mut [f32]) {
        for (row, rate) in rates.iter_mut().enumerate() {
            let output = &mut output[row * x.columns..(row + 1) * x.columns];
            output.copy_from_slice(x.row(row));
            if let Some(tables) = rotation {
                rotate(output, angles(tables, row, x.columns), 1.0);
            }
            if normalize {
                let length = sum(output, output, |x, _| x * x).sqrt();
                *rate = 1.0 / if length > SHORTEST { length } else { SHORTEST };
                let rate = *rate;
                combine(output, x.row(row), |x, _| x * rate);
            }
        }
    }

    /// Changes the gradients of `prepared` rows into the gradients of the rows before preparation.
    fn prepare_backward(gradient: &mut MatrixMut<'_>, prepared: Matrix<'_>, rates: &[f32], rotation: Option<[&[f32]; 2]>, normalize: bool) {
        for row in 0..prepared.rows {
            let (gradient, prepared) = (gradient.row_mut(row), prepared.row(row));
            // There are rates only where rows were normalized.
            if let Some(&rate) = rates.get(row).filter(|_| normalize) {
                // The length of a vector below `SHORTEST` is a constant, without a gradient.
                let along = if rate < 1.0 / SHORTEST { sum(prepared, gradient, |x, dx| x * dx) } else { 0.0 };
                combine(gradient, prepared, |dx, x| rate * (dx - along * x));
            }
            if let Some(tables) = rotation {
                rotate(gradient, angles(tables, row, prepared.len()), -1.0);
            }
        }
    }

    /// Multiplies the rows of `gradient`, the gradient of `factor * rows`, by the factor; returns the gradient of the
    /// factor.
    fn multiply_rows(gradient: &mut MatrixMut<'_>, rows: Matrix<'_>, factor: f32) -> f32 {
        let mut total = 0.0;
        for row in 0..rows.rows {
            let (gradient, x) = (gradient.row_mut(row), rows.row(row));
            total += sum(x, gradient, |x, dx| x * dx);
            combine(gradient, x, |dx, _| dx * factor);
        }
        total
    }
}

/// The cosines and sines of a row.
#[inline(always)]
fn angles([cos, sin]: [&[f32]; 2], row: usize, head_dim: usize) -> [&[f32]; 2] {
    let range = row * head_dim / 2..(row + 1) * head_dim / 2;
    [&cos[range.clone()], &sin[range]]
}

/// Rotates the pairs of both halves of a row, forward (`direction` 1) or back (-1).
#[inline(always)]
fn rotate(row: &mut [f32], [cos, sin]: [&[f32]; 2], direction: f32) {
    let quarter = row.len() / 4;
    for half in 0..2 {
        let (a, b) = row[2 * half * quarter..2 * (half + 1) * quarter].split_at_mut(quarter);
        let angles = half * quarter..(half + 1) * quarter;
        rotate_pairs([a, b], [&cos[angles.clone()], &sin[angles]], direction);
    }
}

/// Rotates the pairs of `a` and `b`.
#[inline(always)]
fn rotate_pairs([a, b]: [&mut [f32]; 2], [cos, sin]: [&[f32]; 2], direction: f32) {
    let (a_groups, a_rest) = a.as_chunks_mut::<PAIRS>();
    let (b_groups, b_rest) = b.as_chunks_mut::<PAIRS>();
    let ((cos_groups, cos_rest), (sin_groups, sin_rest)) =
        (cos.as_chunks::<PAIRS>(), sin.as_chunks::<PAIRS>());
    for ((a, b), (cos, sin)) in a_groups.iter_mut().zip(b_groups).zip(cos_groups.iter().zip(sin_groups)) {
        let mut rotated = [[0.0; PAIRS]; 2];
        for lane in 0..PAIRS {
            let sin = direction * sin[lane];
            rotated[0][lane] = a[lane] * cos[lane] - b[lane] * sin;
            rotated[1][lane] = b[lane] * cos[lane] + a[lane] * sin;
        }
        [*a, *b] = rotated;
    }
    for ((a, b), (cos, sin)) in a_rest.iter_mut().zip(b_rest).zip(cos_rest.iter().zip(sin_rest)) {
        let sin = direction * sin;
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// `values = f(values, others)`, element by element, in whole vectors as far as possible.
#[inline(always)]
fn combine(values: &mut [f32], others: &[f32], f: impl Fn(f32, f32) -> f32) {
    let (groups, rest) = values.as_chunks_mut::<LANES>();
    let (other_groups, other_rest) = others.as_chunks::<LANES>();
    for (values, others) in groups.iter_mut().zip(other_groups) {
        for lane in 0..LANES {
            values[lane] = f(values[lane], others[lane]);
        }
    }
    for (value, other) in rest.iter_mut().zip(other_rest) {
        *value = f(*value, *other);
    }
}
