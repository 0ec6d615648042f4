//! Classes of very different sizes: what is said of them, and whether what evens them out has anything to do.

use anyhow::Result;

use super::Evidence;
use crate::recipe::Recipe;
use crate::usage::usage;

/// How many times larger the largest class may be than the smallest before the user is told.
const UNEVEN: usize = 5;

/// Refuses to even out classes that are equally large, and says where they are not and nothing is done about it.
pub(super) fn check(recipe: &Recipe, evidence: &Evidence<'_>, reasons: &mut Vec<String>) -> Result<()> {
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
        None if most > UNEVEN * least => {
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
