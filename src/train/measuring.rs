//! The number of validation and test images that a run with a time limit measures, of maps that its report shows, and of
//! images in its map of embeddings, and the time that it sets aside for them.

use std::sync::Arc;

use vitrine_datasets::{Sample, epoch_order};

use crate::predict::Views;
use crate::seed::{Stream, stream};

/// The largest share of a run's time for one measurement: of the validation images after an epoch, or of the test
/// images.
const MAX_SHARE: f64 = 1.0 / 6.0;
/// The largest share of a run's time for shifts of the validation and test images.
const MAX_SHARE_OF_SHIFTS: f64 = 1.0 / 15.0;
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

/// The views, of those that are `wanted`, that a run of `seconds` seconds that measures `per_second` images per second has the time to
/// ask about. All, if there is no time limit or the speed is unknown.
pub(super) fn affordable_views(
    wanted: Views,
    images: [usize; 2],
    seconds: Option<f64>,
    per_second: Option<f64>,
) -> Views {
    let (Some(seconds), Some(per_second)) = (seconds, per_second) else { return wanted };
    let share = |views| extra_passes(views, images) as f64 / per_second / seconds;
    let mirrored = wanted.has_mirror_image() && share(Views::Mirrored) <= MAX_SHARE;
    let unshifted = Views::new(mirrored, false);
    let shifted = Views::new(mirrored, true);
    if wanted.has_shifts() && share(shifted) - share(unshifted) <= MAX_SHARE_OF_SHIFTS {
        shifted
    } else {
        unshifted
    }
}

/// The forward passes that views add to those for each image as it is: first the validation images in these views, to decide about mirror
/// images and then about shifts, and then the test images.
pub(super) fn extra_passes(views: Views, [validated, tested]: [usize; 2]) -> usize {
    let passes = |views: Views| views.list().len();
    let mirrored = if views.has_mirror_image() { passes(Views::Mirrored) } else { 0 };
    let shifted = if views.has_shifts() { passes(views) } else { 0 };
    (mirrored + shifted) * validated + (passes(views) - 1) * tested
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
        let views = |wanted, seconds| affordable_views(wanted, [1000, 1000], seconds, Some(1000.0));
        let at = |seconds| views(Views::Mirrored, Some(seconds));
        assert_eq!(
            [1.0, 17.9, 18.1, 60.0].map(at),
            [Views::One, Views::One, Views::Mirrored, Views::Mirrored]
        );
        assert_eq!(views(Views::One, None), Views::One);
        for wanted in [Views::Mirrored, Views::ShiftedMirrored] {
            assert_eq!(views(wanted, None), wanted, "no time limit");
            assert_eq!(affordable_views(wanted, [1000, 1000], Some(1.0), None), wanted, "unknown speed");
        }
    }

    #[test]
    fn shifts_need_more_time() {
        let views = |wanted, seconds| affordable_views(wanted, [1000, 1000], Some(seconds), Some(1000.0));
        // Four passes for the validation images and two more for the test images.
        let both = [50.0, 89.0, 91.0].map(|seconds| views(Views::ShiftedMirrored, seconds));
        assert_eq!(both, [Views::Mirrored, Views::Mirrored, Views::ShiftedMirrored]);
        let shifts = [44.0, 46.0].map(|seconds| views(Views::Shifted, seconds));
        assert_eq!(shifts, [Views::One, Views::Shifted]);
        let passes = [Views::One, Views::Mirrored, Views::Shifted, Views::ShiftedMirrored]
            .map(|views| extra_passes(views, [100, 10]));
        assert_eq!(passes, [0, 210, 210, 630]);
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
