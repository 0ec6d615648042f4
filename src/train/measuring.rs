//! The number of validation and test images that a run with a time limit measures, of maps that its report shows, and of
//! images in its map of embeddings, and the time that it sets aside for them.

use std::sync::Arc;

use vitrine_datasets::{Sample, epoch_order};

use crate::seed::{Stream, stream};

/// The largest share of a run's time for one measurement: of the validation images after an epoch, or of the test
/// images.
const MAX_SHARE: f64 = 1.0 / 6.0;
/// The number of maps that a report shows if time allows.
const MAPS: usize = 24;
/// The largest share of a run's time for these maps.
const MAX_SHARE_OF_MAPS: f64 = 1.0 / 30.0;
/// The time of a map: that of measuring this many images, for the two forward passes and the backward pass of a block...
const MAP_IMAGES: f64 = 3.0;
/// ... and seconds for decoding the image once more, and for drawing.
const MAP_SECONDS: f64 = 0.004;
/// The number of images in the map of embeddings of a report if time allows.
const EMBEDDED: usize = 500;
/// The least number of images with which such a map is worth a look.
const MIN_EMBEDDED: usize = 50;
/// The largest share of a run's time for this map.
const MAX_SHARE_OF_EMBEDDED: f64 = 1.0 / 50.0;
/// Minimum number of images to measure, however short the run is.
const MIN_IMAGES: usize = 100;
/// Seconds to set aside for the report and the last checkpoint.
const REPORT_SECONDS: f64 = 0.2;
/// Factor by which the time for measuring is overestimated, because the speed is that of earlier batches.
const SAFETY_FACTOR: f64 = 1.1;

/// The number of images, out of `images`, that a run of `seconds` seconds measures at `per_second` images per second.
/// All, if there is no time limit or the speed is unknown.
pub(super) fn affordable_images(images: usize, seconds: Option<f64>, per_second: Option<f64>) -> usize {
    match (seconds, per_second) {
        (Some(seconds), Some(per_second)) => {
            images.min(((MAX_SHARE * seconds * per_second) as usize).max(MIN_IMAGES))
        }
        _ => images,
    }
}

/// Whether a run of `seconds` seconds that measures `per_second` images per second has the time to ask about mirror images too,
/// with the validation images once more as they are and mirrored, to decide about it, and then the mirrored test images. It has
/// if there is no time limit or the speed is unknown.
pub(super) fn affords_mirror_images(
    [validated, tested]: [usize; 2],
    seconds: Option<f64>,
    per_second: Option<f64>,
) -> bool {
    match (seconds, per_second) {
        (Some(seconds), Some(per_second)) => {
            mirrored_images([validated, tested]) as f64 / per_second <= MAX_SHARE * seconds
        }
        _ => true,
    }
}

/// The forward passes that mirror images add.
pub(super) fn mirrored_images([validated, tested]: [usize; 2]) -> usize {
    2 * validated + tested
}

/// The number of maps in the report of a run of `seconds` seconds that measures `per_second` images per second. If there is
/// no time limit or the speed is unknown, as many as a report shows.
pub(super) fn affordable_maps(seconds: Option<f64>, per_second: Option<f64>) -> usize {
    match (seconds, per_second) {
        (Some(seconds), Some(per_second)) => {
            MAPS.min((MAX_SHARE_OF_MAPS * seconds / seconds_per_map(per_second)) as usize)
        }
        _ => MAPS,
    }
}

/// The number of images in the map of embeddings in the report of a run of `seconds` seconds that measures `per_second`
/// images per second; 0 if too few to look at. If there is no time limit or the speed is unknown, as many as a map shows.
pub(super) fn affordable_embedded(seconds: Option<f64>, per_second: Option<f64>) -> usize {
    match (seconds, per_second) {
        (Some(seconds), Some(per_second)) => {
            let images = (MAX_SHARE_OF_EMBEDDED * seconds / seconds_per_embedded(per_second)) as usize;
            if images < MIN_EMBEDDED { 0 } else { images.min(EMBEDDED) }
        }
        _ => EMBEDDED,
    }
}

/// A forward pass, decoding the image once more, and seconds for scaling it down and encoding it.
fn seconds_per_embedded(per_second: f64) -> f64 {
    2.0 / per_second + 0.002
}

fn seconds_per_map(per_second: f64) -> f64 {
    MAP_IMAGES / per_second + MAP_SECONDS
}

