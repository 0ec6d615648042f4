//! The part of the images of a probe for which a run has the time.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::Result;
use humantime::format_duration;
use vitrine_datasets::ContentKey;
use vitrine_models::VisionTransformer;

use super::{Probing, about};
use crate::events::Event;
use crate::features::{FeatureCache, identity};
use crate::predict::Views;
use crate::run_folder::RunConfig;
use crate::runtime::Runtime;
use crate::train::measuring::{chosen, reserved_seconds};

/// The least number of images to which a head is fitted, however little time there is.
const MIN_IMAGES: usize = 100;
/// How many times its limit a run takes without a word about it.
const TOLERANCE: f64 = 1.25;

/// A part of the images of a probe.
pub(in crate::train) struct Affordable {
    pub(in crate::train) part: Probing,
    /// About the number of training images, for which [`Probing::part`] chooses the same ones.
    pub(in crate::train) training: usize,
    /// The number of images, also for validation, whose features are not kept.
    missing: usize,
}

impl Affordable {
    /// What the user is told if a run of `seconds` seconds, of which `spent` are over, takes much longer even with this part and
    /// `tested` test images. Features are computed in `per_second` forward passes per second, `passes` of each image.
    pub(in crate::train) fn shortfall(
        &self,
        [seconds, spent]: [f64; 2],
        [per_second, passes]: [f64; 2],
        tested: usize,
    ) -> Option<String> {
        let features = passes * self.missing as f64 / per_second;
        let expected = spent + features + reserved_seconds(tested, seconds, Some(per_second));
        let Probing { training, validation } = &self.part;
        shortfall(seconds, expected, [training.samples.len(), validation.samples.len(), tested])
    }
}

/// The same for a run that takes about `expected` seconds with so many images for training, validation, and test.
fn shortfall(seconds: f64, expected: f64, [trained, validated, tested]: [usize; 3]) -> Option<String> {
    let images = match tested {
        0 => format!("{trained} images to train on and {validated} to validate"),
        _ => format!("{trained} images to train on, {validated} to validate, and {tested} to test"),
    };
    (expected > TOLERANCE * seconds).then(|| {
        format!(
            "the time of {} does not pay for the least that a run needs, {images}: it will take about {}",
            format_duration(Duration::from_secs_f64(seconds)),
            format_duration(Duration::from_secs_f64(expected.max(1.0).round()))
        )
    })
}

impl Probing {
    /// The largest part of the images whose features `images` forward passes give, next to those that are kept, with `validation`
    /// validation images. A notice says so if it has not all training images.
    ///
    /// # Errors
    /// When the backbone cannot be identified.
    pub(in crate::train) fn affordable(
        &self,
        [images, validation]: [usize; 2],
        model: &VisionTransformer,
        config: &RunConfig,
        runtime: Runtime<'_>,
    ) -> Result<Affordable> {
        let all = self.training.samples.len();
        let kept = self.kept(model, config, runtime)?;
        let missing = |training: usize| {
            let validated = chosen(self.validation.samples.len(), Some(validation), config.seed);
            let trained = self.training.part_of_each_class(training, config.seed);
            let keys = trained.iter().map(|&index| &self.training.keys[index]);
            let keys = keys.chain(validated.iter().map(|&index| &self.validation.keys[index]));
            keys.filter(|key| !kept.contains(key)).count()
        };
        // Smaller parts are parts of larger ones, so that they miss no more.
        let (mut enough, mut too_many) = (MIN_IMAGES.min(all), all + 1);
        while enough + 1 < too_many {
            let middle = enough.midpoint(too_many);
            if missing(middle) <= images { enough = middle } else { too_many = middle }
        }
        let part = self.part([enough, validation], config.seed);
        let training = part.training.samples.len();
        if training < all {
            runtime.events.emit(Event::notice(format!(
                "the head is fitted to {training} of {all} training images, as the time pays for no more"
            )));
        }
        Ok(Affordable { part, training: enough, missing: missing(enough) })
    }

    /// The keys of the images whose features are kept.
    ///
    /// # Errors
    /// When the backbone cannot be identified.
    fn kept(
        &self,
        model: &VisionTransformer,
        config: &RunConfig,
        runtime: Runtime<'_>,
    ) -> Result<HashSet<ContentKey>> {
        let Some(store) = runtime.cache else { return Ok(HashSet::new()) };
        let keys = [&self.training.keys[..], &self.validation.keys].concat();
        // Those of mirror images are computed last.
        let views = if config.recipe.fits_mirror_images() { Views::MirrorImage } else { Views::One };
        let folder = store.of_backbone(&identity(model, &config.preprocessing, views, runtime.device)?);
        let width = model.config().embedding_dim();
        let cache = FeatureCache::open(&folder, width, &keys, &about(config), runtime.events);
        Ok(keys.into_iter().filter(|key| cache.get(*key).is_some()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_takes_a_quarter_longer_than_its_time_is_announced() {
        assert_eq!(shortfall(20.0, 24.9, [100, 100, 100]), None);
        let line = "the time of 6s does not pay for the least that a run needs, 101 images to train on, 100 to validate, and 90 to \
            test: it will take about 1m 20s";
        assert_eq!(shortfall(6.0, 80.4, [101, 100, 90]).as_deref(), Some(line));
        let untested = shortfall(0.001, 0.1, [100, 20, 0]).unwrap_or_default();
        assert!(
            untested.contains("time of 1ms") && untested.contains("on and 20 to validate: "),
            "{untested}"
        );
        assert!(untested.ends_with("about 1s"), "{untested}");
    }
}
