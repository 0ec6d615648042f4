//! How many images are measured where the clock ends a run: all of them, or as many as a part of the time pays for.

use std::sync::Arc;

use vitrine_datasets::{Sample, epoch_order};

use crate::seed::{Stream, stream};

/// The largest part of a run's time that may go into its last validation, and the largest that may go into measuring the test split.
const PART: f64 = 1.0 / 6.0;
/// As many images are measured in any case.
const FEWEST: usize = 100;
/// Seconds that are kept for the report and the last checkpoint,
const REPORT: f64 = 0.2;
/// and as a part of those for measuring: speeds are those of other batches.
const DOUBT: f64 = 1.1;

/// Of `images` images, how many a run of `seconds` seconds can measure at so many a second.
pub(super) fn payable(images: usize, seconds: Option<f64>, per_second: Option<f64>) -> usize {
    match (seconds, per_second) {
        (Some(seconds), Some(per_second)) => images.min(((PART * seconds * per_second) as usize).max(FEWEST)),
        _ => images,
    }
}

/// Seconds to keep for measuring so many images at the end of a run of `seconds` seconds, and for writing its report.
pub(super) fn reserve(images: usize, seconds: f64, per_second: Option<f64>) -> f64 {
    let measuring = per_second.map_or(0.0, |per_second| images as f64 / per_second);
    DOUBT * measuring + REPORT.min(PART * seconds)
}

/// As many of the images, the same ones each time: the first ones of an order that `seed` shuffles.
pub(crate) fn part(samples: &[Sample], images: Option<usize>, seed: u64) -> Arc<[Sample]> {
    match images {
        Some(images) if images < samples.len() => {
            let mut chosen = epoch_order(samples.len(), stream(seed, Stream::Measuring, 0), 0);
            chosen.truncate(images);
            chosen.sort_unstable();
            chosen.into_iter().map(|index| samples[index].clone()).collect()
        }
        _ => samples.into(),
    }
}

#[cfg(test)]
mod tests {
    use vitrine_datasets::ImageSource;

    use super::*;

    #[test]
    fn a_short_run_measures_what_it_can_pay_for_and_a_long_one_everything() {
        let at = |seconds| payable(10_000, Some(seconds), Some(3000.0));
        assert_eq!([0.01, 2.0, 60.0].map(at), [FEWEST, 1000, 10_000]);
        assert_eq!(payable(10_000, None, Some(1.0)), 10_000, "without a clock");
        assert_eq!(payable(10_000, Some(1.0), None), 10_000, "nothing is known yet");
        assert_eq!(payable(7, Some(0.01), Some(1.0)), 7);
    }

    #[test]
    fn time_is_kept_for_measuring_and_the_report() {
        assert!((reserve(6000, 60.0, Some(3000.0)) - 2.4).abs() < 1e-9);
        assert!((reserve(6000, 0.6, None) - 0.1).abs() < 1e-9);
    }

    #[test]
    fn a_part_is_the_same_each_time_and_not_the_first_classes() {
        let samples: Vec<Sample> = (0..100)
            .map(|label| Sample { label, source: ImageSource::Drawn { class: label, seed: 0 } })
            .collect();
        let labels =
            |images, seed| part(&samples, images, seed).iter().map(|sample| sample.label).collect::<Vec<_>>();
        let some = labels(Some(10), 1);
        assert_eq!((some.len(), &some), (10, &labels(Some(10), 1)));
        assert_ne!(some, labels(Some(10), 2));
        assert!(some.is_sorted() && *some.last().unwrap_or(&0) > 50, "{some:?}");
        assert_eq!([labels(None, 1).len(), labels(Some(1000), 1).len()], [100, 100]);
    }
}
