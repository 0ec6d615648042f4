//! The matrix unit of x86 processors (Intel's AMX-BF16), on Linux, which asks programs to say that they use it.

use super::super::parallel::parallel;
use super::super::small::avx512::{first_lanes, turn};
use super::{Existing, Matrix, MatrixMut, PANEL};
use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::mem::MaybeUninit;

/// Rows of a tile, and pairs in a row.
const SIDE: usize = 16;
/// Inner elements of a tile.
const DEPTH: usize = 2 * SIDE;
const _: () = assert!(PANEL == 2 * SIDE);
/// The bfloat16 that a float32 is cut into.
const PARTS: usize = 3;
const TILE_BYTES: usize = 1024;
/// Inner elements that are packed at a time beside a packed right factor: a panel of them fits the nearest cache.
const SLAB: usize = 256;
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

/// A cache line of packed elements.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Room for packed elements, kept from product to product.
#[derive(Default)]
struct Room(Vec<Line>);

impl Room {
    fn of(&mut self, bytes: usize) -> *mut u8 {
        let lines = bytes.div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 64]));
        }
        self.0.as_mut_ptr().cast()
    }
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

/// The bytes of a packed factor.
fn packed_bytes(outer: usize, inner: usize) -> usize {
    outer.div_ceil(SIDE) * inner.div_ceil(DEPTH) * PARTS * TILE_BYTES
}

impl Panels {
    /// Packs a left factor on the thread pool. `None` if its elements lie side by side along neither dimension.
    pub(in super::super) fn left(left: Matrix<'_>) -> Option<Self> {
        Some(Self::new(Source::of(left)?, [left.rows, left.columns], Form::Left))
    }

    /// Packs a right factor on the thread pool. `None` if its elements lie side by side along neither dimension.
    pub(in super::super) fn right(right: Matrix<'_>) -> Option<Self> {
        Some(Self::new(Source::of(right.transposed())?, [right.columns, right.rows], Form::Right))
    }

