//! Products on AMX: the loops over the blocks of both factors, which are packed and multiplied.
//!
//! ```text
//! for MC rows                                 left factor, packed: second-level cache
//!   for KC inner elements                     a panel of 32 outer elements is 48 KiB: first-level cache
//!     pack the MC x KC block of the left factor
//!     for 32 columns (a panel)                pack the KC x 32 panel of the right factor: first-level cache
//!       for 32 rows (a panel)
//!         for 64 inner elements (a tile)      micro-kernel: 2 x 2 tiles of sums for each order of digits: 8 registers
//!         join the orders, check the block, write it with its epilogue, or compute it again in float32
//! ```
//!
//! The error of a row or column of a block is less than about 4e-6 of its size (root mean square), as the parent module
//! derives.

use super::super::small;
use super::super::view::{Epilogue, Matrix, MatrixMut};
use super::block::{OutputBlock, TileSums, prefetch};
use super::detect::{Amx, Configured};
use super::kernel::{one_by_two, two_by_two};
use super::pack::{CacheLine, Operand, PackBuffer, Panel, Source, pack};
use super::shape::{DEPTH, PANEL, SIDE};
use crate::cpu::threads::parallel;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

/// The inner elements that are multiplied at a time (a KC block): a panel of them fills the first-level cache, and the
/// sums of all orders but the last are exact in float32.
const KC: usize = 512;
/// The rows that are packed at a time (an MC block) if neither factor was packed before: they stay in the second-level
/// cache.
const MC: usize = 1024;
/// The size up to which a packed right factor stays in the second-level cache while all rows are multiplied with it.
/// For larger ones, more rows are packed at a time.
const CACHED_BYTES: usize = 3 << 19;

thread_local! {
    static LEFT: RefCell<PackBuffer> = RefCell::default();
    static RIGHT: RefCell<PackBuffer> = RefCell::default();
}

/// A packed left factor.
pub(crate) struct LeftPanels<'a>(Panels<'a>);

impl<'a> LeftPanels<'a> {
    /// Packs a left factor on all threads.
    ///
    /// # Panics
    ///
    /// If the factor is not [compact](Matrix::compact).
    pub(crate) fn new(amx: Amx, left: Matrix<'a>) -> Self {
        Self(Panels::new(amx, left, Operand::Left))
    }

    /// [`multiply`] with this left factor.
    ///
    /// # Panics
    ///
    /// If the sizes do not fit, or `right` is not [compact](Matrix::compact).
    pub(crate) fn before(&self, right: Matrix<'_>, out: MatrixMut<'_>, epilogue: Epilogue<'_>, scale: f32) {
        let left = self.0.factor();
        RIGHT.with_borrow_mut(|buffer| {
            Product { left, right: Factor::plain(right, Operand::Right, buffer), epilogue, scale }
                .on(self.0.amx, out);
        });
    }
}

/// A packed right factor.
pub(crate) struct RightPanels<'a>(Panels<'a>);

impl<'a> RightPanels<'a> {
    /// Packs a right factor on all threads.
    ///
    /// # Panics
    ///
    /// If the factor is not [compact](Matrix::compact).
    pub(crate) fn new(amx: Amx, right: Matrix<'a>) -> Self {
        Self(Panels::new(amx, right, Operand::Right))
    }

    /// [`multiply`] with this right factor.
    ///
    /// # Panics
    ///
    /// If the sizes do not fit, or `left` is not [compact](Matrix::compact).
    pub(crate) fn after(&self, left: Matrix<'_>, out: MatrixMut<'_>, epilogue: Epilogue<'_>, scale: f32) {
        let right = self.0.factor();
        LEFT.with_borrow_mut(|buffer| {
            Product { left: Factor::plain(left, Operand::Left, buffer), right, epilogue, scale }
                .on(self.0.amx, out);
        });
    }
}

/// `out = scale * left * right`, added to what `epilogue` says, on the calling thread.
///
/// # Panics
///
/// If the sizes do not fit, or a factor is not [compact](Matrix::compact).
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

/// A packed factor, and the matrix that it was packed from.
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
            // SAFETY: `amx` proves that the CPU has the instructions. The source has these elements; the capacity of
            // `packed` holds all panels, and each task writes its own.
            unsafe { pack(source.from(first, 0), sizes, operand, start.at(index * panel)) };
        });
        // SAFETY: the tasks packed every panel, and each panel consists of whole lines.
        unsafe { packed.set_len(lines) };
        Self { amx, matrix, operand, lines: packed }
    }

    fn factor(&self) -> Factor<'_> {
        let (source, sizes) = self.operand.source(self.matrix);
        let panels = Packing::All(self.lines.as_ptr().cast());
        Factor { matrix: self.matrix, operand: self.operand, source, sizes, panels }
    }
}

/// The address of memory that tasks write, each its own part.
#[derive(Clone, Copy)]
struct Address(*mut u8);

impl Address {
    fn at(self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

// SAFETY: an address can be dereferenced only by unsafe code, which keeps the parts of the tasks disjoint.
unsafe impl Send for Address {}
// SAFETY: see `Send`.
unsafe impl Sync for Address {}

/// A factor of a product.
struct Factor<'a> {
    matrix: Matrix<'a>,
    operand: Operand,
    source: Source,
    /// The number of its outer and of its inner elements.
    sizes: [usize; 2],
    panels: Packing<'a>,
}

/// Whether a factor was packed before its product.
enum Packing<'a> {
    /// All of its panels were packed, and begin here.
    All(*const u8),
    /// It was not: the product packs a part at a time into this buffer.
    None(&'a mut PackBuffer),
}

impl<'a> Factor<'a> {
    fn plain(matrix: Matrix<'a>, operand: Operand, buffer: &'a mut PackBuffer) -> Self {
        let (source, sizes) = operand.source(matrix);
        Self { matrix, operand, source, sizes, panels: Packing::None(buffer) }
    }

