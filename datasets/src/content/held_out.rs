//! The choice of images to hold out for validation. Each image is chosen by its own content, independently of all
//! others.

use crate::ContentKey;

/// Whether each image of a class is held out for validation. `keys` are the images of one class.
///
/// An image is held out if a number in `0..1`, which its content and `seed` determine, is below `fraction`. Adding,
/// removing, renaming, or moving other images therefore does not change where it goes, and copies of an image go to the
/// same split. The number held out of `n` images is `n * fraction` on average, with a standard deviation of `sqrt(n *
/// fraction * (1 - fraction))`.
///
/// From a class of two or more different images, at least one is held out (the one with the smallest number) and at
/// least one is not (the one with the largest). Only if this rule applies can adding an image change the split of
/// another one.
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
    fn adding_an_image_changes_the_split_of_no_other() {
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
            assert_eq!(
                held_out(&keys[100..], 0.2, seed),
                all[100..],
                "the first 100 images removed, seed {seed}"
            );
        }
    }

    #[test]
    fn about_the_requested_fraction_is_held_out() {
        let keys = keys(10_000);
        for (fraction, expected) in [(0.1, 1000), (0.2, 2000), (0.5, 5000)] {
            let found = count(&held_out(&keys, fraction, 7));
            assert!(found.abs_diff(expected) < 150, "{found} of {expected}");
        }
    }

    #[test]
    fn a_class_of_two_or_more_images_has_some_on_both_sides() {
        for fraction in [0.001, 0.2, 0.5, 0.999] {
            for seed in 0..50 {
                assert_eq!(count(&held_out(&keys(1), fraction, seed)), 0);
                assert_eq!(count(&held_out(&keys(2), fraction, seed)), 1);
                assert!((1..=4).contains(&count(&held_out(&keys(5), fraction, seed))));
            }
        }
    }

    #[test]
    fn copies_of_an_image_go_to_the_same_split() {
        for seed in 0..50 {
            let keys = [keys(6), keys(6), keys(3)].concat();
            let held_out = held_out(&keys, 0.3, seed);
            assert_eq!((&held_out[..6], &held_out[..3]), (&held_out[6..12], &held_out[12..]));
        }
        let copies = vec![keys(1)[0]; 4];
        assert_eq!(count(&held_out(&copies, 0.5, 0)), 0, "the only image of a class stays in training");
    }

    #[test]
    fn the_seed_decides_which_images_are_held_out() {
        let keys = keys(40);
        assert_eq!(held_out(&keys, 0.25, 3), held_out(&keys, 0.25, 3));
        assert_ne!(held_out(&keys, 0.25, 3), held_out(&keys, 0.25, 4));
    }
}
