//! The order of samples in an epoch, and the independent random streams of a run.

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

/// The order of an epoch: every index below `samples` once, shuffled. It depends only on seed and epoch.
pub fn epoch_order(samples: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..samples).collect();
    order.shuffle(&mut stream(seed, Purpose::Order, epoch, 0));
    order
}

/// Repeats each index of `order` so many times in a row and keeps the first `order.len()` of the result (repeated
/// augmentation, Berman et al. 2019, as in DeiT).
pub(crate) fn repeated(order: &[usize], repeats: usize) -> Vec<usize> {
    order.iter().flat_map(|&index| std::iter::repeat_n(index, repeats)).take(order.len()).collect()
}

/// The order of an epoch with balanced classes: as many draws as samples, and equally many of every class. `labels` are
/// the labels of the samples; the order depends only on them, the seed, and the epoch.
///
/// If the number of samples is not a multiple of the number of classes, some classes are drawn once more than others,
/// and different ones in different epochs. Within a class, no sample is drawn again before all of its samples have been
/// drawn.
pub fn balanced_order(labels: &[usize], seed: u64, epoch: usize) -> Vec<usize> {
    let mut rng = stream(seed, Purpose::Order, epoch, 0);
    let mut by_label: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, &label) in labels.iter().enumerate() {
        by_label.entry(label).or_default().push(index);
    }
    let mut classes: Vec<Vec<usize>> = by_label.into_values().collect();
    classes.shuffle(&mut rng);
    let count = classes.len();
    let mut order = Vec::with_capacity(labels.len());
    for (place, class) in classes.iter_mut().enumerate() {
        let mut left = labels.len() / count + usize::from(place < labels.len() % count);
        while left > 0 {
            class.shuffle(&mut rng);
            let drawn = left.min(class.len());
            order.extend_from_slice(&class[..drawn]);
            left -= drawn;
        }
    }
    order.shuffle(&mut rng);
    order
}

/// The purpose of a random stream. Streams of different purposes are independent.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// The order of an epoch.
    Order,
    /// The augmentation of a sample, or of a draw with balanced classes.
    Sample,
    /// Mixup and CutMix of a batch.
    Batch,
    /// Whether the alternating flips of a sample begin with a flip.
    Flip,
    /// The augmentation of a further copy of a sample in an epoch with repeated augmentation, numbered from 1.
    Repeat(u32),
}

impl Purpose {
    /// A number that is different for every purpose.
    fn word(self) -> u64 {
        match self {
            Self::Order => 0,
            Self::Sample => 1,
            Self::Batch => 2,
            Self::Flip => 3,
            Self::Repeat(number) => u64::from(number) << 32 | 1,
        }
    }
}

/// A random stream that depends only on seed, purpose, epoch, and index.
pub(crate) fn stream(seed: u64, purpose: Purpose, epoch: usize, index: usize) -> ChaCha8Rng {
    let mut key = [0; 32];
    let words = [seed, purpose.word(), epoch as u64, index as u64];
    for (bytes, word) in key.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_every_index_once_in_an_order_of_its_own() {
        let first = epoch_order(100, 1, 0);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_eq!(first, epoch_order(100, 1, 0));
        assert_ne!(first, epoch_order(100, 1, 1));
        assert_ne!(first, epoch_order(100, 2, 0));
    }

    #[test]
    fn repeated_samples_are_adjacent_and_an_epoch_keeps_its_length() {
        assert_eq!(repeated(&[3, 0, 4, 1, 2], 1), [3, 0, 4, 1, 2]);
        assert_eq!(repeated(&[3, 0, 4, 1, 2], 2), [3, 3, 0, 0, 4]);
        assert_eq!(repeated(&[1, 0], 16), [1, 1]);
        assert!(repeated(&[], 3).is_empty());
    }

    #[test]
    fn every_purpose_has_a_stream_of_its_own() {
        use rand::RngExt;
        let purposes = [
            Purpose::Order,
            Purpose::Sample,
            Purpose::Batch,
            Purpose::Flip,
            Purpose::Repeat(1),
            Purpose::Repeat(2),
        ];
        let mut drawn = purposes.map(|purpose| stream(7, purpose, 1, 2).random::<u64>());
        drawn.sort_unstable();
        assert!(drawn.windows(2).all(|pair| pair[0] != pair[1]), "{drawn:?}");
    }

    #[test]
    fn a_balanced_epoch_draws_all_classes_and_all_samples_of_a_class_equally_often() {
        // 90 samples of class 0, 8 of class 3, and 5 of class 1.
        let labels: Vec<usize> =
            (0..103).map(|index| if index < 90 { 0 } else { 1 + 2 * (index % 13 / 5).min(1) }).collect();
        let size = |label| labels.iter().filter(|&&of| of == label).count();
        assert_eq!(size(0) + size(1) + size(3), 103);
        let mut with_one_more = [0; 4];
        for epoch in 0..30 {
            let order = balanced_order(&labels, 1, epoch);
            assert_eq!(order.len(), 103);
            for label in [0, 1, 3] {
                let mut draws = vec![0; 103];
                order.iter().filter(|&&index| labels[index] == label).for_each(|&index| draws[index] += 1);
                let total: usize = draws.iter().sum();
                assert!(total == 34 || total == 35, "{total} of class {label}");
                with_one_more[label] += usize::from(total == 35);
                let of_class = || (0..103).filter(|&index| labels[index] == label).map(|index| draws[index]);
                assert!(of_class().max() <= of_class().min().map(|least| least + 1), "evenly within a class");
            }
        }
        assert!([0, 1, 3].iter().all(|&label| with_one_more[label] > 0), "{with_one_more:?}");
        let first = balanced_order(&labels, 1, 0);
        assert_eq!(first, balanced_order(&labels, 1, 0));
        assert_ne!(first, balanced_order(&labels, 1, 1));
        assert_ne!(first, balanced_order(&labels, 2, 0));
        assert!(balanced_order(&[], 1, 0).is_empty());
        // Classes are shuffled, not drawn one after the other.
        let head: std::collections::BTreeSet<usize> =
            first[..20].iter().map(|&index| labels[index]).collect();
        assert_eq!(head.len(), 3);
    }
}
