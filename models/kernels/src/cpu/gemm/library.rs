//! Products on the gemm crate, which packs both factors and therefore takes any strides. It computes large products on
//! CPUs without AMX, and all products on CPUs without AVX2.

use super::view::{Epilogue, Matrix, MatrixMut};
use crate::cpu::threads::Chunks;

/// Columns of a part are a multiple of this number, as the crate computes several at a time.
const TILE: usize = 48;
/// With more rows, the next pass over the product would no longer find it in the cache.
const FEW_ROWS: usize = 512;

/// How the columns of a product are cut into tasks, if that packs less than `row_chunks`, each of which would pack the whole right
/// factor; `None` if the rows should be cut.
pub(crate) fn column_parts(rows: usize, row_chunks: usize, columns: usize) -> Option<Chunks> {
    let threads = rayon::current_num_threads();
    let parts = Chunks::of(columns, columns.div_ceil(2 * threads).max(TILE)).in_groups(TILE);
    let is_spread = parts.count() >= row_chunks.min(threads);
    // Threads wait for each other at the end.
    let row_chunks = row_chunks.next_multiple_of(threads);
    let packed = [columns + parts.count() * rows, row_chunks * columns];
    (rows <= FEW_ROWS && is_spread && packed[0] < packed[1]).then_some(parts)
}

/// `out = scale * left * right`, added to what `epilogue` says; on rayon's pool if the product is large and `threads`
/// is set.
///
/// # Panics
///
/// If the sizes do not fit.
pub(crate) fn gemm(
    mut out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
    threads: bool,
) {
    out.assert_product_of([left.rows, left.columns], [right.rows, right.columns]);
    if let Epilogue::Bias(bias) = epilogue {
        out.fill_rows(bias);
    }
    let work = left.rows * left.columns * right.columns;
    let parallelism = if threads && work >= 192 * 192 * 192 {
        gemm::Parallelism::Rayon(0)
    } else {
        gemm::Parallelism::None
    };
    let (left_strides, right_strides) = (left.strides(), right.strides());
    // SAFETY: the sizes fit by the assertion; `Matrix` and `MatrixMut` check on creation that they lie within their
    // buffers, and `out` has its elements alone.
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            out.start,
            1,
            out.row_stride as isize,
            epilogue != Epilogue::Overwrite,
            left.start(),
            left_strides.1 as isize,
            left_strides.0 as isize,
            right.start(),
            right_strides.1 as isize,
            right_strides.0 as isize,
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
mod tests {
    use super::super::testing::assert_product;
    use super::*;

    #[test]
    fn the_columns_are_cut_where_that_packs_less() {
        let threads = rayon::current_num_threads();
        let parts = |rows, chunks, columns| column_parts(rows, chunks * threads, columns).map(Chunks::count);
        let columns = 48 * 2 * threads;
        assert_eq!(parts(64, 16, columns), Some(2 * threads));
        assert_eq!(parts(600, 16, columns), None, "the product leaves the cache");
        assert_eq!(parts(500, 1, 48), None, "a single part of columns leaves threads idle, or packs more");
    }

    #[test]
    fn products_of_the_gemm_crate_agree_with_exact_ones() {
        for size in [[1, 1, 1], [65, 64, 65], [7, 20, 100], [100, 300, 33]] {
            assert_product(size, 1e-6, |out, epilogue, scale, left, right| {
                gemm(out, epilogue, scale, left, right, false);
            });
        }
    }
}
