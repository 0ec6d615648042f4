//! Products on AMX: which parts of the factors are packed and multiplied when.
//!
//! ```text
//! for MC rows                                 left factor, packed: second-level cache
//!   for KC inner elements                     a panel of 32 outer elements is 48 KiB: first-level cache
//!     pack the MC x KC block of the left factor
//!     for 32 columns (a panel)                pack the KC x 32 panel of the right factor
//!       for 32 rows (a panel)
//!         for 64 inner elements (a tile)      micro-kernel: 2 x 2 tiles of sums for each order of digits, in the eight registers
//!         join the orders, check the block, write it with its epilogue, or compute it again in float32
//! ```
//!
//! A row or column of a block is off by less than about 4e-6 of its size, root mean square: see the module above.

use super::super::small;
use super::super::view::{Epilogue, Matrix, MatrixMut};
use super::block::{Block, TileSums, prefetch};
use super::detect::{Amx, Configured};
use super::kernel::{one_by_two, two_by_two};
use super::pack::{CacheLine, Operand, PackBuffer, Panel, Source, pack};
use super::shape::{DEPTH, PANEL, SIDE};
use crate::cpu::threads::parallel;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

/// Inner elements that are multiplied at a time (a KC block): a panel of them is as large as the nearest cache, and all sums but those of the
/// last order are exact in float32.
const KC: usize = 512;
/// Rows that are packed at a time (an MC block) where neither factor is: they stay in the second-level cache.
const MC: usize = 1024;
/// Packed right factors of more bytes do not stay in the second-level cache while all rows pass by: more rows are packed at a time.
const CACHED_BYTES: usize = 3 << 19;

thread_local! {
    static LEFT: RefCell<PackBuffer> = RefCell::default();
    static RIGHT: RefCell<PackBuffer> = RefCell::default();
}

/// A left factor, packed.
pub(crate) struct LeftPanels<'a>(Panels<'a>);

impl<'a> LeftPanels<'a> {
    /// Packs a left factor on all threads.
    ///
    /// # Panics
    ///
    /// If its elements lie side by side along neither dimension.
    pub(crate) fn new(amx: Amx, left: Matrix<'a>) -> Self {
        Self(Panels::new(amx, left, Operand::Left))
    }

    /// [`multiply`] with this left factor.
    ///
    /// # Panics
    ///
    /// As there.
    pub(crate) fn before(&self, right: Matrix<'_>, out: MatrixMut<'_>, epilogue: Epilogue<'_>, scale: f32) {
        let left = self.0.factor();
        RIGHT.with_borrow_mut(|buffer| {
            Product { left, right: Factor::plain(right, Operand::Right, buffer), epilogue, scale }
                .on(self.0.amx, out);
        });
    }
}

/// A right factor, packed.
pub(crate) struct RightPanels<'a>(Panels<'a>);

impl<'a> RightPanels<'a> {
    /// Packs a right factor on all threads.
    ///
    /// # Panics
    ///
    /// If its elements lie side by side along neither dimension.
    pub(crate) fn new(amx: Amx, right: Matrix<'a>) -> Self {
        Self(Panels::new(amx, right, Operand::Right))
    }

    /// [`multiply`] with this right factor.
    ///
    /// # Panics
    ///
    /// As there.
    pub(crate) fn after(&self, left: Matrix<'_>, out: MatrixMut<'_>, epilogue: Epilogue<'_>, scale: f32) {
        let right = self.0.factor();
        LEFT.with_borrow_mut(|buffer| {
            Product { left: Factor::plain(left, Operand::Left, buffer), right, epilogue, scale }
                .on(self.0.amx, out);
        });
    }
}

/// `out = scale * left * right` after what `epilogue` says, on the calling thread.
///
/// # Panics
///
/// If the sizes do not fit, or a factor's elements lie side by side along neither dimension.
pub(crate) fn multiply(
    amx: Amx,
    out: MatrixMut<'_>,
    epilogue: Epilogue<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    LEFT.with_borrow_mut(|left_buffer| {
        RIGHT.with_borrow_mut(|right_buffer| {
            let left = Factor::plain(left, Operand::Left, left_buffer);
            let right = Factor::plain(right, Operand::Right, right_buffer);
            Product { left, right, epilogue, scale }.on(amx, out);
        });
    });
}

