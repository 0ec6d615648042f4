//! What the head of a pretrained backbone reads.

use anyhow::Result;
use clap::ValueEnum;
use vitrine_models::{ModelConfig, Pool};

use super::{Evidence, Overrides};
use crate::recipe::Recipe;
use crate::usage::usage;

/// The values of `--pool`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Pooling {
    /// What the head of the weights reads, such as the class token.
    Own,
    /// The class token and the mean of the patches after all blocks, and the mean of the patches after three quarters of them.
    TwoDepths,
}

/// The fewest blocks with which an earlier one is read besides.
const MIN_DEPTH: usize = 4;

/// The architecture with the pooling that the user wants, or else the one that suits the recipe: where the head is fitted, that of
/// [two depths](Pool::TwoDepths), which recognized more in five data sets of six, and as much in the other one (`docs/benchmarks.md`). Adds the reason to
/// `reasons`.
pub(super) fn choose(
    model: ModelConfig,
    recipe: &Recipe,
    overrides: &Overrides,
    evidence: &Evidence<'_>,
    reasons: &mut Vec<String>,
) -> Result<ModelConfig> {
    let other = with_two_depths(&model);
    if evidence.pretrained.is_none() {
        if overrides.pool.is_some() {
            usage!("--pool has no effect without --pretrained: an architecture file says `pool`");
        }
        return Ok(model);
    }
    let is_default = recipe.fit_head || recipe.probe_first;
    match (overrides.pool, other) {
        (Some(_), None) if matches!(model.pool, Pool::TwoDepths { .. }) => {
            usage!("--pool has no effect: these weights read two depths, and keep that; leave it out")
        }
        (None, Some(other)) if is_default => {
            reasons.push(format!("{} (--pool own keeps the pooling of the weights)", described(&other)));
            Ok(other)
        }
        (None, _) => Ok(model),
        (Some(Pooling::TwoDepths), Some(other)) => Ok(other),
        (Some(Pooling::TwoDepths), None) => usage!(
            "--pool two-depths: it needs weights of at least {MIN_DEPTH} blocks on one grid, with nothing but a norm and a pooling without \
             parameters before the head"
        ),
        (Some(Pooling::Own), Some(_)) if is_default => Ok(model),
        (Some(Pooling::Own), _) => usage!(
            "--pool own has no effect: the pooling of these weights would be kept anyway; leave it out"
        ),
    }
}

/// The architecture with the pooling of two depths, if the same weights fit it and its own pooling is another one.
fn with_two_depths(model: &ModelConfig) -> Option<ModelConfig> {
    let suits = matches!(model.pool, Pool::ClassToken | Pool::ClassTokenMean | Pool::NormalizedMean)
        && model.depth.sum() >= MIN_DEPTH
        && model.class_depth == 0;
    let early = model.depth.sum() * 3 / 4;
    let other = ModelConfig { pool: Pool::TwoDepths { early }, ..model.clone() };
    (suits && other.validate().is_ok()).then_some(other)
}

/// What the head reads, in words.
fn described(model: &ModelConfig) -> String {
    let Pool::TwoDepths { early } = model.pool else { return String::new() };
    let token = if model.class_token { "the class token and " } else { "" };
    format!(
        "the head reads {token}the mean of the patches after all {} blocks, and their mean after block {early}, which knows less of the task \
         that the weights were trained for",
        model.depth.sum()
    )
}

#[cfg(test)]
mod tests {
    use vitrine_models::{PerStage, preset};

    use super::*;

    #[test]
    fn two_depths_suit_backbones_whose_head_reads_tokens_after_the_final_norm() {
        let preset = |name: &str| preset::find(name).expect("a preset");
        let vit = preset("vit_tiny_patch16_224");
        assert_eq!(with_two_depths(&vit).map(|model| model.pool), Some(Pool::TwoDepths { early: 9 }));
        assert_eq!(with_two_depths(&preset("swin_tiny_patch4_window7_224")), None);
        assert_eq!(with_two_depths(&ModelConfig { distillation_token: true, ..vit.clone() }), None);
        for (depth, early) in [(4, Some(3)), (6, Some(4)), (24, Some(18)), (3, None)] {
            let model = ModelConfig { depth: PerStage::from(depth), ..vit.clone() };
            let expected = early.map(|early| Pool::TwoDepths { early });
            assert_eq!(with_two_depths(&model).map(|model| model.pool), expected, "{depth}");
        }
        // The norm of a plain mean comes after it.
        assert_eq!(with_two_depths(&ModelConfig { pool: Pool::Mean, ..vit }), None);
    }
}
