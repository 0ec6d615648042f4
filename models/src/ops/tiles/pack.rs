//! Factors as the unit wants them: each float32 in three digits of a byte, in panels of two tiles.

use super::super::avx512::{first_lanes, transposed};
use super::super::matrix::Matrix;
use super::PANEL;
use std::arch::x86_64::*;

/// Bytes that an element is cut into.
pub(super) const DIGITS: usize = 3;
/// Outer elements of a tile, and words in a line of it.
pub(super) const SIDE: usize = 16;
/// Inner elements of a tile, four to a word.
pub(super) const DEPTH: usize = 4 * SIDE;
const LINE_BYTES: usize = 64;
const TILE_BYTES: usize = SIDE * LINE_BYTES;

/// A cache line of packed elements.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line([u8; 64]);

/// Room for packed elements, kept from product to product.
#[derive(Default)]
pub(super) struct Room(Vec<Line>);

impl Room {
    pub(super) fn of(&mut self, bytes: usize) -> *mut u8 {
        let lines = bytes.div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0.resize(lines, Line([0; 64]));
        }
        self.0.as_mut_ptr().cast()
    }
}

/// A factor seen from the product: `outer` elements that stay, `inner` ones that are summed over.
#[derive(Clone, Copy)]
pub(super) struct Source {
    start: *const f32,
    outer_stride: usize,
    inner_stride: usize,
}

// SAFETY: it is only read, and what it points to is borrowed where it is used.
unsafe impl Send for Source {}
unsafe impl Sync for Source {}

impl Source {
    /// Rows outside, columns inside.
    ///
    /// # Panics
    ///
    /// If the elements lie side by side along neither dimension.
    pub(super) fn of(matrix: Matrix<'_>) -> Self {
        assert!(matrix.compact(), "a factor with a unit stride");
        let (outer_stride, inner_stride) = matrix.strides();
        Self { start: matrix.start(), outer_stride, inner_stride }
    }

    pub(super) fn from(self, outer: usize, inner: usize) -> Self {
        let start = self.start.wrapping_add(outer * self.outer_stride + inner * self.inner_stride);
        Self { start, ..self }
    }
}

/// How a tile lies in its register.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    /// A line for each outer element, along which the words run.
    Left,
    /// A line for each word, along which the outer elements run.
    Right,
}

impl Form {
    /// The tiles that a panel of `outer` elements has, or all panels of more: the last one of a left factor may have one only.
    pub(super) fn tiles(self, outer: usize) -> usize {
        match self {
            Self::Left => outer.div_ceil(SIDE),
            Self::Right => outer.div_ceil(PANEL) * (PANEL / SIDE),
        }
    }

    /// The bytes of a packed factor.
    pub(super) fn bytes(self, outer: usize, inner: usize) -> usize {
        self.tiles(outer) * (inner.div_ceil(DEPTH) * DIGITS * TILE_BYTES + SIDE * size_of::<f32>())
    }
}

/// Where a packed panel lies: for each block of inner elements, for each digit, its tiles; then the unit of each outer element.
#[derive(Clone, Copy)]
pub(super) struct Panel {
    start: *mut u8,
    tiles: usize,
    blocks: usize,
}

impl Panel {
    /// The panel at `start` of `outer` elements, [`PANEL`] or less.
    pub(super) fn new(start: *mut u8, [outer, inner]: [usize; 2], form: Form) -> Self {
        Self { start, tiles: form.tiles(outer), blocks: inner.div_ceil(DEPTH) }
    }

    /// The tiles from a block on.
    pub(super) fn block(self, block: usize) -> *mut u8 {
        self.start.wrapping_add(block * DIGITS * self.tiles * TILE_BYTES)
    }

    fn tile(self, block: usize, digit: usize, tile: usize) -> *mut u8 {
        self.block(block).wrapping_add((digit * self.tiles + tile) * TILE_BYTES)
    }

    /// What a 1 in the first digit stands for, times 64, for each outer element.
    pub(super) fn units(self) -> *mut f32 {
        self.block(self.blocks).cast()
    }
}

/// Packs `[outer, inner]` elements into panels; what is missing in the last tiles is 0.
///
/// # Safety
///
/// The source has these elements, and `packed` room for them.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) unsafe fn pack(source: Source, [outer, inner]: [usize; 2], form: Form, packed: *mut u8) {
    let mut start = packed;
    for first in (0..outer).step_by(PANEL) {
        let sizes = [PANEL.min(outer - first), inner];
        let (source, panel) = (source.from(first, 0), Panel::new(start, sizes, form));
        // SAFETY: by the caller's word.
        unsafe {
            if source.inner_stride == 1 {
                pack_along_inner(source, sizes, panel);
                if form == Form::Right {
                    turn(panel);
                }
            } else {
                pack_along_outer(source, sizes, panel, form);
            }
        }
        start = start.wrapping_add(form.bytes(sizes[0], inner));
    }
}

