//! The interface of these products for other CPUs: nothing here can be called.

use super::super::view::{Epilogue, Matrix, MatrixMut};
use super::Rounded;

/// Uninhabited: on other CPUs no value can prove that there is AVX512-BF16.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bfloat16 {}

impl Bfloat16 {
    pub(crate) fn find() -> Option<Self> {
        None
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct RightPanels<'a>(Bfloat16, &'a [u32]);

impl<'a> RightPanels<'a> {
    pub(crate) fn new(bfloat16: Bfloat16, words: &'a [u32], _sizes: [usize; 2]) -> Self {
        Self(bfloat16, words)
    }

    pub(crate) fn first_columns(self, _columns: usize) -> Self {
        self
    }

    pub(crate) fn multiply(&self, _: MatrixMut<'_>, _: Epilogue<'_>, _: f32, _: Matrix<'_>) {
        match self.0 {}
    }

    pub(crate) fn multiply_rounded(&self, _: MatrixMut<'_>, _: Epilogue<'_>, _: Rounded<'_>) {
        match self.0 {}
    }
}

pub(crate) fn multiply_columns(
    bfloat16: Bfloat16,
    _out: MatrixMut<'_>,
    _epilogue: Epilogue<'_>,
    _left: Rounded<'_>,
    _right: Rounded<'_>,
) {
    match bfloat16 {}
}

pub(crate) fn pack(bfloat16: Bfloat16, _: Matrix<'_>, _: &mut [u32]) {
    match bfloat16 {}
}

pub(crate) fn multiply(
    bfloat16: Bfloat16,
    _out: MatrixMut<'_>,
    _epilogue: Epilogue<'_>,
    _scale: f32,
    _left: Matrix<'_>,
    _right: Matrix<'_>,
) {
    match bfloat16 {}
}
