//! The accuracy that a run with default settings may be expected to reach, from a quick look at its images before it begins.

mod curve;
mod patches;

use std::time::{Duration, Instant};

use anyhow::Result;
use vitrine_datasets::{Loader, LoaderConfig, Preprocessing, epoch_order};
use vitrine_models::linear_probe::{Samples, Stop};

use self::curve::Expected;
use super::best_epoch::standard_error;
use super::interrupt;
use crate::device;
use crate::evaluate::{Metrics, Predictions};
use crate::events::{Event, EventSink};
use crate::probe::{self, Judgment};
use crate::recipe::Metric;
use crate::run_folder::RunConfig;
use crate::seed::{Stream, stream};

/// The most images that are looked at.
const IMAGES: usize = 1000;
/// With fewer images, or fewer of each class on average, a look says too little.
const MIN_IMAGES: usize = 100;
const MIN_IMAGES_OF_A_CLASS: usize = 4;
/// The longest time of a look, which takes longer in builds without optimization...
const LONGEST: Duration = Duration::from_secs(if cfg!(debug_assertions) { 120 } else { 3 });
/// ... and its largest share of a run's time.
const MAX_SHARE: f64 = 0.1;

/// What a look at images says about how well they can be recognized.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Look {
    /// The number of training images of the run.
    training: usize,
    /// The number of classes.
    classes: usize,
    /// The share of the most frequent class, which a model reaches that has learned nothing else.
    chance: f64,
    /// About the number of epochs of the run.
    epochs: f64,
    /// The number of images that were looked at.
    images: usize,
    /// The accuracy (0 to 1) of a linear classifier of random features for held-out images among these.
    top1: f64,
    /// Its mean cross-entropy, in nats.
    loss: f64,
}

/// Looks at some training images, and tells the user what accuracy to expect of so many epochs. Says nothing if there are too few
/// images, or too little time to look at them.
///
/// # Errors
/// When the loader fails.
pub(super) fn announce(
    training: &Loader,
    epochs: f64,
    config: &RunConfig,
    events: &dyn EventSink,
) -> Result<()> {
    if let Some(look) = look(training, epochs, config)? {
        events.emit(event(&look));
    }
    Ok(())
}

/// What a look lets expect.
fn event(look: &Look) -> Event {
    let expected = curve::expected(look);
    let message = match &expected {
        Some(Expected { high, .. }) if rounded(*high) == rounded(look.chance) => format!(
            "expected accuracy: no better than chance ({}%, the share of the most frequent class)",
            rounded(look.chance)
        ),
        Some(Expected { top1, low, high, likest: (likest, reached), .. }) => format!(
            "expected accuracy: about {}%, {} to {}% in four of five runs (most like it by a look at {} images: {likest}, with {}%)",
            rounded(*top1),
            rounded(*low),
            rounded(*high),
            look.images,
            rounded(*reached)
        ),
        None => format!(
            "expected accuracy: unknown, as no measured run has had such images (a linear classifier of simple features recognizes {}% of \
             {} of them)",
            rounded(look.top1),
            look.images
        ),
    };
    Event::Expectation {
        top1: expected.as_ref().map(|expected| expected.top1),
        low: expected.as_ref().map(|expected| expected.low),
        high: expected.as_ref().map(|expected| expected.high),
        images: look.images,
        linear_top1: look.top1,
        linear_loss: look.loss,
        epochs: look.epochs,
        message,
    }
}

/// A share in percent, with a digit after the point only where that tells it from all.
fn rounded(share: f64) -> String {
    let percent = 100.0 * share;
    if percent < 98.0 { format!("{percent:.0}") } else { format!("{percent:.1}") }
}

/// What a look says; `None` if there are too few images, or too little time, or the user asks to stop. It is computed on the processor, as
/// a GPU would first compile what training does not need.
fn look(training: &Loader, epochs: f64, config: &RunConfig) -> Result<Option<Look>> {
    let classes = config.classes.len();
    let fewest = MIN_IMAGES.max(MIN_IMAGES_OF_A_CLASS * classes);
    let Ok((cpu, _)) = device::select(Some("cpu")) else { return Ok(None) };
    if training.len().min(IMAGES) < fewest {
        return Ok(None);
    }
    let (begun, longest) = (Instant::now(), longest_for(config.recipe.time_seconds));
    let is_over = || begun.elapsed() > longest || interrupt::requested();
    let (images, labels) = read(training, config, &is_over)?;
    if labels.len() < fewest {
        return Ok(None);
    }
    let seed = stream(config.seed, Stream::Measuring, 4);
    let channels = config.preprocessing.channels;
    let features = patches::features(&images, channels, seed, &cpu.device, &is_over);
    let Some(features) = features else { return Ok(None) };
    let samples = Samples::new(&features, &labels, classes);
    let originals: Vec<usize> = (0..labels.len()).collect();
    let judge = |predictions: &Predictions| {
        let Metrics { top1, loss, samples, .. } = Metrics::compute(predictions, &config.classes);
        Judgment { score: top1, error: standard_error(Metric::Accuracy, top1, samples), loss, top1 }
    };
    let choice = probe::choose(&samples, &originals, &vec![1.0; classes], &judge, &is_over);
    let (Some(Judgment { top1, loss, .. }), true) = (choice.held_out, choice.is_complete) else {
        return Ok(None);
    };
    let (training, images, chance) = (training.len(), labels.len(), largest_share(&labels, classes));
    Ok(Some(Look { training, classes, chance, epochs, images, top1, loss }))
}

