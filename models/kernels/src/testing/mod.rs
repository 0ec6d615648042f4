//! Helpers for tests, of this crate and, with the feature `testing`, of the crates that use it.

#[cfg(all(test, feature = "flex"))]
mod compare;

pub use crate::counting::multiply_adds_of;
#[cfg(all(test, feature = "flex"))]
pub(crate) use compare::{assert_derivative, assert_same, assert_same_special, assert_same_within};

/// Pseudo-random numbers from -1 to 1, the same ones for the same seed.
pub fn numbers(length: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..length).map(|_| next()).collect()
}
