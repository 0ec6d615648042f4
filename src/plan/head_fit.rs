//! The choice whether the head of a frozen backbone is fitted to features or trained by steps.

use anyhow::Result;
use vitrine_models::{ModelConfig, Pool};

use super::{Evidence, Overrides, Pooling};
use crate::recipe::{Freeze, Precision, Recipe};
use crate::usage::usage;

/// The recipe that fits the head, if `--freeze backbone` is given and nothing that needs training by steps. Adds to `reasons`
/// what is done with the head, and how to get the other.
///
/// # Errors
/// If the recipe is another one. With `--freeze backbone`, the error is the reason why the head is trained by steps.
pub(super) fn choose(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    model: &ModelConfig,
    reasons: &mut Vec<String>,
) -> Result<Recipe, Option<String>> {
    if overrides.options.freeze != Some(Freeze::Backbone) || evidence.pretrained.is_none() {
        return Err(None);
    }
    if let Some(option) = option_for_steps(overrides) {
        return Err(Some(format!(
            "the head is trained by steps, because of {option}: without it, the head is fitted to features that are computed \
             once"
        )));
    }
    if let Some(obstacle) = obstacle(model, evidence) {
        return Err(Some(format!(
            "the head is trained by steps: it cannot be fitted to features, because {obstacle}"
        )));
    }
    let flips = overrides.options.flips == Some(true);
    let views = if flips { "as it is and once in the mirror" } else { "as it is" };
    reasons.push(format!(
        "each image goes through the frozen backbone once, {views}, and the head is fitted to the features; --epochs or --recipe \
         fine-tune trains it by steps on augmented images instead"
    ));
    if !flips && evidence.info.flip_safe {
        reasons.push(
            "--flips fits the head to mirror images, too, in twice the time: with 50 images a class, dinov2-small then recognized 65.6% \
             instead of 63.8% of CIFAR-10"
                .to_owned(),
        );
    }
    let mut recipe = Recipe {
        batch_size: BATCH_SIZE,
        time_seconds: overrides.length.seconds,
        mirror_views: flips,
        fit_head: true,
        ..Recipe::default()
    };
    overrides.options.apply(&mut recipe);
    Ok(recipe.fitting_head())
}

/// Whether a probe comes before fine-tuning: by default, if the head can be fitted and is not one for these classes already.
/// Adds the reason to `reasons`.
pub(super) fn comes_first(
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    model: &ModelConfig,
    reasons: &mut Vec<String>,
) -> bool {
    let Some((_, card)) = evidence.pretrained else { return false };
    let reads_the_same = overrides.pool != Some(Pooling::TwoDepths);
    let has_head = reads_the_same && card.has_classifier() && card.classes == evidence.info.classes;
    let is_default = overrides.recipe.is_none() && overrides.options.freeze != Some(Freeze::Backbone);
    let comes_first = is_default && !has_head && obstacle(model, evidence).is_none();
    if comes_first {
        reasons.push(
            "a probe first: the head is fitted to the features of the pretrained backbone, then everything is fine-tuned from \
             there, and what recognizes more validation images is kept (--freeze backbone ends with the probe, --recipe \
             fine-tune goes without)"
                .to_owned(),
        );
    }
    comes_first
}

/// Images per batch that the backbone computes.
const BATCH_SIZE: usize = 32;

/// The option that asks for training by steps, if there is one.
pub(super) fn option_for_steps(overrides: &Overrides) -> Option<&'static str> {
    let options = &overrides.options;
    let stated = [
        ("--recipe", overrides.recipe.is_some()),
        ("--epochs", overrides.length.epochs.is_some()),
        ("--accumulate", options.accumulate.is_some()),
        ("--learning-rate", options.learning_rate.is_some()),
        ("--weight-decay", options.weight_decay.is_some()),
        ("--optimizer", options.optimizer.is_some()),
        ("--layer-decay", options.layer_decay.is_some()),
        ("--patience", options.patience.is_some()),
        ("--gradient-checkpointing", options.gradient_checkpointing),
        ("--precision", options.precision == Some(Precision::Bf16)),
        ("--balanced-sampling", options.balanced_sampling),
    ];
    stated.into_iter().find(|(_, is_stated)| *is_stated).map(|(option, _)| option)
}

/// Why the head of this model cannot be fitted for this data set, if it cannot.
fn obstacle(model: &ModelConfig, evidence: &Evidence<'_>) -> Option<&'static str> {
    if evidence.info.multi_label {
        Some("images have several labels each")
    } else if matches!(model.pool, Pool::ClassQueries { .. }) {
        Some("it has a query per class (`pool = \"class_queries\"`), which learns with it")
    } else if !model.head_hidden.is_empty() {
        Some("it has hidden layers (`head_hidden`)")
    } else {
        None
    }
}

/// Checks that a recipe that fits the head suits the model and the data.
pub(super) fn check(recipe: &Recipe, model: &ModelConfig, evidence: &Evidence<'_>) -> Result<()> {
    let keys = [("fit_head", recipe.fit_head), ("probe_first", recipe.probe_first)];
    let Some((key, _)) = keys.into_iter().find(|(_, is_set)| *is_set) else { return Ok(()) };
    if let Some(obstacle) = obstacle(model, evidence) {
        usage!("`{key}`: the head cannot be fitted to features, because {obstacle}: leave the key out");
    }
    if recipe.probe_first && evidence.pretrained.is_none() {
        usage!("`probe_first` needs --pretrained: otherwise the features would be those of random weights");
    }
    Ok(())
}
