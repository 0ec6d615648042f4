//! Matrix products: small ones without packing, large ones on AMX; on the gemm crate where there is neither.

pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod library;
mod small;
#[cfg(test)]
mod testing;
mod view;

pub(crate) use library::gemm;
pub(crate) use view::{Epilogue, Matrix, MatrixMut};

use crate::cpu::threads::{Buffer, Shared, parallel};

/// Whether AMX is the way to go for a product.
pub(crate) fn is_for_amx(rows: usize, inner: usize, columns: usize) -> bool {
    amx::takes(rows, inner, columns).is_some()
}

/// The right factor of several products, made ready once.
pub(crate) enum RightFactor<'a> {
    /// For AMX.
    Packed(amx::RightPanels<'a>),
    /// As it is: the gemm crate packs it for each product.
    Plain(Matrix<'a>),
}

impl<'a> RightFactor<'a> {
    /// For products with `rows` rows in all.
    pub(crate) fn new(matrix: Matrix<'a>, rows: usize) -> Self {
        match amx::takes(rows, matrix.rows, matrix.columns).filter(|_| matrix.compact()) {
            Some(amx) => Self::Packed(amx::RightPanels::new(amx, matrix)),
            None => Self::Plain(matrix),
        }
    }

    /// The most rows to multiply at a time so that what is done with a product next finds it in the cache. The gemm crate packs the
    /// factor for each product and wants more.
    pub(crate) fn rows_at_a_time(&self) -> usize {
        match self {
            Self::Packed(_) => 192,
            Self::Plain(_) => usize::MAX,
        }
    }

    /// `out = left * self` after what `epilogue` says, on the calling thread or, for a large product and `threads`, on rayon's pool.
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
            Self::Plain(matrix) => match small::takes(left.rows, left.columns, matrix.columns) {
                Some(avx512) if matrix.compact() => {
                    small::multiply(avx512, out, epilogue, 1.0, left, *matrix)
                }
                _ => gemm(out, epilogue, 1.0, left, *matrix, threads),
            },
        }
    }
}

/// `out = left * right` after what `epilogue` says, [in parallel](parallel), for few rows: whether that was the way to go. If not, nothing is done.
///
/// # Panics
///
/// If the sizes do not fit.
pub(crate) fn product_of_few_rows(
    out: Shared<'_>,
    epilogue: Epilogue<'_>,
    left: Matrix<'_>,
    right: Matrix<'_>,
) -> bool {
    let (rows, columns) = (left.rows, right.columns);
    let amx = amx::few_rows(rows, left.columns, columns).filter(|_| left.compact() && right.compact());
    let Some(amx) = amx else { return false };
    let left = amx::LeftPanels::new(amx, left);
    parallel(columns.div_ceil(amx::PANEL), |index| {
        let range = index * amx::PANEL..((index + 1) * amx::PANEL).min(columns);
        // SAFETY: each task has columns of its own.
        let out = unsafe { MatrixMut::shared(out, range.start, [rows, range.len()], columns) };
        let epilogue = epilogue.columns(range.clone());
        left.before(right.block(0..right.rows, range), out, epilogue, 1.0);
    });
    true
}

/// `left * right` as a row-major buffer, in blocks [in parallel](parallel): for the gradient of a weight over few rows, whose outputs are more than
/// what is summed.
pub(crate) fn blocked_product(left: Matrix<'_>, right: Matrix<'_>) -> Vec<f32> {
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
        // SAFETY: the blocks are disjoint.
        let out = unsafe { MatrixMut::shared(out, offset, [row_range.len(), column_range.len()], columns) };
        let left = left.block(row_range, 0..left.columns);
        let right = right.block(0..right.rows, column_range);
        product(out, Epilogue::Overwrite, 1.0, left, right);
    });
    // SAFETY: the blocks cover all elements, and each product overwrote its own.
    unsafe { data.written() }
}

/// `out = scale * left * right` after what `epilogue` says, on the calling thread.
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
    if let Some(avx512) = small::takes(rows, inner, columns).filter(|_| right.compact()) {
        small::multiply(avx512, out, epilogue, scale, left, right);
    } else if let Some(amx) = amx::takes(rows, inner, columns).filter(|_| left.compact() && right.compact()) {
        amx::multiply(amx, out, epilogue, scale, left, right);
    } else {
        gemm(out, epilogue, scale, left, right, false);
    }
}
