//! Augmentation policies (AutoAugment, RandAugment, TrivialAugment) and the image operations that they draw from.

mod auto_augment;
mod rand_augment;
pub(super) mod trivial_augment;

pub use self::auto_augment::AutoAugment;
pub use self::rand_augment::RandAugment;
use super::{color, geometry};
use crate::Image;

/// An image operation of an augmentation policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Identity,
    AutoContrast,
    Equalize,
    Invert,
    Rotate,
    Posterize,
    Solarize,
    SolarizeAdd,
    Color,
    Contrast,
    Brightness,
    Sharpness,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
}

impl Operation {
    /// Applies the operation. The meaning of `amount` depends on it: degrees of a rotation, bits that posterizing
    /// keeps, threshold or addend of solarizing, factor of color, contrast, brightness, or sharpness (1 changes
    /// nothing), tangent of a shear angle, or pixels of a translation. The first four operations ignore it.
    pub(super) fn apply(self, image: &mut Image, amount: f32) {
        match self {
            Self::Identity => {}
            Self::AutoContrast => color::autocontrast(image),
            Self::Equalize => color::equalize(image),
            Self::Invert => color::invert(image),
            Self::Rotate => geometry::rotate(image, amount),
            Self::Posterize => color::posterize(image, amount as u32),
            Self::Solarize => color::solarize(image, amount.ceil() as u32),
            Self::SolarizeAdd => color::solarize_add(image, amount as u8),
            Self::Color => color::saturation(image, amount),
            Self::Contrast => color::contrast(image, amount),
            Self::Brightness => color::brightness(image, amount),
            Self::Sharpness => color::sharpness(image, amount),
            Self::ShearX => geometry::affine(image, [1.0, amount, 0.0, 0.0, 1.0, 0.0]),
            Self::ShearY => geometry::affine(image, [1.0, 0.0, 0.0, amount, 1.0, 0.0]),
            Self::TranslateX => geometry::affine(image, [1.0, 0.0, amount, 0.0, 1.0, 0.0]),
            Self::TranslateY => geometry::affine(image, [1.0, 0.0, 0.0, 0.0, 1.0, amount]),
        }
    }
}

/// The amounts of a policy's operations at full strength, as in torchvision's tables of magnitudes. All but posterizing
/// and solarizing grow linearly from no change, in either direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranges {
    /// Tangent of the shear angle.
    pub(super) shear: f64,
    /// Pixels of horizontal and vertical translation, rounded toward zero.
    pub(super) translate: [f64; 2],
    /// Degrees of rotation.
    pub(super) rotate: f64,
    /// Difference of the factor of color, contrast, brightness, or sharpness from 1.
    pub(super) factor: f64,
    /// Number of the 8 bits that posterizing drops.
    pub(super) bits: f64,
}

impl Ranges {
    /// The amount of an operation at a strength from 0 to 1. `negative` reverses its direction, if it has one.
    pub(super) fn amount(&self, operation: Operation, strength: f64, negative: bool) -> f32 {
        let signed = if negative { -strength } else { strength };
        let amount = match operation {
            Operation::Identity | Operation::AutoContrast | Operation::Equalize | Operation::Invert => 0.0,
            Operation::Rotate => self.rotate * signed,
            Operation::Posterize => 8.0 - (self.bits * strength).round(),
            Operation::Solarize => 255.0 * (1.0 - strength),
            Operation::SolarizeAdd => 110.0 * strength,
            Operation::Color | Operation::Contrast | Operation::Brightness | Operation::Sharpness => {
                1.0 + self.factor * signed
            }
            Operation::ShearX | Operation::ShearY => self.shear * signed,
            Operation::TranslateX => (self.translate[0] * signed).trunc(),
            Operation::TranslateY => (self.translate[1] * signed).trunc(),
        };
        amount as f32
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// An image with many different values.
    pub(super) fn colors(channels: u8) -> Image {
        let pixels = (0..20 * 20 * u32::from(channels)).map(|i| (20 + i * 89 % 200) as u8).collect();
        Image { width: 20, height: 20, channels, pixels }
    }

    #[test]
    fn every_operation_but_identity_changes_the_image() {
        use Operation::*;
        for (operation, amount) in [
            (Identity, 9.0),
            (AutoContrast, 0.0),
            (Equalize, 0.0),
            (Invert, 0.0),
            (Rotate, 20.0),
            (Posterize, 4.0),
            (Solarize, 127.5),
            (SolarizeAdd, 50.0),
            (Color, 0.5),
            (Contrast, 0.5),
            (Brightness, 0.5),
            (Sharpness, 0.5),
            (ShearX, 0.2),
            (ShearY, 0.2),
            (TranslateX, 3.0),
            (TranslateY, 3.0),
        ] {
            let mut image = colors(3);
            operation.apply(&mut image, amount);
            assert_eq!(image == colors(3), operation == Identity, "{operation:?}");
        }
    }

    #[test]
    fn a_solarize_threshold_between_two_levels_inverts_the_levels_above_it() {
        let mut image = Image { width: 4, height: 1, channels: 1, pixels: vec![0, 141, 142, 255] };
        // torchvision's threshold at magnitude 4 of 10: 255 - 4 * 255 / 9.
        Operation::Solarize.apply(&mut image, 141.666_67);
        assert_eq!(image.pixels, [0, 141, 113, 0]);
    }
}
