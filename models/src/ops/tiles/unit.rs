//! The matrix unit of x86 processors (Intel's AMX-INT8), on Linux, which asks programs to say that they use it.

use super::super::avx512::{first_lanes, write};
use super::super::parallel::parallel;
use super::kernel::{TILE_SUMS, one_by_two, two_by_two};
use super::pack::{DEPTH, DIGITS, Form, Line, Panel, Room, SIDE, Source, pack};
use super::{Existing, GROUP, Matrix, MatrixMut, PANEL};
use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::ops::Range;

const _: () = assert!(PANEL == 2 * SIDE && GROUP == DEPTH && GROUP.is_multiple_of(PANEL));
/// Inner elements of a slab, which are multiplied at a time: a panel of them is as large as the nearest cache, and all sums but those of the
/// last order are exact in float32.
const LARGEST_SLAB: usize = 512;
/// Rows that are packed at a time where neither factor is: they stay in the second-level cache.
const ROWS_OF_BOTH: usize = 1024;
/// Packed right factors of more bytes do not stay in the second-level cache while all rows pass by: more rows are packed at a time.
const CACHED_BYTES: usize = 3 << 19;

/// Asks the processor and the system for the use of the unit.
pub(in super::super) fn request() -> bool {
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    let features = __cpuid_count(7, 0).edx;
    features & (TILE | INT8) == TILE | INT8
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vbmi")
        // SAFETY: the call changes nothing but what all threads of the program may use, and what stacks for signals they may ask for next:
        // ones too small for the tiles are refused. Where a thread has such a stack already, the call is.
        && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) } == 0
}

thread_local! {
    static LEFT: RefCell<Room> = RefCell::default();
    static RIGHT: RefCell<Room> = RefCell::default();
}

/// A factor, packed: panels of rows of a left one or columns of a right one.
pub(in super::super) struct Panels {
    lines: Vec<Line>,
    outer: usize,
    inner: usize,
}

impl Panels {
    /// Packs a left factor on all threads.
    ///
    /// # Panics
    ///
    /// If its elements lie side by side along neither dimension.
    pub(in super::super) fn left(left: Matrix<'_>) -> Self {
        Self::new(Source::of(left), [left.rows, left.columns], Form::Left)
    }

    /// Packs a right factor on all threads.
    ///
    /// # Panics
    ///
    /// If its elements lie side by side along neither dimension.
    pub(in super::super) fn right(right: Matrix<'_>) -> Self {
        Self::new(Source::of(right.transposed()), [right.columns, right.rows], Form::Right)
    }

    fn new(source: Source, [outer, inner]: [usize; 2], form: Form) -> Self {
        let lines = form.bytes(outer, inner) / size_of::<Line>();
        let mut packed: Vec<Line> = Vec::with_capacity(lines);
        let panel = form.bytes(PANEL, inner);
        let start = Address(packed.as_mut_ptr().cast::<u8>());
        parallel(outer.div_ceil(PANEL), |index| {
            let first = index * PANEL;
            // SAFETY: each task packs a panel of its own.
            unsafe {
                let sizes = [PANEL.min(outer - first), inner];
                pack(source.from(first, 0), sizes, form, start.at(index * panel));
            }
        });
        // SAFETY: `pack` wrote every panel.
        unsafe { packed.set_len(lines) };
        Self { lines: packed, outer, inner }
    }

    /// [`multiply`] with this right factor.
    pub(in super::super) fn after(
        &self,
        left: Matrix<'_>,
        out: MatrixMut<'_>,
        existing: Existing<'_>,
        scale: f32,
    ) {
        out.assert_product_of([left.rows, left.columns], [self.inner, self.outer]);
        let source = Source::of(left);
        let panels = self.lines.as_ptr().cast();
        LEFT.with_borrow_mut(|room| {
            let (left, right) = (Factor::Plain(source, room), Factor::Packed(panels));
            // SAFETY: the factors have the sizes that the output asks for; `available` was asked before anything was packed.
            unsafe { Unit::new().multiply(out, existing, scale, left, right, self.inner) };
        });
    }

