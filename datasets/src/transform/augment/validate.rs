//! The check of an [`Augmentation`]: ranges of values, and values that have no effect or contradict each other.

use std::fmt::Debug;

use super::{Augmentation, Crop, MixMode};

/// The error for an invalid value of an [`Augmentation`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("augmentation: `{key}` is {value}: {allowed} is needed")]
pub struct InvalidAugmentation {
    /// The key, with dots between nested keys.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// The values that are allowed.
    pub allowed: &'static str,
}

/// The range of probabilities and shares.
const SHARE: &str = "a number from 0 to 1";
/// The range of strengths. Usual values are below 1. At 10, color jitter leaves nothing of an image, and mixup always
/// mixes about evenly.
const STRENGTH: &str = "a number from 0 to 10";

type Checked = Result<(), InvalidAugmentation>;

/// An error unless `fine`.
fn check(fine: bool, key: &'static str, value: &dyn Debug, allowed: &'static str) -> Checked {
    if fine { Ok(()) } else { Err(InvalidAugmentation { key, value: format!("{value:?}"), allowed }) }
}

/// An error unless `value` is from 0 to `highest`.
fn within(key: &'static str, value: f64, highest: f64, allowed: &'static str) -> Checked {
    check((0.0..=highest).contains(&value) && value.is_finite(), key, &value, allowed)
}

impl Augmentation {
    /// Checks every value.
    ///
    /// # Errors
    ///
    /// Names the first key with a value that is out of range or has no effect, its value, and what is allowed.
    pub fn validate(&self) -> Result<(), InvalidAugmentation> {
        // Without `..`, the compiler rejects a field that is missing here.
        let &Self {
            crop,
            horizontal_flip,
            alternate_flips,
            rotation,
            brightness,
            contrast,
            saturation,
            hue,
            rand_augment: _,
            auto_augment: _,
            trivial_augment: _,
            repeats,
            random_erasing,
            mixup,
            cutmix,
            mix_probability: _,
            mix_mode: _,
            mix_until: _,
        } = self;
        check_crop(crop)?;
        within("horizontal_flip", horizontal_flip, 1.0, SHARE)?;
        let allowed = "`horizontal_flip` above 0, because it has no effect without it,";
        check(!alternate_flips || horizontal_flip > 0.0, "alternate_flips", &alternate_flips, allowed)?;
        within("rotation", rotation, 180.0, "a number of degrees from 0 to 180")?;
        within("brightness", brightness, 10.0, STRENGTH)?;
        within("contrast", contrast, 10.0, STRENGTH)?;
        within("saturation", saturation, 10.0, STRENGTH)?;
        within("hue", hue, 0.5, "a number from 0 to 0.5")?;
        self.check_policy()?;
        check((1..=16).contains(&repeats), "repeats", &repeats, "a whole number from 1 to 16")?;
        within("random_erasing", random_erasing, 1.0, SHARE)?;
        within("mixup", mixup, 10.0, STRENGTH)?;
        within("cutmix", cutmix, 10.0, STRENGTH)?;
        self.check_mixing()
    }

    /// Checks that at most one policy (RandAugment, AutoAugment, TrivialAugment) is on, and its numbers.
    fn check_policy(&self) -> Checked {
        if let Some(ours) = self.rand_augment {
            let allowed = "a whole number from 1 to 16 (0 has no effect: leave `rand_augment` out)";
            check((1..=16).contains(&ours.layers), "rand_augment.layers", &ours.layers, allowed)?;
            within("rand_augment.magnitude", ours.magnitude, 10.0, "a number from 0 to 10")?;
            within("rand_augment.magnitude_std", ours.magnitude_std, 10.0, "a number from 0 to 10")?;
        }
        let allowed = "only one of `rand_augment`, `auto_augment` and `trivial_augment`";
        if let Some(policy) = self.auto_augment {
            let alone = self.rand_augment.is_none() && !self.trivial_augment;
            check(alone, "auto_augment", &policy.name(), allowed)?;
        }
        check(!self.trivial_augment || self.rand_augment.is_none(), "trivial_augment", &true, allowed)
    }

    /// Checks the keys of mixup and CutMix.
    fn check_mixing(&self) -> Checked {
        let &Self { mix_probability, mix_mode, mix_until, .. } = self;
        within("mix_probability", mix_probability, 1.0, SHARE)?;
        within("mix_until", mix_until, 1.0, SHARE)?;
        let mixes = self.mixup > 0.0 || self.cutmix > 0.0;
        let allowed = if mixes {
            "a number above 0, because `mixup` and `cutmix` have no effect otherwise,"
        } else {
            "`mixup` or `cutmix` above 0, because it has no effect without them,"
        };
        let fine = |share: f64| if mixes { share > 0.0 } else { share == 1.0 };
        check(fine(mix_probability), "mix_probability", &mix_probability, allowed)?;
        check(fine(mix_until), "mix_until", &mix_until, allowed)?;
        check(mixes || mix_mode == MixMode::Batch, "mix_mode", &mix_mode, allowed)
    }
}

/// Checks the numbers of a crop.
fn check_crop(crop: Crop) -> Checked {
    match crop {
        Crop::None => Ok(()),
        Crop::Pad { pixels, .. } => {
            let allowed = "a whole number from 1 to 4096 (0 has no effect: leave `crop` out)";
            check((1..=4096).contains(&pixels), "crop.pad.pixels", &pixels, allowed)
        }
        Crop::Resized { scale, ratio } => {
            let rising = |[low, high]: [f64; 2]| low > 0.0 && low <= high && high.is_finite();
            let allowed = "a rising pair of numbers above 0 and at most 1";
            check(rising(scale) && scale[1] <= 1.0, "crop.resized.scale", &scale, allowed)?;
            let is_ratio = rising(ratio) && ratio[0] >= 1e-3 && ratio[1] <= 1e3;
            check(is_ratio, "crop.resized.ratio", &ratio, "a rising pair of numbers from 0.001 to 1000")
        }
    }
}
