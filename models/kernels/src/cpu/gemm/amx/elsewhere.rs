//! The interface of AMX for systems without it, or on which programs cannot ask for it: nothing here can be called.

use super::super::view::{Epilogue, Matrix, MatrixMut};

/// Uninhabited: on other systems no value can prove that AMX exists.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amx {}

impl Amx {
    pub(crate) fn find() -> Option<Self> {
        None
    }

    pub(crate) fn is_emulated(self) -> bool {
        match self {}
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

/// [`direct`](super::direct), for systems without AMX.
#[cfg(target_arch = "x86_64")]
#[allow(dead_code)] // nothing here is read
pub(crate) mod direct {
    use super::Amx;

    pub(crate) const BLOCK: usize = 1024;

    pub(crate) struct Product {
        pub(crate) left: *const u8,
        pub(crate) row_stride: usize,
        pub(crate) segment_stride: usize,
        pub(crate) right: *const u8,
        pub(crate) panel_stride: usize,
        pub(crate) segments: usize,
        pub(crate) blocks: usize,
    }

    macro_rules! products {
        ($proof:ident, $tiles:ident, $sum:ty) => {
            #[derive(Clone, Copy, Debug)]
            pub(crate) struct $proof(Amx);

            impl $proof {
                pub(crate) fn find() -> Option<Self> {
                    Amx::find().map(Self)
                }

                #[cfg(test)]
                pub(crate) fn emulated() -> Option<Self> {
                    None
                }

                pub(crate) fn configure(self) -> $tiles {
                    $tiles(self.0)
                }
            }

            pub(crate) struct $tiles(Amx);

            impl $tiles {
                pub(crate) unsafe fn multiply(&self, _: &Product, _: *mut $sum, _: usize) {
                    match self.0 {}
                }
            }
        };
    }

    products!(Bytes, ByteTiles, i32);
    products!(Bfloat16, Bfloat16Tiles, f32);
}
