//! Where there is no such unit, or no known way to ask for it.

use super::{Existing, Matrix, MatrixMut};

/// The proof that the unit is there, which nobody has.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum Amx {}

impl Amx {
    pub(in super::super) fn find() -> Option<Self> {
        None
    }
}

#[derive(Debug)]
pub(in super::super) struct LeftPanels(Amx);

impl LeftPanels {
    pub(in super::super) fn new(amx: Amx, _: Matrix<'_>) -> Self {
        Self(amx)
    }

    pub(in super::super) fn before(&self, _: Matrix<'_>, _: MatrixMut<'_>, _: Existing<'_>, _: f32) {
        match self.0 {}
    }
}

#[derive(Debug)]
pub(in super::super) struct RightPanels<'a>(Amx, Matrix<'a>);

impl<'a> RightPanels<'a> {
    pub(in super::super) fn new(amx: Amx, right: Matrix<'a>) -> Self {
        Self(amx, right)
    }

    pub(in super::super) fn after(&self, _: Matrix<'_>, _: MatrixMut<'_>, _: Existing<'_>, _: f32) {
        match self.0 {}
    }
}

pub(in super::super) fn multiply(
    amx: Amx,
    _out: MatrixMut<'_>,
    _existing: Existing<'_>,
    _scale: f32,
    _left: Matrix<'_>,
    _right: Matrix<'_>,
) {
    match amx {}
}
