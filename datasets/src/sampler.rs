//! In which order an epoch takes its samples, and the random streams of a run.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// The order of one epoch: every index once, shuffled by seed and epoch alone.
pub fn epoch_order(samples: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..samples).collect();
    order.shuffle(&mut stream(seed, Purpose::Order, epoch, 0));
    order
}

/// What a stream of random numbers is for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// The order of an epoch.
    Order,
    /// The augmentation of one sample.
    Sample,
    /// The mixing of one batch.
    Batch,
}

/// Random numbers that depend on their purpose, the epoch and one index, and on nothing else.
pub(crate) fn stream(seed: u64, purpose: Purpose, epoch: usize, index: usize) -> ChaCha8Rng {
    let mut key = [0; 32];
    let words = [seed, purpose as u64, epoch as u64, index as u64];
    for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_once_and_another_order_every_epoch() {
        let first = epoch_order(100, 1, 0);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_eq!(first, epoch_order(100, 1, 0));
        assert_ne!(first, epoch_order(100, 1, 1));
        assert_ne!(first, epoch_order(100, 2, 0));
    }
}
