//! What a mixer costs.

/// Multiply-adds of a mixer for one image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MixerCost {
    /// Of the layers before and after the mixing.
    pub projections: u64,
    /// Of the mixing itself.
    pub attention: u64,
    /// Attention weights, in numbers.
    pub attention_weights: u64,
}

/// Of whole numbers that together may not fit a `usize` of 32 bits.
pub(crate) fn product<const N: usize>(factors: [usize; N]) -> u64 {
    factors.iter().map(|&factor| factor as u64).product()
}
