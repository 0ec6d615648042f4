//! Checks of class sizes: whether class weights or balanced sampling have an effect, and a hint if classes are uneven.

use anyhow::Result;

use super::Evidence;
use crate::recipe::Recipe;
use crate::usage::usage;

/// Ratio of the largest to the smallest class above which the user is told.
const UNEVEN_RATIO: usize = 5;

/// Returns an error for class weights or balanced sampling with equally large classes. Adds a hint to `reasons` if
/// classes are uneven and neither is in use.
pub(super) fn check(recipe: &Recipe, evidence: &Evidence<'_>, reasons: &mut Vec<String>) -> Result<()> {
    if evidence.info.multi_label {
        return Ok(());
    }
    let Some([(rare, least), (common, most)]) = evidence.class_sizes.extremes() else { return Ok(()) };
    let asked = match (recipe.class_weights, recipe.balanced_sampling) {
        (true, _) => Some("`class_weights` (--class-weights)"),
        (false, true) => Some("`balanced_sampling` (--balanced-sampling)"),
        (false, false) => None,
    };
    match asked {
        Some(option) if least == most => {
            usage!("{option} has no effect: each class has {least} training images; leave it out")
        }
        None if most > UNEVEN_RATIO * least => {
            let classes = &evidence.info.classes;
            reasons.push(format!(
                "class '{}' has {most} training images and '{}' only {least}: --class-weights or --balanced-sampling makes all classes \
                 count alike",
                classes[common], classes[rare]
            ));
        }
        Some(_) | None => {}
    }
    Ok(())
}
