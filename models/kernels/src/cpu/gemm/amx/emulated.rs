//! In tests: what AMX's instructions do, in plain code.

use super::shape::{SIDE, TILE_SUMS};

const BYTES: usize = 4 * TILE_SUMS;

/// The eight registers, all configured as 16 rows of 64 bytes.
pub(super) struct Registers([[u8; BYTES]; 8]);

impl Registers {
    /// All zero (`tilezero`).
    pub(super) fn zero() -> Self {
        Self([[0; BYTES]; 8])
    }

    /// `tileloadd` of rows that lie 64 bytes apart.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads of 1024 bytes.
    pub(super) unsafe fn load(&mut self, register: usize, from: *const u8) {
        // SAFETY: as the caller promises; the register has as many bytes.
        unsafe { self.0[register].as_mut_ptr().copy_from_nonoverlapping(from, BYTES) };
    }

    /// `tilestored` in rows that lie 64 bytes apart.
    ///
    /// # Safety
    ///
    /// `to` is valid for writes of 256 sums.
    pub(super) unsafe fn store(&self, register: usize, to: *mut i32) {
        // SAFETY: as the caller promises; the register has as many bytes.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(self.0[register].as_ptr(), BYTES) };
    }

    /// `tdpbssd`: to each sum the products of the four signed bytes of a word of its row of `left` and of its column of `right`, for each of
    /// the 16 words.
    pub(super) fn add(&mut self, sums: usize, left: usize, right: usize) {
        let signed = |register: usize| self.0[register].map(|byte| i32::from(byte.cast_signed()));
        let (left, right) = (signed(left), signed(right));
        // by word and byte, a row of columns
        let right: [[i32; SIDE]; 64] = std::array::from_fn(|inner| {
            std::array::from_fn(|column| right[inner / 4 * 64 + column * 4 + inner % 4])
        });
        let (sums, _) = self.0[sums].as_chunks_mut::<4>();
        for (row, sums) in sums.chunks_exact_mut(SIDE).enumerate() {
            let mut row_sums = [0i32; SIDE];
            for (factor, right) in left[row * 64..][..64].iter().zip(&right) {
                for (sum, right) in row_sums.iter_mut().zip(right) {
                    *sum += factor * right;
                }
            }
            for (sum, more) in sums.iter_mut().zip(row_sums) {
                *sum = i32::from_le_bytes(*sum).wrapping_add(more).to_le_bytes();
            }
        }
    }
}
