//! Factors as the unit wants them: each float32 in two or three bfloat16, in panels of tiles.

use super::super::avx512::{first_lanes, turn};
use super::super::matrix::{Matrix, Precision};
use std::arch::x86_64::*;

/// Rows of a tile, and pairs in a row.
pub(super) const SIDE: usize = 16;
/// Inner elements of a tile.
pub(super) const DEPTH: usize = 2 * SIDE;
const TILE_BYTES: usize = 1024;

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

/// The bfloat16 that a float32 is cut into.
const fn parts(precision: Precision) -> usize {
    match precision {
        Precision::High => 2,
        Precision::Highest => 3,
    }
}

/// The bytes of a packed factor.
pub(super) fn packed_bytes(outer: usize, inner: usize, precision: Precision) -> usize {
    outer.div_ceil(SIDE) * inner.div_ceil(DEPTH) * parts(precision) * TILE_BYTES
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
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
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
pub(super) unsafe fn pack(
    source: Source,
    sizes: [usize; 2],
    form: Form,
    precision: Precision,
    packed: *mut u8,
) {
    const HIGH: usize = parts(Precision::High);
    const HIGHEST: usize = parts(Precision::Highest);
    // SAFETY: by the caller's word.
    unsafe {
        match precision {
            Precision::High => pack_parts::<HIGH>(source, sizes, form, packed),
            Precision::Highest => pack_parts::<HIGHEST>(source, sizes, form, packed),
        }
    }
}

/// [`pack`] in so many parts.
///
/// # Safety
///
/// As for [`pack`].
#[target_feature(enable = "avx512f")]
unsafe fn pack_parts<const PARTS: usize>(
    source: Source,
    [outer, inner]: [usize; 2],
    form: Form,
    packed: *mut u8,
) {
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
                        store_parts::<PARTS>(low, high, first.add(block * PARTS * distance), distance);
                    }
                    for block in whole..blocks {
                        let [low, high] = halves(there.saturating_sub(block * DEPTH));
                        let from = start.wrapping_add(block * DEPTH);
                        let low = _mm512_maskz_loadu_ps(low, from);
                        let high = _mm512_maskz_loadu_ps(high, from.wrapping_add(SIDE));
                        store_parts::<PARTS>(low, high, first.add(block * PARTS * distance), distance);
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
                            store_parts::<PARTS>(low, high, to.add(pair * 64), distance);
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
                        store_parts::<PARTS>(low, high, to.add(row * 64), distance);
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

/// Cuts two vectors into parts and stores them as pairs of bfloat16.
///
/// Of three parts each is the upper half of what is left, which is exact. Of two each is rounded, so that what is left out is as often too
/// much as too little.
///
/// # Safety
///
/// `packed` and the `PARTS - 1` addresses `distance` bytes apart after it each have room for 64 bytes.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn store_parts<const PARTS: usize>(low: __m512, high: __m512, packed: *mut u8, distance: usize) {
    let (mut low, mut high) = (low, high);
    for part in 0..PARTS {
        let (low_part, high_part) = if PARTS == 2 { (rounded(low), rounded(high)) } else { (low, high) };
        // SAFETY: by the caller's word.
        unsafe { _mm512_store_si512(packed.add(part * distance).cast(), pair(low_part, high_part)) };
        (low, high) = (_mm512_sub_ps(low, upper_half(low_part)), _mm512_sub_ps(high, upper_half(high_part)));
    }
}

const UPPER_HALF: i32 = 0xffff_0000_u32.cast_signed();

/// The bfloat16 that a float32 begins with.
#[target_feature(enable = "avx512f")]
#[inline]
fn upper_half(value: __m512) -> __m512 {
    _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(UPPER_HALF)))
}

/// A float32 that begins with the bfloat16 nearest to `value`, the one further from zero of two: half of a last place more.
#[target_feature(enable = "avx512f")]
#[inline]
fn rounded(value: __m512) -> __m512 {
    const SIGN_AND_EXPONENT: i32 = 0xff80_0000_u32.cast_signed();
    let power = _mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(SIGN_AND_EXPONENT));
    _mm512_fmadd_ps(_mm512_castsi512_ps(power), _mm512_set1_ps(1.0 / 256.0), value)
}

/// Pairs of the bfloat16 that two vectors begin with, that of `low` first.
#[target_feature(enable = "avx512f")]
#[inline]
fn pair(low: __m512, high: __m512) -> __m512i {
    const OR_MASKED: i32 = 0xf8;
    _mm512_ternarylogic_epi32::<OR_MASKED>(
        _mm512_srli_epi32::<16>(_mm512_castps_si512(low)),
        _mm512_castps_si512(high),
        _mm512_set1_epi32(UPPER_HALF),
    )
}