/// A factor, packed, and where it was packed from.
struct Panels<'a> {
    amx: Amx,
    matrix: Matrix<'a>,
    operand: Operand,
    lines: Vec<CacheLine>,
}

impl<'a> Panels<'a> {
    fn new(amx: Amx, matrix: Matrix<'a>, operand: Operand) -> Self {
        let (source, [outer, inner]) = operand.source(matrix);
        let lines = operand.bytes(outer, inner) / size_of::<CacheLine>();
        let mut packed: Vec<CacheLine> = Vec::with_capacity(lines);
        let panel = operand.bytes(PANEL, inner);
        let start = Address(packed.as_mut_ptr().cast::<u8>());
        parallel(outer.div_ceil(PANEL), |index| {
            let first = index * PANEL;
            let sizes = [PANEL.min(outer - first), inner];
            // SAFETY: `amx` proves that the CPU has the instructions. The source has these elements, and the capacity holds all panels, of
            // which each task writes one.
            unsafe { pack(source.from(first, 0), sizes, operand, start.at(index * panel)) };
        });
        // SAFETY: `pack` wrote every panel, whole lines each.
        unsafe { packed.set_len(lines) };
        Self { amx, matrix, operand, lines: packed }
    }

    fn factor(&self) -> Factor<'_> {
        let (source, sizes) = self.operand.source(self.matrix);
        let panels = Ready::All(self.lines.as_ptr().cast());
        Factor { matrix: self.matrix, operand: self.operand, source, sizes, panels }
    }
}

/// An address that tasks write to, each its own part.
#[derive(Clone, Copy)]
struct Address(*mut u8);

impl Address {
    fn at(self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

// SAFETY: it is followed by unsafe code alone, which keeps the parts disjoint.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

/// A factor of a product.
struct Factor<'a> {
    matrix: Matrix<'a>,
    operand: Operand,
    source: Source,
    /// Its outer and inner elements.
    sizes: [usize; 2],
    panels: Ready<'a>,
}

/// What of a factor is packed.
enum Ready<'a> {
    /// All of its panels, from here on.
    All(*const u8),
    /// Nothing: some of it at a time is, into this buffer.
    None(&'a mut PackBuffer),
}

impl<'a> Factor<'a> {
    fn plain(matrix: Matrix<'a>, operand: Operand, buffer: &'a mut PackBuffer) -> Self {
        let (source, sizes) = operand.source(matrix);
        Self { matrix, operand, source, sizes, panels: Ready::None(buffer) }
    }

    fn assert_has(&self, outers: &Range<usize>, kc: &Range<usize>) {
        assert!(outers.end <= self.sizes[0] && kc.end <= self.sizes[1] && outers.start.is_multiple_of(PANEL));
    }

    /// Makes some outer elements, from a panel on, ready for [`Factor::take`].
    fn select(&mut self, outers: Range<usize>, kc: Range<usize>) {
        self.assert_has(&outers, &kc);
        if let Ready::None(buffer) = &mut self.panels {
            // SAFETY: the factor has these elements, by the assertion. A product runs only where `Amx` proves the instructions.
            unsafe { buffer.measure(self.source, outers, kc) };
        }
    }

    /// The panels of some of the outer elements that were selected, for the same KC block of inner elements.
    fn take(&mut self, outers: Range<usize>, kc: Range<usize>) -> Taken {
        self.assert_has(&outers, &kc);
        let operand = self.operand;
        match &mut self.panels {
            Ready::All(panels) => {
                let start = panels.wrapping_add(operand.bytes(outers.start, self.sizes[1])).cast_mut();
                Taken { start, inner: self.sizes[1], first: kc.start, operand }
            }
            Ready::None(buffer) => {
                let inner = kc.len();
                // SAFETY: as in `select`, which measured them.
                let start = unsafe { buffer.pack(self.source, outers, kc, operand) };
                Taken { start, inner, first: 0, operand }
            }
        }
    }
}

/// Some panels, which may hold inner elements before and after those that were asked for.
#[derive(Clone, Copy)]
struct Taken {
    start: *mut u8,
    inner: usize,
    first: usize,
    operand: Operand,
}

impl Taken {
    /// The tiles and the units of the panel of `outers` elements from `outer` on.
    ///
    /// # Safety
    ///
    /// These elements were taken, and `outer` begins a panel. The result lasts until the factor takes others.
    unsafe fn panel<'a>(self, outer: usize, outers: usize) -> (*const u8, &'a [f32]) {
        let start = self.start.wrapping_add(self.operand.bytes(outer, self.inner));
        let panel = Panel::new(start, [outers, self.inner], self.operand);
        // SAFETY: a panel ends with a unit for each outer element of its tiles.
        let units = unsafe { slice::from_raw_parts(panel.units(), self.operand.tiles(outers) * SIDE) };
        (panel.block(self.first / DEPTH), units)
    }
}

