//! The card of a trained model.

use crate::model_file::{ModelCard, TrainedOn, Validation};
use crate::recipe::Recipe;
use crate::run_folder::RunConfig;

/// The card of a model of this run. `recipe` is the one that it was trained with.
pub(super) fn card(
    config: &RunConfig,
    trained_on: &TrainedOn,
    recipe: Recipe,
    validation: Validation,
) -> ModelCard {
    let mut card = ModelCard::new(config.model.clone(), config.classes.clone(), config.preprocessing.clone())
        .with_multi_label(config.multi_label);
    card.pretrained.clone_from(&config.pretrained);
    card.data = Some(config.data.clone());
    card.trained_on = Some(trained_on.clone());
    card.recipe = Some(recipe);
    card.validation = Some(validation);
    card
}