/// Packs a panel whose inner elements lie side by side, as for a left factor.
///
/// # Safety
///
/// As for [`pack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn pack_along_inner(source: Source, [outer, inner]: [usize; 2], panel: Panel) {
    // SAFETY: every address lies in the source or is masked, and in the panel, by the caller's word.
    unsafe {
        for tile in 0..panel.tiles {
            let rows = outer.saturating_sub(tile * SIDE).min(SIDE);
            let row = |row: usize| source.from(tile * SIDE + row, 0).start;
            let mut largest = [0; SIDE];
            for (index, largest) in largest.iter_mut().enumerate().take(rows) {
                let from = row(index);
                let mut sizes = [_mm512_setzero_si512(); 4];
                for block in 0..inner / DEPTH {
                    for (part, sizes) in sizes.iter_mut().enumerate() {
                        let values = _mm512_loadu_ps(from.add(block * DEPTH + part * SIDE));
                        *sizes = _mm512_max_epu32(*sizes, size(values));
                    }
                }
                for (values, sizes) in rest_of_row(from, inner / DEPTH, inner).into_iter().zip(&mut sizes) {
                    *sizes = _mm512_max_epu32(*sizes, size(values));
                }
                let [a, b, c, d] = sizes;
                *largest =
                    _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_max_epu32(a, b), _mm512_max_epu32(c, d)));
            }
            let (factors, units) = scales(_mm512_loadu_si512(largest.as_ptr().cast()));
            _mm512_storeu_ps(panel.units().add(tile * SIDE), units);
            let mut each = [0.0; SIDE];
            _mm512_storeu_ps(each.as_mut_ptr(), factors);
            for (index, factor) in each.into_iter().enumerate() {
                let (from, factor) = (row(index), _mm512_set1_ps(factor));
                let there = if index < rows { inner } else { 0 };
                for block in 0..there / DEPTH {
                    let from = from.add(block * DEPTH);
                    let values = [0, 1, 2, 3].map(|part| _mm512_loadu_ps(from.add(part * SIDE)));
                    store_digits(values, factor, panel, block, tile, index);
                }
                for block in there / DEPTH..panel.blocks {
                    store_digits(rest_of_row(from, block, there), factor, panel, block, tile, index);
                }
            }
        }
    }
}

/// A block of a row of which `there` elements are there; the others are 0.
///
/// # Safety
///
/// The elements can be read.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn rest_of_row(row: *const f32, block: usize, there: usize) -> [__m512; 4] {
    let mut values = [_mm512_setzero_ps(); 4];
    for (part, values) in values.iter_mut().enumerate() {
        let first = block * DEPTH + part * SIDE;
        // SAFETY: by the caller's word; what the mask leaves out is not read.
        *values = unsafe {
            _mm512_maskz_loadu_ps(first_lanes(there.saturating_sub(first)), row.wrapping_add(first))
        };
    }
    values
}

/// Packs a panel whose outer elements lie side by side, as for a right factor.
///
/// # Safety
///
/// As for [`pack`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn pack_along_outer(source: Source, [outer, inner]: [usize; 2], panel: Panel, form: Form) {
    /// Rows that are asked for ahead: they lie too far apart for the processor to foresee.
    const AHEAD: usize = 16;
    let lanes = [0, 1].map(|tile| first_lanes(outer.saturating_sub(tile * SIDE)));
    let mut largest = [_mm512_setzero_si512(); 2];
    // SAFETY: every address lies in the source or is masked, and in the panel, by the caller's word.
    unsafe {
        let values = |tile: usize, row: usize| {
            let lanes = if row < inner { lanes[tile] } else { 0 };
            _mm512_maskz_loadu_ps(lanes, source.from(tile * SIDE, row).start)
        };
        for row in 0..inner {
            for (tile, largest) in largest.iter_mut().enumerate().take(panel.tiles) {
                _mm_prefetch::<_MM_HINT_T0>(source.from(tile * SIDE, row + AHEAD).start.cast());
                *largest = _mm512_max_epu32(*largest, size(values(tile, row)));
            }
        }
        for (tile, largest) in largest.into_iter().enumerate().take(panel.tiles) {
            let (factors, units) = scales(largest);
            _mm512_storeu_ps(panel.units().add(tile * SIDE), units);
            for block in 0..panel.blocks {
                for word in 0..SIDE {
                    let rows = [0, 1, 2, 3].map(|part| values(tile, block * DEPTH + part * SIDE + word));
                    store_digits(rows, factors, panel, block, tile, word);
                }
            }
        }
        if form == Form::Left {
            turn(panel);
        }
    }
}

