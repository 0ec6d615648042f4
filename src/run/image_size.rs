//! The image size of a run from pretrained weights, chosen between two by what a probe recognizes.

use anyhow::{Result, bail};
use vitrine_models::weights::NamedTensor;

use crate::evaluate::percent;
use crate::events::Event;
use crate::memory::{self, Work};
use crate::plan::Plan;
use crate::pretrained::Pretrained;
use crate::probe::Judgment;
use crate::recipe::Metric;
use crate::run_folder::{RunConfig, RunData};
use crate::runtime::Runtime;
use crate::train::{Trial, affordable_images, interrupt};

/// The configuration with the image size at which a probe has the better score for some training images by cross-validation: the one
/// that it has, or that of the plan `smaller`. Adds the reason to `reasons`. Without the time or the memory for it, or with too
/// few images, the size stays.
///
/// # Errors
/// If the weights do not fit one of the sizes, the images cannot be loaded, or the user asks to stop.
pub(super) fn choose(
    (config, reasons): (RunConfig, Vec<String>),
    smaller: Plan,
    weights: &Pretrained,
    data: &RunData,
    runtime: Runtime<'_>,
) -> Result<(RunConfig, Vec<String>)> {
    let tensors = |config: &RunConfig| -> Result<Vec<NamedTensor>> {
        Ok(weights.clone().adapted(&config.model, &config.classes)?.tensors)
    };
    if memory::check(&config.model, Work::Inference(1), runtime.device).is_err() {
        return Ok((config, reasons));
    }
    let affordable = match config.recipe.time_seconds {
        Some(seconds) if Trial::new(data, &config, usize::MAX).is_some() => {
            affordable_images(seconds, data, &config, tensors(&config)?, runtime)?
        }
        _ => usize::MAX,
    };
    let Some(trial) = Trial::new(data, &config, affordable) else { return Ok((config, reasons)) };
    let (images, sizes) = (trial.images(), [smaller.model.image_size, config.model.image_size]);
    runtime.events.emit(Event::notice(format!(
        "images that are much smaller than {} would be enlarged: a probe of {images} training images tells whether {} is enough",
        sizes[1], sizes[0]
    )));
    let small = with_plan(&config, &smaller);
    let mut judged = Vec::new();
    for config in [&small, &config] {
        judged.extend(trial.judgment(config, tensors(config)?, runtime)?);
        if interrupt::requested() {
            bail!(
                "stopped before the run began, while its image size was tried (--image-size N goes without)"
            );
        }
    }
    // Without images that can be read and held out, nothing is chosen.
    let &[of_small, of_large] = &judged[..] else { return Ok((config, reasons)) };
    let chosen = usize::from(of_large.score > of_small.score);
    let metric = config.recipe.metric();
    let scores = [of_small, of_large].map(|judgment| stated(metric, judgment));
    let (config, mut reasons) = if chosen == 0 { (small, smaller.reasons) } else { (config, reasons) };
    reasons.push(format!(
        "image size {}: by cross-validation among {images} training images, a probe's {metric} is {}, and {} at {} (--image-size chooses \
         any)",
        sizes[chosen],
        scores[chosen],
        scores[1 - chosen],
        sizes[1 - chosen]
    ));
    Ok((config, reasons))
}

/// The score of a judgment as people write it.
fn stated(metric: Metric, judgment: Judgment) -> String {
    match metric {
        Metric::Loss => format!("{:.4}", judgment.loss),
        Metric::Accuracy | Metric::MacroF1 | Metric::BalancedAccuracy | Metric::MeanAveragePrecision => {
            percent(judgment.score)
        }
    }
}

/// The configuration with the choices of another plan.
fn with_plan(config: &RunConfig, plan: &Plan) -> RunConfig {
    let Plan { model_name, model, preprocessing, recipe, .. } = plan.clone();
    RunConfig { model_name, model, preprocessing, recipe, ..config.clone() }
}
