//! Where there is no such unit, or no known way to ask for it.

use super::{Existing, Matrix, MatrixMut};

pub(in super::super) fn request() -> bool {
    false
}

#[derive(Debug)]
pub(in super::super) enum Panels {}

impl Panels {
    pub(in super::super) fn left(_: Matrix<'_>) -> Self {
        unreachable!("there is no matrix unit")
    }

    pub(in super::super) fn right(_: Matrix<'_>) -> Self {
        unreachable!("there is no matrix unit")
    }

    pub(in super::super) fn after(&self, _: Matrix<'_>, _: MatrixMut<'_>, _: Existing<'_>, _: f32) {
        match *self {}
    }

    pub(in super::super) fn before(&self, _: Matrix<'_>, _: MatrixMut<'_>, _: Existing<'_>, _: f32) {
        match *self {}
    }
}

pub(in super::super) fn multiply(
    _out: MatrixMut<'_>,
    _existing: Existing<'_>,
    _scale: f32,
    _left: Matrix<'_>,
    _right: Matrix<'_>,
) {
    unreachable!("there is no matrix unit")
}
