//! Packing of factors for AMX: each float32 as three digits of a byte, in panels of two tiles.

mod measure;
mod panel;

pub(super) use panel::{CacheLine, Operand, Panel, Source};

use super::super::avx512::{first_lanes, transposed};
use super::shape::{DEPTH, DIGITS, PANEL, SIDE};
use measure::{measure, rest_of_row};
use panel::{LINE_BYTES, TILE_BYTES};
use std::arch::x86_64::*;
use std::ops::Range;

/// Memory for packed elements and for the magnitudes that they are scaled by, reused from product to product.
#[derive(Default)]
pub(super) struct PackBuffer {
    lines: Vec<CacheLine>,
    /// The largest magnitude of each outer element, from `first` on.
    largest: Vec<u32>,
    first: usize,
}

impl PackBuffer {
    /// Finds the largest magnitude among the inner elements `kc` of each of the outer elements `outers`.
    ///
    /// # Safety
    ///
    /// The CPU must have AVX-512F, and `source` must be valid for reads of these elements.
    pub(super) unsafe fn measure(&mut self, source: Source, outers: Range<usize>, kc: Range<usize>) {
        self.first = outers.start;
        self.largest.resize(outers.len().next_multiple_of(PANEL), 0);
        let sizes = [outers.len(), kc.len()];
        // SAFETY: the source has these elements, as the caller promises; `largest` was resized to whole panels.
        unsafe { measure(source.from(outers.start, kc.start), sizes, &mut self.largest) };
    }

    /// Packs a range of the outer elements that were measured last, and returns the address of the panels.
    ///
    /// # Safety
    ///
    /// - The CPU must have AVX-512BW and VBMI.
    /// - `source` and `kc` must be those of the last call of [`measure`](Self::measure), whose outer elements include
    ///   `outers`, and `source` must still be valid for reads of them.
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
        // SAFETY: the source has these elements, which were measured, as the caller promises; `lines` was resized to
        // `Operand::bytes`.
        unsafe { pack_measured(source.from(outers.start, kc.start), sizes, operand, largest, packed) };
        packed
    }
}

/// Packs a panel. Elements that its last tiles lack are 0.
///
/// # Safety
///
/// - The CPU must have AVX-512BW and VBMI.
/// - `source` must be valid for reads of `sizes` (outer and inner) elements, of which at most [`PANEL`] are outer ones.
/// - `packed` must be aligned to 64 bytes, and valid for writes of [`Operand::bytes`] of these sizes.
#[target_feature(enable = "avx512bw,avx512vbmi")]
pub(super) unsafe fn pack(source: Source, sizes: [usize; 2], operand: Operand, packed: *mut u8) {
    let mut largest = [0; PANEL];
    // SAFETY: `source` and `packed` are valid, as the caller promises; `largest` has an element for each outer element
    // of a panel.
    unsafe {
        measure(source, sizes, &mut largest);
        pack_measured(source, sizes, operand, &largest, packed);
    }
}

/// Packs panels of elements whose largest magnitudes are known.
///
/// # Safety
///
/// - `source` must be valid for reads of these elements.
/// - `largest` must have whole tiles for all outer elements.
/// - `packed` must be aligned to 64 bytes, and valid for writes of [`Operand::bytes`] of these sizes.
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
            // SAFETY: `largest` is sliced to a whole vector, and a panel has a whole vector of units for each tile; the
            // source has the elements of the tile, and `packed` has its lines, as the caller promises.
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

/// Packs the tiles of at most 16 outer elements whose inner elements are neighbors in memory: a line for each outer
/// element.
///
/// # Safety
///
/// - `source` must be valid for reads of these elements.
/// - `panel` must have the tile `tile` in each block, and be aligned to 64 bytes and valid for writes.
#[target_feature(enable = "avx512bw,avx512vbmi")]
unsafe fn pack_along_inner(
    source: Source,
    [outer, inner]: [usize; 2],
    factors: __m512,
    panel: Panel,
    tile: usize,
) {
    // SAFETY: only outer elements below `outer` and inner elements below `inner` are read, others are masked; the
    // stores are to the tile, which the panel has, as the caller promises.
    unsafe {
        let mut each = [0.0; SIDE];
        _mm512_storeu_ps(each.as_mut_ptr(), factors);
        for (line, factor) in each.into_iter().enumerate() {
            let (from, factor) = (source.from(line, 0).start, _mm512_set1_ps(factor));
            let count = if line < outer { inner } else { 0 };
            for block in 0..count / DEPTH {
                let from = from.add(block * DEPTH);
                let values = [0, 1, 2, 3].map(|part| _mm512_loadu_ps(from.add(part * SIDE)));
                store_digits(values, factor, panel, block, tile, line);
            }
            for block in count / DEPTH..panel.blocks {
                store_digits(rest_of_row(from, block, count), factor, panel, block, tile, line);
            }
        }
    }
}

