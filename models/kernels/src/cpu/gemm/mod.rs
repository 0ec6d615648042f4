//! Matrix products: small ones on AVX-512 or AVX2 without packing, large ones on AMX; without it, those of a few hundred rows on
//! AVX-512, and others on the gemm crate. Where the caller lets both factors be rounded, large ones run on AVX512-BF16.

pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod bfloat16;
mod library;
mod small;
#[cfg(test)]
mod testing;
mod view;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{first_lanes, interleaved, transposed};
pub(crate) use bfloat16::Bfloat16;
pub(crate) use library::gemm;
#[cfg(target_arch = "x86_64")]
pub(crate) use small::{PANEL, Panels, has_panels, pack, pack_in_place};
pub(crate) use view::{Epilogue, Matrix, MatrixMut};

use crate::cpu::threads::{Buffer, Chunks, Shared, parallel};
use bfloat16::PackedFactors;

/// Whether a product of these sizes runs on AMX.
pub(crate) fn is_for_amx(rows: usize, inner: usize, columns: usize) -> bool {
    amx::takes(rows, inner, columns).is_some()
}

/// The right factor of several products, packed once if AMX or AVX512-BF16 computes them.
pub(crate) enum RightFactor<'a> {
    /// Packed for AMX.
    Packed(amx::RightPanels<'a>),
    /// Rounded and packed: one factor.
    Rounded(PackedFactors),
    /// Not packed: each product packs it.
    Plain(Matrix<'a>),
}

impl<'a> RightFactor<'a> {
    /// A factor for products that have `rows` rows in all, and may be rounded if there is `bfloat16`.
    pub(crate) fn new(matrix: Matrix<'a>, rows: usize, bfloat16: Option<Bfloat16>) -> Self {
        let sizes = [matrix.rows, matrix.columns];
        if !matrix.compact() {
            return Self::Plain(matrix);
        }
        if let Some(amx) = amx::takes(rows, matrix.rows, matrix.columns) {
            return Self::Packed(amx::RightPanels::new(amx, matrix));
        }
        // Fewer rows are one task, which a library cuts.
        let bfloat16 = bfloat16.filter(|_| rows >= 2 * amx::PANEL);
        match bfloat16.and_then(|bfloat16| bfloat16.takes(rows, matrix.rows, matrix.columns)) {
            Some(bfloat16) => Self::Rounded(PackedFactors::new(bfloat16, 1, sizes, |_| matrix)),
            None => Self::Plain(matrix),
        }
    }

    /// The number of rows to multiply at a time, so that the next pass over the product finds it in the cache. If it is not packed, each
    /// product packs the factor, which pays only for all rows at once.
    pub(crate) fn rows_at_a_time(&self) -> usize {
        match self {
            Self::Packed(_) | Self::Rounded(_) => 192,
            Self::Plain(_) => usize::MAX,
        }
    }

    /// `out = left * self`, added to what `epilogue` says, on the calling thread; on rayon's pool if the product is
    /// large and `threads` is set.
    ///
    /// # Panics
    ///
    /// If the sizes do not fit.
    pub(crate) fn multiply(
        &self,
        out: MatrixMut<'_>,
        epilogue: Epilogue<'_>,
        left: Matrix<'_>,
        threads: bool,
    ) {
        match self {
            Self::Packed(panels) => panels.after(left, out, epilogue, 1.0),
            Self::Rounded(factors) => factors.get(0).multiply(out, epilogue, 1.0, left),
            Self::Plain(matrix) => match small::takes(left.rows, left.columns, matrix.columns) {
                Some(instructions) if matrix.compact() => {
                    small::multiply(instructions, out, epilogue, 1.0, left, *matrix)
                }
                _ => match small::packs(left.rows, left.columns).filter(|_| matrix.compact()) {
                    Some(instructions) => {
                        small::multiply_packed(instructions, out, epilogue, 1.0, left, *matrix);
                    }
                    None => gemm(out, epilogue, 1.0, left, *matrix, threads),
                },
            },
        }
    }
}

/// `out = left * right`, added to what `epilogue` says, [in parallel](parallel), for a left factor of few rows: the columns are
/// cut, so that each task packs a part of the right factor. Returns `false`, and computes nothing, if cutting the rows into
/// `row_chunks` is less work. The factors may be rounded if there is `bfloat16`.
///
/// # Panics
///
/// If the sizes do not fit.
pub(crate) fn product_of_few_rows(
    out: Shared<'_>,
    epilogue: Epilogue<'_>,
    left: Matrix<'_>,
    right: Matrix<'_>,
    row_chunks: usize,
    bfloat16: Option<Bfloat16>,
) -> bool {
    let (rows, inner, columns) = (left.rows, left.columns, right.columns);
    let in_parts = |parts: Chunks, multiply: &(dyn Fn(MatrixMut<'_>, Epilogue<'_>, Matrix<'_>) + Sync)| {
        parallel(parts.count(), |index| {
            let range = parts.range(index);
            // SAFETY: the column ranges of the tasks are disjoint.
            let out = unsafe { MatrixMut::shared(out, range.start, [rows, range.len()], columns) };
            multiply(out, epilogue.columns(range.clone()), right.block(0..inner, range));
        });
    };
    if amx::takes(rows, inner, columns).is_none() {
        let rounded = bfloat16.and_then(|bfloat16| bfloat16.takes(rows, inner, columns));
        let rounded = rounded.filter(|_| left.compact() && right.compact());
        if rounded.is_some() && rows > bfloat16::FEW_ROWS {
            return false;
        }
        let packs = small::packs(rows, inner).filter(|_| right.compact());
        if rounded.is_some() || packs.is_some() {
            let panels = Chunks::of(columns, small::PANEL).in_groups(small::PANEL);
            if panels.count() < row_chunks.min(rayon::current_num_threads()) {
                return false;
            }
            in_parts(panels, &|out, epilogue, right| match (rounded, packs) {
                (Some(bfloat16), _) => bfloat16::multiply(bfloat16, out, epilogue, 1.0, left, right),
                (None, Some(instructions)) => {
                    small::multiply_packed(instructions, out, epilogue, 1.0, left, right);
                }
                (None, None) => unreachable!("one of both multiplies"),
            });
            return true;
        }
        let parts = library::column_parts(rows, row_chunks, columns)
            // A chunk of rows may be so small that nothing is packed.
            .filter(|_| small::takes(rows.div_ceil(row_chunks.max(1)), inner, columns).is_none());
        let Some(parts) = parts else { return false };
        in_parts(parts, &|out, epilogue, right| gemm(out, epilogue, 1.0, left, right, false));
        return true;
    }
    let amx = amx::few_rows(rows, inner, columns).filter(|_| left.compact() && right.compact());
    let Some(amx) = amx else { return false };
    let left = amx::LeftPanels::new(amx, left);
    let panels = Chunks::of(columns, amx::PANEL).in_groups(amx::PANEL);
    in_parts(panels, &|out, epilogue, right| left.before(right, out, epilogue, 1.0));
    true
}

/// `left * right` as a row-major buffer, computed in blocks [in parallel](parallel): for the gradient of a weight over
/// few rows, which has many outputs and few terms in each sum. The factors may be rounded if there is `bfloat16`.
pub(crate) fn blocked_product(left: Matrix<'_>, right: Matrix<'_>, bfloat16: Option<Bfloat16>) -> Vec<f32> {
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
    let mut data = Buffer::new(rows * columns);
    let out = data.shared();
    parallel(row_parts * column_parts, |task| {
        let row_range = part(task / column_parts, sizes[0], rows);
        let column_range = part(task % column_parts, sizes[1], columns);
        let offset = row_range.start * columns + column_range.start;
        // SAFETY: the blocks of the tasks are disjoint.
        let out = unsafe { MatrixMut::shared(out, offset, [row_range.len(), column_range.len()], columns) };
        let left = left.block(row_range, 0..left.columns);
        let right = right.block(0..right.rows, column_range);
        product_rounding(bfloat16, out, Epilogue::Overwrite, 1.0, left, right);
    });
    // SAFETY: the blocks cover all elements, and each product overwrote its own.
    unsafe { data.written() }
}

/// [`product`] without copies of the factors, if the CPU has AVX-512 and the right factor is row-major: for a right factor
/// that stays in the second-level cache. AVX2 has too few registers: from 192 columns on, packed factors are faster.
///
/// # Panics
///
/// If the sizes do not fit.
pub(crate) fn unpacked_product(
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    match small::widest().filter(|_| left.columns > 0 && right.strides().1 == 1) {
        Some(instructions) => small::multiply(instructions, out, epilogue, scale, left, right),
        None => product(out, epilogue, scale, left, right),
    }
}

/// [`product`], whose factors may be rounded if there is `bfloat16`.
///
/// # Panics
///
/// If the sizes do not fit.
pub(crate) fn product_rounding(
    bfloat16: Option<Bfloat16>,
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    let bfloat16 = bfloat16.and_then(|bfloat16| bfloat16.takes(left.rows, left.columns, right.columns));
    match bfloat16.filter(|_| left.compact() && right.compact()) {
        Some(bfloat16) => bfloat16::multiply(bfloat16, out, epilogue, scale, left, right),
        None => product(out, epilogue, scale, left, right),
    }
}

/// `out = scale * left * right`, added to what `epilogue` says, on the calling thread.
///
/// # Panics
///
/// If the sizes do not fit.
pub(crate) fn product(
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    let (rows, inner, columns) = (left.rows, left.columns, right.columns);
    if let Some(instructions) = small::takes(rows, inner, columns).filter(|_| right.compact()) {
        small::multiply(instructions, out, epilogue, scale, left, right);
    } else if let Some(amx) = amx::takes(rows, inner, columns).filter(|_| left.compact() && right.compact()) {
        amx::multiply(amx, out, epilogue, scale, left, right);
    } else if let Some(instructions) = small::packs(rows, inner).filter(|_| right.compact()) {
        small::multiply_packed(instructions, out, epilogue, scale, left, right);
    } else {
        gemm(out, epilogue, scale, left, right, false);
    }
}
