//! Taking a validation split out of the training samples, class by class.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::Sample;

/// The samples in two parts, the second with about `fraction` of each class, both in the given order.
///
/// Each class is drawn from its own stream of `seed`. A class of two samples or more gives at least one and
/// keeps at least one; a class of one keeps it.
pub(crate) fn split_off(samples: Vec<Sample>, fraction: f64, seed: u64) -> (Vec<Sample>, Vec<Sample>) {
    let mut positions: Vec<Vec<usize>> = Vec::new();
    for (position, sample) in samples.iter().enumerate() {
        if positions.len() <= sample.label {
            positions.resize_with(sample.label + 1, Vec::new);
        }
        positions[sample.label].push(position);
    }
    let mut is_taken = vec![false; samples.len()];
    for (class, mut positions) in positions.into_iter().enumerate() {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(class as u64);
        positions.shuffle(&mut rng);
        for &position in &positions[..share(positions.len(), fraction)] {
            is_taken[position] = true;
        }
    }
    let (mut kept, mut taken) = (Vec::new(), Vec::new());
    for (sample, is_taken) in samples.into_iter().zip(is_taken) {
        if is_taken { taken.push(sample) } else { kept.push(sample) }
    }
    (kept, taken)
}

/// How many of a class's `count` samples go to the second part.
fn share(count: usize, fraction: f64) -> usize {
    if count < 2 {
        return 0;
    }
    ((count as f64 * fraction).round() as usize).clamp(1, count - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Picture;

    fn samples(counts: &[usize]) -> Vec<Sample> {
        let drawn = |class: usize, seed| Sample { label: class, picture: Picture::Drawn { class, seed } };
        counts
            .iter()
            .enumerate()
            .flat_map(|(class, &count)| (0..count).map(move |seed| drawn(class, seed as u64)))
            .collect()
    }

    fn ids(samples: &[Sample]) -> Vec<(usize, u64)> {
        samples
            .iter()
            .map(|sample| match sample.picture {
                Picture::Drawn { class, seed } => (class, seed),
                _ => panic!("the test draws its samples"),
            })
            .collect()
    }

    fn count(samples: &[Sample], class: usize) -> usize {
        samples.iter().filter(|sample| sample.label == class).count()
    }

    #[test]
    fn each_class_gives_its_share_and_nothing_is_lost() {
        let all = samples(&[100, 50, 10]);
        let (train, val) = split_off(all.clone(), 0.2, 7);
        assert_eq!([count(&val, 0), count(&val, 1), count(&val, 2)], [20, 10, 2]);
        let mut together = [ids(&train), ids(&val)].concat();
        together.sort_unstable();
        assert_eq!(together, ids(&all));
    }

    #[test]
    fn small_classes_keep_one_and_give_one() {
        for fraction in [0.001, 0.2, 0.5, 0.999] {
            let (train, val) = split_off(samples(&[1, 2, 3]), fraction, 0);
            assert_eq!((count(&train, 0), count(&val, 0)), (1, 0));
            assert_eq!((count(&train, 1), count(&val, 1)), (1, 1));
            assert!(count(&train, 2) >= 1 && count(&val, 2) >= 1);
        }
    }

    #[test]
    fn the_seed_decides_and_nothing_else() {
        let val = |seed| ids(&split_off(samples(&[40, 40]), 0.25, seed).1);
        assert_eq!(val(3), val(3));
        assert_ne!(val(3), val(4));
        let positions =
            |class| val(3).into_iter().filter(|id| id.0 == class).map(|id| id.1).collect::<Vec<_>>();
        assert_ne!(positions(0), positions(1));
    }
}