/// Packs the tiles of at most 16 outer elements that are neighbors in memory: a line for each word.
///
/// # Safety
///
/// - `source` must be valid for reads of these elements.
/// - `panel` must have the tile `tile` in each block, and be aligned to 64 bytes and valid for writes.
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
        // SAFETY: rows that the source does not have are masked, and so are lanes from `outer` on.
        unsafe { _mm512_maskz_loadu_ps(if row < inner { lanes } else { 0 }, source.from(0, row).start) }
    };
    for block in 0..panel.blocks {
        for line in 0..SIDE {
            let rows = [0, 1, 2, 3].map(|part| values(block * DEPTH + part * SIDE + line));
            // SAFETY: the panel has this tile of this block, as the caller promises, and a tile has 16 lines.
            unsafe { store_digits(rows, factors, panel, block, tile, line) };
        }
    }
}

/// Transposes the words of each tile of a panel.
///
/// # Safety
///
/// All tiles of `panel` must be written, aligned to 64 bytes, and valid for reads and writes.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(panel: Panel) {
    for tile in 0..panel.blocks * DIGITS * panel.tiles {
        let lines = panel.block(0).wrapping_add(tile * TILE_BYTES).cast::<f32>();
        let mut words = [_mm512_setzero_ps(); SIDE];
        // SAFETY: the tile is one of the panel's, which are written and aligned, as the caller promises.
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

/// The factor and the unit of each outer element, from the largest magnitude of its elements.
///
/// Multiplied by the factor, the elements become integers of at most 0x7f7f7f, so that all digits are from -128 to 127.
/// The unit is 2^22 divided by the factor. It is 0 if all elements are 0, and NaN if an element is not finite or the
/// largest one lies outside [2^-90, 2^110], where a product with units could leave the range of float32 before the last
/// multiplication.
#[target_feature(enable = "avx512f")]
#[inline]
fn scales(largest: __m512i) -> (__m512, __m512) {
    /// Below 0x7f7f7f, because an element times the factor is rounded.
    const LARGEST: f32 = 0x7f_7f00 as f32;
    const RANGE: [f32; 2] = [f32::from_bits((127 - 90) << 23), f32::from_bits((127 + 110) << 23)];
    let largest = _mm512_castsi512_ps(largest);
    let [from, to] = RANGE.map(|bound| _mm512_set1_ps(bound));
    // If one operand is NaN, `max` returns the second one.
    let factor = _mm512_div_ps(_mm512_set1_ps(LARGEST), _mm512_max_ps(from, largest));
    let unit = _mm512_div_ps(_mm512_set1_ps((1 << 22) as f32), factor);
    let inside =
        _mm512_cmp_ps_mask::<_CMP_GE_OQ>(largest, from) & _mm512_cmp_ps_mask::<_CMP_LE_OQ>(largest, to);
    let unit = _mm512_mask_mov_ps(_mm512_set1_ps(f32::NAN), inside, unit);
    let zero = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(largest, _mm512_setzero_ps());
    (factor, _mm512_mask_mov_ps(unit, zero, _mm512_setzero_ps()))
}

/// The indices of a permutation that takes the byte `byte` of each 32-bit word of two vectors, and puts the bytes of
/// both vectors next to each other into the lower (or upper) halves of the words of the result.
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

/// Splits the elements of four vectors into digits, and stores each digit in a line of its tile: each word holds an
/// element of each vector.
///
/// # Safety
///
/// `panel` must have this line of this tile of this block, and be aligned to 64 bytes and valid for writes.
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
    // The second and third digit are from -128 to 127. With 128 added, they are bytes of the sum.
    let [a, b, c, d] = values.map(|values| {
        let integers = _mm512_cvtps_epi32(_mm512_mul_ps(values, factor));
        _mm512_add_epi32(integers, _mm512_set1_epi32(0x8080))
    });
    for (digit, [lower, upper]) in PLACES.iter().enumerate() {
        // SAFETY: each table has 64 bytes, and the panel has this line, as the caller promises.
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
