//! Factors as AMX wants them: each float32 in three digits of a byte, in panels of two tiles.

mod measure;
mod panel;

pub(super) use panel::{CacheLine, Operand, Panel, Source};

use super::super::avx512::{first_lanes, transposed};
use super::shape::{DEPTH, DIGITS, PANEL, SIDE};
use measure::{measure, rest_of_row};
use panel::{LINE_BYTES, TILE_BYTES};
use std::arch::x86_64::*;
use std::ops::Range;

/// PackBuffer for packed elements and the sizes that they are packed by, kept from product to product.
#[derive(Default)]
pub(super) struct PackBuffer {
    lines: Vec<CacheLine>,
    /// Of outer elements from `first` on.
    largest: Vec<u32>,
    first: usize,
}

impl PackBuffer {
    /// Finds the largest of the inner elements in `kc` of each outer one.
    ///
    /// # Safety
    ///
    /// The source has these elements.
    pub(super) unsafe fn measure(&mut self, source: Source, outers: Range<usize>, kc: Range<usize>) {
        self.first = outers.start;
        self.largest.resize(outers.len().next_multiple_of(PANEL), 0);
        let sizes = [outers.len(), kc.len()];
        // SAFETY: the source has `kc` elements of each of `outers`, as the caller promises, and `largest` a place for each, whole vectors of them.
        unsafe { measure(source.from(outers.start, kc.start), sizes, &mut self.largest) };
    }

    /// Packs some of the outer elements that were measured last.
    ///
    /// # Safety
    ///
    /// Source and kc are those that were measured.
    pub(super) unsafe fn pack(
        &mut self,
        source: Source,
        outers: Range<usize>,
        kc: Range<usize>,
        operand: Operand,
    ) -> *mut u8 {
        let lines = operand.bytes(outers.len(), kc.len()) / size_of::<CacheLine>();
        if self.lines.len() < lines {
            self.lines.resize(lines, CacheLine([0; 64]));
        }
        let (packed, largest) = (self.lines.as_mut_ptr().cast(), &self.largest[outers.start - self.first..]);
        let sizes = [outers.len(), kc.len()];
        // SAFETY: source and sizes are those that were measured, as the caller promises, and `lines` holds `Operand::bytes` of them; there is room.
        unsafe { pack_measured(source.from(outers.start, kc.start), sizes, operand, largest, packed) };
        packed
    }
}

/// Packs a panel; what is missing in its last tiles is 0.
///
/// # Safety
///
/// The source has these elements, [`PANEL`] outer ones or less, and `packed` room for them.
#[target_feature(enable = "avx512bw,avx512vbmi")]
pub(super) unsafe fn pack(source: Source, sizes: [usize; 2], operand: Operand, packed: *mut u8) {
    let mut largest = [0; PANEL];
    // SAFETY: source and room are there, as the caller promises; `largest` has a place for each element of a panel.
    unsafe {
        measure(source, sizes, &mut largest);
        pack_measured(source, sizes, operand, &largest, packed);
    }
}

/// Packs panels of elements whose sizes were measured.
///
/// # Safety
///
/// As for [`pack`].
#[target_feature(enable = "avx512bw,avx512vbmi")]
unsafe fn pack_measured(
    source: Source,
    [outer, inner]: [usize; 2],
    operand: Operand,
    largest: &[u32],
    packed: *mut u8,
) {
    let mut start = packed;
    for first in (0..outer).step_by(PANEL) {
        let sizes = [PANEL.min(outer - first), inner];
        let (source, panel) = (source.from(first, 0), Panel::new(start, sizes, operand));
        for tile in 0..panel.tiles {
            let largest = &largest[first + tile * SIDE..][..SIDE];
            // SAFETY: `largest` and the panel's units have whole vectors for each tile; the tile's elements are in the source and its lines in `packed`, as
            // the caller promises of all.
            unsafe {
                let (factors, units) = scales(_mm512_loadu_si512(largest.as_ptr().cast()));
                _mm512_storeu_ps(panel.units().add(tile * SIDE), units);
                let (source, outers) = (source.from(tile * SIDE, 0), sizes[0].saturating_sub(tile * SIDE));
                if source.inner_stride == 1 {
                    pack_along_inner(source, [outers, inner], factors, panel, tile);
                } else {
                    pack_along_outer(source, [outers, inner], factors, panel, tile);
                }
            }
        }
        let along_lines = if source.inner_stride == 1 { Operand::Left } else { Operand::Right };
        if operand != along_lines {
            // SAFETY: the loop above wrote all tiles of the panel.
            unsafe { transpose(panel) };
        }
        start = start.wrapping_add(operand.bytes(sizes[0], inner));
    }
}

