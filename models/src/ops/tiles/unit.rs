//! Products on the unit: which parts of the factors are packed and multiplied when.
//!
//! ```text
//! for each group of rows                     packed left panels: second-level cache
//!     for each slab of inner elements
//!         for each panel of columns          packed right panel: first-level cache
//!             for each panel of rows         sums: first-level cache
//!                 multiply; add up or, where that is not good enough, multiply again in float32; write
//! ```

pub(in super::super) use super::amx::Amx;

use super::super::parallel::parallel;
use super::super::small;
use super::amx::Configured;
use super::block::{Block, Sums, prefetch};
use super::kernel::{one_by_two, two_by_two};
use super::pack::{DEPTH, Form, Line, Panel, Room, SIDE, Source, pack};
use super::{Existing, GROUP, Matrix, MatrixMut, PANEL};
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::slice;

const _: () = assert!(PANEL == 2 * SIDE && GROUP == DEPTH && GROUP.is_multiple_of(PANEL));
/// Inner elements of a slab, which are multiplied at a time: a panel of them is as large as the nearest cache, and all sums but those of the
/// last order are exact in float32.
const LARGEST_SLAB: usize = 512;
/// Rows that are packed at a time where neither factor is: they stay in the second-level cache.
const ROWS_OF_BOTH: usize = 1024;
/// Packed right factors of more bytes do not stay in the second-level cache while all rows pass by: more rows are packed at a time.
const CACHED_BYTES: usize = 3 << 19;

thread_local! {
    static LEFT: RefCell<Room> = RefCell::default();
    static RIGHT: RefCell<Room> = RefCell::default();
}

/// A left factor, packed.
pub(in super::super) struct LeftPanels<'a>(Panels<'a>);

impl<'a> LeftPanels<'a> {
    /// Packs a left factor on all threads.
    ///
    /// # Panics
    ///
    /// If its elements lie side by side along neither dimension.
    pub(in super::super) fn new(amx: Amx, left: Matrix<'a>) -> Self {
        Self(Panels::new(amx, left, Form::Left))
    }

    /// [`multiply`] with this left factor.
    ///
    /// # Panics
    ///
    /// As there.
    pub(in super::super) fn before(
        &self,
        right: Matrix<'_>,
        out: MatrixMut<'_>,
        existing: Existing<'_>,
        scale: f32,
    ) {
        let left = self.0.factor();
        RIGHT.with_borrow_mut(|room| {
            Product { left, right: Factor::plain(right, Form::Right, room), existing, scale }
                .on(self.0.amx, out);
        });
    }
}

/// A right factor, packed.
pub(in super::super) struct RightPanels<'a>(Panels<'a>);

impl<'a> RightPanels<'a> {
    /// Packs a right factor on all threads.
    ///
    /// # Panics
    ///
    /// If its elements lie side by side along neither dimension.
    pub(in super::super) fn new(amx: Amx, right: Matrix<'a>) -> Self {
        Self(Panels::new(amx, right, Form::Right))
    }

    /// [`multiply`] with this right factor.
    ///
    /// # Panics
    ///
    /// As there.
    pub(in super::super) fn after(
        &self,
        left: Matrix<'_>,
        out: MatrixMut<'_>,
        existing: Existing<'_>,
        scale: f32,
    ) {
        let right = self.0.factor();
        LEFT.with_borrow_mut(|room| {
            Product { left: Factor::plain(left, Form::Left, room), right, existing, scale }
                .on(self.0.amx, out);
        });
    }
}

/// `out = scale * left * right` after what `existing` says, on the calling thread.
///
/// # Panics
///
/// If the sizes do not fit, or a factor's elements lie side by side along neither dimension.
pub(in super::super) fn multiply(
    amx: Amx,
    out: MatrixMut<'_>,
    existing: Existing<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    LEFT.with_borrow_mut(|left_room| {
        RIGHT.with_borrow_mut(|right_room| {
            let left = Factor::plain(left, Form::Left, left_room);
            let right = Factor::plain(right, Form::Right, right_room);
            Product { left, right, existing, scale }.on(amx, out);
        });
    });
}

/// A factor, packed, and where it was packed from.
struct Panels<'a> {
    amx: Amx,
    matrix: Matrix<'a>,
    form: Form,
    lines: Vec<Line>,
}

impl<'a> Panels<'a> {
    fn new(amx: Amx, matrix: Matrix<'a>, form: Form) -> Self {
        let (source, [outer, inner]) = form.source(matrix);
        let lines = form.bytes(outer, inner) / size_of::<Line>();
        let mut packed: Vec<Line> = Vec::with_capacity(lines);
        let panel = form.bytes(PANEL, inner);
        let start = Address(packed.as_mut_ptr().cast::<u8>());
        parallel(outer.div_ceil(PANEL), |index| {
            let first = index * PANEL;
            let sizes = [PANEL.min(outer - first), inner];
            // SAFETY: `amx` proves that the processor has the instructions. The source has these elements, and the capacity holds all panels, of
            // which each task writes one.
            unsafe { pack(source.from(first, 0), sizes, form, start.at(index * panel)) };
        });
        // SAFETY: `pack` wrote every panel, whole lines each.
        unsafe { packed.set_len(lines) };
        Self { amx, matrix, form, lines: packed }
    }

    fn factor(&self) -> Factor<'_> {
        let (source, sizes) = self.form.source(self.matrix);
        let panels = Ready::All(self.lines.as_ptr().cast());
        Factor { matrix: self.matrix, form: self.form, source, sizes, panels }
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
    form: Form,
    source: Source,
    /// Its outer and inner elements.
    sizes: [usize; 2],
    panels: Ready<'a>,
}

