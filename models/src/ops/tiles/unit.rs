//! The matrix unit of x86 processors (Intel's AMX-BF16), on Linux, which asks programs to say that they use it.

use super::super::avx512::{first_lanes, write};
use super::super::parallel::parallel;
use super::kernel::{high, highest};
use super::pack::{DEPTH, Form, Line, Room, SIDE, Source, pack, packed_bytes};
use super::{Existing, Matrix, MatrixMut, PANEL, Precision};
use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::mem::MaybeUninit;

const _: () = assert!(PANEL == 2 * SIDE);
/// Inner elements that are packed at a time beside a packed right factor: a panel of them fits the nearest cache.
fn slab(precision: Precision) -> usize {
    const NEAREST_CACHE: usize = 48 * 1024;
    NEAREST_CACHE / packed_bytes(PANEL, DEPTH, precision) * DEPTH
}

/// Inner elements that are packed at a time where neither factor is packed yet.
const SLAB_OF_BOTH: usize = 128;
/// Rows that are packed at a time where neither factor is: they stay in the second-level cache.
const ROWS_OF_BOTH: usize = 1024;
/// Packed right factors of more bytes do not stay in the second-level cache while all rows pass by: more rows are packed at a time.
const CACHED_BYTES: usize = 3 << 19;

/// Asks the processor and the system for the use of the unit.
pub(in super::super) fn request() -> bool {
    const TILE: u32 = 1 << 24;
    const BFLOAT16: u32 = 1 << 22;
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_ulong = 18;
    let features = __cpuid_count(7, 0).edx;
    features & (TILE | BFLOAT16) == TILE | BFLOAT16
        && is_x86_feature_detected!("avx512f")
        // SAFETY: the call changes nothing but what all threads of the program may use, and what stacks for signals they may ask for next:
        // ones too small for the tiles are refused. Where a thread has such a stack already, the call is.
        && unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) } == 0
}

thread_local! {
    static LEFT: RefCell<Room> = RefCell::default();
    static RIGHT: RefCell<Room> = RefCell::default();
}

/// A factor, packed: for each panel of rows of a left one or columns of a right one, for each block of inner elements, the parts of the
/// panel's one or two tiles.
pub(in super::super) struct Panels {
    lines: Vec<Line>,
    outer: usize,
    inner: usize,
}

impl Panels {
    /// Packs a left factor on the thread pool.
    ///
    /// # Panics
    ///
    /// If its elements lie side by side along neither dimension.
    pub(in super::super) fn left(left: Matrix<'_>) -> Self {
        Self::new(Source::of(left), [left.rows, left.columns], Form::Left)
    }

    /// Packs a right factor on the thread pool.
    ///
    /// # Panics
    ///
    /// If its elements lie side by side along neither dimension.
    pub(in super::super) fn right(right: Matrix<'_>) -> Self {
        Self::new(Source::of(right.transposed()), [right.columns, right.rows], Form::Right)
    }