    fn assert_has(&self, outers: &Range<usize>, kc: &Range<usize>) {
        assert!(outers.end <= self.sizes[0] && kc.end <= self.sizes[1] && outers.start.is_multiple_of(PANEL));
    }

    /// Prepares a range of outer elements, which begins with a panel, for [`Factor::take`].
    fn select(&mut self, outers: Range<usize>, kc: Range<usize>) {
        self.assert_has(&outers, &kc);
        if let Packing::None(buffer) = &mut self.panels {
            // SAFETY: the factor has these elements, by the assertion. A product runs only with an `Amx`, which proves
            // the instructions.
            unsafe { buffer.measure(self.source, outers, kc) };
        }
    }

    /// The panels of outer elements that were selected, for the same KC block of inner elements.
    fn take(&mut self, outers: Range<usize>, kc: Range<usize>) -> Taken {
        self.assert_has(&outers, &kc);
        let operand = self.operand;
        match &mut self.panels {
            Packing::All(panels) => {
                let start = panels.wrapping_add(operand.bytes(outers.start, self.sizes[1])).cast_mut();
                Taken { start, inner: self.sizes[1], first: kc.start, operand }
            }
            Packing::None(buffer) => {
                let inner = kc.len();
                // SAFETY: `select` measured these elements of the same source; a product runs only with an `Amx`, which
                // proves the instructions.
                let start = unsafe { buffer.pack(self.source, outers, kc, operand) };
                Taken { start, inner, first: 0, operand }
            }
        }
    }
}

/// Packed panels, which may hold inner elements before and after the KC block that was asked for.
#[derive(Clone, Copy)]
struct Taken {
    start: *mut u8,
    inner: usize,
    first: usize,
    operand: Operand,
}

impl Taken {
    /// The address of the tiles, and the units, of the panel that begins with the element `outer` and has `outers`
    /// elements.
    ///
    /// # Safety
    ///
    /// - The elements `outer..outer + outers` must be among those that were taken, and `outer` must begin a panel.
    /// - The result must not be used after the factor takes other elements.
    unsafe fn panel<'a>(self, outer: usize, outers: usize) -> (*const u8, &'a [f32]) {
        let start = self.start.wrapping_add(self.operand.bytes(outer, self.inner));
        let panel = Panel::new(start, [outers, self.inner], self.operand);
        // SAFETY: the panel was packed, as the caller promises, and ends with a unit for each outer element of its
        // tiles.
        let units = unsafe { slice::from_raw_parts(panel.units(), self.operand.tiles(outers) * SIDE) };
        (panel.block(self.first / DEPTH), units)
    }
}

/// The product `scale * left * right`, added to what `epilogue` says.
struct Product<'a> {
    left: Factor<'a>,
    right: Factor<'a>,
    epilogue: Epilogue<'a>,
    scale: f32,
}

impl Product<'_> {
    /// Writes the product to `out`.
    ///
    /// # Panics
    ///
    /// If the sizes do not fit.
    fn on(mut self, amx: Amx, mut out: MatrixMut<'_>) {
        let ([rows, inner], [columns, right_inner]) = (self.left.sizes, self.right.sizes);
        out.assert_product_of([rows, inner], [right_inner, columns]);
        assert!(inner > 0, "a product on AMX must have inner elements");
        let tiles = amx.configure();
        let kc = inner.div_ceil(inner.div_ceil(KC)).next_multiple_of(DEPTH);
        let group = match self.right.panels {
            Packing::All(_) if Operand::Right.bytes(columns, inner) <= CACHED_BYTES => PANEL,
            Packing::All(_) => 8 * PANEL,
            Packing::None(_) => MC,
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
                        // SAFETY: these rows and columns were taken above, and both ranges begin a panel; the panels
                        // are used before the factors take others.
                        let panels = unsafe {
                            [left.panel(row - rows.start, part[0].len()), right.panel(0, columns.len())]
                        };
                        self.block(&tiles, &mut out, part, panels);
                    }
                }
            }
        }
    }

    /// The product of one panel by one panel.
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
        // SAFETY: the panels have `blocks` blocks from their addresses on, and the left panel has as many tiles as the
        // rows need. `sums` has room for all sums, and the kernel writes every sum that the block reads. `tiles` proves
        // the instructions.
        let good = unsafe {
            if two {
                two_by_two(tiles, left, right, blocks, sums);
                OutputBlock::<2> { out: target, epilogue, scale: self.scale, units, sums }.write(kc.len())
            } else {
                one_by_two(tiles, left, right, blocks, sums);
                OutputBlock::<1> { out: target, epilogue, scale: self.scale, units, sums }.write(kc.len())
            }
        };
        if !good {
            let left = self.left.matrix.block(rows.clone(), kc.clone());
            let right = self.right.matrix.block(kc, columns.clone());
            let target = out.block(rows, columns);
            small::multiply(
                small::Instructions::Avx512(tiles.amx.avx512()),
                target,
                epilogue,
                self.scale,
                left,
                right,
            );
        }
    }
}
