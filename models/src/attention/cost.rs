//! The cost of a token mixer.

/// The cost of a token mixer for one image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MixerCost {
    /// The multiply-adds of the layers before and after the mixing.
    pub projections: u64,
    /// The multiply-adds of the mixing itself.
    pub attention: u64,
    /// The number of attention weights.
    pub attention_weights: u64,
}

/// The product of whole numbers, which may exceed a `usize` of 32 bits.
pub(crate) fn product<const N: usize>(factors: [usize; N]) -> u64 {
    factors.iter().map(|&factor| factor as u64).product()
}
