//! Which images of a class are kept for validation: each by its own content, so that no other image matters.

use crate::ContentKey;

/// Whether each of a class's images is kept for validation.
///
/// An image is kept when a number in `0..1` that its content and `seed` give is below `fraction`: adding, removing,
/// renaming or moving others changes nothing for it, and copies of it go where it goes. The share is therefore
/// `fraction` on average; of `n` images it deviates by about `sqrt(n * fraction * (1 - fraction))` images.
///
/// A class of two different images or more gives at least one and keeps at least one: the one with the smallest
/// number, the one with the largest. Only there may one more image change the lot of another.
pub(crate) fn held_out(keys: &[ContentKey], fraction: f64, seed: u64) -> Vec<bool> {
    let draws: Vec<f64> = keys.iter().map(|key| key.draw(seed)).collect();
    let mut different = draws.clone();
    different.sort_unstable_by(f64::total_cmp);
    different.dedup();
    let below = different.partition_point(|&draw| draw < fraction);
    let limit = match different.len() {
        0 | 1 => 0.0,
        _ if below == 0 => different[1],
        count if below == count => different[count - 1],
        _ => fraction,
    };
    draws.into_iter().map(|draw| draw < limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecodeLimits, ImageSource};

    fn keys(count: u64) -> Vec<ContentKey> {
        (0..count)
            .map(|seed| ContentKey::of(&ImageSource::Drawn { class: 0, seed }, &DecodeLimits::default()))
            .collect()
    }

    fn count(held_out: &[bool]) -> usize {
        held_out.iter().filter(|&&is_held_out| is_held_out).count()
    }

    #[test]
    fn one_more_image_moves_no_other() {
        let keys = keys(300);
        for seed in 0..20 {
            let all = held_out(&keys, 0.2, seed);
            for length in 60..300 {
                assert_eq!(
                    held_out(&keys[..length], 0.2, seed),
                    all[..length],
                    "{length} images, seed {seed}"
                );
            }
            assert_eq!(held_out(&keys[100..], 0.2, seed), all[100..], "without the first ones, seed {seed}");
        }
    }

    #[test]
    fn the_share_is_about_the_one_asked_for() {
        let keys = keys(10_000);
        for (fraction, expected) in [(0.1, 1000), (0.2, 2000), (0.5, 5000)] {
            let found = count(&held_out(&keys, fraction, 7));
            assert!(found.abs_diff(expected) < 150, "{found} of {expected}");
        }
    }

    #[test]
    fn small_classes_keep_one_and_give_one() {
        for fraction in [0.001, 0.2, 0.5, 0.999] {
            for seed in 0..50 {
                assert_eq!(count(&held_out(&keys(1), fraction, seed)), 0);
                assert_eq!(count(&held_out(&keys(2), fraction, seed)), 1);
                assert!((1..=4).contains(&count(&held_out(&keys(5), fraction, seed))));
            }
        }
    }

    #[test]
    fn copies_of_an_image_stay_together() {
        for seed in 0..50 {
            let keys = [keys(6), keys(6), keys(3)].concat();
            let held_out = held_out(&keys, 0.3, seed);
            assert_eq!((&held_out[..6], &held_out[..3]), (&held_out[6..12], &held_out[12..]));
        }
        let copies = vec![keys(1)[0]; 4];
        assert_eq!(count(&held_out(&copies, 0.5, 0)), 0, "one image alone stays in training");
    }

    #[test]
    fn the_seed_decides() {
        let keys = keys(40);
        assert_eq!(held_out(&keys, 0.25, 3), held_out(&keys, 0.25, 3));
        assert_ne!(held_out(&keys, 0.25, 3), held_out(&keys, 0.25, 4));
    }
}
