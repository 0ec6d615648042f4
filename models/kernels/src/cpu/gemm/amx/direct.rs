//! Products on AMX without digits: of bytes, unsigned ones on the left and signed ones on the right; and of bfloat16 numbers.

use super::detect::{Amx, Configured};
use super::shape::SIDE;
use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::atomic::{AtomicU8, Ordering};

/// The bytes of a tile.
pub(crate) const BLOCK: usize = 64 * SIDE;

/// Two tiles of rows by two panels of columns.
pub(crate) struct Product {
    /// The first row; 32 rows are read.
    pub(crate) left: *const u8,
    /// Strides are in bytes.
    pub(crate) row_stride: usize,
    /// The distance between the segments of a row.
    pub(crate) segment_stride: usize,
    /// The first block of the first panel.
    pub(crate) right: *const u8,
    pub(crate) panel_stride: usize,
    pub(crate) segments: usize,
    /// The blocks of a segment.
    pub(crate) blocks: usize,
}

/// Defines the proof that AMX multiplies elements of a kind, and its tiles; a block is 64 bytes of a row.
macro_rules! products {
    ($proof:ident, $tiles:ident, $sum:ty, $instruction:literal, $emulated:ident, $of:literal) => {
        #[doc = concat!("The proof that AMX may multiply ", $of, ".")]
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $proof(Amx);

        impl $proof {
            /// Configures the tiles of this thread, until the result is dropped.
            pub(crate) fn configure(self) -> $tiles {
                $tiles(self.0.configure())
            }
        }

        #[doc = concat!("AMX configured on this thread, for products of ", $of, ".")]
        pub(crate) struct $tiles(Configured);

        impl $tiles {
            /// Writes the sums of the products of all blocks to 32 rows of 32, which begin `stride` sums apart.
            ///
            /// # Safety
            ///
            /// - `segments` and `blocks` must be more than 0.
            /// - For each of 32 rows, each segment must be valid for reads of `blocks` blocks of 64 bytes.
            /// - Both panels must be valid for reads of `segments * blocks` blocks.
            /// - The rows of sums must be valid for writes.
            pub(crate) unsafe fn multiply(&self, product: &Product, sums: *mut $sum, stride: usize) {
                debug_assert!(product.segments > 0 && product.blocks > 0);
                #[cfg(test)]
                if self.0.amx.emulated {
                    // SAFETY: as the caller promises.
                    unsafe { $emulated(product, sums, stride) };
                    return;
                }
                let Product { left, row_stride, segment_stride, right, panel_stride, segments, blocks } = *product;
                // What a segment's end is away from the next one's beginning.
                let skip = segment_stride.wrapping_sub(64 * blocks);
                // SAFETY: `self` proves that the CPU has AMX with this instruction, and that it is configured for full tiles; the
                // loads read and the stores write what is valid, as the caller promises.
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
                        concat!($instruction, " tmm0, tmm4, tmm6"),
                        concat!($instruction, " tmm1, tmm4, tmm7"),
                        concat!($instruction, " tmm2, tmm5, tmm6"),
                        concat!($instruction, " tmm3, tmm5, tmm7"),
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
                        // The stride of the rows, and the upper rows of sums, then the lower ones.
                        "mov {line}, {stride}",
                        "tilestored [{sums} + {line}], tmm0",
                        "tilestored [{sums} + {line} + 64], tmm1",
                        "shl {stride}, 4",
                        "add {stride}, {sums}",
                        "tilestored [{stride} + {line}], tmm2",
                        "tilestored [{stride} + {line} + 64], tmm3",
                        left = inout(reg) left => _,
                        lower = inout(reg) left.wrapping_add(SIDE * row_stride) => _,
                        right = inout(reg) right => _,
                        second = inout(reg) right.wrapping_add(panel_stride) => _,
                        count = out(reg) _,
                        blocks = in(reg) blocks,
                        segments = inout(reg) segments => _,
                        skip = in(reg) skip,
                        row_stride = in(reg) row_stride,
                        line = inout(reg) 64usize => _,
                        sums = in(reg) sums,
                        stride = inout(reg) 4 * stride => _,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            }
        }
    };
}

