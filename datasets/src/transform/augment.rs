//! What training does to an image and evaluation does not.

use rand::RngExt;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::Interpolation;
use super::rand_augment::RandAugment;
use super::{color, geometry};
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
    /// Probability that a rectangle becomes noise ([arXiv:1708.04896](https://arxiv.org/abs/1708.04896)): 0 to 1.
    pub random_erasing: f64,
    /// Alpha of mixup ([arXiv:1710.09412](https://arxiv.org/abs/1710.09412)): 0 (off) or more.
    pub mixup: f64,
    /// Alpha of CutMix ([arXiv:1905.04899](https://arxiv.org/abs/1905.04899)): 0 (off) or more.
    pub cutmix: f64,
    /// Share of the batches that mixup or CutMix works on: above 0 and at most 1; 1 where neither is on.
    pub mix_probability: f64,
}

/// Which part of an image training sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Crop {
    /// The part that evaluation sees.
    #[default]
    None,
    /// That part, moved by up to so many pixels each way; what comes in is black (torchvision's
    /// `RandomCrop(padding)`).
    Pad {
        /// Largest shift in pixels of the model's input.
        pixels: u32,
    },
    /// A random rectangle, scaled to the model's size (torchvision's `RandomResizedCrop`, from
    /// [arXiv:1409.4842](https://arxiv.org/abs/1409.4842)).
    Resized {
        /// Smallest and largest share of the image's area: above 0 and at most 1.
        scale: [f64; 2],
        /// Smallest and largest width / height of the rectangle: above 0.
        ratio: [f64; 2],
    },
}

