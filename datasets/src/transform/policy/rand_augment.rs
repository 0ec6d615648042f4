//! RandAugment as in timm's `rand-m9-mstd0.5-inc1`: a few random operations whose strength grows with the magnitude.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_distr::StandardNormal;
use serde::{Deserialize, Serialize};

use super::Operation;
use crate::Image;

/// The magnitude of full strength.
const HIGHEST: f64 = 10.0;
/// Probability that a drawn operation is applied, as in timm.
const APPLIED: f64 = 0.5;

/// Settings of RandAugment ([arXiv:1909.13719](https://arxiv.org/abs/1909.13719)). The operations are timm's variant in
/// which the effect of each grows with the magnitude (`inc1`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RandAugment {
    /// Number of operations to draw per image, each of which is applied with probability 1/2.
    pub layers: usize,
    /// Mean strength of an operation, where 10 is the strongest.
    pub magnitude: f64,
    /// Standard deviation of the strength.
    pub magnitude_std: f64,
}

impl Default for RandAugment {
    /// Two operations of magnitude 9 with a standard deviation of 0.5.
    fn default() -> Self {
        Self { layers: 2, magnitude: 9.0, magnitude_std: 0.5 }
    }
}

impl RandAugment {
    /// Draws the operations and applies them.
    pub(in crate::transform) fn apply(self, image: &mut Image, rng: &mut ChaCha8Rng) {
        for _ in 0..self.layers {
            let operation = OPERATIONS[rng.random_range(0..OPERATIONS.len())];
            if !rng.random_bool(APPLIED) {
                continue;
            }
            let deviation = self.magnitude_std * rng.sample::<f64, _>(StandardNormal);
            let strength = (self.magnitude + deviation).clamp(0.0, HIGHEST) / HIGHEST;
            let amount = amount(operation, strength, rng.random_bool(0.5), image);
            operation.apply(image, amount);
        }
    }
}

const OPERATIONS: [Operation; 15] = [
    Operation::AutoContrast,
    Operation::Equalize,
    Operation::Invert,
    Operation::Rotate,
    Operation::Posterize,
    Operation::Solarize,
    Operation::SolarizeAdd,
    Operation::Color,
    Operation::Contrast,
    Operation::Brightness,
    Operation::Sharpness,
    Operation::ShearX,
    Operation::ShearY,
    Operation::TranslateX,
    Operation::TranslateY,
];

/// The amount of an operation at a strength from 0 to 1. `negative` reverses its direction, if it has one.
fn amount(operation: Operation, strength: f64, negative: bool, image: &Image) -> f32 {
    let signed = if negative { -strength } else { strength } as f32;
    match operation {
        Operation::Identity | Operation::AutoContrast | Operation::Equalize | Operation::Invert => 0.0,
        Operation::Rotate => 30.0 * signed,
        Operation::Posterize => 4.0 - (4.0 * strength).trunc() as f32,
        Operation::Solarize => 256.0 - (256.0 * strength).trunc() as f32,
        Operation::SolarizeAdd => (110.0 * strength).trunc() as f32,
        Operation::Color | Operation::Contrast | Operation::Brightness | Operation::Sharpness => {
            (1.0 + 0.9 * signed).max(0.1)
        }
        Operation::ShearX | Operation::ShearY => 0.3 * signed,
        Operation::TranslateX => 0.45 * signed * image.width as f32,
        Operation::TranslateY => 0.45 * signed * image.height as f32,
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::super::tests::colors;
    use super::*;

    fn distance(a: &Image, b: &Image) -> u32 {
        a.pixels.iter().zip(&b.pixels).map(|(a, b)| u32::from(a.abs_diff(*b))).sum()
    }

    #[test]
    fn operations_grow_with_the_strength() {
        use Operation::{AutoContrast, Equalize, Invert, Posterize, ShearX, ShearY, TranslateX, TranslateY};
        let start = colors(3);
        for operation in OPERATIONS {
            let changed = |strength| {
                let mut image = start.clone();
                let amount = amount(operation, strength, true, &image);
                operation.apply(&mut image, amount);
                distance(&image, &start)
            };
            match operation {
                AutoContrast | Equalize | Invert => assert!(changed(0.0) > 0, "{operation:?}"),
                Posterize => assert!(changed(0.0) < changed(1.0)),
                _ => assert_eq!(changed(0.0), 0, "{operation:?}"),
            }
            assert!(changed(1.0) > 0, "{operation:?}");
            // For shears and translations, the number of changed pixels depends on the image.
            if !matches!(operation, ShearX | ShearY | TranslateX | TranslateY) {
                assert!(changed(1.0) >= changed(0.3), "{operation:?}");
            }
        }
    }

    fn move_by_a_pixel(image: &mut Image, negative: bool) {
        let amount = amount(Operation::TranslateX, 5.0 / 9.0, negative, image);
        Operation::TranslateX.apply(image, amount);
    }

    #[test]
    fn negative_amounts_reverse_the_direction() {
        let mut image = Image { width: 4, height: 1, channels: 1, pixels: vec![1, 2, 3, 4] };
        // A translation by 0.45 of 4 pixels at 5/9 of full strength is one pixel.
        move_by_a_pixel(&mut image, false);
        assert_eq!(image.pixels, [2, 3, 4, 128]);
        move_by_a_pixel(&mut image, true);
        assert_eq!(image.pixels, [128, 2, 3, 4]);
    }

    #[test]
    fn equal_generators_give_equal_images() {
        for channels in [1, 3] {
            let mut same = 0;
            for seed in 0..200 {
                let [mut first, mut second] = [colors(channels), colors(channels)];
                RandAugment::default().apply(&mut first, &mut ChaCha8Rng::seed_from_u64(seed));
                RandAugment::default().apply(&mut second, &mut ChaCha8Rng::seed_from_u64(seed));
                assert_eq!(first, second);
                same += usize::from(first == colors(channels));
            }
            // To a quarter of the images, neither of the two operations is applied.
            assert!((30..80).contains(&same), "{same}");
        }
    }

    #[test]
    fn no_layers_change_nothing() {
        let mut image = colors(3);
        RandAugment { layers: 0, ..RandAugment::default() }
            .apply(&mut image, &mut ChaCha8Rng::seed_from_u64(1));
        assert_eq!(image, colors(3));
    }
}