products!(Bytes, ByteTiles, i32, "tdpbusd", emulated_bytes, "unsigned by signed bytes");
products!(Bfloat16, Bfloat16Tiles, f32, "tdpbf16ps", emulated_bfloat16, "bfloat16 numbers");

impl Bytes {
    /// AMX, if it may be used.
    pub(crate) fn find() -> Option<Self> {
        Amx::find().map(Self)
    }
}

impl Bfloat16 {
    /// AMX, if it may be used and the CPU has the instructions on bfloat16 numbers, AVX-512's included. The answer about the CPU is
    /// kept.
    pub(crate) fn find() -> Option<Self> {
        const BFLOAT16: u32 = 1 << 22;
        const UNKNOWN: u8 = 0;
        const MISSING: u8 = 1;
        const PRESENT: u8 = 2;
        static FOUND: AtomicU8 = AtomicU8::new(UNKNOWN);
        let amx = Amx::find()?;
        let mut found = FOUND.load(Ordering::Relaxed);
        if found == UNKNOWN {
            let multiplies = __cpuid_count(7, 0).edx & BFLOAT16 != 0 || amx.is_emulated();
            let rounds = is_x86_feature_detected!("avx512bf16");
            found = if multiplies && rounds { PRESENT } else { MISSING };
            FOUND.store(found, Ordering::Relaxed);
        }
        (found == PRESENT).then_some(Self(amx))
    }

    /// Plain code in place of AMX, if the CPU has AVX-512's instructions on bfloat16 numbers.
    #[cfg(test)]
    pub(crate) fn emulated() -> Option<Self> {
        Amx::emulated().filter(|_| is_x86_feature_detected!("avx512bf16")).map(Self)
    }
}

/// The product of bytes in plain code.
///
/// # Safety
///
/// As for [`ByteTiles::multiply`].
#[cfg(test)]
unsafe fn emulated_bytes(product: &Product, sums: *mut i32, stride: usize) {
    let terms = |row: usize, column: usize| {
        (0..product.segments * product.blocks * 64).map(move |inner| {
            let [left, right] =
                product.places([row, column], inner, inner / 4 * 64 + column % SIDE * 4 + inner % 4);
            // SAFETY: both are valid, as the caller promises.
            unsafe { i32::from(*left) * i32::from((*right).cast_signed()) }
        })
    };
    // SAFETY: the rows of sums are valid, as the caller promises.
    product.each(|row, column| unsafe { sums.add(row * stride + column).write(terms(row, column).sum()) });
}

/// The product of bfloat16 numbers in plain code.
///
/// # Safety
///
/// As for [`Bfloat16Tiles::multiply`].
#[cfg(test)]
unsafe fn emulated_bfloat16(product: &Product, sums: *mut f32, stride: usize) {
    // SAFETY: the number is valid, as the caller promises.
    let number =
        |at: *const u8| f32::from_bits(u32::from(unsafe { at.cast::<u16>().read_unaligned() }) << 16);
    let terms = |row: usize, column: usize| {
        (0..product.segments * product.blocks * 32).map(move |inner| {
            let at = inner / 2 * 64 + column % SIDE * 4 + inner % 2 * 2;
            let [left, right] = product.places([row, column], 2 * inner, at);
            number(left) * number(right)
        })
    };
    // SAFETY: the rows of sums are valid, as the caller promises.
    product.each(|row, column| unsafe { sums.add(row * stride + column).write(terms(row, column).sum()) });
}

#[cfg(test)]
impl Product {
    fn each(&self, mut write: impl FnMut(usize, usize)) {
        (0..2 * SIDE).for_each(|row| (0..2 * SIDE).for_each(|column| write(row, column)));
    }

    /// The addresses of the elements of a row, `inner` bytes from its beginning, and of a panel.
    fn places(&self, [row, column]: [usize; 2], inner: usize, in_panel: usize) -> [*const u8; 2] {
        let (segment, within) = (inner / (self.blocks * 64), inner % (self.blocks * 64));
        let left = row * self.row_stride + segment * self.segment_stride + within;
        [self.left.wrapping_add(left), self.right.wrapping_add(column / SIDE * self.panel_stride + in_panel)]
    }
}
