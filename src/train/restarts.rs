//! The attempts of a run: where one learns nothing, another one begins, with new weights and a gentler recipe.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::at_chance::AtChance;
use crate::recipe::Recipe;

/// The most attempts of a run.
pub(super) const MOST: usize = 3;

/// An attempt that was given up, and where the run stood then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GivenUp {
    /// Whole epochs that were done.
    pub epoch: usize,
    /// Batches that were done of the epoch after them.
    #[serde(default)]
    pub batch: usize,
    /// Updates of the run that were done.
    pub updates: usize,
    /// Seconds of the run that had passed.
    pub seconds: f64,
    /// Why it was given up.
    pub found: AtChance,
}

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AtChance { loss, chance_loss, accuracy, chance_accuracy } = self.found;
        write!(
            f,
            "after {} updates, in epoch {}: the training loss was {loss:.4} (chance alone gives {chance_loss:.4}), \
             the training accuracy {:.1}% ({:.1}%)",
            self.updates,
            self.epoch + 1,
            100.0 * accuracy,
            100.0 * chance_accuracy,
        )
    }
}

/// The recipe of an attempt after so many others: a third of the learning rate each time, and of the augmentations crop and flips alone.
pub(super) fn recipe_after(given_up: usize, recipe: &Recipe) -> Recipe {
    if given_up == 0 {
        return recipe.clone();
    }
    Recipe {
        learning_rate: recipe.learning_rate / 3f64.powi(given_up as i32),
        augmentation: recipe.augmentation.crop_and_flips(),
        ..recipe.clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::recipe::NamedRecipe;
    use vitrine_datasets::Augmentation;

    #[test]
    fn every_attempt_is_gentler_than_the_one_before() {
        let recipe = NamedRecipe::find("long").unwrap().recipe;
        assert_eq!(recipe_after(0, &recipe), recipe);
        for given_up in 1..MOST {
            let gentler = recipe_after(given_up, &recipe);
            gentler.validate().unwrap();
            assert!(
                (gentler.learning_rate * 3f64.powi(given_up as i32) - recipe.learning_rate).abs() < 1e-12
            );
            let Augmentation { cutmix, trivial_augment, crop, horizontal_flip, .. } = gentler.augmentation;
            assert!(recipe.augmentation.cutmix > 0.0 && recipe.augmentation.trivial_augment);
            assert_eq!((cutmix, trivial_augment), (0.0, false));
            let light = (recipe.augmentation.crop, recipe.augmentation.horizontal_flip);
            assert_eq!((crop, horizontal_flip), light, "what is light stays");
        }
    }
}
