//! TrivialAugment: one random operation of random strength (Müller & Hutter 2021).

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{
    Operation::{self, *},
    Ranges,
};
use crate::Image;

/// Strengths are multiples of 1 / `STEPS` from 0 to 1.
const STEPS: u32 = 30;

/// The operations of the wide space, in torchvision's order.
const OPERATIONS: [Operation; 14] = [
    Identity,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
    Rotate,
    Brightness,
    Color,
    Contrast,
    Sharpness,
    Posterize,
    Solarize,
    AutoContrast,
    Equalize,
];

/// The wide space of the paper's table 1, as in torchvision's `TrivialAugmentWide`.
const WIDE: Ranges = Ranges { shear: 0.99, translate: [32.0; 2], rotate: 135.0, factor: 0.99, bits: 6.0 };

/// Draws an operation and a strength and applies it ([arXiv:2103.10158](https://arxiv.org/abs/2103.10158)).
pub(in crate::transform) fn apply(image: &mut Image, rng: &mut ChaCha8Rng) {
    let operation = OPERATIONS[rng.random_range(0..OPERATIONS.len())];
    let strength = f64::from(rng.random_range(0..=STEPS)) / f64::from(STEPS);
    operation.apply(image, WIDE.amount(operation, strength, rng.random_bool(0.5)));
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::super::tests::colors;
    use super::*;

    /// Expected values from torchvision's `_augmentation_space(31)`.
    #[test]
    fn magnitudes_are_those_of_torchvision() {
        for (operation, step, negative, expected) in [
            (ShearX, 30, false, 0.99),
            (ShearY, 10, true, -0.33),
            (TranslateX, 30, false, 32.0),
            (TranslateY, 1, true, -1.0), // -1.07
            (Rotate, 10, true, -45.0),
            (Brightness, 30, true, 0.01),
            (Color, 30, false, 1.99),
            (Contrast, 10, false, 1.33),
            (Sharpness, 0, true, 1.0),
            (Posterize, 30, false, 2.0),
            (Posterize, 12, false, 6.0), // 12 / 5 = 2.4
            (Posterize, 13, true, 5.0),  // 13 / 5 = 2.6
            (Solarize, 0, false, 255.0),
            (Solarize, 10, false, 170.0),
            (Equalize, 7, false, 0.0),
        ] {
            let got = WIDE.amount(operation, f64::from(step) / 30.0, negative);
            assert!((got - expected).abs() < 1e-5, "{operation:?} {step}: {got}");
        }
    }

    #[test]
    fn operations_are_equally_likely_and_equal_for_equal_generators() {
        let mut unchanged = 0;
        for seed in 0..1400 {
            let [mut first, mut second] = [colors(3), colors(3)];
            apply(&mut first, &mut ChaCha8Rng::seed_from_u64(seed));
            apply(&mut second, &mut ChaCha8Rng::seed_from_u64(seed));
            assert_eq!(first, second);
            unchanged += usize::from(first == colors(3));
        }
        // An image is unchanged if the operation is `Identity` (1 of 14), or if the strength is 0 (1 of 31, for
        // posterizing nearly 3 of 31).
        assert!((100..200).contains(&unchanged), "{unchanged}");
        let mut drawn = [0; OPERATIONS.len()];
        for seed in 0..1400 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            drawn[rng.random_range(0..OPERATIONS.len())] += 1;
        }
        assert!(drawn.iter().all(|&count| (60..145).contains(&count)), "{drawn:?}");
    }
}