/// What of a factor is packed.
enum Ready<'a> {
    /// All of its panels, from here on.
    All(*const u8),
    /// Nothing: some of it at a time is, into this room.
    None(&'a mut Room),
}

impl<'a> Factor<'a> {
    fn plain(matrix: Matrix<'a>, form: Form, room: &'a mut Room) -> Self {
        let (source, sizes) = form.source(matrix);
        Self { matrix, form, source, sizes, panels: Ready::None(room) }
    }

    fn assert_has(&self, outers: &Range<usize>, slab: &Range<usize>) {
        assert!(
            outers.end <= self.sizes[0] && slab.end <= self.sizes[1] && outers.start.is_multiple_of(PANEL)
        );
    }

    /// Makes some outer elements, from a panel on, ready for [`Factor::take`].
    fn select(&mut self, outers: Range<usize>, slab: Range<usize>) {
        self.assert_has(&outers, &slab);
        if let Ready::None(room) = &mut self.panels {
            // SAFETY: the factor has these elements, by the assertion. A product runs only where `Amx` proves the instructions.
            unsafe { room.measure(self.source, outers, slab) };
        }
    }

    /// The panels of some of the outer elements that were selected, for the same slab of inner elements.
    fn take(&mut self, outers: Range<usize>, slab: Range<usize>) -> Taken {
        self.assert_has(&outers, &slab);
        let form = self.form;
        match &mut self.panels {
            Ready::All(panels) => {
                let start = panels.wrapping_add(form.bytes(outers.start, self.sizes[1])).cast_mut();
                Taken { start, inner: self.sizes[1], first: slab.start, form }
            }
            Ready::None(room) => {
                let inner = slab.len();
                // SAFETY: as in `select`, which measured them.
                let start = unsafe { room.pack(self.source, outers, slab, form) };
                Taken { start, inner, first: 0, form }
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
    form: Form,
}

impl Taken {
    /// The tiles and the units of the panel of `outers` elements from `outer` on.
    ///
    /// # Safety
    ///
    /// These elements were taken, and `outer` begins a panel. The result lasts until the factor takes others.
    unsafe fn panel<'a>(self, outer: usize, outers: usize) -> (*const u8, &'a [f32]) {
        let start = self.start.wrapping_add(self.form.bytes(outer, self.inner));
        let panel = Panel::new(start, [outers, self.inner], self.form);
        // SAFETY: a panel ends with a unit for each outer element of its tiles.
        let units = unsafe { slice::from_raw_parts(panel.units(), self.form.tiles(outers) * SIDE) };
        (panel.block(self.first / DEPTH), units)
    }
}

/// `scale * left * right` after what `existing` says.
struct Product<'a> {
    left: Factor<'a>,
    right: Factor<'a>,
    existing: Existing<'a>,
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
        let unit = amx.configure();
        let slab = inner.div_ceil(inner.div_ceil(LARGEST_SLAB)).next_multiple_of(DEPTH);
        let group = match self.right.panels {
            Ready::All(_) if Form::Right.bytes(columns, inner) <= CACHED_BYTES => PANEL,
            Ready::All(_) => 8 * PANEL,
            Ready::None(_) => ROWS_OF_BOTH,
        };
        for first_row in (0..rows).step_by(group) {
            let rows = first_row..(first_row + group).min(rows);
            for first in (0..inner).step_by(slab) {
                let slab = first..(first + slab).min(inner);
                self.left.select(rows.clone(), slab.clone());
                self.right.select(0..columns, slab.clone());
                let left = self.left.take(rows.clone(), slab.clone());
                for column in (0..columns).step_by(PANEL) {
                    let columns = column..(column + PANEL).min(columns);
                    let right = self.right.take(columns.clone(), slab.clone());
                    for row in rows.clone().step_by(PANEL) {
                        let part = [row..(row + PANEL).min(rows.end), slab.clone(), columns.clone()];
                        // SAFETY: the panels of these rows and columns were taken just now.
                        let panels = unsafe {
                            [left.panel(row - rows.start, part[0].len()), right.panel(0, columns.len())]
                        };
                        self.block(&unit, &mut out, part, panels);
                    }
                }
            }
        }
    }

    /// One panel by one panel.
    fn block(
        &self,
        unit: &Configured,
        out: &mut MatrixMut<'_>,
        [rows, slab, columns]: [Range<usize>; 3],
        [(left, row_units), (right, column_units)]: [(*const u8, &[f32]); 2],
    ) {
        let existing = if slab.start > 0 { Existing::Add } else { self.existing.columns(columns.clone()) };
        let units = [row_units, column_units];
        let (two, blocks) = (rows.len() > SIDE, slab.len().div_ceil(DEPTH));
        let mut sums = MaybeUninit::<Sums>::uninit();
        let sums = sums.as_mut_ptr().cast();
        let target = out.block(rows.clone(), columns.clone());
        prefetch(&target);
        // SAFETY: the panels have `blocks` blocks of inner elements from their first addresses on, and the left one as many tiles as the rows ask
        // for; there is room for all sums, and those that are read are written. `Amx` proves the instructions.
        let good = unsafe {
            if two {
                two_by_two(unit, left, right, blocks, sums);
                Block::<2> { out: target, existing, scale: self.scale, units, sums }.write(slab.len())
            } else {
                one_by_two(unit, left, right, blocks, sums);
                Block::<1> { out: target, existing, scale: self.scale, units, sums }.write(slab.len())
            }
        };
        if !good {
            let left = self.left.matrix.block(rows.clone(), slab.clone());
            let right = self.right.matrix.block(slab, columns.clone());
            let target = out.block(rows, columns);
            small::multiply(unit.amx.avx512(), target, existing, self.scale, left, right);
        }
    }
}
