//! Optimizers of the parameters, with weight decay only where it helps, and clipping by the global norm of the
//! gradients.
//!
//! To add one, give [`Optimizer`] a variant and `with_spared` an arm.

mod muon;
#[cfg(test)]
mod tests;

use burn::module::{Module, ModuleVisitor, Param, ParamGroup};
use burn::optim::{AdamWState, AdaptiveMomentumState, GradientsParams, LearningRate, ModuleOptimizer};
use burn::tensor::{Device, Tensor};

use self::muon::Muon;
use crate::recipe::{Optimizer, Recipe};

/// Paths of parameters without weight decay: norms, biases, scales, positions, and tokens, which decay would only harm.
const NO_DECAY: [&str; 5] = [
    r"(^|\.|_)bias$",
    r"norm[12]?\.weight$",
    r"\.(gamma|logit_scale|temperature|latent|queries|class_queries)$|\.(relative_position|rotary)\.",
    // Scale factors in attention scores, recognized by name.
    r"\.score\.[\w.]*(scale|factor|temperature)$",
    r"^(class_token|distillation_token|registers|position\.learned)$",
];

/// Paths of the parameters that Muon updates: everything in blocks except [`NO_DECAY`], and all convolutions of the
/// tokenizer except the first.
const HIDDEN: [&str; 3] = [
    r"^(stages|class_blocks)\.",
    r"^patch_embed\.tokenizer\.Convolution\.layers\.[1-9][0-9]*\.weight$",
    r"^patch_embed\.tokenizer\.Residual\.stages\.[0-9]+\.conv[12]\.weight$",
];

/// Paths of parameters that hold the matrices of queries, keys, and values next to each other.
const FUSED: [&str; 1] = [r"^(stages|class_blocks)\..*\.qkv\.weight$"];

/// The optimizer that the recipe asks for, without weight decay for the parameters listed in `NO_DECAY`.
pub fn new(recipe: &Recipe) -> ModuleOptimizer {
    with_spared(recipe, Some(group(NO_DECAY)))
}

/// The same optimizer with weight decay for all parameters.
pub fn uniform(recipe: &Recipe) -> ModuleOptimizer {
    with_spared(recipe, None)
}

/// The group of parameters whose paths match any of the patterns.
fn group<const N: usize>(patterns: [&str; N]) -> ParamGroup {
    ParamGroup::from_any_regexes(patterns.to_vec()).expect("the patterns of this file are valid")
}

fn with_spared(recipe: &Recipe, spared: Option<ParamGroup>) -> ModuleOptimizer {
    match recipe.optimizer {
        Optimizer::AdamW => one_rule(AdamW::new, recipe, spared),
        // Muon is for hidden matrices only; AdamW updates vectors, tokens, the embedding, and the head. If several
        // groups match, the last one counts.
        Optimizer::Muon => one_rule(AdamW::new, recipe, spared)
            .with_group(group(HIDDEN).exclude(group(NO_DECAY)), Muon::new(recipe, 1), None)
            .with_group(group(FUSED), Muon::new(recipe, 3), None),
    }
}

/// The same update rule for all parameters, without weight decay for those in `spared`.
fn one_rule<O: burn::optim::Optimizer>(
    rule: fn(&Recipe) -> O,
    recipe: &Recipe,
    spared: Option<ParamGroup>,
) -> ModuleOptimizer {
    let all = ModuleOptimizer::from(rule(recipe));
    match spared {
        Some(spared) => {
            let without_decay = Recipe { weight_decay: 0.0, ..recipe.clone() };
            all.with_group(spared, rule(&without_decay), None)
        }
        None => all,
    }
}

/// AdamW (Loshchilov & Hutter 2019) as in `torch.optim.AdamW`, in one pass over each parameter. The state has the type
/// of burn's AdamW.
#[derive(Clone, Debug)]
struct AdamW {
    betas: [f32; 2],
    epsilon: f32,
    weight_decay: f32,
}

impl AdamW {
    fn new(recipe: &Recipe) -> Self {
        Self {
            betas: recipe.betas.map(|beta| beta as f32),
            epsilon: recipe.epsilon as f32,
            weight_decay: recipe.weight_decay as f32,
        }
    }
}

impl burn::optim::Optimizer for AdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let (time, averages) = match state {
            Some(AdamWState { momentum }) => (momentum.time + 1, [momentum.moment_1, momentum.moment_2]),
            None => (1, [parameter.zeros_like(), parameter.zeros_like()]),
        };
        let update = vitrine_kernels::AdamW {
            learning_rate,
            betas: self.betas,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
            time,
        };
        let (parameter, [moment_1, moment_2]) = vitrine_kernels::adamw(update, parameter, gradient, averages);
        let momentum = AdaptiveMomentumState::new(time, moment_1, moment_2);
        (parameter, Some(AdamWState { momentum }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        AdamWState { momentum: state.momentum.to_device(device) }
    }
}

/// Scales the gradients so that their norm over all parameters together is at most `max_norm`, as
/// `torch.nn.utils.clip_grad_norm_` does. The norm stays on the device.
pub fn clip_global_norm<M: Module>(model: &M, grads: GradientsParams, max_norm: f64) -> GradientsParams {
    mean_clipped(model, grads, 1, max_norm)
}

/// Divides gradients that are sums over `samples` images by `samples`, then clips them as [`clip_global_norm`] does if
/// `max_norm` is above 0. One pass computes the norm, and one applies both factors.
pub fn mean_clipped<M: Module>(
    model: &M,
    grads: GradientsParams,
    samples: usize,
    max_norm: f64,
) -> GradientsParams {
    let mean = 1.0 / samples as f64;
    let factor = if max_norm > 0.0 {
        let mut squares = SumOfSquares { grads: &grads, total: None };
        model.visit(&mut squares);
        let Some(total) = squares.total else { return grads };
        let norm = total.sqrt().mul_scalar(mean) + 1e-6;
        Some(norm.recip().mul_scalar(max_norm).clamp_max(1.0).mul_scalar(mean))
    } else {
        None
    };
    let mut scaling = Scale { grads, mean, factor };
    model.visit(&mut scaling);
    scaling.grads
}

struct SumOfSquares<'a> {
    grads: &'a GradientsParams,
    total: Option<Tensor<1>>,
}

impl ModuleVisitor for SumOfSquares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.grads.get::<D>(param.id) {
            let sum = vitrine_kernels::sum_of_squares(grad);
            self.total = Some(match self.total.take() {
                Some(total) => total + sum,
                None => sum,
            });
        }
    }
}

struct Scale {
    grads: GradientsParams,
    /// The factor `1 / samples`, which applies without clipping.
    mean: f64,
    /// With clipping, the product of both factors, which replaces `mean`.
    factor: Option<Tensor<1>>,
}

impl ModuleVisitor for Scale {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.grads.remove::<D>(param.id) {
            let scaled = match &self.factor {
                Some(factor) => vitrine_kernels::scaled(grad, factor.clone()),
                None => grad.mul_scalar(self.mean),
            };
            self.grads.register(param.id, scaled);
        }
    }
}
