//! The choice of an optimizer, and the recipe keys that each one reads. `src/learner/optimizer/` computes the updates.
//!
//! To add an optimizer, add a variant to [`Optimizer`]: the compiler then lists the matches that need an arm.

use anyhow::{Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{Freeze, Recipe};

/// The rule by which gradients become updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
    #[default]
    #[serde(rename = "adamw")]
    #[value(name = "adamw")]
    AdamW,
    /// Orthogonalized momentum for the matrices of hidden layers (Jordan et al. 2024), AdamW for the rest.
    Muon,
}

impl Optimizer {
    /// The name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::AdamW => "adamw",
            Self::Muon => "muon",
        }
    }

    /// The largest number of running averages that are kept for a parameter, each as large as the parameter.
    pub fn moments(self) -> u64 {
        match self {
            // Muon keeps one average of a matrix, but its other parameters are updated by AdamW, which keeps two.
            Self::AdamW | Self::Muon => 2,
        }
    }

    /// The recipe keys that this optimizer reads, apart from those that every optimizer reads.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::AdamW => &["betas", "epsilon"],
            Self::Muon => &["betas", "epsilon", "momentum"],
        }
    }

    /// Refuses recipe keys that have no effect with this optimizer.
    ///
    /// # Errors
    /// Names the key and the optimizer.
    pub(super) fn check(self, recipe: &Recipe) -> Result<()> {
        let default = Recipe::default();
        let stated = [
            ("betas", recipe.betas != default.betas),
            ("epsilon", recipe.epsilon != default.epsilon),
            ("momentum", recipe.momentum != default.momentum),
        ];
        for (key, is_stated) in stated {
            if is_stated && !self.keys().contains(&key) {
                bail!(
                    "`{key}` has no effect with `optimizer = \"{}\"` (--optimizer): leave it out",
                    self.name()
                );
            }
        }
        if self == Self::Muon && recipe.freeze == Some(Freeze::Backbone) {
            bail!(
                "`optimizer = \"muon\"` (--optimizer) has no effect if the backbone is frozen, because the head learns by AdamW in any case: leave it out"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn recipe_files_have_the_name() {
        for &optimizer in Optimizer::value_variants() {
            let text = format!("optimizer = \"{}\"", optimizer.name());
            let recipe: Recipe = toml::from_str(&text).unwrap();
            assert_eq!(recipe, Recipe { optimizer, ..Recipe::default() });
            recipe.validate().unwrap();
            let written = toml::to_string(&recipe).unwrap();
            assert!(written.contains(&text), "{written}");
            assert_eq!(toml::from_str::<Recipe>(&written).unwrap(), recipe);
        }
        assert_eq!(toml::from_str::<Recipe>("").unwrap().optimizer, Optimizer::AdamW);
        let error = toml::from_str::<Recipe>("optimizer = \"nothing\"").unwrap_err().to_string();
        assert!(error.contains("adamw"), "{error}");
    }

    #[test]
    fn keys_without_effect_are_refused() {
        let others = [
            ("betas", Recipe { betas: [0.5, 0.5], ..Recipe::default() }),
            ("epsilon", Recipe { epsilon: 1e-3, ..Recipe::default() }),
            ("momentum", Recipe { momentum: 0.9, ..Recipe::default() }),
        ];
        for &optimizer in Optimizer::value_variants() {
            for (key, recipe) in &others {
                let recipe = Recipe { optimizer, ..recipe.clone() };
                assert_eq!(recipe.validate().is_ok(), optimizer.keys().contains(key), "{optimizer:?}: {key}");
            }
        }
    }

    #[test]
    fn numbers_that_training_would_round_out_of_their_range_are_refused() {
        let recipe = |betas, epsilon| Recipe { betas, epsilon, ..Recipe::default() };
        recipe([0.9, 0.999_999_9], 1e-30).validate().unwrap();
        let refused = [
            ("betas[0]", recipe([0.999_999_99, 0.999], 1e-8)),
            ("betas[1]", recipe([0.9, 0.999_999_99], 1e-8)),
            ("epsilon", recipe([0.9, 0.999], 1e-50)),
        ];
        for (key, recipe) in refused {
            let error = recipe.validate().unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("float32"), "{error}");
        }
    }

    #[test]
    fn muon_needs_a_block_that_is_not_frozen() {
        let recipe = |freeze| Recipe { optimizer: Optimizer::Muon, freeze, ..Recipe::default() };
        recipe(Some(Freeze::Blocks(1))).validate().unwrap();
        let error = recipe(Some(Freeze::Backbone)).validate().unwrap_err().to_string();
        assert!(error.contains("muon") && error.contains("frozen"), "{error}");
    }
}
