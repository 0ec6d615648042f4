//! Products of bytes on AMX, without digits: unsigned ones on the left, signed ones on the right.

use super::detect::{Amx, Configured};
use super::shape::{SIDE, TILE_SUMS};
use std::arch::asm;

/// The bytes of a tile.
pub(crate) const BLOCK: usize = 64 * SIDE;

/// The proof that AMX may be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes(Amx);

impl Bytes {
    /// AMX, if it may be used.
    pub(crate) fn find() -> Option<Self> {
        Amx::find().map(Self)
    }

    /// Configures the tiles of this thread, until the result is dropped.
    pub(crate) fn configure(self) -> Tiles {
        Tiles(self.0.configure())
    }
}

/// AMX configured on this thread.
pub(crate) struct Tiles(Configured);

/// The sums of two tiles of rows by two of columns.
#[repr(C, align(64))]
pub(crate) struct Sums([i32; 4 * TILE_SUMS]);

impl Sums {
    pub(crate) fn new() -> Self {
        Self([0; 4 * TILE_SUMS])
    }

    /// The address of the sums of a row (below 32) in a tile of columns, aligned to 64 bytes.
    pub(crate) fn row(&self, row: usize, tile: usize) -> *const i32 {
        self.0[(row / SIDE * 2 + tile) * TILE_SUMS + row % SIDE * SIDE..][..SIDE].as_ptr()
    }
}

/// Two tiles of rows by two panels of columns.
pub(crate) struct Product {
    /// The first row; 32 rows are read.
    pub(crate) left: *const u8,
    pub(crate) row_stride: usize,
    /// The distance between the segments of a row.
    pub(crate) segment_stride: usize,
    /// The first block of the first panel.
    pub(crate) right: *const i8,
    pub(crate) panel_stride: usize,
    pub(crate) segments: usize,
    /// The blocks of a segment.
    pub(crate) blocks: usize,
}

impl Tiles {
    /// The sums of the products of all blocks.
    ///
    /// # Safety
    ///
    /// - `segments` and `blocks` must be more than 0.
    /// - For each of 32 rows, each segment must be valid for reads of `blocks` blocks of 64 bytes.
    /// - Both panels must be valid for reads of `segments * blocks` blocks.
    pub(crate) unsafe fn multiply(&self, product: &Product, sums: &mut Sums) {
        let Product { left, row_stride, segment_stride, right, panel_stride, segments, blocks } = *product;
        debug_assert!(segments > 0 && blocks > 0);
        #[cfg(test)]
        if self.0.amx.emulated {
            // SAFETY: as the caller promises.
            unsafe { emulated(product, sums) };
            return;
        }
        let lower = left.wrapping_add(SIDE * row_stride);
        // What a segment's end is away from the next one's beginning.
        let skip = segment_stride.wrapping_sub(64 * blocks);
        // SAFETY: `self` proves that the CPU has AMX and that it is configured for full tiles; the loads read what is valid, as the
        // caller promises, and `sums` has four tiles.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "mov {count}, {blocks}",
                "2:",
                "tileloadd tmm6, [{right} + {line}]",
                "tileloadd tmm4, [{left} + {row_stride}]",
                "tileloadd tmm7, [{second} + {line}]",
                "tileloadd tmm5, [{lower} + {row_stride}]",
                "tdpbusd tmm0, tmm4, tmm6",
                "tdpbusd tmm1, tmm4, tmm7",
                "tdpbusd tmm2, tmm5, tmm6",
                "tdpbusd tmm3, tmm5, tmm7",
                "add {left}, 64",
                "add {lower}, 64",
                "add {right}, 1024",
                "add {second}, 1024",
                "dec {count}",
                "jnz 2b",
                "add {left}, {skip}",
                "add {lower}, {skip}",
                "dec {segments}",
                "jnz 3b",
                "tilestored [{sums} + {line}], tmm0",
                "tilestored [{sums} + {line} + 1024], tmm1",
                "tilestored [{sums} + {line} + 2048], tmm2",
                "tilestored [{sums} + {line} + 3072], tmm3",
                left = inout(reg) left => _,
                lower = inout(reg) lower => _,
                right = inout(reg) right => _,
                second = inout(reg) right.wrapping_add(panel_stride) => _,
                count = out(reg) _,
                blocks = in(reg) blocks,
                segments = inout(reg) segments => _,
                skip = in(reg) skip,
                row_stride = in(reg) row_stride,
                line = in(reg) 64usize,
                sums = in(reg) sums.0.as_mut_ptr(),
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// The same in plain code.
///
/// # Safety
///
/// As for [`Tiles::multiply`].
#[cfg(test)]
unsafe fn emulated(product: &Product, sums: &mut Sums) {
    for row in 0..2 * SIDE {
        for column in 0..2 * SIDE {
            let mut sum = 0i32;
            for inner in 0..product.segments * product.blocks * 64 {
                let (segment, within) = (inner / (product.blocks * 64), inner % (product.blocks * 64));
                let left = row * product.row_stride + segment * product.segment_stride + within;
                let right =
                    column / SIDE * product.panel_stride + inner / 4 * 64 + column % SIDE * 4 + inner % 4;
                // SAFETY: both are valid, as the caller promises.
                let [left, right] =
                    unsafe { [i32::from(*product.left.add(left)), i32::from(*product.right.add(right))] };
                sum += left * right;
            }
            sums.0[(row / SIDE * 2 + column / SIDE) * TILE_SUMS + row % SIDE * SIDE + column % SIDE] = sum;
        }
    }
}
