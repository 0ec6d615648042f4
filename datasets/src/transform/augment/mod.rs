//! What training does to an image and evaluation does not.

mod mix;
#[cfg(test)]
mod tests;
mod validate;

use rand::RngExt;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

pub use self::validate::InvalidAugmentation;
use super::policy::{AutoAugment, RandAugment, trivial_augment};
use super::{Interpolation, Preprocessing, color, geometry};
use crate::Image;

/// Random changes to the images of training; every value's zero leaves its part out.
///
/// [`apply`](Self::apply) works on single images, [`erase`](Self::erase) on their normalized values and
/// [`mix`](Self::mix) on whole batches. Equal values and equally seeded generators give equal results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Augmentation {
    /// Which part of the image is seen.
    pub crop: Crop,
    /// Probability of a mirrored image: 0 to 1.
    pub horizontal_flip: f64,
    /// An image that is mirrored in an epoch is not in the next, and the other way round; the first epoch draws
    /// (Jordan 2024, [arXiv:2404.00498](https://arxiv.org/abs/2404.00498), section 3.6).
    pub alternate_flips: bool,
    /// Largest rotation, in degrees either way: 0 to 180. What comes in from outside is gray (128).
    pub rotation: f64,
    /// Strength s of torchvision's `ColorJitter`: the factor lies between max(0, 1 - s) and 1 + s. 0 or more.
    pub brightness: f64,
    /// As `brightness`, around the image's mean gray value.
    pub contrast: f64,
    /// As `brightness`, around each pixel's gray value. Without effect on gray images.
    pub saturation: f64,
    /// Largest rotation of the color circle, as a share of it: 0 to 0.5. Without effect on gray images.
    pub hue: f64,
    /// Random operations of random strength ([arXiv:1909.13719](https://arxiv.org/abs/1909.13719)).
    pub rand_augment: Option<RandAugment>,
    /// In its place, pairs of operations that were found by a search.
    pub auto_augment: Option<AutoAugment>,
    /// In its place, one random operation of random strength: TrivialAugment in its wide space
    /// ([arXiv:2103.10158](https://arxiv.org/abs/2103.10158)).
    pub trivial_augment: bool,
    /// How often a batch has each of its images, each time augmented anew
    /// ([arXiv:1901.09335](https://arxiv.org/abs/1901.09335)): 1 to 16. An epoch keeps its number of samples, so it has
    /// only one of so many images.
    pub repeats: usize,
    /// Probability that a rectangle becomes noise ([arXiv:1708.04896](https://arxiv.org/abs/1708.04896)): 0 to 1.
    pub random_erasing: f64,
    /// Alpha of mixup ([arXiv:1710.09412](https://arxiv.org/abs/1710.09412)): 0 (off) or more.
    pub mixup: f64,
    /// Alpha of CutMix ([arXiv:1905.04899](https://arxiv.org/abs/1905.04899)): 0 (off) or more.
    pub cutmix: f64,
    /// Share of the batches, or of what `mix_mode` says, that mixup or CutMix works on: above 0 and at most 1; 1 where
    /// neither is on.
    pub mix_probability: f64,
    /// What has a draw of its own in mixup and CutMix.
    pub mix_mode: MixMode,
    /// Share of the run after which mixup and CutMix stop: above 0 and at most 1.
    pub mix_until: f64,
}

/// What shares a draw of whether to mix, how, and how much: timm's `mixup_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MixMode {
    /// All images of a batch.
    #[default]
    Batch,
    /// Two images that are mixed with each other.
    Pair,
    /// Nothing: each image has its own.
    Elem,
}

/// Which part of an image training sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Crop {
    /// The part that evaluation sees.
    #[default]
    None,
    /// That part, moved by up to so many pixels each way (torchvision's `RandomCrop(padding)`).
    Pad {
        /// Largest shift in pixels of the model's input.
        pixels: u32,
        /// Whether what comes in is the image's own edge in a mirror (torchvision's `padding_mode="reflect"`) rather than black.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        reflect: bool,
    },
    /// A random rectangle of the original image, scaled to the model's size (torchvision's `RandomResizedCrop`, from
    /// [arXiv:1409.4842](https://arxiv.org/abs/1409.4842)).
    Resized {
        /// Smallest and largest share of the image's area: above 0 and at most 1.
        scale: [f64; 2],
        /// Smallest and largest width / height of the rectangle: above 0. Where evaluation squashes or pads images, relative to
        /// the image's own, so that a part is squashed or padded as the whole is.
        ratio: [f64; 2],
    },
}

impl Default for Augmentation {
    fn default() -> Self {
        Self::none()
    }
}

