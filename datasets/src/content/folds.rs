//! Cross-validation folds: assigns each training image to one of several parts of equal size.

use std::collections::{HashMap, HashSet};

use crate::ContentKey;

/// The number of each image's fold, from 1 to `count`. Each image is given by its key and its class, which is below
/// `classes`.
///
/// The images of a class are shuffled by their content and `seed` and assigned to the folds in turn. Folds therefore
/// differ in size by at most one image, and so do their shares of any class. Copies of an image are in the same fold
/// and count once, for the class of the first, even if their classes differ. The only image of a class has number 0,
/// which is no fold: it is always trained on.
pub(crate) fn folds(images: &[(ContentKey, usize)], classes: usize, count: usize, seed: u64) -> Vec<usize> {
    let mut fold_of: HashMap<ContentKey, usize> = images.iter().map(|&(key, _)| (key, 0)).collect();
    let mut next = 0;
    for mut keys in different_images(images, classes).into_iter().filter(|keys| keys.len() > 1) {
        keys.sort_by(|a, b| a.draw(seed).total_cmp(&b.draw(seed)).then(a.cmp(b)));
        for key in keys {
            fold_of.insert(key, next % count + 1);
            next += 1;
        }
    }
    images.iter().map(|(key, _)| fold_of[key]).collect()
}

/// The keys of each class's different images. An image that occurs in several classes counts for the first of them.
pub(crate) fn different_images(images: &[(ContentKey, usize)], classes: usize) -> Vec<Vec<ContentKey>> {
    let mut different: Vec<Vec<ContentKey>> = vec![Vec::new(); classes];
    let mut seen = HashSet::new();
    for &(key, class) in images {
        if seen.insert(key) {
            different[class].push(key);
        }
    }
    different
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecodeLimits, ImageSource};

    fn images(counts: &[u64]) -> Vec<(ContentKey, usize)> {
        let image = |class, seed| {
            (ContentKey::of(&ImageSource::Drawn { class, seed }, &DecodeLimits::default()), class)
        };
        counts
            .iter()
            .enumerate()
            .flat_map(|(class, &count)| (0..count).map(move |seed| image(class, seed)))
            .collect()
    }

    #[test]
    fn folds_are_of_equal_size_in_every_class_and_overall() {
        for counts in [&[100, 50, 7][..], &[3, 3, 3, 3, 3], &[11, 2]] {
            let images = images(counts);
            for count in [2, 3, 5] {
                let folds = folds(&images, counts.len(), count, 4);
                let size = |fold: usize, class: Option<usize>| {
                    let pairs = images.iter().zip(&folds);
                    pairs
                        .filter(|((_, of), found)| **found == fold && class.is_none_or(|class| class == *of))
                        .count()
                };
                assert_eq!((1..=count).map(|fold| size(fold, None)).sum::<usize>(), images.len());
                for class in (0..counts.len()).map(Some).chain([None]) {
                    let sizes = || (1..=count).map(|fold| size(fold, class));
                    let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
                    assert!(
                        most - least <= 1,
                        "{counts:?}, {count} folds, class {class:?}: {least} to {most}"
                    );
                }
            }
        }
    }

    #[test]
    fn copies_share_a_fold_and_the_only_image_of_a_class_has_none() {
        let once = images(&[10, 10, 1]);
        let relabeled: Vec<(ContentKey, usize)> = once[..10].iter().map(|&(key, _)| (key, 1)).collect();
        let all = [&once[..], &once[..5], &relabeled].concat();
        let found = folds(&all, 3, 4, 0);
        assert_eq!((&found[21..26], &found[26..]), (&found[..5], &found[..10]));
        assert_eq!(found[20], 0);
        assert!(found[..20].iter().all(|fold| (1..=4).contains(fold)));
    }

    #[test]
    fn folds_depend_on_content_and_seed_and_not_on_the_order_of_images() {
        let images = images(&[30]);
        let reversed: Vec<_> = images.iter().rev().copied().collect();
        let mut found = folds(&reversed, 1, 3, 7);
        found.reverse();
        assert_eq!(found, folds(&images, 1, 3, 7));
        assert_ne!(found, folds(&images, 1, 3, 8));
    }
}
