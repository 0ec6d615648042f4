//! How gradients become updates: the choice, and what of a recipe it reads. `src/train/optimizer.rs` computes it.
//!
//! To add one, give [`Optimizer`] a variant; the compiler then lists the matches here and there that it still needs.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::{Freeze, Recipe};

/// The rule of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimizer {
    /// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
    #[default]
    #[serde(rename = "adamw")]
    AdamW,
    /// Orthogonalized momentum for the matrices of hidden layers (Jordan et al. 2024), AdamW for the rest.
    Muon,
}

impl Optimizer {
    /// All of them.
    pub const ALL: &[Self] = &[Self::AdamW, Self::Muon];

    /// What files and the command line call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::AdamW => "adamw",
            Self::Muon => "muon",
        }
    }

    /// The most averages that it keeps of a parameter, each as large as the parameter.
    pub fn moments(self) -> u64 {
        match self {
            // Muon keeps one of a matrix, and AdamW two of the rest.
            Self::AdamW | Self::Muon => 2,
        }
    }

    /// The keys of a recipe that it reads, of those that not every optimizer does.
    fn keys(self) -> &'static [&'static str] {
        match self {
            Self::AdamW => &["betas", "epsilon"],
            Self::Muon => &["betas", "epsilon", "momentum"],
        }
    }

    /// Refuses what a recipe states without effect.
    ///
    /// # Errors
    /// Names the key and the optimizer.
    pub(super) fn check(self, recipe: &Recipe) -> Result<()> {
        let usual = Recipe::default();
        let stated = [
            ("betas", recipe.betas != usual.betas),
            ("epsilon", recipe.epsilon != usual.epsilon),
            ("momentum", recipe.momentum != usual.momentum),
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
    fn files_name_it() {
        for &optimizer in Optimizer::ALL {
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
        for &optimizer in Optimizer::ALL {
            for (key, recipe) in &others {
                let recipe = Recipe { optimizer, ..recipe.clone() };
                assert_eq!(recipe.validate().is_ok(), optimizer.keys().contains(key), "{optimizer:?}: {key}");
            }
        }
    }
    #[test]
    fn muon_needs_a_block_that_learns() {
        let recipe = |freeze| Recipe { optimizer: Optimizer::Muon, freeze, ..Recipe::default() };
        recipe(Some(Freeze::Blocks(1))).validate().unwrap();
        let error = recipe(Some(Freeze::Backbone)).validate().unwrap_err().to_string();
        assert!(error.contains("muon") && error.contains("frozen"), "{error}");
    }
}
