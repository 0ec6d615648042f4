//! The image size of a run from pretrained weights, chosen between two by what a probe recognizes.

use anyhow::{Result, bail};
use vitrine_models::weights::NamedTensor;

use crate::evaluate::percent;
use crate::events::Event;
use crate::memory::{self, Work};
use crate::plan::Plan;
use crate::pretrained::Pretrained;
use crate::run_folder::{RunConfig, RunData};
use crate::runtime::Runtime;
use crate::train::{Trial, affordable_images, interrupt};

/// The configuration with the image size at which a probe recognizes more of some training images by cross-validation: the one
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
            affordable_images(seconds, &config, tensors(&config)?, runtime)?
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
    let mut top1 = [0.0; 2];
    for (top1, config) in top1.iter_mut().zip([&small, &config]) {
        let judgment = trial.judgment(config, tensors(config)?, runtime)?;
        if interrupt::requested() {
            bail!(
                "stopped before the run began, while its image size was tried (--image-size N goes without)"
            );
        }
        *top1 = judgment.map_or(0.0, |judgment| judgment.top1);
    }
    let chosen = usize::from(top1[1] > top1[0]);
    let (config, mut reasons) = if chosen == 0 { (small, smaller.reasons) } else { (config, reasons) };
    reasons.push(format!(
        "image size {}: a probe recognizes {} of {images} training images by cross-validation, and {} at {} (--image-size chooses any)",
        sizes[chosen],
        percent(top1[chosen]),
        percent(top1[1 - chosen]),
        sizes[1 - chosen]
    ));
    Ok((config, reasons))
}

/// The configuration with the choices of another plan.
fn with_plan(config: &RunConfig, plan: &Plan) -> RunConfig {
    let Plan { model_name, model, preprocessing, recipe, .. } = plan.clone();
    RunConfig { model_name, model, preprocessing, recipe, ..config.clone() }
}
