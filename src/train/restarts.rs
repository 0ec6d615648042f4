//! The attempts of a run: after one that does not learn, the next one starts with new weights and a gentler recipe.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::at_chance::AtChance;
use crate::recipe::Recipe;

/// Maximum number of attempts in a run.
pub(super) const MAX_ATTEMPTS: usize = 3;

/// An attempt that was given up, and the position of the run at that moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GivenUp {
    /// Whole epochs done.
    pub epoch: usize,
    /// Batches done of the epoch that had begun.
    #[serde(default)]
    pub batch: usize,
    /// Updates done since the beginning of the run.
    pub updates: usize,
    /// Seconds since the beginning of the run.
    pub seconds: f64,
    /// The comparison with chance for which the attempt was given up.
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
            // Without a batch of the next epoch, it was given up after the last one of this epoch.
            self.epoch + usize::from(self.batch > 0),
            100.0 * accuracy,
            100.0 * chance_accuracy,
        )
    }
}

/// The recipe after `given_up` failed attempts: each divides the learning rate by 3, and augmentation is reduced to
/// crop and flips.
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
        for given_up in 1..MAX_ATTEMPTS {
            let gentler = recipe_after(given_up, &recipe);
            gentler.validate().unwrap();
            assert!(
                (gentler.learning_rate * 3f64.powi(given_up as i32) - recipe.learning_rate).abs() < 1e-12
            );
            let Augmentation { cutmix, trivial_augment, crop, horizontal_flip, .. } = gentler.augmentation;
            assert!(recipe.augmentation.cutmix > 0.0 && recipe.augmentation.trivial_augment);
            assert_eq!((cutmix, trivial_augment), (0.0, false));
            let light = (recipe.augmentation.crop, recipe.augmentation.horizontal_flip);
            assert_eq!((crop, horizontal_flip), light, "crop and flips stay");
        }
    }

    #[test]
    fn an_attempt_is_given_up_in_the_epoch_of_its_last_batch() {
        let found = AtChance { loss: 0.7, chance_loss: 0.69, accuracy: 0.5, chance_accuracy: 0.5 };
        for (epoch, batch, named) in [(0, 3, "in epoch 1:"), (9, 7, "in epoch 10:"), (10, 0, "in epoch 10:")]
        {
            let message = GivenUp { epoch, batch, updates: 80, seconds: 1.0, found }.to_string();
            assert!(message.contains(named), "{message}");
        }
    }
}
