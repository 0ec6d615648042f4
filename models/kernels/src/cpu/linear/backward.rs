//! The backward pass of the linear layer.
//!
//! ```text
//! dz = dy * derivative                   the gradient before the activation
//! dx = dz weight^T
//! dweight = x^T dz
//! dbias = sum of the rows of dz
//!
//! for a chunk of rows                    a task, with its own sums
//!   for PIECE rows or more               their gradients stay in the second-level cache from one line to the next
//!     dz = dy * derivative               in the memory of the derivative
//!     dbias += rows of dz
//!     dx = dz weight^T
//!     dweight += x^T dz                  with few rows not here: at the end, in blocks of dweight
//! ```

use super::{SavedLinear, matrix};
use crate::cpu::flex::{self, contiguous, rows, sizes};
use crate::cpu::gemm::{
    Bfloat16, Epilogue, Matrix, MatrixMut, RightFactor, amx, blocked_product, product_rounding,
};
use crate::cpu::simd;
use crate::cpu::threads::sums::{SharedSums, Sums};
use crate::cpu::threads::{Buffer, Chunks, Shared, parallel};
use burn::backend::{TensorMetadata, flex::FlexTensor};
use std::ops::Range;

/// The fewest rows of a chunk with its own sums: for fewer, adding up the sums costs too much.
const SMALLEST_CHUNK: usize = 128;

/// The rows of a piece: small enough that the products of a piece find its gradients in the cache.
const PIECE: usize = 256;

/// The gradients of x, the weight and the bias, where they are wanted. Products may be rounded if there is `bfloat16`.
pub(super) fn gradients(
    saved: SavedLinear,
    dy: FlexTensor,
    [x_wanted, weight_wanted, bias_wanted]: [bool; 3],
    bfloat16: Option<Bfloat16>,
) -> [Option<FlexTensor>; 3] {
    let features @ [in_features, out_features] = sizes(&saved.weight);
    let dy = contiguous(dy);
    let rows = rows(&dy.shape());
    let cut = Cut::new(rows, features);
    let weight = x_wanted.then(|| RightFactor::new(matrix(&saved.weight).transposed(), rows, bfloat16));
    let x = saved.x.as_ref().filter(|_| weight_wanted);
    let x = x.map(|x| Matrix::new(x.storage(), [rows, in_features], [in_features, 1]));
    let mut derivative = saved.derivative;

    let mut dx = Buffer::new(if x_wanted { rows * in_features } else { 0 });
    let weights = if x.is_some() && cut.has_sums { in_features * out_features } else { 0 };
    let mut dweight = Sums::new(weights, cut.chunks.count());
    let mut dbias = Sums::new(if bias_wanted { out_features } else { 0 }, cut.chunks.count());
    let pass = Pass {
        features,
        bfloat16,
        cut,
        x: x.filter(|_| cut.has_sums),
        weight,
        dy: dy.storage(),
        derivative: derivative.as_mut().map(|derivative| Shared::new(derivative.storage_mut())),
        dx: dx.shared(),
        dweight: dweight.shared(),
        dbias: dbias.shared(),
    };
    parallel(cut.chunks.count(), |index| pass.chunk(index));

    let dweight = x.map(|x| match cut.has_sums {
        // SAFETY: the first piece of each chunk overwrote the chunk's sums.
        true => flex::tensor(unsafe { dweight.total() }, features),
        false => {
            // `dweight = x^T dz`, in blocks of dweight.
            let dz = derivative.as_ref().unwrap_or(&dy);
            let dz = Matrix::new(dz.storage(), [rows, out_features], [out_features, 1]);
            flex::tensor(blocked_product(x.transposed(), dz, bfloat16), features)
        }
    });
    // SAFETY: each chunk's task began by filling its sums with zeros.
    let dbias = bias_wanted.then(|| flex::tensor(unsafe { dbias.total() }, [out_features]));
    // SAFETY: the gradient is wanted, so the products of all chunks wrote it, row by row.
    let dx = x_wanted.then(|| flex::tensor(unsafe { dx.written() }, saved.input_shape));
    [dx, dweight, dbias]
}

/// How the rows are cut into chunks.
#[derive(Clone, Copy)]
struct Cut {
    chunks: Chunks,
    /// Pieces of a chunk begin at multiples of this many rows.
    group: usize,
    /// Whether each chunk has its own sums for the gradient of the weight.
    has_sums: bool,
}

