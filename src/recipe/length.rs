//! The length of a run: how many epochs it takes, how many seconds, or whichever ends first.

use serde::{Deserialize, Serialize};

use super::Recipe;

/// The length of a run, as a recipe or the user states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AskedLength {
    /// Passes over the training images.
    pub epochs: Option<usize>,
    /// Seconds of the whole run.
    pub seconds: Option<f64>,
}

impl From<&Recipe> for AskedLength {
    fn from(recipe: &Recipe) -> Self {
        Self { epochs: recipe.epochs, seconds: recipe.time_seconds }
    }
}

impl AskedLength {
    /// Writes the stated length into `recipe`. If there is a time limit, the recipe's number of epochs no longer counts, only
    /// a stated one.
    pub fn apply(&self, recipe: &mut Recipe) {
        if *self != Self::default() {
            recipe.epochs = self.epochs;
        }
        recipe.time_seconds = self.seconds.or(recipe.time_seconds);
    }
}
