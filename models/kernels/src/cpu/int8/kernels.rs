//! The kernels: products of rows of unsigned bytes and panels of signed bytes.

use super::detect::Int8;
use super::panels::{BLOCK, DEPTH, Panels, SIDE};
use super::rows::Range as ByteRange;
use crate::cpu::gemm::amx::direct::{self, Bytes};
use std::arch::x86_64::*;

/// Rows of unsigned bytes. A row is made of segments, which begin `segment_stride` bytes apart.
#[derive(Clone, Copy)]
pub(super) struct Left {
    pub(super) start: *const u8,
    pub(super) rows: usize,
    pub(super) row_stride: usize,
    pub(super) segment_stride: usize,
}

/// What becomes of the sums.
pub(super) struct Output<'a, Range, To> {
    /// The range of the bytes of each row.
    pub(super) range: Range,
    /// The address of each row's outputs; `None` for a row that is not wanted.
    pub(super) to: To,
    /// Added to each row.
    pub(super) bias: Option<&'a [f32]>,
}

/// The rows of a block on AMX, and of one on VNNI.
const AMX_ROWS: usize = 2 * SIDE;
const VNNI_ROWS: usize = 6;

/// Multiplies all rows with all columns.
///
/// # Safety
///
/// - For each row, each segment of `left` must be valid for reads of whole blocks, for up to [`AMX_ROWS`] rows that are a multiple of
///   that number.
/// - Each address of `output` must be valid for writes of all columns, and no other task may access them.
pub(super) unsafe fn multiply<R: Fn(usize) -> ByteRange, T: Fn(usize) -> Option<*mut f32>>(
    int8: Int8,
    left: Left,
    panels: &Panels,
    output: &Output<'_, R, T>,
) {
    if let Some(amx) = int8.amx.filter(|_| left.rows >= SIDE) {
        // SAFETY: as the caller promises.
        unsafe { on_amx(amx, left, panels, output) };
        return;
    }
    for pair in (0..panels.pairs()).step_by(2) {
        for first in (0..left.rows).step_by(VNNI_ROWS) {
            let rows = VNNI_ROWS.min(left.rows - first);
            let block = Block { left, first, panels, pair };
            // SAFETY: `int8` proves that the CPU has the instructions; the rest is as the caller promises. A block of two pairs needs
            // both.
            unsafe {
                match (pair + 1 < panels.pairs(), rows) {
                    (true, 6) => block.on_vnni::<6, 4, _, _>(output),
                    (true, 3..) => block.halves::<4, _, _>(rows, output),
                    (true, _) => block.single::<4, _, _>(rows, output),
                    (false, 6) => block.on_vnni::<6, 2, _, _>(output),
                    (false, 3..) => block.halves::<2, _, _>(rows, output),
                    (false, _) => block.single::<2, _, _>(rows, output),
                }
            }
        }
    }
}

/// Some rows, and the panels from a pair on.
#[derive(Clone, Copy)]
struct Block<'a> {
    left: Left,
    first: usize,
    panels: &'a Panels,
    pair: usize,
}

impl Block<'_> {
    /// Three rows at once, and the others one by one.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn halves<const P: usize, R: Fn(usize) -> ByteRange, T: Fn(usize) -> Option<*mut f32>>(
        self,
        rows: usize,
        output: &Output<'_, R, T>,
    ) {
        // SAFETY: as the caller promises.
        unsafe {
            self.on_vnni::<3, P, _, _>(output);
            Self { first: self.first + 3, ..self }.single::<P, _, _>(rows - 3, output);
        }
    }

    /// Rows one by one.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn single<const P: usize, R: Fn(usize) -> ByteRange, T: Fn(usize) -> Option<*mut f32>>(
        self,
        rows: usize,
        output: &Output<'_, R, T>,
    ) {
        for row in 0..rows {
            // SAFETY: as the caller promises.
            unsafe { Self { first: self.first + row, ..self }.on_vnni::<1, P, _, _>(output) };
        }
    }

    /// `ROWS` rows and `P` panels.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn on_vnni<
        const ROWS: usize,
        const P: usize,
        R: Fn(usize) -> ByteRange,
        T: Fn(usize) -> Option<*mut f32>,
    >(
        self,
        output: &Output<'_, R, T>,
    ) {
        let Self { left, first, panels, pair } = self;
        let mut sums = [[_mm512_setzero_si512(); P]; ROWS];
        let right: [*const i8; P] = std::array::from_fn(|panel| panels.panel(2 * pair + panel));
        for segment in 0..panels.segments {
            let lines = panels.blocks * SIDE;
            let rows: [*const u8; ROWS] = std::array::from_fn(|row| {
                left.start.wrapping_add((first + row) * left.row_stride + segment * left.segment_stride)
            });
            for line in 0..lines {
                // SAFETY: the panels have this line; the rows have whole blocks, as the caller promises.
                unsafe {
                    let right = right
                        .map(|panel| _mm512_load_si512(panel.add((segment * lines + line) * DEPTH).cast()));
                    for (sums, row) in sums.iter_mut().zip(&rows) {
                        let four = _mm512_set1_epi32(row.add(4 * line).cast::<i32>().read_unaligned());
                        for (sum, right) in sums.iter_mut().zip(right) {
                            *sum = _mm512_dpbusd_epi32(*sum, four, right);
                        }
                    }
                }
            }
        }
        for panel in 0..P {
            let Some(columns) = Columns::of(panels, 2 * pair + panel, output.bias) else { break };
            for (row, sums) in sums.iter().enumerate() {
                if let Some(to) = (output.to)(first + row) {
                    // SAFETY: the row may be written, as the caller promises.
                    unsafe { columns.write(sums[panel], (output.range)(first + row), to) };
                }
            }
        }
    }
}

