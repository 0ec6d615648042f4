//! Transformed tiles in memory: float32, or rounded to bfloat16 in the first half of the memory of a place.

use crate::cpu::gemm::bfloat16::{Rounded, multiply_columns};
use crate::cpu::gemm::{Bfloat16, Epilogue, Matrix, MatrixMut};

/// One place of transformed tiles: `[tiles, channels]`.
#[derive(Clone, Copy)]
pub(super) enum Factor<'a> {
    Plain(Matrix<'a>),
    Rounded(Bfloat16, Rounded<'a>),
}

impl<'a> Factor<'a> {
    /// The place that begins `data`, rounded if there is `bfloat16`.
    pub(super) fn new(
        data: &'a [f32],
        sizes @ [_, channels]: [usize; 2],
        bfloat16: Option<Bfloat16>,
    ) -> Self {
        match bfloat16 {
            None => Self::Plain(Matrix::new(data, sizes, [channels, 1])),
            Some(bfloat16) => {
                // SAFETY: all bits are halves.
                let (_, data, _) = unsafe { data.align_to::<u16>() };
                Self::Rounded(bfloat16, Rounded::new(data, sizes))
            }
        }
    }

    /// `out = self^T * right`, added to what `epilogue` says, which `plain` computes if the factors are not rounded.
    ///
    /// # Panics
    ///
    /// If only one of the factors is, or the sizes do not fit.
    pub(super) fn multiply_columns(
        self,
        out: MatrixMut<'_>,
        epilogue: Epilogue<'_>,
        right: Self,
        plain: impl FnOnce(MatrixMut<'_>, Epilogue<'_>, f32, Matrix<'_>, Matrix<'_>),
    ) {
        match (self, right) {
            (Self::Plain(left), Self::Plain(right)) => plain(out, epilogue, 1.0, left.transposed(), right),
            (Self::Rounded(bfloat16, left), Self::Rounded(_, right)) => {
                multiply_columns(bfloat16, out, epilogue, left, right);
            }
            _ => panic!("both factors are rounded alike"),
        }
    }
}

/// The memory of transformed tiles as numbers of bfloat16: a place begins where it would in float32.
pub(super) fn as_halves(data: &mut [f32]) -> &mut [u16] {
    // SAFETY: all bits are halves, and those of halves a number.
    unsafe { data.align_to_mut::<u16>() }.1
}