/// `scale * left * right` after what `epilogue` says.
struct Product<'a> {
    left: Factor<'a>,
    right: Factor<'a>,
    epilogue: Epilogue<'a>,
    scale: f32,
}

impl Product<'_> {
    /// Writes it.
    ///
    /// # Panics
    ///
    /// If the sizes do not fit.
    fn on(mut self, amx: Amx, mut out: MatrixMut<'_>) {
        let ([rows, inner], [columns, right_inner]) = (self.left.sizes, self.right.sizes);
        out.assert_product_of([rows, inner], [right_inner, columns]);
        assert!(inner > 0, "a product of something");
        let tiles = amx.configure();
        let kc = inner.div_ceil(inner.div_ceil(KC)).next_multiple_of(DEPTH);
        let group = match self.right.panels {
            Ready::All(_) if Operand::Right.bytes(columns, inner) <= CACHED_BYTES => PANEL,
            Ready::All(_) => 8 * PANEL,
            Ready::None(_) => MC,
        };
        for first_row in (0..rows).step_by(group) {
            let rows = first_row..(first_row + group).min(rows);
            for first in (0..inner).step_by(kc) {
                let kc = first..(first + kc).min(inner);
                self.left.select(rows.clone(), kc.clone());
                self.right.select(0..columns, kc.clone());
                let left = self.left.take(rows.clone(), kc.clone());
                for column in (0..columns).step_by(PANEL) {
                    let columns = column..(column + PANEL).min(columns);
                    let right = self.right.take(columns.clone(), kc.clone());
                    for row in rows.clone().step_by(PANEL) {
                        let part = [row..(row + PANEL).min(rows.end), kc.clone(), columns.clone()];
                        // SAFETY: the panels of these rows and columns were taken just now.
                        let panels = unsafe {
                            [left.panel(row - rows.start, part[0].len()), right.panel(0, columns.len())]
                        };
                        self.block(&tiles, &mut out, part, panels);
                    }
                }
            }
        }
    }

    /// One panel by one panel.
    fn block(
        &self,
        tiles: &Configured,
        out: &mut MatrixMut<'_>,
        [rows, kc, columns]: [Range<usize>; 3],
        [(left, row_units), (right, column_units)]: [(*const u8, &[f32]); 2],
    ) {
        let epilogue =
            if kc.start > 0 { Epilogue::Accumulate } else { self.epilogue.columns(columns.clone()) };
        let units = [row_units, column_units];
        let (two, blocks) = (rows.len() > SIDE, kc.len().div_ceil(DEPTH));
        let mut sums = MaybeUninit::<TileSums>::uninit();
        let sums = sums.as_mut_ptr().cast();
        let target = out.block(rows.clone(), columns.clone());
        prefetch(&target);
        // SAFETY: the panels have `blocks` blocks of inner elements from their first addresses on, and the left one as many tiles as the rows ask
        // for; there is room for all sums, and those that are read are written. `Amx` proves the instructions.
        let good = unsafe {
            if two {
                two_by_two(tiles, left, right, blocks, sums);
                Block::<2> { out: target, epilogue, scale: self.scale, units, sums }.write(kc.len())
            } else {
                one_by_two(tiles, left, right, blocks, sums);
                Block::<1> { out: target, epilogue, scale: self.scale, units, sums }.write(kc.len())
            }
        };
        if !good {
            let left = self.left.matrix.block(rows.clone(), kc.clone());
            let right = self.right.matrix.block(kc, columns.clone());
            let target = out.block(rows, columns);
            small::multiply(tiles.amx.avx512(), target, epilogue, self.scale, left, right);
        }
    }
}
