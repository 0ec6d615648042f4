//! The image size of a run from pretrained weights, chosen between two by what a probe recognizes.

use anyhow::Result;

use crate::evaluate::percent;
use crate::events::Event;
use crate::plan::Plan;
use crate::pretrained::Pretrained;
use crate::run_folder::{RunConfig, RunData};
use crate::runtime::Runtime;
use crate::train::{Trial, interrupt};

/// The configuration with the image size at which a probe recognizes more of some training images by cross-validation: the one
/// that it has, or that of the plan `smaller`. Adds the reason to `reasons`. Without the time for it, the size stays.
///
/// # Errors
/// If the weights do not fit one of the sizes, or the images cannot be loaded.
pub(super) fn choose(
    (config, reasons): (RunConfig, Vec<String>),
    smaller: Plan,
    weights: &Pretrained,
    data: &RunData,
    runtime: Runtime<'_>,
) -> Result<(RunConfig, Vec<String>)> {
    let unchanged = (config.clone(), reasons.clone());
    let small = with_plan(&config, &smaller);
    let trial = |config: &RunConfig| -> Result<Trial> {
        let tensors = weights.clone().adapted(&config.model, &config.classes)?.tensors;
        Trial::new(config.clone(), tensors, runtime)
    };
    let large = trial(&config)?;
    let Some(images) = large.affordable_images(data, runtime)? else { return Ok(unchanged) };
    let sizes = [smaller.model.image_size, config.model.image_size];
    runtime.events.emit(Event::notice(format!(
        "images that are much smaller than {} would be enlarged: a probe of {images} training images tells whether {} is enough",
        sizes[1], sizes[0]
    )));
    let mut judged = Vec::new();
    // The smaller size costs a quarter, so its result comes first.
    for trial in [trial(&small)?, large] {
        let judgment = trial.judgment(data, images, runtime)?;
        match judgment {
            Some(judgment) if !interrupt::requested() => judged.push(judgment),
            _ => return Ok(unchanged),
        }
    }
    let chosen = usize::from(judged[1].score > judged[0].score);
    let (config, mut reasons) = if chosen == 0 { (small, smaller.reasons) } else { unchanged };
    reasons.push(format!(
        "image size {}: a probe recognizes {} of {images} training images by cross-validation, and {} at {} (--image-size chooses any)",
        sizes[chosen],
        percent(judged[chosen].top1),
        percent(judged[1 - chosen].top1),
        sizes[1 - chosen]
    ));
    Ok((config, reasons))
}

/// The configuration with the choices of another plan.
fn with_plan(config: &RunConfig, plan: &Plan) -> RunConfig {
    let Plan { model_name, model, preprocessing, recipe, .. } = plan.clone();
    RunConfig { model_name, model, preprocessing, recipe, ..config.clone() }
}
