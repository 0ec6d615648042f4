//! One seed, several independent streams of random numbers.

/// What a stream of random numbers is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// First values of parameters.
    Initialization,
    /// Shuffling and augmentation.
    Augmentation,
    /// Dropout and stochastic depth.
    Dropout,
    /// Which images are measured, where the time does not pay for all.
    Measuring,
}

/// The seed of a stream at a moment (a step, for example): SplitMix64 (Steele et al. 2014) of all three.
pub fn stream(seed: u64, purpose: Stream, moment: u64) -> u64 {
    let purpose = match purpose {
        Stream::Initialization => 1,
        Stream::Augmentation => 2,
        Stream::Dropout => 3,
        Stream::Measuring => 4,
    };
    mix(mix(mix(seed).wrapping_add(purpose)).wrapping_add(moment))
}

fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_and_moments_differ_and_repeat() {
        let a = stream(0, Stream::Dropout, 5);
        assert_eq!(a, stream(0, Stream::Dropout, 5));
        for other in
            [stream(1, Stream::Dropout, 5), stream(0, Stream::Dropout, 6), stream(0, Stream::Augmentation, 5)]
        {
            assert_ne!(a, other);
        }
    }
}