/// All rows and columns on AMX, two tiles of each at a time.
///
/// # Safety
///
/// As for [`multiply`].
unsafe fn on_amx<R: Fn(usize) -> ByteRange, T: Fn(usize) -> Option<*mut f32>>(
    amx: Bytes,
    left: Left,
    panels: &Panels,
    output: &Output<'_, R, T>,
) {
    let tiles = amx.configure();
    let mut sums = Sums([0; AMX_ROWS * AMX_ROWS]);
    for pair in 0..panels.pairs() {
        let right = panels.panel(2 * pair);
        for first in (0..left.rows).step_by(AMX_ROWS) {
            let product = direct::Product {
                left: left.start.wrapping_add(first * left.row_stride),
                row_stride: left.row_stride,
                segment_stride: left.segment_stride,
                right: right.cast(),
                panel_stride: panels.panel_bytes(),
                segments: panels.segments,
                blocks: panels.blocks,
            };
            debug_assert_eq!(BLOCK, direct::BLOCK);
            // SAFETY: the panels have these blocks; the rows have whole blocks, as the caller promises; the sums are 32 rows of 32.
            unsafe { tiles.multiply(&product, sums.0.as_mut_ptr(), AMX_ROWS) };
            // SAFETY: the CPU has AVX-512, as AMX's does; the rows may be written, as the caller promises.
            unsafe { write_block(&sums, [first, left.rows], (panels, pair), output) };
        }
    }
}

/// The sums of a block on AMX, row by row.
#[repr(C, align(64))]
struct Sums([i32; AMX_ROWS * AMX_ROWS]);

/// Writes the sums of a block on AMX, whose first row is `first` of `rows`.
///
/// # Safety
///
/// The CPU must have AVX-512; the rest as for [`multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn write_block<R: Fn(usize) -> ByteRange, T: Fn(usize) -> Option<*mut f32>>(
    sums: &Sums,
    [first, rows]: [usize; 2],
    (panels, pair): (&Panels, usize),
    output: &Output<'_, R, T>,
) {
    for tile in 0..2 {
        let Some(columns) = Columns::of(panels, 2 * pair + tile, output.bias) else { break };
        for row in 0..AMX_ROWS.min(rows - first) {
            if let Some(to) = (output.to)(first + row) {
                // SAFETY: the sums are aligned; the row may be written, as the caller promises.
                unsafe {
                    let sum =
                        _mm512_load_si512(sums.0[row * AMX_ROWS + tile * SIDE..][..SIDE].as_ptr().cast());
                    columns.write(sum, (output.range)(first + row), to);
                }
            }
        }
    }
}

/// What the outputs of a panel's columns are computed with.
struct Columns {
    first: usize,
    lanes: __mmask16,
    scales: __m512,
    /// The sum of each column's bytes, times its scale.
    sums: __m512,
    bias: __m512,
}

impl Columns {
    /// Those of a panel; `None` if it has no columns.
    #[target_feature(enable = "avx512f")]
    fn of(panels: &Panels, panel: usize, bias: Option<&[f32]>) -> Option<Self> {
        let first = panel * SIDE;
        let count = panels.columns.checked_sub(first).filter(|&count| count > 0)?.min(SIDE);
        let lanes = ((1u32 << count) - 1) as __mmask16;
        let bias = bias.map(|bias| &bias[first..][..count]);
        // SAFETY: sums and scales are padded to whole panels; columns that the bias lacks are masked.
        unsafe {
            let scales = _mm512_loadu_ps(panels.scales[first..][..SIDE].as_ptr());
            let sums = _mm512_loadu_si512(panels.sums[first..][..SIDE].as_ptr().cast());
            let sums = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), scales);
            let zero = _mm512_setzero_ps();
            let bias = bias.map_or(zero, |bias| _mm512_maskz_loadu_ps(lanes, bias.as_ptr()));
            Some(Self { first, lanes, scales, sums, bias })
        }
    }

    /// Writes the outputs of a row.
    ///
    /// # Safety
    ///
    /// `to` must be valid for writes of all columns of the weight.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn write(&self, sum: __m512i, range: ByteRange, to: *mut f32) {
        let below_zero = _mm512_set1_ps(-range.scale * range.zero as f32);
        let scales = _mm512_mul_ps(self.scales, _mm512_set1_ps(range.scale));
        let rest = _mm512_fmadd_ps(self.sums, below_zero, self.bias);
        let value = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scales, rest);
        // SAFETY: the row may be written, as the caller promises; columns that it lacks are masked.
        unsafe { _mm512_mask_storeu_ps(to.wrapping_add(self.first), self.lanes, value) };
    }
}