    fn new(source: Source, [outer, inner]: [usize; 2], form: Form) -> Self {
        let precision = Precision::Highest;
        let lines = packed_bytes(outer, inner, precision) / size_of::<Line>();
        let mut packed: Vec<Line> = Vec::with_capacity(lines);
        let panel = packed_bytes(PANEL, inner, precision);
        let start = Address(packed.as_mut_ptr().cast::<u8>());
        parallel(outer.div_ceil(PANEL), |index| {
            let first = index * PANEL;
            // SAFETY: each task packs a panel of its own.
            unsafe {
                let sizes = [PANEL.min(outer - first), inner];
                pack(source.from(first, 0), sizes, form, precision, start.at(index * panel));
            }
        });
        // SAFETY: `pack` wrote every tile.
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
            unsafe { Unit::new(Precision::Highest).multiply(out, existing, scale, left, right, self.inner) };
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
            unsafe { Unit::new(Precision::Highest).multiply(out, existing, scale, left, right, self.inner) };
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
    precision: Precision,
) {
    out.assert_product_of([left.rows, left.columns], [right.rows, right.columns]);
    let inner = right.rows;
    let (left, right) = (Source::of(left), Source::of(right.transposed()));
    LEFT.with_borrow_mut(|left_room| {
        RIGHT.with_borrow_mut(|right_room| {
            let (left, right) = (Factor::Plain(left, left_room), Factor::Plain(right, right_room));
            // SAFETY: the factors have the sizes that the output asks for; `available` was asked before.
            unsafe {
                Unit::new(precision.in_effect()).multiply(out, existing, scale, left, right, inner);
            };
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
    /// The panels of `outers` elements from `outer` on, a whole number of panels, and of `inners` inner elements of all `inner`, from
    /// `first` on.
    ///
    /// # Safety
    ///
    /// The factor has these elements.
    unsafe fn take(
        &mut self,
        [outer, outers]: [usize; 2],
        [first, inners]: [usize; 2],
        inner: usize,
        form: Form,
        precision: Precision,
    ) -> Taken {
        match self {
            Self::Packed(panels) => {
                let start = panels.wrapping_add(packed_bytes(outer, inner, precision));
                Taken { start, inner, first, precision }
            }
            Self::Plain(source, room) => {
                let start = room.of(packed_bytes(outers, inners, precision));
                // SAFETY: by the caller's word.
                unsafe { pack(source.from(outer, first), [outers, inners], form, precision, start) };
                Taken { start, inner: inners, first: 0, precision }
            }
        }
    }
}

/// Some panels, which may hold inner elements before and after those that were asked for.
#[derive(Clone, Copy)]
struct Taken {
    start: *const u8,
    inner: usize,
    first: usize,
    precision: Precision,
}

impl Taken {
    /// The panel of `outers` elements from `outer` on.
    fn panel(self, outer: usize, outers: usize) -> *const u8 {
        let bytes = |outer, inner| packed_bytes(outer, inner, self.precision);
        self.start.wrapping_add(bytes(outer, self.inner) + bytes(outers, self.first))
    }
}

/// The unit, set up on this thread for full tiles; given back when dropped, so that a change of threads has no tiles to save.
struct Unit {
    precision: Precision,
}

impl Unit {
    fn new(precision: Precision) -> Self {
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
        Self { precision }
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
        let precision = self.precision;
        let slab = slab(precision);
        let (group, slab) = match right {
            Factor::Packed(_) if packed_bytes(out.columns, inner, precision) <= CACHED_BYTES => (PANEL, slab),
            Factor::Packed(_) => (8 * PANEL, slab),
            Factor::Plain(..) if inner <= slab => (ROWS_OF_BOTH, slab),
            Factor::Plain(..) => (ROWS_OF_BOTH, SLAB_OF_BOTH),
        };
        for first_row in (0..out.rows).step_by(group) {
            let rows = group.min(out.rows - first_row);
            for first in (0..inner).step_by(slab) {
                let depth = slab.min(inner - first);
                // SAFETY: by the caller's word.
                let left =
                    unsafe { left.take([first_row, rows], [first, depth], inner, Form::Left, precision) };
                for column in (0..out.columns).step_by(PANEL) {
                    let columns = PANEL.min(out.columns - column);
                    // SAFETY: by the caller's word.
                    let right = unsafe {
                        right.take([column, columns], [first, depth], inner, Form::Right, precision)
                    };
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
                        unsafe { self.block(block, left, right, depth.div_ceil(DEPTH)) };
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
    unsafe fn block(&self, block: Block<'_>, left: *const u8, right: *const u8, blocks: usize) {
        let mut sums = MaybeUninit::<Sums>::uninit();
        let two = (block.rows > SIDE, block.columns > SIDE);
        let kernels = match self.precision {
            Precision::High => &high::KERNELS,
            Precision::Highest => &highest::KERNELS,
        };
        let kernel = kernels[usize::from(two.0)][usize::from(two.1)];
        // SAFETY: by the caller's word; the sums have room for four tiles, which every kernel writes.
        unsafe {
            kernel(left, right, blocks, sums.as_mut_ptr().cast());
            let sums = sums.assume_init_ref();
            match two {
                (true, true) => block.finish::<2, 2>(sums),
                (true, false) => block.finish::<2, 1>(sums),
                (false, true) => block.finish::<1, 2>(sums),
                (false, false) => block.finish::<1, 1>(sums),
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

/// The four tiles of sums. Where the output has fewer tiles, the others hold further parts of the same sums.
#[repr(C, align(64))]
struct Sums([f32; 4 * SIDE * SIDE]);

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

    /// Writes the sums.
    ///
    /// # Safety
    ///
    /// The output has these rows and columns.
    #[target_feature(enable = "avx512f")]
    unsafe fn finish<const ROWS: usize, const COLUMNS: usize>(&self, sums: &Sums) {
        let scale = _mm512_set1_ps(self.scale);
        for column_tile in 0..COLUMNS {
            let column = column_tile * SIDE;
            let mask = first_lanes(self.columns - column);
            // SAFETY: masked; the sums have four tiles; the output has these rows and columns by the caller's word.
            unsafe {
                for row in 0..self.rows {
                    let tile = row / SIDE * COLUMNS + column_tile;
                    let mut from = sums.0.as_ptr().add((tile * SIDE + row % SIDE) * SIDE);
                    let mut sum = _mm512_load_ps(from);
                    for _ in 1..4 / (ROWS * COLUMNS) {
                        from = from.add(ROWS * COLUMNS * SIDE * SIDE);
                        sum = _mm512_add_ps(sum, _mm512_load_ps(from));
                    }
                    let to = self.start.add(row * self.row_stride + column);
                    write(sum, scale, self.existing, column, to, mask);
                }
            }
        }
    }
}
