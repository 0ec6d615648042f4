//! AMX's instructions in plain code, for tests on CPUs without AMX.

use super::shape::{SIDE, TILE_SUMS};

const BYTES: usize = 4 * TILE_SUMS;

/// The eight tile registers, all configured as 16 rows of 64 bytes.
pub(super) struct Registers([[u8; BYTES]; 8]);

impl Registers {
    /// Registers of zeros (`tilezero`).
    pub(super) fn zero() -> Self {
        Self([[0; BYTES]; 8])
    }

    /// Loads a tile whose rows begin 64 bytes apart (`tileloadd`).
    ///
    /// # Safety
    ///
    /// `from` must be valid for reads of 1024 bytes.
    pub(super) unsafe fn load(&mut self, register: usize, from: *const u8) {
        // SAFETY: `from` is valid for reads of 1024 bytes, as the caller promises, and a register has as many.
        unsafe { self.0[register].as_mut_ptr().copy_from_nonoverlapping(from, BYTES) };
    }

    /// Stores a tile in rows that begin 64 bytes apart (`tilestored`).
    ///
    /// # Safety
    ///
    /// `to` must be valid for writes of 256 sums.
    pub(super) unsafe fn store(&self, register: usize, to: *mut i32) {
        // SAFETY: `to` is valid for writes of 256 sums, which are the 1024 bytes of a register, as the caller promises.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(self.0[register].as_ptr(), BYTES) };
    }

    /// Adds the product of two tiles of signed bytes to a tile of sums (`tdpbssd`): to the sum of each row and column,
    /// the products of the four bytes of each of the 16 words of this row of `left` and of this column of `right`.
    pub(super) fn add(&mut self, sums: usize, left: usize, right: usize) {
        let signed = |register: usize| self.0[register].map(|byte| i32::from(byte.cast_signed()));
        let (left, right) = (signed(left), signed(right));
        // For each inner element (a byte of a word), the row of all columns.
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