impl Cut {
    fn new(rows: usize, [in_features, out_features]: [usize; 2]) -> Self {
        // From this many rows on, the sums of a chunk take no more memory than the chunk's own inputs and outputs.
        let rows_of_sums = in_features * out_features / (in_features + out_features).max(1);
        let smallest = SMALLEST_CHUNK.max(rows_of_sums);
        let has_sums = rows >= smallest * rayon::current_num_threads();
        let (chunks, group) = if has_sums {
            (Chunks::few(rows, smallest), amx::GROUP)
        } else {
            (Chunks::new(rows, amx::PANEL), amx::PANEL)
        };
        Self { chunks: chunks.in_groups(group), group, has_sums }
    }
}

/// What the tasks of the backward pass read and write.
struct Pass<'a> {
    features: [usize; 2],
    bfloat16: Option<Bfloat16>,
    cut: Cut,
    /// All rows of x, if the chunks sum the gradient of the weight.
    x: Option<Matrix<'a>>,
    /// The transposed weight, if the gradient of x is wanted.
    weight: Option<RightFactor<'a>>,
    dy: &'a [f32],
    /// The derivative of the activation; then the gradient before it.
    derivative: Option<Shared<'a>>,
    dx: Shared<'a>,
    dweight: SharedSums<'a>,
    dbias: SharedSums<'a>,
}

impl Pass<'_> {
    /// All gradients of one chunk, piece by piece.
    fn chunk(&self, index: usize) {
        let chunk = self.cut.chunks.range(index);
        // SAFETY: each task has its own chunk, and with it its own sums.
        let (dweight, dbias) = unsafe { (self.dweight.part(index), self.dbias.part(index)) };
        dbias.fill(0.0);
        for rows in self.pieces(chunk.clone()) {
            // SAFETY: the chunks are disjoint, so no other task uses these rows.
            let dz = unsafe { self.before_activation(rows.clone(), dbias) };
            // SAFETY: the chunks are disjoint, so no other task uses these rows.
            unsafe { self.write_dx(rows.clone(), dz) };
            if let Some(x) = self.x {
                let first = rows.start == chunk.start;
                let epilogue = if first { Epilogue::Overwrite } else { Epilogue::Accumulate };
                self.add_to_dweight(dweight, epilogue, x.block(rows, 0..x.columns), dz);
            }
        }
    }

    /// The rows of a chunk that are worked on at a time.
    fn pieces(&self, chunk: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        // If the gemm crate would pack the weight for each piece, the whole chunk is one piece.
        let size = self.weight.as_ref().map_or(PIECE, |weight| weight.rows_at_a_time().max(PIECE));
        Chunks::of(chunk.len(), size).in_groups(self.cut.group).ranges_after(chunk.start)
    }

    /// `dz = dy * derivative` of some rows; adds each of them to `dbias`.
    ///
    /// # Safety
    ///
    /// No other task may read or write these rows of `derivative` while the result is in use.
    unsafe fn before_activation(&self, rows: Range<usize>, dbias: &mut [f32]) -> Matrix<'_> {
        let [_, out_features] = self.features;
        let elements = rows.start * out_features..rows.end * out_features;
        let mut dz = &self.dy[elements.clone()];
        if let Some(derivative) = &self.derivative {
            // SAFETY: no other task uses these rows, as the caller promises.
            let derivative = unsafe { derivative.slice(elements) };
            simd::multiply_and_add_rows(derivative, dz, dbias);
            dz = derivative;
        } else {
            simd::add_rows(dbias, dz);
        }
        Matrix::new(dz, [rows.len(), out_features], [out_features, 1])
    }

    /// `dx = dz weight^T` of some rows, if it is wanted.
    ///
    /// # Safety
    ///
    /// No other task may read or write these rows of `dx` at the same time.
    unsafe fn write_dx(&self, rows: Range<usize>, dz: Matrix<'_>) {
        let [in_features, _] = self.features;
        if let Some(weight) = &self.weight {
            // SAFETY: no other task uses these rows, as the caller promises.
            let dx = unsafe { self.dx.slice(rows.start * in_features..rows.end * in_features) };
            let dx = MatrixMut::row_major(dx, in_features);
            weight.multiply(dx, Epilogue::Overwrite, dz, self.cut.chunks.count() == 1);
        }
    }

    /// `dweight = x^T dz`, or `dweight += x^T dz`, as `epilogue` says.
    fn add_to_dweight(&self, dweight: &mut [f32], epilogue: Epilogue<'_>, x: Matrix<'_>, dz: Matrix<'_>) {
        let [in_features, out_features] = self.features;
        let dweight = MatrixMut::with_gaps(dweight, in_features, out_features, out_features);
        product_rounding(self.bfloat16, dweight, epilogue, 1.0, x.transposed(), dz);
    }
}