/// Packs the tiles of up to 16 outer elements whose inner ones lie side by side, with a line for each outer element.
///
/// # Safety
///
/// As for [`pack`]; the panel has this tile.
#[target_feature(enable = "avx512bw,avx512vbmi")]
unsafe fn pack_along_inner(
    source: Source,
    [outer, inner]: [usize; 2],
    factors: __m512,
    panel: Panel,
    tile: usize,
) {
    // SAFETY: reads are of lines before `outer` and elements before `inner`, or masked; the stores are to this tile, which the panel has, as the
    // caller promises.
    unsafe {
        let mut each = [0.0; SIDE];
        _mm512_storeu_ps(each.as_mut_ptr(), factors);
        for (line, factor) in each.into_iter().enumerate() {
            let (from, factor) = (source.from(line, 0).start, _mm512_set1_ps(factor));
            let there = if line < outer { inner } else { 0 };
            for block in 0..there / DEPTH {
                let from = from.add(block * DEPTH);
                let values = [0, 1, 2, 3].map(|part| _mm512_loadu_ps(from.add(part * SIDE)));
                store_digits(values, factor, panel, block, tile, line);
            }
            for block in there / DEPTH..panel.blocks {
                store_digits(rest_of_row(from, block, there), factor, panel, block, tile, line);
            }
        }
    }
}

/// Packs the tiles of up to 16 outer elements that lie side by side, with a line for each word.
///
/// # Safety
///
/// As for [`pack`]; the panel has this tile.
#[target_feature(enable = "avx512bw,avx512vbmi")]
unsafe fn pack_along_outer(
    source: Source,
    [outer, inner]: [usize; 2],
    factors: __m512,
    panel: Panel,
    tile: usize,
) {
    let lanes = first_lanes(outer);
    let values = |row: usize| {
        // SAFETY: `row` is masked where it is none of the source's, and lanes from `outer` on are.
        unsafe { _mm512_maskz_loadu_ps(if row < inner { lanes } else { 0 }, source.from(0, row).start) }
    };
    for block in 0..panel.blocks {
        for line in 0..SIDE {
            let rows = [0, 1, 2, 3].map(|part| values(block * DEPTH + part * SIDE + line));
            // SAFETY: the panel has this block and tile, whose 16 lines of 64 bytes are aligned as `packed` is.
            unsafe { store_digits(rows, factors, panel, block, tile, line) };
        }
    }
}

/// Changes lines and words of a panel's tiles over.
///
/// # Safety
///
/// They are written.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(panel: Panel) {
    for tile in 0..panel.blocks * DIGITS * panel.tiles {
        let lines = panel.block(0).wrapping_add(tile * TILE_BYTES).cast::<f32>();
        let mut words = [_mm512_setzero_ps(); SIDE];
        // SAFETY: the tile is one of the panel's, written and aligned to 64 bytes, as the caller promises.
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

/// From the [`size`] of the largest element: what makes integers of the elements, no larger than 0x7f7f7f so that all digits are from -128
/// to 127, and 2^22 over that, AMX of the digits' products: 0 if all elements are 0, and NaN if one is not finite or the largest lies
/// outside [2^-90, 2^110], where products with units could leave the range of float32 before the last one.
#[target_feature(enable = "avx512f")]
#[inline]
fn scales(largest: __m512i) -> (__m512, __m512) {
    /// Less than may be, as an element times the factor is rounded.
    const LARGEST: f32 = 0x7f_7f00 as f32;
    const RANGE: [f32; 2] = [f32::from_bits((127 - 90) << 23), f32::from_bits((127 + 110) << 23)];
    let largest = _mm512_castsi512_ps(largest);
    let [from, to] = RANGE.map(|bound| _mm512_set1_ps(bound));
    // of a number and NaN, the second is taken
    let factor = _mm512_div_ps(_mm512_set1_ps(LARGEST), _mm512_max_ps(from, largest));
    let unit = _mm512_div_ps(_mm512_set1_ps((1 << 22) as f32), factor);
    let inside =
        _mm512_cmp_ps_mask::<_CMP_GE_OQ>(largest, from) & _mm512_cmp_ps_mask::<_CMP_LE_OQ>(largest, to);
    let unit = _mm512_mask_mov_ps(_mm512_set1_ps(f32::NAN), inside, unit);
    let zero = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(largest, _mm512_setzero_ps());
    (factor, _mm512_mask_mov_ps(unit, zero, _mm512_setzero_ps()))
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

const UPPER_HALVES: __mmask32 = 0xaaaa_aaaa;

/// Cuts four vectors into digits and stores each in a line of its tile: word by word an element of each vector.
///
/// # Safety
///
/// The panel has this block, tile and line.
#[target_feature(enable = "avx512bw,avx512vbmi")]
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
        // SAFETY: 64 bytes are read from each table, and written to a line of a tile that the panel has, as the caller promises.
        unsafe {
            let lower = _mm512_loadu_si512(lower.as_ptr().cast());
            let upper = _mm512_loadu_si512(upper.as_ptr().cast());
            let lower = _mm512_permutex2var_epi8(a, lower, b);
            let upper = _mm512_permutex2var_epi8(c, upper, d);
            let bytes = _mm512_mask_blend_epi16(UPPER_HALVES, lower, upper);
            let bytes = if digit == 0 { bytes } else { _mm512_xor_si512(bytes, _mm512_set1_epi8(i8::MIN)) };
            _mm512_store_si512(panel.tile(block, digit, tile).add(line * LINE_BYTES).cast(), bytes);
        }
    }
}
