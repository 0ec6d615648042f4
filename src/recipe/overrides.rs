//! Values that replace those of a recipe.

use super::{Freeze, Metric, Optimizer, Precision, Recipe};

/// What the user states in place of the recipe's values. Whatever is left out stays as the recipe has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecipeOverrides {
    /// The part of a pretrained model that does not learn.
    pub freeze: Option<Freeze>,
    /// Factor by which the learning rate falls with each block from the head toward the input.
    pub layer_decay: Option<f64>,
    /// Images per step.
    pub batch_size: Option<usize>,
    /// Batches whose gradients are summed for an update.
    pub accumulate: Option<usize>,
    /// Peak learning rate.
    pub learning_rate: Option<f64>,
    /// The optimizer.
    pub optimizer: Option<Optimizer>,
    /// Weight decay.
    pub weight_decay: Option<f64>,
    /// The validation metric that chooses the best epoch and that patience waits for.
    pub metric: Option<Metric>,
    /// Epochs without an improvement after which the run stops.
    pub patience: Option<usize>,
    /// Share of a split's images, 0 to 1, that may be unreadable.
    pub bad_file_limit: Option<f64>,
    /// Whether blocks are computed again in the backward pass, to save memory. True adds it, false leaves the recipe's value.
    pub gradient_checkpointing: bool,
    /// The precision of products.
    pub precision: Option<Precision>,
    /// Whether the loss of an image is weighted by the rarity of its class. True adds it, false leaves the recipe's value.
    pub class_weights: bool,
    /// Whether epochs draw from all classes equally often. True adds it, false leaves the recipe's value.
    pub balanced_sampling: bool,
    /// Whether training mirrors images. Left out, the recipe decides, or leaves the decision to the validation images.
    pub flips: Option<bool>,
    /// Whether the finished model is asked about each image as it is. True asks so, false leaves the recipe's values.
    pub one_view: bool,
}

/// The share of images that [`RecipeOverrides::flips`] mirrors if the recipe mirrors none.
const FLIPPED: f64 = 0.5;

impl RecipeOverrides {
    /// Writes the stated values into `recipe`.
    pub fn apply(&self, recipe: &mut Recipe) {
        fn set<T: Clone>(value: &mut T, stated: &Option<T>) {
            if let Some(stated) = stated {
                value.clone_from(stated);
            }
        }
        // Without `..`, so that the compiler names a field that is missing here.
        let Self {
            freeze,
            layer_decay,
            batch_size,
            accumulate,
            learning_rate,
            optimizer,
            weight_decay,
            metric,
            patience,
            bad_file_limit,
            gradient_checkpointing,
            precision,
            class_weights,
            balanced_sampling,
            flips,
            one_view,
        } = self;
        recipe.freeze = freeze.or(recipe.freeze);
        set(&mut recipe.layer_decay, layer_decay);
        set(&mut recipe.batch_size, batch_size);
        set(&mut recipe.accumulate, accumulate);
        set(&mut recipe.learning_rate, learning_rate);
        set(&mut recipe.optimizer, optimizer);
        set(&mut recipe.weight_decay, weight_decay);
        recipe.metric = metric.or(recipe.metric);
        set(&mut recipe.patience, patience);
        set(&mut recipe.bad_file_limit, bad_file_limit);
        recipe.gradient_checkpointing |= gradient_checkpointing;
        set(&mut recipe.precision, precision);
        recipe.class_weights |= class_weights;
        recipe.balanced_sampling |= balanced_sampling;
        recipe.judge_flips &= flips.is_none();
        match flips {
            Some(true) if recipe.augmentation.horizontal_flip == 0.0 => {
                recipe.augmentation.horizontal_flip = FLIPPED;
            }
            Some(false) => {
                recipe.augmentation = recipe.augmentation.without_flips();
                recipe.mirror_views = false;
            }
            Some(true) | None => {}
        }
        if *one_view {
            (recipe.mirror_views, recipe.shifted_views) = (false, false);
        }
    }
}
