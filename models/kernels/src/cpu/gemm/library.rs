//! Products on the gemm crate, which packs what it reads and so takes any strides: large ones without AMX, and on CPUs without AVX-512 all.

use super::view::{Epilogue, Matrix, MatrixMut};

/// `out = scale * left * right` after what `epilogue` says, on rayon's pool for a large product and `threads`.
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
    // SAFETY: all three matrices lie within their buffers (checked where they are made), and the output is borrowed mutably.
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
    fn products_of_the_gemm_crate_agree_with_exact_ones() {
        for size in [[1, 1, 1], [65, 64, 65], [7, 20, 100], [100, 300, 33]] {
            assert_product(size, 1e-6, |out, epilogue, scale, left, right| {
                gemm(out, epilogue, scale, left, right, false);
            });
        }
    }
}
