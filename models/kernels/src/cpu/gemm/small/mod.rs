//! Products of small matrices, such as the scores of one attention head, on AVX-512 or AVX2. The right factor is read where
//! it lies in the cache; libraries for large products copy both factors first. With AVX-512, products of a few hundred rows with a
//! large right factor run on the same kernel, after a copy of one panel of it at a time ([`multiply_packed`]).
//!
//! The terms of an element are added in order, and each step is rounded once: the error of a sum of `n` terms is at
//! most `n * 2^-24` times the sum of their absolute values.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod panels;

#[cfg(target_arch = "x86_64")]
pub(crate) use panels::{Panels, has_panels, pack, pack_in_place};

#[cfg(target_arch = "x86_64")]
use super::avx512::Avx512;
use super::view::{Epilogue, Matrix, MatrixMut};
use crate::cpu::threads::Chunks;
#[cfg(target_arch = "x86_64")]
use avx2::Avx2;

/// The vector instructions of a product, which the CPU has. Uninhabited on other architectures.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Instructions {
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

/// The instructions for [`multiply`], if the product is small enough: larger products are faster with both factors packed.
pub(crate) fn takes(rows: usize, inner: usize, columns: usize) -> Option<Instructions> {
    const LARGEST: usize = 128 * 128 * 128;
    available().filter(|_| inner > 0 && rows * inner * columns <= LARGEST && inner * columns <= 128 * 128)
}

/// The instructions for products of any size, if the CPU has AVX-512.
pub(crate) fn widest() -> Option<Instructions> {
    #[cfg(target_arch = "x86_64")]
    return Avx512::find().map(Instructions::Avx512);
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// The instructions for [`multiply`], if the CPU has any of them.
fn available() -> Option<Instructions> {
    #[cfg(target_arch = "x86_64")]
    return widest().or_else(|| Avx2::find().map(Instructions::Avx2));
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// `out = scale * left * right`, added to what `epilogue` says, on the calling thread. The terms of an element are
/// added in the order of the inner elements, so that it depends only on its row of `left` and its column of `right`.
///
/// # Panics
///
/// If the sizes do not fit, or `right` is not [compact](Matrix::compact).
pub(crate) fn multiply(
    instructions: Instructions,
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    out.assert_product_of([left.rows, left.columns], [right.rows, right.columns]);
    match instructions {
        // SAFETY: the CPU has AVX-512, as the value proves; the sizes fit by the assertion. `Matrix` and `MatrixMut` check
        // on creation that they lie within their buffers.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512(_) => unsafe { avx512::multiply(out, epilogue, scale, left, right) },
        // SAFETY: the same with AVX2.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2(_) => unsafe { avx2::multiply(out, epilogue, scale, left, right) },
    }
}

/// The columns of a large right factor that are copied at a time, so that they stay in the second-level cache.
pub(crate) const PANEL: usize = 64;
/// With fewer rows, copying the right factor takes longer than it saves.
const PACKED_ROWS: usize = 32;
/// With more rows, those of the left factor leave the second-level cache between two panels.
const MOST_PACKED_ROWS: usize = 512;

/// With more inner elements, a panel leaves the second-level cache.
const MOST_PACKED_INNER: usize = 4096;

/// The instructions for [`multiply_packed`], if the CPU has AVX-512 and the sizes are right for it.
pub(crate) fn packs(rows: usize, inner: usize) -> Option<Instructions> {
    widest().filter(|_| {
        (PACKED_ROWS..=MOST_PACKED_ROWS).contains(&rows) && (1..=MOST_PACKED_INNER).contains(&inner)
    })
}

/// [`multiply`] with a right factor of any size, with the same results: a panel after the other is copied to where the next rows find it
/// in the cache.
///
/// # Panics
///
/// If the sizes do not fit, or `right` is not [compact](Matrix::compact).
pub(crate) fn multiply_packed(
    instructions: Instructions,
    mut out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    out.assert_product_of([left.rows, left.columns], [right.rows, right.columns]);
    for columns in Chunks::of(right.columns, PANEL).in_groups(PANEL).ranges_after(0) {
        let out = out.block(0..left.rows, columns.clone());
        let (epilogue, right) = (epilogue.columns(columns.clone()), right.block(0..right.rows, columns));
        match instructions {
            // SAFETY: as for `multiply`.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512(_) => unsafe {
                avx512::multiply_packed(&out, epilogue, scale, left, right);
            },
            // Not chosen by `packs`: the gemm crate is as fast.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2(_) => multiply(instructions, out, epilogue, scale, left, right),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::assert_product;
    use super::*;

    /// All instructions that this CPU has.
    fn all() -> Vec<Instructions> {
        #[cfg(target_arch = "x86_64")]
        return [Avx512::find().map(Instructions::Avx512), Avx2::find().map(Instructions::Avx2)]
            .into_iter()
            .flatten()
            .collect();
        #[cfg(not(target_arch = "x86_64"))]
        Vec::new()
    }

    #[test]
    fn products_with_large_right_factors_agree_with_exact_ones() {
        for instructions in all() {
            for size in [[33, 40, 64], [50, 1, 64], [197, 384, 64], [40, 130, 17], [35, 300, 150]] {
                assert_product(size, 1e-6, |out, epilogue, scale, left, right| {
                    multiply_packed(instructions, out, epilogue, scale, left, right);
                });
            }
        }
    }

    #[test]
    fn a_copy_of_the_right_factor_changes_no_bit() {
        let numbers =
            |count: usize| (0..count).map(|place| (place as f32 * 12.9898).sin()).collect::<Vec<_>>();
        let (rows, inner, columns) = (37, 200, 90);
        let (left, right, bias) = (numbers(rows * inner), numbers(inner * columns), numbers(columns));
        let left = Matrix::row_major(&left, inner);
        for right in [Matrix::row_major(&right, columns), Matrix::row_major(&right, inner).transposed()] {
            for instructions in all() {
                let mut outs = [vec![0.0; rows * columns], vec![0.0; rows * columns]];
                let [plain, packed] = outs.each_mut().map(|out| MatrixMut::row_major(out, columns));
                multiply(instructions, plain, Epilogue::Bias(&bias), 0.5, left, right);
                multiply_packed(instructions, packed, Epilogue::Bias(&bias), 0.5, left, right);
                assert_eq!(outs[0], outs[1]);
            }
        }
    }

    #[test]
    fn small_products_agree_with_exact_ones() {
        let sizes =
            [[1, 1, 1], [65, 64, 65], [65, 65, 64], [7, 20, 100], [49, 32, 49], [3, 5, 33], [12, 64, 16]];
        for instructions in all() {
            for size in sizes {
                assert!(takes(size[0], size[1], size[2]).is_some());
                assert_product(size, 1e-6, |out, epilogue, scale, left, right| {
                    multiply(instructions, out, epilogue, scale, left, right);
                });
            }
        }
    }
}