/// Seconds to set aside at the end of a run of `seconds` seconds for measuring `images` images and writing the report with
/// its maps, of mistakes and of embeddings.
pub(super) fn reserved_seconds(images: usize, seconds: f64, per_second: Option<f64>) -> f64 {
    let maps = affordable_maps(Some(seconds), per_second) as f64;
    let embedded = affordable_embedded(Some(seconds), per_second) as f64;
    let measuring = per_second.map_or(0.0, |speed| {
        images as f64 / speed + maps * seconds_per_map(speed) + embedded * seconds_per_embedded(speed)
    });
    SAFETY_FACTOR * measuring + REPORT_SECONDS.min(MAX_SHARE * seconds)
}

/// A random subset of the samples in their order, with `images` samples: the same subset for the same `seed`. All
/// samples if `images` is `None`.
pub(crate) fn part(samples: &[Sample], images: Option<usize>, seed: u64) -> Arc<[Sample]> {
    chosen(samples.len(), images, seed).into_iter().map(|index| samples[index].clone()).collect()
}

/// The indices of the samples that [`part`] chooses out of `samples`.
pub(super) fn chosen(samples: usize, images: Option<usize>, seed: u64) -> Vec<usize> {
    match images {
        Some(images) if images < samples => {
            let mut chosen = epoch_order(samples, stream(seed, Stream::Measuring, 0), 0);
            chosen.truncate(images);
            chosen.sort_unstable();
            chosen
        }
        _ => (0..samples).collect(),
    }
}

#[cfg(test)]
mod tests {
    use vitrine_datasets::ImageSource;

    use super::*;

    #[test]
    fn a_short_run_measures_fewer_images_and_a_long_run_all() {
        let at = |seconds| affordable_images(10_000, Some(seconds), Some(3000.0));
        assert_eq!([0.01, 2.0, 60.0].map(at), [MIN_IMAGES, 1000, 10_000]);
        assert_eq!(affordable_images(10_000, None, Some(1.0)), 10_000, "no time limit");
        assert_eq!(affordable_images(10_000, Some(1.0), None), 10_000, "the speed is unknown");
        assert_eq!(affordable_images(7, Some(0.01), Some(1.0)), 7);
    }

    #[test]
    fn mirror_images_take_no_more_of_a_run_than_another_measurement() {
        let at = |seconds| affords_mirror_images([1000, 1000], Some(seconds), Some(1000.0));
        assert_eq!([1.0, 17.9, 18.1, 60.0].map(at), [false, false, true, true]);
        assert!(affords_mirror_images([1000, 1000], None, Some(1.0)), "no time limit");
        assert!(affords_mirror_images([1000, 1000], Some(1.0), None), "the speed is unknown");
    }

    #[test]
    fn a_short_run_has_fewer_maps_and_a_very_short_one_none() {
        let at = |seconds| affordable_maps(Some(seconds), Some(150.0));
        assert_eq!([0.5, 9.0, 60.0].map(at), [0, 12, 24]);
        assert_eq!([affordable_maps(None, Some(1.0)), affordable_maps(Some(1.0), None)], [24, 24]);
    }

    #[test]
    fn a_short_run_has_fewer_images_in_its_map_of_embeddings_and_a_very_short_one_no_map() {
        let at = |seconds| affordable_embedded(Some(seconds), Some(250.0));
        assert_eq!([1.0, 60.0, 3600.0].map(at), [0, 120, 500]);
        assert_eq!([affordable_embedded(None, Some(1.0)), affordable_embedded(Some(1.0), None)], [500, 500]);
    }

    #[test]
    fn time_is_set_aside_for_measuring_and_the_report() {
        let maps = 24.0 * 0.005;
        let embedded = affordable_embedded(Some(60.0), Some(3000.0)) as f64 * (2.0 / 3000.0 + 0.002);
        assert!((reserved_seconds(6000, 60.0, Some(3000.0)) - 2.4 - 1.1 * (maps + embedded)).abs() < 1e-9);
        assert!((reserved_seconds(6000, 0.6, None) - 0.1).abs() < 1e-9);
    }

    #[test]
    fn the_subset_depends_on_the_seed_and_spreads_over_all_classes() {
        let samples: Vec<Sample> = (0..100)
            .map(|label| Sample {
                labels: label.into(),
                source: ImageSource::Drawn { class: label, seed: 0 },
            })
            .collect();
        let labels = |images, seed| {
            part(&samples, images, seed).iter().map(|sample| sample.labels[0]).collect::<Vec<_>>()
        };
        let some = labels(Some(10), 1);
        assert_eq!((some.len(), &some), (10, &labels(Some(10), 1)));
        assert_ne!(some, labels(Some(10), 2));
        assert!(some.is_sorted() && *some.last().unwrap_or(&0) > 50, "{some:?}");
        assert_eq!([labels(None, 1).len(), labels(Some(1000), 1).len()], [100, 100]);
    }
}