    fn new(source: Source, [outer, inner]: [usize; 2], form: Form) -> Self {
        let lines = packed_bytes(outer, inner) / size_of::<Line>();
        let mut packed: Vec<Line> = Vec::with_capacity(lines);
        let panel = packed_bytes(PANEL, inner);
        let start = Address(packed.as_mut_ptr().cast::<u8>());
        parallel(outer.div_ceil(PANEL), |index| {
            let first = index * PANEL;
            // SAFETY: each task packs a panel of its own.
            unsafe {
                pack(source.from(first, 0), [PANEL.min(outer - first), inner], form, start.at(index * panel));
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
        assert_eq!(
            (out.rows, out.columns, left.columns),
            (left.rows, self.outer, self.inner),
            "sizes of a matrix product"
        );
        let source = Source::of(left).expect("a left factor with a unit stride");
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
        assert_eq!(
            (out.rows, out.columns, right.rows),
            (self.outer, right.columns, self.inner),
            "sizes of a matrix product"
        );
        let source = Source::of(right.transposed()).expect("a right factor with a unit stride");
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
    assert_eq!(
        (out.rows, out.columns, left.columns),
        (left.rows, right.columns, right.rows),
        "sizes of a matrix product"
    );
    let inner = right.rows;
    let (left, right) = (Source::of(left), Source::of(right.transposed()));
    let (left, right) = (left.expect("a left factor"), right.expect("a right factor"));
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
    ) -> Taken {
        match self {
            Self::Packed(panels) => {
                Taken { start: panels.wrapping_add(packed_bytes(outer, inner)), inner, first }
            }
            Self::Plain(source, room) => {
                let start = room.of(packed_bytes(outers, inners));
                // SAFETY: by the caller's word.
                unsafe { pack(source.from(outer, first), [outers, inners], form, start) };
                Taken { start, inner: inners, first: 0 }
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
}

impl Taken {
    /// The panel of `outers` elements from `outer` on.
    fn panel(self, outer: usize, outers: usize) -> *const u8 {
        self.start.wrapping_add(packed_bytes(outer, self.inner) + packed_bytes(outers, self.first))
    }
}

/// A factor seen from the product: `outer` elements that stay, `inner` ones that are summed over.
#[derive(Clone, Copy)]
struct Source {
    start: *const f32,
    outer_stride: usize,
    inner_stride: usize,
}

// SAFETY: it is only read, and what it points to is borrowed where it is used.
unsafe impl Send for Source {}
unsafe impl Sync for Source {}

impl Source {
    /// Rows outside, columns inside. `None` if neither stride is 1.
    fn of(matrix: Matrix<'_>) -> Option<Self> {
        let (outer_stride, inner_stride) = matrix.strides();
        (outer_stride == 1 || inner_stride == 1).then_some(Self {
            start: matrix.start(),
            outer_stride,
            inner_stride,
        })
    }

    fn from(self, outer: usize, inner: usize) -> Self {
        let start = self.start.wrapping_add(outer * self.outer_stride + inner * self.inner_stride);
        Self { start, ..self }
    }
}

/// How a tile lies in its register.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// A row for each outer element, along which the pairs run.
    Left,
    /// A row for each pair, along which the outer elements run.
    Right,
}

/// Packs `[outer, inner]` elements into panels; what is missing in the last tiles is 0.
///
/// # Safety
///
/// The source has these elements, and `packed` room for them.
#[target_feature(enable = "avx512f")]
unsafe fn pack(source: Source, [outer, inner]: [usize; 2], form: Form, packed: *mut u8) {
    let (all_tiles, blocks) = (outer.div_ceil(SIDE), inner.div_ceil(DEPTH));
    // where a tile's first part goes, and how far apart its parts are
    let place = |tile: usize, block: usize| {
        let panel = tile / 2 * 2;
        let tiles = (all_tiles - panel).min(2);
        let offset = (panel * blocks + block * tiles) * PARTS + tile % 2;
        (packed.wrapping_add(offset * TILE_BYTES), tiles * TILE_BYTES)
    };
    let along_inner = source.inner_stride == 1;
    // SAFETY: every address lies in the source or is masked, and in `packed`, by the caller's word.
    unsafe {
        match form {
            Form::Left if along_inner => {
                // row by row, as they lie in memory
                for row in 0..all_tiles * SIDE {
                    let (start, there) = (source.from(row, 0).start, if row < outer { inner } else { 0 });
                    let (first, distance) = place(row / SIDE, 0);
                    let first = first.add(row % SIDE * 64);
                    let whole = there / DEPTH;
                    for block in 0..whole {
                        let from = start.add(block * DEPTH);
                        let (low, high) = (_mm512_loadu_ps(from), _mm512_loadu_ps(from.add(SIDE)));
                        store_parts(low, high, first.add(block * PARTS * distance), distance);
                    }
                    for block in whole..blocks {
                        let [low, high] = halves(there.saturating_sub(block * DEPTH));
                        let from = start.wrapping_add(block * DEPTH);
                        let low = _mm512_maskz_loadu_ps(low, from);
                        let high = _mm512_maskz_loadu_ps(high, from.wrapping_add(SIDE));
                        store_parts(low, high, first.add(block * PARTS * distance), distance);
                    }
                }
            }
            Form::Right if !along_inner => {
                for block in 0..blocks {
                    for pair in 0..SIDE {
                        let first = block * DEPTH + pair;
                        let (first_there, second_there) = (first < inner, first + SIDE < inner);
                        for tile in 0..all_tiles {
                            let (to, distance) = place(tile, block);
                            let from = source.from(tile * SIDE, first).start;
                            let second = from.wrapping_add(SIDE * source.inner_stride);
                            // the next block's rows lie too far apart for the processor to foresee
                            _mm_prefetch::<_MM_HINT_T0>(
                                from.wrapping_add(DEPTH * source.inner_stride).cast(),
                            );
                            _mm_prefetch::<_MM_HINT_T0>(
                                second.wrapping_add(DEPTH * source.inner_stride).cast(),
                            );
                            let (low, high) = if second_there && (tile + 1) * SIDE <= outer {
                                (_mm512_loadu_ps(from), _mm512_loadu_ps(second))
                            } else {
                                let mask = first_lanes(outer - tile * SIDE);
                                (
                                    _mm512_maskz_loadu_ps(if first_there { mask } else { 0 }, from),
                                    _mm512_maskz_loadu_ps(if second_there { mask } else { 0 }, second),
                                )
                            };
                            store_parts(low, high, to.add(pair * 64), distance);
                        }
                    }
                }
            }
            _ => {
                // both tiles change rows and columns over; block by block, as rows lie in memory, for the left factor
                let mut turned = Turned([0.0; 2 * SIDE * SIDE]);
                for step in 0..blocks * all_tiles {
                    let (tile, block) = if along_inner {
                        (step / blocks, step % blocks)
                    } else {
                        (step % all_tiles, step / all_tiles)
                    };
                    let (outers, inners) = (outer - tile * SIDE, inner - block * DEPTH);
                    let from = source.from(tile * SIDE, block * DEPTH);
                    let first = turned.0.as_mut_ptr();
                    let second = first.add(SIDE * SIDE);
                    if along_inner {
                        let [low, high] = halves(inners);
                        turn(from.start, from.outer_stride, outers, low, first, SIDE);
                        turn(from.start.wrapping_add(SIDE), from.outer_stride, outers, high, second, SIDE);
                    } else {
                        let (mask, stride) = (first_lanes(outers), from.inner_stride);
                        turn(from.start, stride, inners, mask, first, SIDE);
                        let from = from.start.wrapping_add(SIDE * stride);
                        turn(from, stride, inners.saturating_sub(SIDE), mask, second, SIDE);
                    }
                    let (to, distance) = place(tile, block);
                    for row in 0..SIDE {
                        let low = _mm512_load_ps(turned.0.as_ptr().add(row * SIDE));
                        let high = _mm512_load_ps(turned.0.as_ptr().add((SIDE + row) * SIDE));
                        store_parts(low, high, to.add(row * 64), distance);
                    }
                }
            }
        }
    }
}

/// Two halves of a tile with rows and columns changed over.
#[repr(C, align(64))]
struct Turned([f32; 2 * SIDE * SIDE]);

/// The lanes of the two halves of a block of which `count` elements are there.
fn halves(count: usize) -> [__mmask16; 2] {
    [first_lanes(count), first_lanes(count.saturating_sub(SIDE))]
}

/// Cuts two vectors into three parts and stores them as pairs of bfloat16.
///
/// # Safety
///
/// `packed` and the two addresses `distance` bytes further each have room for 64 bytes.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn store_parts(low: __m512, high: __m512, packed: *mut u8, distance: usize) {
    let kept = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
    let bits = |value: __m512| _mm512_castps_si512(value);
    // what is left of a float32 when its upper half, a bfloat16, is taken away: exact
    let rest = |value: __m512| {
        _mm512_sub_ps(value, _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(value), kept)))
    };
    // the lower half of a pair is the upper half of `low`, the other that of `high`
    const OR_MASKED: i32 = 0xf8;
    let pair = |low: __m512, high: __m512| {
        _mm512_ternarylogic_epi32::<OR_MASKED>(_mm512_srli_epi32::<16>(bits(low)), bits(high), kept)
    };
    let (low_rest, high_rest) = (rest(low), rest(high));
    // SAFETY: by the caller's word.
    unsafe {
        _mm512_store_si512(packed.cast(), pair(low, high));
        _mm512_store_si512(packed.add(distance).cast(), pair(low_rest, high_rest));
        _mm512_store_si512(packed.add(2 * distance).cast(), pair(rest(low_rest), rest(high_rest)));
    }
}

/// The unit, set up on this thread for full tiles; given back when dropped, so that a change of threads has no tiles to save.
struct Unit(());

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
        Self(())
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
        let (group, slab) = match right {
            Factor::Packed(_) if packed_bytes(out.columns, inner) <= CACHED_BYTES => (PANEL, SLAB),
            Factor::Packed(_) => (8 * PANEL, SLAB),
            Factor::Plain(..) if inner <= SLAB => (ROWS_OF_BOTH, SLAB),
            Factor::Plain(..) => (ROWS_OF_BOTH, SLAB_OF_BOTH),
        };
        for first_row in (0..out.rows).step_by(group) {
            let rows = group.min(out.rows - first_row);
            for first in (0..inner).step_by(slab) {
                let depth = slab.min(inner - first);
                // SAFETY: by the caller's word.
                let left = unsafe { left.take([first_row, rows], [first, depth], inner, Form::Left) };
                for column in (0..out.columns).step_by(PANEL) {
                    let columns = PANEL.min(out.columns - column);
                    // SAFETY: by the caller's word.
                    let right = unsafe { right.take([column, columns], [first, depth], inner, Form::Right) };
                    let right = right.panel(0, columns);
                    for row in (0..rows).step_by(PANEL) {
                        let block = Block {
                            start: out.start.wrapping_add((first_row + row) * out.row_stride + column),
                            row_stride: out.row_stride,
                            rows: PANEL.min(rows - row),
                            columns,
                            scale,
                            existing: match existing {
                                _ if first > 0 => Existing::Add,
                                Existing::Bias(bias) => Existing::Bias(&bias[column..column + columns]),
                                other => other,
                            },
                        };
                        let left = left.panel(row, PANEL.min(rows - row));
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
        let to = sums.as_mut_ptr().cast::<f32>();
        // SAFETY: by the caller's word; the sums have room for four tiles.
        unsafe {
            match (block.rows > SIDE, block.columns > SIDE) {
                (true, true) => {
                    two_by_two(left, right, blocks, to);
                    block.finish::<2, 2>(sums.assume_init_ref());
                }
                (true, false) => {
                    two_by_one(left, right, blocks, to);
                    block.finish::<2, 1>(sums.assume_init_ref());
                }
                (false, true) => {
                    one_by_two(left, right, blocks, to);
                    block.finish::<1, 2>(sums.assume_init_ref());
                }
                (false, false) => {
                    one_by_one(left, right, blocks, to);
                    block.finish::<1, 1>(sums.assume_init_ref());
                }
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
                let bias = match self.existing {
                    Existing::Bias(bias) => _mm512_maskz_loadu_ps(mask, bias.as_ptr().add(column)),
                    _ => _mm512_setzero_ps(),
                };
                for row in 0..self.rows {
                    let tile = row / SIDE * COLUMNS + column_tile;
                    let mut from = sums.0.as_ptr().add((tile * SIDE + row % SIDE) * SIDE);
                    let mut sum = _mm512_load_ps(from);
                    for _ in 1..4 / (ROWS * COLUMNS) {
                        from = from.add(ROWS * COLUMNS * SIDE * SIDE);
                        sum = _mm512_add_ps(sum, _mm512_load_ps(from));
                    }
                    let to = self.start.add(row * self.row_stride + column);
                    let sum = match self.existing {
                        Existing::Overwrite => _mm512_mul_ps(sum, scale),
                        Existing::Add => _mm512_fmadd_ps(sum, scale, _mm512_maskz_loadu_ps(mask, to)),
                        Existing::Bias(_) => _mm512_fmadd_ps(sum, scale, bias),
                    };
                    _mm512_mask_storeu_ps(to, mask, sum);
                }
            }
        }
    }
}

/// `load!(register, factor, part, tiles of the factor's panel, tile)`
macro_rules! load {
    ($register:literal, left, 2, $part:literal, $tile:literal) => { load!(@ $register, "left", $part, "2048", $tile) };
    ($register:literal, right, 2, $part:literal, $tile:literal) => { load!(@ $register, "right", $part, "2048", $tile) };
    ($register:literal, left, 1, $part:literal, $tile:literal) => { load!(@ $register, "left", $part, "1024", $tile) };
    ($register:literal, right, 1, $part:literal, $tile:literal) => { load!(@ $register, "right", $part, "1024", $tile) };
    (@ $register:literal, $factor:literal, $part:literal, $distance:literal, $tile:literal) => {
        concat!(
            "tileloadd tmm", $register, ", [{", $factor, "} + {stride} + (", $part, " - 1) * ", $distance, " + ", $tile, " * 1024]"
        )
    };
}

/// `add!(sums, left, right)`: adds the products of two registers to a third.
macro_rules! add {
    ($sums:literal, $left:literal, $right:literal) => {
        concat!("tdpbf16ps tmm", $sums, ", tmm", $left, ", tmm", $right)
    };
}

/// A function that sums the products of two panels' blocks into four tiles. Products for the same sums are kept apart: each takes several
/// times as long to finish as to start.
macro_rules! kernel {
    ($(#[$attribute:meta])* $name:ident, $left_bytes:literal, $right_bytes:literal, $($step:expr),* $(,)?) => {
        $(#[$attribute])*
        ///
        /// # Safety
        ///
        /// The unit is set up, the panels have `blocks` (more than 0) blocks, and `sums` room for four tiles.
        #[inline]
        unsafe fn $name(left: *const u8, right: *const u8, blocks: usize, sums: *mut f32) {
            debug_assert!(blocks > 0);
            // SAFETY: by the caller's word.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "2:",
                    $($step,)*
                    concat!("add {left}, ", $left_bytes),
                    concat!("add {right}, ", $right_bytes),
                    "dec {blocks}",
                    "jnz 2b",
                    "tilestored [{sums} + {stride}], tmm0",
                    "tilestored [{sums} + {stride} + 1024], tmm1",
                    "tilestored [{sums} + {stride} + 2048], tmm2",
                    "tilestored [{sums} + {stride} + 3072], tmm3",
                    left = inout(reg) left => _,
                    right = inout(reg) right => _,
                    blocks = inout(reg) blocks => _,
                    sums = in(reg) sums,
                    stride = in(reg) 64usize,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

kernel! {
    /// Two tiles of rows by two of columns. The left panel, which stays in the nearest cache, is read more often than the right one.
    two_by_two, "6144", "6144",
    load!("6", right, 2, "1", "0"), load!("4", left, 2, "3", "0"), load!("7", right, 2, "1", "1"), load!("5", left, 2, "3", "1"),
    add!("0", "4", "6"), add!("1", "4", "7"), load!("4", left, 2, "1", "0"), add!("2", "5", "6"), add!("3", "5", "7"), load!("5", left, 2, "1", "1"),
    add!("0", "4", "6"), add!("1", "4", "7"), load!("4", left, 2, "2", "0"), add!("2", "5", "6"), add!("3", "5", "7"), load!("5", left, 2, "2", "1"),
    add!("0", "4", "6"), add!("2", "5", "6"), load!("6", right, 2, "2", "0"), add!("1", "4", "7"), add!("3", "5", "7"), load!("7", right, 2, "2", "1"),
    add!("0", "4", "6"), add!("1", "4", "7"), load!("4", left, 2, "1", "0"), add!("2", "5", "6"), add!("3", "5", "7"), load!("5", left, 2, "1", "1"),
    add!("0", "4", "6"), add!("2", "5", "6"), load!("6", right, 2, "3", "0"), add!("1", "4", "7"), add!("3", "5", "7"), load!("7", right, 2, "3", "1"),
    add!("0", "4", "6"), add!("2", "5", "6"), add!("1", "4", "7"), add!("3", "5", "7"),
}

kernel! {
    /// One tile of rows by two of columns; registers 2 and 3 hold half of the sums.
    one_by_two, "3072", "6144",
    load!("6", right, 2, "1", "0"), load!("4", left, 1, "1", "0"), load!("7", right, 2, "1", "1"), load!("5", left, 1, "3", "0"),
    add!("0", "4", "6"), add!("1", "4", "7"), add!("2", "5", "6"), add!("3", "5", "7"), load!("5", left, 1, "2", "0"),
    add!("0", "5", "6"), load!("6", right, 2, "2", "0"), add!("1", "5", "7"), load!("7", right, 2, "2", "1"),
    add!("2", "4", "6"), add!("3", "4", "7"), add!("0", "5", "6"), load!("6", right, 2, "3", "0"), add!("1", "5", "7"), load!("7", right, 2, "3", "1"),
    add!("2", "4", "6"), add!("3", "4", "7"),
}

kernel! {
    /// Two tiles of rows by one of columns; registers 2 and 3 hold half of the sums.
    two_by_one, "6144", "3072",
    load!("4", left, 2, "1", "0"), load!("6", right, 1, "1", "0"), load!("5", left, 2, "1", "1"), load!("7", right, 1, "3", "0"),
    add!("0", "4", "6"), add!("1", "5", "6"), add!("2", "4", "7"), add!("3", "5", "7"), load!("7", right, 1, "2", "0"),
    add!("0", "4", "7"), load!("4", left, 2, "2", "0"), add!("1", "5", "7"), load!("5", left, 2, "2", "1"),
    add!("2", "4", "6"), add!("3", "5", "6"), add!("0", "4", "7"), load!("4", left, 2, "3", "0"), add!("1", "5", "7"), load!("5", left, 2, "3", "1"),
    add!("2", "4", "6"), add!("3", "5", "6"),
}

kernel! {
    /// One tile; all four registers hold parts of its sums.
    one_by_one, "3072", "3072",
    load!("4", left, 1, "1", "0"), load!("6", right, 1, "1", "0"), load!("5", left, 1, "2", "0"), load!("7", right, 1, "2", "0"),
    add!("0", "4", "6"), add!("1", "4", "7"), add!("2", "5", "6"), load!("6", right, 1, "3", "0"), add!("3", "5", "7"), load!("5", left, 1, "3", "0"),
    load!("7", right, 1, "1", "0"), add!("0", "4", "6"), add!("1", "5", "7"),
}
