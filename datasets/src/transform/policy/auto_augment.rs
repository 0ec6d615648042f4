//! AutoAugment: pairs of operations that a search found to help on a data set (Cubuk et al. 2019).

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::{
    Operation::{self, *},
    Ranges,
};
use crate::Image;

/// A policy of AutoAugment ([arXiv:1805.09501](https://arxiv.org/abs/1805.09501)). Each image gets one of 25 pairs of
/// operations. Each operation of a pair is applied with its own probability and magnitude, and in a random direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AutoAugment {
    /// The policy for CIFAR-10 (appendix, table 7), as in torchvision's `AutoAugmentPolicy.CIFAR10`, except that pixels
    /// from outside the image are gray, and geometric operations interpolate.
    Cifar10,
}

/// An operation, its probability, and its magnitude from 0 to 9.
type Step = (Operation, f64, u8);

impl AutoAugment {
    /// Its name in recipe files.
    pub(in crate::transform) fn name(self) -> &'static str {
        match self {
            Self::Cifar10 => "cifar10",
        }
    }

    /// The pairs of operations.
    fn policy(self) -> &'static [[Step; 2]] {
        match self {
            Self::Cifar10 => &CIFAR10,
        }
    }

    /// Draws a pair of operations and applies it.
    pub(in crate::transform) fn apply(self, image: &mut Image, rng: &mut ChaCha8Rng) {
        let policy = self.policy();
        let ranges = ranges(image);
        for (operation, probability, magnitude) in policy[rng.random_range(0..policy.len())] {
            let (is_applied, negative) = (rng.random::<f64>() < probability, rng.random_bool(0.5));
            if is_applied {
                operation.apply(image, ranges.amount(operation, f64::from(magnitude) / 9.0, negative));
            }
        }
    }
}

/// The ranges in the paper's table 6. Its translations by up to 150 pixels are for images of 331 pixels and are scaled
/// to the image.
fn ranges(image: &Image) -> Ranges {
    let translate = [image.width, image.height].map(|side| 150.0 / 331.0 * f64::from(side));
    Ranges { shear: 0.3, translate, rotate: 30.0, factor: 0.9, bits: 4.0 }
}

const CIFAR10: [[Step; 2]; 25] = [
    [(Invert, 0.1, 0), (Contrast, 0.2, 6)],
    [(Rotate, 0.7, 2), (TranslateX, 0.3, 9)],
    [(Sharpness, 0.8, 1), (Sharpness, 0.9, 3)],
    [(ShearY, 0.5, 8), (TranslateY, 0.7, 9)],
    [(AutoContrast, 0.5, 0), (Equalize, 0.9, 0)],
    [(ShearY, 0.2, 7), (Posterize, 0.3, 7)],
    [(Color, 0.4, 3), (Brightness, 0.6, 7)],
    [(Sharpness, 0.3, 9), (Brightness, 0.7, 9)],
    [(Equalize, 0.6, 0), (Equalize, 0.5, 0)],
    [(Contrast, 0.6, 7), (Sharpness, 0.6, 5)],
    [(Color, 0.7, 7), (TranslateX, 0.5, 8)],
    [(Equalize, 0.3, 0), (AutoContrast, 0.4, 0)],
    [(TranslateY, 0.4, 3), (Sharpness, 0.2, 6)],
    [(Brightness, 0.9, 6), (Color, 0.2, 8)],
    [(Solarize, 0.5, 2), (Invert, 0.0, 0)],
    [(Equalize, 0.2, 0), (AutoContrast, 0.6, 0)],
    [(Equalize, 0.2, 0), (Equalize, 0.6, 0)],
    [(Color, 0.9, 9), (Equalize, 0.6, 0)],
    [(AutoContrast, 0.8, 0), (Solarize, 0.2, 8)],
    [(Brightness, 0.1, 3), (Color, 0.7, 0)],
    [(Solarize, 0.4, 5), (AutoContrast, 0.9, 0)],
    [(TranslateY, 0.9, 9), (TranslateY, 0.7, 9)],
    [(AutoContrast, 0.9, 0), (Solarize, 0.8, 3)],
    [(Equalize, 0.8, 0), (Invert, 0.1, 0)],
    [(TranslateY, 0.7, 9), (AutoContrast, 0.9, 0)],
];

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::super::tests::colors;
    use super::*;

    #[test]
    fn the_policy_is_that_of_torchvision() {
        let text = include_str!("../../../tests/fixtures/auto_augment_cifar10.tsv");
        let rows: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(rows.len(), CIFAR10.len());
        for (row, steps) in rows.into_iter().zip(CIFAR10) {
            let ours = steps.map(|(operation, probability, magnitude)| {
                let has_amount = !matches!(operation, AutoContrast | Equalize | Invert);
                let magnitude = if has_amount { magnitude.to_string() } else { "-".to_owned() };
                format!("{operation:?}\t{probability:.1}\t{magnitude}")
            });
            assert_eq!(ours.join("\t"), row);
        }
    }

    /// Expected values from torchvision's `_augmentation_space(10, (20, 40))`.
    #[test]
    fn magnitudes_are_those_of_torchvision() {
        let image = Image { width: 40, height: 20, channels: 1, pixels: vec![0; 800] };
        let amount = |operation, magnitude: u8, negative| {
            ranges(&image).amount(operation, f64::from(magnitude) / 9.0, negative)
        };
        let bits: Vec<f32> = (0..10).map(|magnitude| amount(Posterize, magnitude, false)).collect();
        assert_eq!(bits, [8.0, 8.0, 7.0, 7.0, 6.0, 6.0, 5.0, 5.0, 4.0, 4.0]);
        for (operation, magnitude, negative, expected) in [
            (ShearX, 9, false, 0.3),
            (ShearY, 3, true, -0.1),
            (TranslateX, 9, false, 18.0), // 18.13
            (TranslateX, 9, true, -18.0),
            (TranslateY, 9, false, 9.0), // 9.06
            (TranslateY, 3, true, -3.0), // -3.02
            (Rotate, 2, false, 20.0 / 3.0),
            (Brightness, 7, true, 0.3),
            (Color, 0, true, 1.0),
            (Contrast, 6, false, 1.6),
            (Sharpness, 9, true, 0.1),
            (Solarize, 0, false, 255.0),
            (Solarize, 3, true, 170.0),
            (Solarize, 9, false, 0.0),
            (Equalize, 5, true, 0.0),
        ] {
            let got = amount(operation, magnitude, negative);
            assert!((got - expected).abs() < 1e-5, "{operation:?} {magnitude}: {got}");
        }
    }

    #[test]
    fn equal_generators_give_equal_images() {
        for channels in [1, 3] {
            let mut same = 0;
            for seed in 0..500 {
                let [mut first, mut second] = [colors(channels), colors(channels)];
                AutoAugment::Cifar10.apply(&mut first, &mut ChaCha8Rng::seed_from_u64(seed));
                AutoAugment::Cifar10.apply(&mut second, &mut ChaCha8Rng::seed_from_u64(seed));
                assert_eq!(first, second);
                same += usize::from(first == colors(channels));
            }
            // No operation is applied to 22% of the images, and color does not change gray ones.
            assert!((90..220).contains(&same), "{same}");
        }
    }
}