/// The share of the most frequent of the classes among some labels.
fn largest_share(labels: &[usize], classes: usize) -> f64 {
    let of_class = |class: usize| labels.iter().filter(|&&label| label == class).count();
    let most = (0..classes).map(of_class).max().unwrap_or_default();
    most as f64 / labels.len().max(1) as f64
}

/// The longest time of a look before a run of so many seconds.
fn longest_for(seconds: Option<f64>) -> Duration {
    let longest = LONGEST.as_secs_f64();
    Duration::from_secs_f64(seconds.map_or(longest, |seconds| longest.min(MAX_SHARE * seconds)))
}

/// Some training images, `[images, channels, 32, 32]`, and their labels, until it is over. They are read as training reads them, from
/// the cache of its loader or into it.
///
/// # Errors
/// When the threads that decode images cannot be started, or a batch cannot be loaded.
fn read(training: &Loader, config: &RunConfig, is_over: Stop<'_>) -> Result<(Vec<f32>, Vec<usize>)> {
    let loader = training.reconfigured(LoaderConfig {
        batch_size: training.config().threads.max(16),
        preprocessing: Preprocessing { image_size: [patches::SIDE; 2], ..config.preprocessing.clone() },
        ..training.config().clone()
    })?;
    let order = epoch_order(training.len(), stream(config.seed, Stream::Measuring, 3), 0);
    let part: Vec<usize> = order.into_iter().take(IMAGES).collect();
    let (mut images, mut labels) = (Vec::new(), Vec::new());
    for batch in loader.part(part) {
        let batch = batch?;
        images.extend(batch.images);
        labels.extend(batch.labels.iter().filter_map(|labels| labels.only()));
        if is_over() {
            break;
        }
    }
    Ok((images, labels))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use vitrine_datasets::{Augmentation, Sample};

    use super::*;
    use crate::events::testing::Lines;
    use crate::recipe::Recipe;
    use crate::run_folder::testing;
    use crate::train::loaders::in_order;

    fn looked(images: Vec<Sample>, config: &RunConfig) -> (Option<Look>, Vec<String>) {
        let loading = in_order(config, &config.preprocessing, 2);
        let loading = LoaderConfig { augmentation: Some(Augmentation::none()), ..loading };
        let events = Lines::default();
        let training = Loader::new(images.into(), loading).unwrap();
        announce(&training, 5.0, config, &events).unwrap();
        (look(&training, 5.0, config).unwrap(), events.0.into_inner().unwrap())
    }

    #[test]
    fn a_look_recognizes_simple_images_and_says_nothing_of_few() {
        let config = testing::config(&["circle", "ring"]);
        let of = |count: usize| looked(testing::drawn([count, 1, 1]).train, &config);
        let (look, said) = of(160);
        let look = look.unwrap();
        assert_eq!((look.training, look.images, look.epochs, look.chance), (160, 160, 5.0, 0.5));
        assert!(look.top1 > 0.6 && look.loss < 0.7, "{look:?}");
        assert!(said.len() == 1 && said[0].starts_with("expected accuracy: "), "{said:?}");
        assert_eq!(of(99), (None, Vec::new()));
        let many: Vec<String> = (0..41).map(|class| class.to_string()).collect();
        let of_many_classes = RunConfig { classes: many, ..config.clone() };
        assert_eq!(looked(testing::drawn([160, 1, 1]).train, &of_many_classes).0, None);
    }

    #[test]
    fn the_likest_run_is_named_or_the_accuracy_is_unknown() {
        let look = Look {
            training: 1500,
            classes: 10,
            chance: 0.1,
            epochs: 30.0,
            images: 1000,
            top1: 0.49,
            loss: 1.6,
        };
        let said = event(&look).to_string();
        assert!(said.starts_with("expected accuracy: about 6"), "{said}");
        assert!(
            said.ends_with("a look at 1000 images: CIFAR-10 with 165 images a class, with 68%)"),
            "{said}"
        );
        let said = event(&Look { epochs: 0.01, ..look }).to_string();
        assert_eq!(
            said,
            "expected accuracy: no better than chance (10%, the share of the most frequent class)"
        );
        let said = event(&Look { loss: 9.0, ..look }).to_string();
        assert_eq!(
            said,
            "expected accuracy: unknown, as no measured run has had such images (a linear classifier of simple features recognizes 49% of \
             1000 of them)"
        );
    }

    #[test]
    fn short_runs_have_little_time_for_a_look() {
        let longest = [None, Some(1.0), Some(1e9)].map(longest_for);
        assert_eq!(longest, [LONGEST, Duration::from_millis(100), LONGEST]);
        let config = testing::config(&["circle", "ring"]);
        let recipe = Recipe { time_seconds: Some(1e-6), ..config.recipe.clone() };
        assert_eq!(looked(testing::drawn([150, 1, 1]).train, &RunConfig { recipe, ..config }).0, None);
    }

    #[test]
    fn shares_near_one_are_told_from_all() {
        assert_eq!([0.574, 0.97, 0.985, 0.9996].map(rounded), ["57", "97", "98.5", "100.0"]);
    }
}