/// Changes lines and words of a panel's tiles over.
///
/// # Safety
///
/// They are written.
#[target_feature(enable = "avx512f")]
unsafe fn turn(panel: Panel) {
    for tile in 0..panel.blocks * DIGITS * panel.tiles {
        let lines = panel.block(0).wrapping_add(tile * TILE_BYTES).cast::<f32>();
        let mut words = [_mm512_setzero_ps(); SIDE];
        // SAFETY: by the caller's word.
        unsafe {
            for (index, words) in words.iter_mut().enumerate() {
                *words = _mm512_load_ps(lines.add(index * SIDE));
            }
            for (index, words) in transposed(words).into_iter().enumerate() {
                _mm512_store_ps(lines.add(index * SIDE), words);
            }
        }
    }
}

/// Absolute values as integers of the same order; those of what is not finite are the largest.
#[target_feature(enable = "avx512f")]
#[inline]
fn size(values: __m512) -> __m512i {
    _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(i32::MAX))
}

/// From the [`size`] of the largest element: what makes integers of the elements, no larger than 0x7f7f7f so that all digits are from -128
/// to 127, and 2^22 over that. It is not finite if an element is not.
#[target_feature(enable = "avx512f")]
#[inline]
fn scales(largest: __m512i) -> (__m512, __m512) {
    /// Less than may be, as an element times the factor is rounded.
    const LARGEST: f32 = 0x7f_7f00 as f32;
    /// Of a smaller element the factor would be infinite.
    const SMALLEST: f32 = LARGEST / f32::MAX;
    // of a number and NaN, the second is taken
    let largest = _mm512_max_ps(_mm512_set1_ps(SMALLEST), _mm512_castsi512_ps(largest));
    let factor = _mm512_div_ps(_mm512_set1_ps(LARGEST), largest);
    let unit = _mm512_div_ps(_mm512_set1_ps((1 << 22) as f32), factor);
    (factor, unit)
}

/// Where the bytes of four vectors of words go: a digit of the first two vectors' words in the lower halves, of the others' in the upper.
const fn places(byte: u8, upper_half: bool) -> [u8; LINE_BYTES] {
    const SECOND_VECTOR: u8 = 64;
    let mut places = [0; LINE_BYTES];
    let mut word = 0;
    while word < SIDE {
        let to = 4 * word + if upper_half { 2 } else { 0 };
        places[to] = 4 * word as u8 + byte;
        places[to + 1] = SECOND_VECTOR + 4 * word as u8 + byte;
        word += 1;
    }
    places
}

const LOWER_HALVES: __mmask64 = 0x3333_3333_3333_3333;

/// Cuts four vectors into digits and stores each in a line of its tile: word by word an element of each vector.
///
/// # Safety
///
/// The panel has this block, tile and line.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
#[inline]
unsafe fn store_digits(
    values: [__m512; 4],
    factor: __m512,
    panel: Panel,
    block: usize,
    tile: usize,
    line: usize,
) {
    static PLACES: [[[u8; LINE_BYTES]; 2]; DIGITS] = [
        [places(2, false), places(2, true)],
        [places(1, false), places(1, true)],
        [places(0, false), places(0, true)],
    ];
    // a digit below the first is from -128 to 127: with 128 more it is a byte of the sum
    let [a, b, c, d] = values.map(|values| {
        let integers = _mm512_cvtps_epi32(_mm512_mul_ps(values, factor));
        _mm512_add_epi32(integers, _mm512_set1_epi32(0x8080))
    });
    for (digit, [lower, upper]) in PLACES.iter().enumerate() {
        // SAFETY: 64 bytes are read from each table, and written by the caller's word.
        unsafe {
            let lower = _mm512_loadu_si512(lower.as_ptr().cast());
            let upper = _mm512_loadu_si512(upper.as_ptr().cast());
            let lower = _mm512_maskz_permutex2var_epi8(LOWER_HALVES, a, lower, b);
            let upper = _mm512_maskz_permutex2var_epi8(!LOWER_HALVES, c, upper, d);
            let bias = _mm512_set1_epi8(if digit == 0 { 0 } else { i8::MIN });
            const EITHER_OR: i32 = 0x96;
            let bytes = _mm512_ternarylogic_epi32::<EITHER_OR>(lower, upper, bias);
            _mm512_store_si512(panel.tile(block, digit, tile).add(line * LINE_BYTES).cast(), bytes);
        }
    }
}
