//! The operations that policies of augmentation draw from, each with an amount in the unit of its effect.

mod auto_augment;
mod rand_augment;
pub(super) mod trivial_augment;

pub use self::auto_augment::AutoAugment;
pub use self::rand_augment::RandAugment;
use super::{color, geometry};
use crate::Image;

/// What may be done to an image.
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
    /// Carries the operation out. The amount is the degrees of a rotation, the bits that are kept, the threshold or the
    /// addend of solarizing, the factor of a change of color (1 changes nothing), the tangent of a shear, or the pixels
    /// of a translation; the first four operations have none.
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

/// How far the operations of a policy go at full strength, as torchvision's tables of magnitudes have it: all but
/// posterizing and solarizing grow evenly from nothing, either way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ranges {
    /// The tangent of the angle.
    pub(super) shear: f64,
    /// Pixels across and down; fractions of pixels are dropped.
    pub(super) translate: [f64; 2],
    /// Degrees.
    pub(super) rotate: f64,
    /// By how much the factor of a change of color differs from 1.
    pub(super) factor: f64,
    /// How many of 8 bits posterizing drops.
    pub(super) bits: f64,
}

impl Ranges {
    /// The amount of an operation at a strength from 0 to 1; `negative` is the other way round, where there is one.
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

    /// An image of many values.
    pub(super) fn colors(channels: u8) -> Image {
        let pixels = (0..20 * 20 * u32::from(channels)).map(|i| (20 + i * 89 % 200) as u8).collect();
        Image { width: 20, height: 20, channels, pixels }
    }

    #[test]
    fn every_operation_does_something_but_identity() {
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
    fn a_threshold_between_two_levels_inverts_what_is_above() {
        let mut image = Image { width: 4, height: 1, channels: 1, pixels: vec![0, 141, 142, 255] };
        // torchvision's magnitude 4 of 10: 255 - 4 * 255 / 9.
        Operation::Solarize.apply(&mut image, 141.666_67);
        assert_eq!(image.pixels, [0, 141, 113, 0]);
    }
}
