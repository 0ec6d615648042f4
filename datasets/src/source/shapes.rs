//! The synthetic data set `shapes`, whose images are drawn on demand.

use crate::images::drawing::CLASSES;
use crate::{ImageSource, Sample, Split};

/// Number of images of a split.
const fn split_len(split: Split) -> usize {
    match split {
        Split::Train => 10_000,
        Split::Val | Split::Test => 2_000,
    }
}

/// The samples of a split. Classes alternate, and no seed occurs in two splits.
pub fn samples(split: Split) -> Vec<Sample> {
    let first_seed = match split {
        Split::Train => 0,
        Split::Val => 1 << 32,
        Split::Test => 2 << 32,
    };
    (first_seed..)
        .zip((0..CLASSES.len()).cycle())
        .take(split_len(split))
        .map(|(seed, class)| Sample { labels: class.into(), source: ImageSource::Drawn { class, seed } })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn seed_of(sample: &Sample) -> u64 {
        match sample.source {
            ImageSource::Drawn { class, seed } => {
                assert_eq!(Some(class), sample.labels.only());
                seed
            }
            _ => panic!("not drawn"),
        }
    }

    #[test]
    fn splits_are_balanced_and_share_no_seed() {
        let mut seeds = HashSet::new();
        for (split, each) in [(Split::Train, 1000), (Split::Val, 200), (Split::Test, 200)] {
            let mut counts = [0; CLASSES.len()];
            for sample in samples(split) {
                counts[sample.labels[0]] += 1;
                assert!(seeds.insert(seed_of(&sample)));
            }
            assert_eq!(counts, [each; CLASSES.len()]);
        }
    }
}
