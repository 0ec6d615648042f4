//! Augmentation: the random changes to images during training.

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

/// The augmentation of training images. A value of 0 (`repeats`: 1, `mix_probability` and `mix_until`: 1) switches its
/// part off.
///
/// [`validate`](Self::validate) checks the range of every value; `docs/recipes.md` lists the ranges with these
/// comments.
///
/// [`apply`](Self::apply) changes single images, [`erase`](Self::erase) their normalized values, and [`mix`](Self::mix)
/// whole batches. The results depend only on these values, the input, and the random generator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Augmentation {
    /// The part of an image that the model gets.
    pub crop: Crop,
    /// Probability that an image is mirrored.
    pub horizontal_flip: f64,
    /// Whether each image is mirrored in every second epoch. `horizontal_flip` is then the probability that it is
    /// mirrored in the first one (Jordan 2024, [arXiv:2404.00498](https://arxiv.org/abs/2404.00498), section 3.6).
    pub alternate_flips: bool,
    /// Largest rotation in either direction, in degrees. Pixels from outside the image are gray (128).
    pub rotation: f64,
    /// Strength s of the brightness jitter as in torchvision's `ColorJitter`: the factor is between max(0, 1 - s) and
    /// 1 + s.
    pub brightness: f64,
    /// As `brightness`, for the contrast around the image's mean gray value.
    pub contrast: f64,
    /// As `brightness`, for the saturation around each pixel's gray value. Without effect on gray images.
    pub saturation: f64,
    /// Largest rotation of the color circle in either direction, as a share of the circle. Without effect on gray
    /// images.
    pub hue: f64,
    /// RandAugment: random operations of about the same strength
    /// ([arXiv:1909.13719](https://arxiv.org/abs/1909.13719)). At most one of `rand_augment`, `auto_augment`, and
    /// `trivial_augment` may be on.
    pub rand_augment: Option<RandAugment>,
    /// AutoAugment: one random pair of operations out of a list that was found by a search
    /// ([arXiv:1805.09501](https://arxiv.org/abs/1805.09501)).
    pub auto_augment: Option<AutoAugment>,
    /// TrivialAugment with its wide space: one random operation of random strength
    /// ([arXiv:2103.10158](https://arxiv.org/abs/2103.10158)).
    pub trivial_augment: bool,
    /// Repeated augmentation: the number of differently augmented copies of each image in a batch
    /// ([arXiv:1901.09335](https://arxiv.org/abs/1901.09335)). An epoch keeps its number of samples, so that with
    /// `repeats = 3` it has a third of the images. With mixup or CutMix, `repeats` must be below the size of a batch.
    pub repeats: usize,
    /// Probability of random erasing, which replaces a rectangle of the image by noise
    /// ([arXiv:1708.04896](https://arxiv.org/abs/1708.04896)).
    pub random_erasing: f64,
    /// Alpha of mixup ([arXiv:1710.09412](https://arxiv.org/abs/1710.09412)). 0 turns mixup off.
    pub mixup: f64,
    /// Alpha of CutMix ([arXiv:1905.04899](https://arxiv.org/abs/1905.04899)). 0 turns CutMix off.
    pub cutmix: f64,
    /// Probability that mixup or CutMix is applied, drawn once per batch, pair, or image according to `mix_mode`.
    pub mix_probability: f64,
    /// The images that share one random draw for mixup or CutMix.
    pub mix_mode: MixMode,
    /// Share of the run after which mixup and CutMix stop.
    pub mix_until: f64,
}

/// The images that share one draw of whether, how, and how much to mix: timm's `mixup_mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MixMode {
    /// All images of a batch.
    #[default]
    Batch,
    /// The two images that are mixed with each other.
    Pair,
    /// Only one image: each has a draw of its own.
    Elem,
}

/// How the part of an image for training is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Crop {
    /// The part that evaluation uses.
    #[default]
    None,
    /// The part that evaluation uses, shifted by a random number of pixels in each direction (torchvision's
    /// `RandomCrop(padding)`).
    Pad {
        /// Largest shift, in pixels of the model's input.
        pixels: u32,
        /// Whether pixels from outside the image are its mirror image (torchvision's `padding_mode="reflect"`) instead
        /// of black.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        reflect: bool,
    },
    /// A random rectangle of the original image, scaled to the model's input (torchvision's `RandomResizedCrop`, from
    /// [arXiv:1409.4842](https://arxiv.org/abs/1409.4842)).
    Resized {
        /// Smallest and largest share of the image's area, above 0 and at most 1.
        scale: [f64; 2],
        /// Smallest and largest width / height of the rectangle, from 0.001 to 1000, relative to that of the model's input, so that
        /// only this ratio distorts (torchvision's is not relative, which is the same for square inputs). If evaluation squashes or
        /// pads images, the ratio is relative to that of the image, so that parts are squashed or padded as whole images are.
        ratio: [f64; 2],
    },
}

impl Default for Augmentation {
    fn default() -> Self {
        Self::none()
    }
}

impl Augmentation {
    /// No augmentation.
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

    /// Only the crop and the flips of this augmentation, which change images least.
    pub fn crop_and_flips(&self) -> Self {
        let &Self { crop, horizontal_flip, alternate_flips, .. } = self;
        Self { crop, horizontal_flip, alternate_flips, ..Self::none() }
    }

    /// This augmentation without flips.
    pub fn without_flips(&self) -> Self {
        Self { horizontal_flip: 0.0, alternate_flips: false, ..self.clone() }
    }

    /// This augmentation with brightness, contrast, and saturation of the given strength, and hue of a quarter of it.
    pub fn with_jitter(self, strength: f64) -> Self {
        Self { brightness: strength, contrast: strength, saturation: strength, hue: strength / 4.0, ..self }
    }

    /// This augmentation with RandAugment, random erasing, mixup, and CutMix for long training from scratch, in the
    /// strengths of DeiT ([arXiv:2012.12877](https://arxiv.org/abs/2012.12877)) except that only half of the batches
    /// are mixed.
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

    /// Augments an image. The result has the size of `preprocessing` and is not normalized yet.
    ///
    /// The order is crop, flip, rotation, RandAugment or its replacement, and color jitter, whose parts are in random
    /// order. Alternating flips are not applied here but in [`alternate`](Self::alternate), since they depend on the
    /// epoch.
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
                let ratio = ratio.map(|ratio| ratio * preprocessing.part_ratio(image));
                let part = geometry::random_crop(image.width, image.height, scale, ratio, rng);
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

    /// Mirrors the result of [`apply`](Self::apply) in every second epoch, if flips alternate. `first` draws whether
    /// these epochs begin with epoch 0 or 1, so it must be the same generator in every epoch. Mirroring may come last,
    /// since all other operations are as likely as their mirror images.
    pub fn alternate(&self, image: &mut Image, epoch: usize, first: &mut ChaCha8Rng) {
        if self.alternate_flips && (first.random::<f64>() < self.horizontal_flip) == epoch.is_multiple_of(2) {
            geometry::mirror(image);
        }
    }

    /// Changes brightness, contrast, saturation, and hue, in random order.
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
                color::rotate_hue(image, rng.random_range(-strength..=strength) as f32);
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