/// A value of an [`Augmentation`] that is out of its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("augmentation: `{key}` is {value}: {allowed} is needed")]
pub struct InvalidAugmentation {
    /// The key, with a dot before keys of a nested part.
    pub key: &'static str,
    /// What it is.
    pub value: String,
    /// What it may be.
    pub allowed: &'static str,
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
            rotation: 0.0,
            brightness: 0.0,
            contrast: 0.0,
            saturation: 0.0,
            hue: 0.0,
            rand_augment: None,
            random_erasing: 0.0,
            mixup: 0.0,
            cutmix: 0.0,
            mix_probability: 1.0,
        }
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

    /// Checks every value.
    ///
    /// # Errors
    ///
    /// Names the first key that is out of its range, its value and the range.
    pub fn validate(&self) -> Result<(), InvalidAugmentation> {
        const SHARE: &str = "a number from 0 to 1";
        // The usual ones are below 1: ten times that leaves nothing of an image, and as a parameter of the beta distribution mixes all alike.
        const STRENGTH: &str = "a number from 0 to 10";
        let check = |fine: bool, key, value: &dyn std::fmt::Debug, allowed| {
            if fine { Ok(()) } else { Err(InvalidAugmentation { key, value: format!("{value:?}"), allowed }) }
        };
        // A field that is missing here is an error of the compiler.
        let &Self {
            crop,
            horizontal_flip,
            rotation,
            brightness,
            contrast,
            saturation,
            hue,
            rand_augment,
            random_erasing,
            mixup,
            cutmix,
            mix_probability,
        } = self;
        if let Crop::Resized { scale, ratio } = crop {
            let rising = |[low, high]: [f64; 2]| low > 0.0 && low <= high && high.is_finite();
            let allowed = "a rising pair of numbers above 0 and at most 1";
            check(rising(scale) && scale[1] <= 1.0, "crop.resized.scale", &scale, allowed)?;
            let allowed = "a rising pair of finite numbers above 0";
            check(rising(ratio), "crop.resized.ratio", &ratio, allowed)?;
        }
        if let Crop::Pad { pixels } = crop {
            check(pixels <= 4096, "crop.pad.pixels", &pixels, "a whole number from 0 to 4096")?;
        }
        let within = |key, value: f64, highest: f64, allowed| {
            check((0.0..=highest).contains(&value) && value.is_finite(), key, &value, allowed)
        };
        within("horizontal_flip", horizontal_flip, 1.0, SHARE)?;
        within("rotation", rotation, 180.0, "a number of degrees from 0 to 180")?;
        within("brightness", brightness, 10.0, STRENGTH)?;
        within("contrast", contrast, 10.0, STRENGTH)?;
        within("saturation", saturation, 10.0, STRENGTH)?;
        within("hue", hue, 0.5, "a number from 0 to 0.5")?;
        if let Some(ours) = rand_augment {
            let allowed = "a whole number from 0 to 16";
            check(ours.layers <= 16, "rand_augment.layers", &ours.layers, allowed)?;
            within("rand_augment.magnitude", ours.magnitude, 10.0, "a number from 0 to 10")?;
            within("rand_augment.magnitude_std", ours.magnitude_std, 10.0, "a number from 0 to 10")?;
        }
        within("random_erasing", random_erasing, 1.0, SHARE)?;
        within("mixup", mixup, 10.0, STRENGTH)?;
        within("cutmix", cutmix, 10.0, STRENGTH)?;
        within("mix_probability", mix_probability, 1.0, SHARE)?;
        let mixes = mixup > 0.0 || cutmix > 0.0;
        let fine = if mixes { mix_probability > 0.0 } else { mix_probability == 1.0 };
        let allowed = if mixes {
            "a number above 0, because `mixup` and `cutmix` have no effect otherwise,"
        } else {
            "`mixup` or `cutmix` above 0, because it has no effect without them,"
        };
        check(fine, "mix_probability", &mix_probability, allowed)
    }

    /// The image as training sees it this time, in `[height, width]` and before it is normalized.
    ///
    /// Crop, flip, rotation, RandAugment and color jitter in this order; the jitter's parts in random order.
    /// `resize` is what evaluation does to an image to give it this size. [`Crop::Resized`] does not use it, so
    /// the image must have the channels that the model takes.
    pub fn apply(
        &self,
        image: &Image,
        size: [usize; 2],
        resize: &dyn Fn(&Image) -> Image,
        rng: &mut ChaCha8Rng,
    ) -> Image {
        let mut image = match self.crop {
            Crop::None | Crop::Pad { pixels: 0 } => resize(image),
            Crop::Pad { pixels } => {
                let mut draw = || rng.random_range(-i64::from(pixels)..=i64::from(pixels));
                let (across, down) = (draw(), draw());
                geometry::shift(&resize(image), across, down)
            }
            Crop::Resized { scale, ratio } => {
                let part = geometry::random_part(image.width, image.height, scale, ratio, rng);
                image.resize_part(part, size[1] as u32, size[0] as u32, Interpolation::Bicubic)
            }
        };
        debug_assert_eq!([image.height as usize, image.width as usize], size, "`resize` gives another size");
        if self.horizontal_flip > 0.0 && rng.random::<f64>() < self.horizontal_flip {
            geometry::mirror(&mut image);
        }
        if self.rotation > 0.0 {
            geometry::rotate(&mut image, rng.random_range(-self.rotation..=self.rotation) as f32);
        }
        if let Some(rand_augment) = self.rand_augment {
            rand_augment.apply(&mut image, rng);
        }
        self.jitter(&mut image, rng);
        image
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

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn test_image(width: u32, height: u32, channels: u8) -> Image {
        let pixels = (0..width * height * u32::from(channels)).map(|i| (i * 37 % 251) as u8).collect();
        Image { width, height, channels, pixels }
    }

    fn run(augmentation: &Augmentation, image: &Image, size: [usize; 2], seed: u64) -> Image {
        let resize = |image: &Image| image.resize(size[1] as u32, size[0] as u32, Interpolation::Bicubic);
        augmentation.apply(image, size, &resize, &mut ChaCha8Rng::seed_from_u64(seed))
    }

    fn everything() -> Augmentation {
        let crop = Crop::Resized { scale: [0.3, 1.0], ratio: [0.75, 4.0 / 3.0] };
        let first = Augmentation { crop, horizontal_flip: 0.5, rotation: 15.0, ..Augmentation::none() };
        first.with_jitter(0.4).strong()
    }

    #[test]
    fn nothing_is_changed_at_strength_zero() {
        let none = Augmentation::none();
        assert_eq!(none, Augmentation::default());
        for image in [test_image(20, 16, 3), test_image(20, 16, 1)] {
            assert_eq!(run(&none, &image, [16, 20], 1), image);
            let tiny = Augmentation { rotation: 1e-9, ..none.clone() }.with_jitter(1e-9);
            assert_eq!(run(&tiny, &image, [16, 20], 1), image);
        }
    }

    /// A key that does nothing, or takes anything, would be found here; one that is not listed, too.
    #[test]
    fn every_key_has_an_effect_and_a_range() {
        let strong = serde_json::json!({
            "crop": { "pad": { "pixels": 3 } }, "horizontal_flip": 1.0, "rotation": 90.0, "brightness": 0.5, "contrast": 0.5,
            "saturation": 0.5, "hue": 0.5, "rand_augment": { "layers": 4, "magnitude": 9.0, "magnitude_std": 0.0 },
            "random_erasing": 1.0, "mixup": 1.0, "cutmix": 1.0, "mix_probability": 0.5,
        });
        let plain = serde_json::to_value(Augmentation::none()).unwrap();
        let read = |value: serde_json::Value| serde_json::from_value::<Augmentation>(value);
        for key in plain.as_object().unwrap().keys() {
            let mut with = plain.clone();
            with[key] = strong[key].clone();
            if key == "mix_probability" {
                with["mixup"] = serde_json::json!(1.0);
            }
            let augmentation = read(with.clone()).unwrap();
            augmentation.validate().unwrap();
            let image = test_image(24, 16, 3);
            let is_of_batches =
                ["random_erasing", "mixup", "cutmix", "mix_probability"].contains(&key.as_str());
            let changed = (0..20).any(|seed| run(&augmentation, &image, [16, 24], seed) != image);
            assert_eq!(changed, !is_of_batches, "{key}");
            if with[key].is_number() {
                with[key] = serde_json::json!(1e9);
                let error = read(with).unwrap().validate().unwrap_err().to_string();
                assert!(error.contains(key.as_str()), "{error}");
            }
        }
    }

    #[test]
    fn equal_generators_give_equal_images_of_the_size() {
        for (width, height, channels) in [(50, 31, 3), (1, 1, 3), (200, 3, 1), (24, 32, 1)] {
            let image = test_image(width, height, channels);
            for crop in
                [everything().crop, Crop::None, Crop::Pad { pixels: 4 }, Crop::Pad { pixels: u32::MAX }]
            {
                let augmentation = Augmentation { crop, ..everything() };
                for seed in 0..40 {
                    let result = run(&augmentation, &image, [32, 24], seed);
                    assert_eq!((result.height, result.width, result.channels), (32, 24, channels));
                    assert_eq!(result.pixels.len(), 32 * 24 * usize::from(channels));
                    assert_eq!(result, run(&augmentation, &image, [32, 24], seed));
                }
            }
        }
        let image = test_image(32, 32, 3);
        assert_ne!(run(&everything(), &image, [32, 32], 1), run(&everything(), &image, [32, 32], 2));
    }

    #[test]
    fn images_are_mirrored_as_often_as_asked_for() {
        let image = test_image(8, 8, 3);
        let half = Augmentation { horizontal_flip: 0.5, ..Augmentation::none() };
        let mirrored = (0..400).filter(|&seed| run(&half, &image, [8, 8], seed) != image).count();
        assert!((160..240).contains(&mirrored), "{mirrored}");
        let always = Augmentation { horizontal_flip: 1.0, ..half };
        let once = run(&always, &image, [8, 8], 0);
        assert_eq!(run(&always, &once, [8, 8], 1), image);
    }

    #[test]
    fn every_shift_of_a_padded_crop_is_drawn() {
        let image = Image { width: 1, height: 1, channels: 1, pixels: vec![200] };
        let pad = Augmentation { crop: Crop::Pad { pixels: 1 }, ..Augmentation::none() };
        let kept = (0..900).filter(|&seed| run(&pad, &image, [1, 1], seed) == image).count();
        assert!((70..130).contains(&kept), "one shift of nine leaves the pixel: {kept} of 900");
    }

    #[test]
    fn gray_images_have_no_color_to_change() {
        let image = test_image(9, 9, 1);
        let color = Augmentation { saturation: 0.9, hue: 0.5, ..Augmentation::none() };
        assert_eq!(run(&color, &image, [9, 9], 3), image);
    }

    #[test]
    fn mistakes_name_key_value_and_range() {
        let none = Augmentation::none;
        let resized = |scale, ratio| Augmentation { crop: Crop::Resized { scale, ratio }, ..none() };
        let layers = |layers, magnitude, magnitude_std| Augmentation {
            rand_augment: Some(RandAugment { layers, magnitude, magnitude_std }),
            ..none()
        };
        let cases = [
            ("horizontal_flip", "1.5", Augmentation { horizontal_flip: 1.5, ..none() }),
            ("rotation", "181", Augmentation { rotation: 181.0, ..none() }),
            ("brightness", "-0.1", Augmentation { brightness: -0.1, ..none() }),
            ("contrast", "inf", Augmentation { contrast: f64::INFINITY, ..none() }),
            ("saturation", "NaN", Augmentation { saturation: f64::NAN, ..none() }),
            ("hue", "0.6", Augmentation { hue: 0.6, ..none() }),
            ("random_erasing", "2", Augmentation { random_erasing: 2.0, ..none() }),
            ("mixup", "-1", Augmentation { mixup: -1.0, ..none() }),
            ("cutmix", "-1", Augmentation { cutmix: -1.0, ..none() }),
            ("mix_probability", "1.1", Augmentation { mix_probability: 1.1, ..none() }),
            ("no effect without", "0.5", Augmentation { mix_probability: 0.5, ..none() }),
            ("no effect otherwise", "0.0", Augmentation { mix_probability: 0.0, ..none().strong() }),
            ("scale", "[0.0", resized([0.0, 1.0], [1.0, 1.0])),
            ("scale", "[0.5, 0.4]", resized([0.5, 0.4], [1.0, 1.0])),
            ("scale", "[0.5, 1.5]", resized([0.5, 1.5], [1.0, 1.0])),
            ("ratio", "[2.0, 1.0]", resized([0.5, 1.0], [2.0, 1.0])),
            ("rand_augment.layers", "17", layers(17, 9.0, 0.5)),
            ("rand_augment.magnitude", "11", layers(2, 11.0, 0.5)),
            ("rand_augment.magnitude_std", "-1", layers(2, 9.0, -1.0)),
        ];
        for (key, value, bad) in cases {
            let message = bad.validate().unwrap_err().to_string();
            assert!(
                message.contains(key) && message.contains(value) && message.contains("needed"),
                "{message}"
            );
        }
        assert_eq!(everything().validate(), Ok(()));
    }

    #[test]
    fn settings_are_read_back() {
        let text = serde_json::to_string(&everything()).unwrap();
        assert_eq!(serde_json::from_str::<Augmentation>(&text).unwrap(), everything());
        let read = serde_json::from_str::<Augmentation>(r#"{"crop": {"pad": {"pixels": 4}}}"#).unwrap();
        assert_eq!(read, Augmentation { crop: Crop::Pad { pixels: 4 }, ..Augmentation::none() });
        assert!(serde_json::from_str::<Augmentation>(r#"{"flips": 1}"#).is_err());
    }
}
