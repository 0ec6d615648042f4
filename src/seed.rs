//! Independent streams of random numbers from one seed.

/// The purpose of a stream of random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Initial values of parameters.
    Initialization,
    /// Shuffling and augmentation.
    Augmentation,
    /// Dropout and stochastic depth.
    Dropout,
    /// The choice of images to evaluate if the time limit of a run does not allow for all.
    Measuring,
}

/// The seed of a stream at a moment, such as the number of a training step: SplitMix64 (Steele et al. 2014) applied to
/// the seed, the purpose, and the moment.
pub fn stream(seed: u64, purpose: Stream, moment: u64) -> u64 {
    let purpose = match purpose {
        Stream::Initialization => 1,
        Stream::Augmentation => 2,
        Stream::Dropout => 3,
        Stream::Measuring => 4,
    };
    mix(mix(mix(seed).wrapping_add(purpose)).wrapping_add(moment))
}

/// One step of SplitMix64.
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_differ_by_stream_and_moment_and_are_reproducible() {
        let a = stream(0, Stream::Dropout, 5);
        assert_eq!(a, stream(0, Stream::Dropout, 5));
        for other in
            [stream(1, Stream::Dropout, 5), stream(0, Stream::Dropout, 6), stream(0, Stream::Augmentation, 5)]
        {
            assert_ne!(a, other);
        }
    }
}
