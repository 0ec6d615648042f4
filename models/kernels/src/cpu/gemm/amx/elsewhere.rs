//! The interface of AMX for systems without it, or on which programs cannot ask for it: nothing here can be called.

use super::super::view::{Epilogue, Matrix, MatrixMut};

/// Uninhabited: on other systems no value can prove that AMX exists.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amx {}

impl Amx {
    pub(crate) fn find() -> Option<Self> {
        None
    }
}

#[derive(Debug)]
pub(crate) struct LeftPanels(Amx);

impl LeftPanels {
    pub(crate) fn new(amx: Amx, _: Matrix<'_>) -> Self {
        Self(amx)
    }

    pub(crate) fn before(&self, _: Matrix<'_>, _: MatrixMut<'_>, _: Epilogue<'_>, _: f32) {
        match self.0 {}
    }
}

#[derive(Debug)]
pub(crate) struct RightPanels<'a>(Amx, Matrix<'a>);

impl<'a> RightPanels<'a> {
    pub(crate) fn new(amx: Amx, right: Matrix<'a>) -> Self {
        Self(amx, right)
    }

    pub(crate) fn after(&self, _: Matrix<'_>, _: MatrixMut<'_>, _: Epilogue<'_>, _: f32) {
        match self.0 {}
    }
}

pub(crate) fn multiply(
    amx: Amx,
    _out: MatrixMut<'_>,
    _existing: Epilogue<'_>,
    _scale: f32,
    _left: Matrix<'_>,
    _right: Matrix<'_>,
) {
    match amx {}
}