impl Augmentation {
    /// Changes nothing.
    pub fn none() -> Self {
        Self {
            crop: Crop::None,
            horizontal_flip: 0.0,
            alternate_flips: false,
            rotation: 0.0,
            brightness: 0.0,
            contrast: 0.0,
            saturation: 0.0,
            hue: 0.0,
            rand_augment: None,
            auto_augment: None,
            trivial_augment: false,
            repeats: 1,
            random_erasing: 0.0,
            mixup: 0.0,
            cutmix: 0.0,
            mix_probability: 1.0,
            mix_mode: MixMode::Batch,
            mix_until: 1.0,
        }
    }

    /// What of it changes an image least: its crop and its flips.
    pub fn crop_and_flips(&self) -> Self {
        let &Self { crop, horizontal_flip, alternate_flips, .. } = self;
        Self { crop, horizontal_flip, alternate_flips, ..Self::none() }
    }

    /// The same, but no image is mirrored.
    pub fn without_flips(&self) -> Self {
        Self { horizontal_flip: 0.0, alternate_flips: false, ..self.clone() }
    }

    /// With brightness, contrast and saturation of this strength and hue of a quarter of it.
    pub fn with_jitter(self, strength: f64) -> Self {
        Self { brightness: strength, contrast: strength, saturation: strength, hue: strength / 4.0, ..self }
    }

    /// With what long trainings from scratch take in addition: RandAugment, random erasing, mixup and CutMix, in
    /// the strengths of DeiT ([arXiv:2012.12877](https://arxiv.org/abs/2012.12877)) on half of the batches.
    pub fn strong(self) -> Self {
        Self {
            rand_augment: Some(RandAugment::default()),
            random_erasing: 0.1,
            mixup: 0.8,
            cutmix: 1.0,
            mix_probability: 0.5,
            ..self
        }
    }

    /// The image as training sees it this time, in the size of `preprocessing` and before it is normalized.
    ///
    /// Crop, flip, rotation, RandAugment or what takes its place, and color jitter in this order; the jitter's parts in
    /// random order. Flips that alternate depend on the epoch, and are up to [`alternate`](Self::alternate). The image must have the
    /// channels that the model takes.
    pub fn apply(&self, image: &Image, preprocessing: &Preprocessing, rng: &mut ChaCha8Rng) -> Image {
        let mut image = match self.crop {
            Crop::None | Crop::Pad { pixels: 0, .. } => preprocessing.resized(image),
            Crop::Pad { pixels, reflect } => {
                let mut draw = || rng.random_range(-i64::from(pixels)..=i64::from(pixels));
                let (across, down) = (draw(), draw());
                let shift = if reflect { geometry::shift_reflected } else { geometry::shift };
                shift(&preprocessing.resized(image), across, down)
            }
            Crop::Resized { scale, ratio } => {
                let ratio = ratio.map(|ratio| ratio * preprocessing.shape_of_parts(image));
                let part = geometry::random_part(image.width, image.height, scale, ratio, rng);
                preprocessing.resized_part(image, part, Interpolation::Bicubic)
            }
        };
        if self.horizontal_flip > 0.0 && !self.alternate_flips && rng.random::<f64>() < self.horizontal_flip {
            geometry::mirror(&mut image);
        }
        if self.rotation > 0.0 {
            geometry::rotate(&mut image, rng.random_range(-self.rotation..=self.rotation) as f32);
        }
        if let Some(rand_augment) = self.rand_augment {
            rand_augment.apply(&mut image, rng);
        }
        if let Some(auto_augment) = self.auto_augment {
            auto_augment.apply(&mut image, rng);
        }
        if self.trivial_augment {
            trivial_augment::apply(&mut image, rng);
        }
        self.jitter(&mut image, rng);
        image
    }

    /// Mirrors the image of [`apply`](Self::apply) in every second epoch, if flips alternate. `first` draws whether that
    /// begins with epoch 0 or 1, so it must be the same in every epoch. Whatever else is done to an image is as likely to
    /// be done to its mirror image, so this may come last.
    pub fn alternate(&self, image: &mut Image, epoch: usize, first: &mut ChaCha8Rng) {
        if self.alternate_flips && (first.random::<f64>() < self.horizontal_flip) == epoch.is_multiple_of(2) {
            geometry::mirror(image);
        }
    }

    fn jitter(&self, image: &mut Image, rng: &mut ChaCha8Rng) {
        let strengths = [self.brightness, self.contrast, self.saturation, self.hue];
        if strengths.iter().all(|&strength| strength <= 0.0) {
            return;
        }
        let mut order = [0, 1, 2, 3];
        order.shuffle(rng);
        for part in order {
            let strength = strengths[part];
            if strength <= 0.0 {
                continue;
            }
            if part == 3 {
                color::turn_hue(image, rng.random_range(-strength..=strength) as f32);
                continue;
            }
            let factor = rng.random_range((1.0 - strength).max(0.0)..=1.0 + strength) as f32;
            match part {
                0 => color::brightness(image, factor),
                1 => color::contrast(image, factor),
                _ => color::saturation(image, factor),
            }
        }
    }
}