    /// [`multiply`] with this left factor.
    pub(in super::super) fn before(
        &self,
        right: Matrix<'_>,
        out: MatrixMut<'_>,
        existing: Existing<'_>,
        scale: f32,
    ) {
        out.assert_product_of([self.outer, self.inner], [right.rows, right.columns]);
        let source = Source::of(right.transposed());
        let panels = self.lines.as_ptr().cast();
        RIGHT.with_borrow_mut(|room| {
            let (left, right) = (Factor::Packed(panels), Factor::Plain(source, room));
            // SAFETY: as in `after`.
            unsafe { Unit::new().multiply(out, existing, scale, left, right, self.inner) };
        });
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
unsafe impl Sync for Address {}

/// `out = scale * left * right` after what `existing` says, on the calling thread.
///
/// # Panics
///
/// If the sizes do not fit, or a factor's elements lie side by side along neither dimension.
pub(in super::super) fn multiply(
    out: MatrixMut<'_>,
    existing: Existing<'_>,
    scale: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
) {
    out.assert_product_of([left.rows, left.columns], [right.rows, right.columns]);
    let inner = right.rows;
    let (left, right) = (Source::of(left), Source::of(right.transposed()));
    LEFT.with_borrow_mut(|left_room| {
        RIGHT.with_borrow_mut(|right_room| {
            let (left, right) = (Factor::Plain(left, left_room), Factor::Plain(right, right_room));
            // SAFETY: the factors have the sizes that the output asks for; `available` was asked before.
            unsafe { Unit::new().multiply(out, existing, scale, left, right, inner) };
        });
    });
}

/// A factor of a product.
enum Factor<'a> {
    /// All of its panels.
    Packed(*const u8),
    /// To be packed, some of it at a time, into this room.
    Plain(Source, &'a mut Room),
}

impl Factor<'_> {
    /// Makes some outer elements ready for [`Factor::take`].
    ///
    /// # Safety
    ///
    /// The factor has these elements.
    unsafe fn select(&mut self, outers: Range<usize>, slab: Range<usize>) {
        if let Self::Plain(source, room) = self {
            // SAFETY: by the caller's word.
            unsafe { room.measure(*source, outers, slab) };
        }
    }

    /// The panels of some of the outer elements that were selected, for the same slab of all `inner` inner elements.
    ///
    /// # Safety
    ///
    /// The factor has these elements, and `outers` begins with a panel.
    unsafe fn take(&mut self, outers: Range<usize>, slab: Range<usize>, inner: usize, form: Form) -> Taken {
        match self {
            Self::Packed(panels) => {
                let start = panels.wrapping_add(form.bytes(outers.start, inner)).cast_mut();
                Taken { start, inner, first: slab.start, form }
            }
            Self::Plain(source, room) => {
                let inner = slab.len();
                // SAFETY: by the caller's word.
                let start = unsafe { room.pack(*source, outers, slab, form) };
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
    fn panel(self, outer: usize, outers: usize) -> (*const u8, *const f32) {
        let start = self.start.wrapping_add(self.form.bytes(outer, self.inner));
        let panel = Panel::new(start, [outers, self.inner], self.form);
        (panel.block(self.first / DEPTH), panel.units())
    }
}

/// The unit, set up on this thread for full tiles; given back when dropped, so that a change of threads has no tiles to save.
struct Unit;

impl Unit {
    fn new() -> Self {
        #[repr(C, align(64))]
        struct Configuration {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            row_bytes: [u16; 16],
            rows: [u8; 16],
        }
        static FULL: Configuration = {
            let (mut row_bytes, mut rows) = ([0; 16], [0; 16]);
            let mut tile = 0;
            while tile < 8 {
                row_bytes[tile] = 64;
                rows[tile] = SIDE as u8;
                tile += 1;
            }
            Configuration { palette: 1, start_row: 0, reserved: [0; 14], row_bytes, rows }
        };
        // SAFETY: a valid configuration; `available` is asked before anything here runs.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const FULL, options(nostack, readonly)) };
        Self
    }

    /// The product of two factors.
    ///
    /// # Safety
    ///
    /// The left factor has `out.rows` outer and `inner` inner elements, the right one `out.columns` and `inner`.
    unsafe fn multiply(
        &self,
        out: MatrixMut<'_>,
        existing: Existing<'_>,
        scale: f32,
        mut left: Factor<'_>,
        mut right: Factor<'_>,
        inner: usize,
    ) {
        debug_assert!(inner > 0);
        let slab = inner.div_ceil(inner.div_ceil(LARGEST_SLAB)).next_multiple_of(DEPTH);
        let group = match right {
            Factor::Packed(_) if Form::Right.bytes(out.columns, inner) <= CACHED_BYTES => PANEL,
            Factor::Packed(_) => 8 * PANEL,
            Factor::Plain(..) => ROWS_OF_BOTH,
        };
        for first_row in (0..out.rows).step_by(group) {
            let rows = group.min(out.rows - first_row);
            for first in (0..inner).step_by(slab) {
                let slab = first..(first + slab).min(inner);
                // SAFETY: by the caller's word.
                let left = unsafe {
                    left.select(first_row..first_row + rows, slab.clone());
                    right.select(0..out.columns, slab.clone());
                    left.take(first_row..first_row + rows, slab.clone(), inner, Form::Left)
                };
                for column in (0..out.columns).step_by(PANEL) {
                    let columns = PANEL.min(out.columns - column);
                    // SAFETY: by the caller's word.
                    let right =
                        unsafe { right.take(column..column + columns, slab.clone(), inner, Form::Right) };
                    let right = right.panel(0, columns);
                    for row in (0..rows).step_by(PANEL) {
                        let block = Block {
                            start: out.start.wrapping_add((first_row + row) * out.row_stride + column),
                            row_stride: out.row_stride,
                            rows: PANEL.min(rows - row),
                            columns,
                            scale,
                            existing: if first > 0 {
                                Existing::Add
                            } else {
                                existing.columns(column..column + columns)
                            },
                        };
                        let left = left.panel(row, PANEL.min(rows - row));
                        block.prefetch();
                        // SAFETY: by the caller's word.
                        unsafe { self.block(block, left, right, slab.len().div_ceil(DEPTH)) };
                    }
                }
            }
        }
    }

    /// One panel by one panel.
    ///
    /// # Safety
    ///
    /// The panels have `blocks` blocks of inner elements, and as many tiles as the output asks for.
    unsafe fn block(
        &self,
        block: Block<'_>,
        (left, left_units): (*const u8, *const f32),
        (right, right_units): (*const u8, *const f32),
        blocks: usize,
    ) {
        let mut sums = MaybeUninit::<Sums>::uninit();
        let start = sums.as_mut_ptr().cast();
        // SAFETY: by the caller's word; the sums have room for all tiles, and those that are read are written.
        unsafe {
            if block.rows > SIDE {
                two_by_two(left, right, blocks, start);
                block.finish::<2>(start, left_units, right_units);
            } else {
                one_by_two(left, right, blocks, start);
                block.finish::<1>(start, left_units, right_units);
            }
        }
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // SAFETY: no tile is in use any more.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}

/// The sums of two by two tiles of products, for each order of digits.
#[repr(C, align(64))]
struct Sums([i32; DIGITS * 4 * TILE_SUMS]);

/// Up to two by two tiles of the output.
struct Block<'a> {
    start: *mut f32,
    row_stride: usize,
    rows: usize,
    columns: usize,
    scale: f32,
    existing: Existing<'a>,
}

impl Block<'_> {
    /// Asks for the lines that will be written: they come while the sums are computed.
    fn prefetch(&self) {
        for row in 0..self.rows {
            let from = self.start.wrapping_add(row * self.row_stride);
            // SAFETY: no address is followed.
            unsafe {
                asm!("prefetchw [{}]", in(reg) from, options(nostack, readonly, preserves_flags));
            }
            if self.columns > SIDE {
                // SAFETY: as above.
                unsafe {
                    asm!("prefetchw [{} + 64]", in(reg) from, options(nostack, readonly, preserves_flags))
                };
            }
        }
    }

    /// Writes what `ROWS` by two tiles of sums come to.
    ///
    /// # Safety
    ///
    /// The output has these rows and columns, each has a unit, and the sums are there.
    #[target_feature(enable = "avx512f")]
    unsafe fn finish<const ROWS: usize>(
        &self,
        sums: *const i32,
        row_units: *const f32,
        column_units: *const f32,
    ) {
        // of the products of two first digits, in products of units, which are 64 of each; a digit further is a byte less
        const ORDERS: [f32; DIGITS] = [1.0 / 4096.0, 1.0 / 4096.0 / 256.0, 1.0 / 4096.0 / 65536.0];
        let [first, second, third] = ORDERS.map(|order| _mm512_set1_ps(order));
        for column_tile in 0..self.columns.div_ceil(SIDE) {
            let column = column_tile * SIDE;
            let mask = first_lanes(self.columns - column);
            // SAFETY: masked; by the caller's word.
            unsafe {
                let units =
                    _mm512_mul_ps(_mm512_loadu_ps(column_units.add(column)), _mm512_set1_ps(self.scale));
                for row in 0..self.rows {
                    let tile = row / SIDE * 2 + column_tile;
                    let from = sums.add(tile * TILE_SUMS + row % SIDE * SIDE);
                    let [a, b, c] = [0, 1, 2].map(|order| {
                        _mm512_cvtepi32_ps(_mm512_load_si512(from.add(order * ROWS * 2 * TILE_SUMS).cast()))
                    });
                    let sum = _mm512_fmadd_ps(a, first, _mm512_fmadd_ps(b, second, _mm512_mul_ps(c, third)));
                    let units = _mm512_mul_ps(units, _mm512_set1_ps(*row_units.add(row)));
                    let to = self.start.add(row * self.row_stride + column);
                    write(sum, units, self.existing, column, to, mask);
                }
            }
        }
    }
}
