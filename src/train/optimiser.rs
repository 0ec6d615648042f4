//! AdamW as Vision Transformers are trained: no decay where it does not belong, gradients clipped together.

use burn::module::{Module, ModuleVisitor, Param, ParamGroup};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;

use crate::recipe::Recipe;

/// Paths of parameters that weight decay would only harm: norms, biases, scales, positions and tokens.
const NO_DECAY: [&str; 4] = [
    r"(^|\.|_)bias$",
    r"norm\.weight$",
    r"\.(gamma|logit_scale|temperature|table|latent)$|\.continuous\.",
    r"^(class_token|distillation_token|registers|position\.learned)$",
];

/// AdamW (Loshchilov & Hutter 2019) with the recipe's numbers, as `torch.optim.AdamW` computes it.
pub fn adamw(recipe: &Recipe) -> ModuleOptimizer {
    let base = base(recipe);
    let spared =
        ParamGroup::from_any_regexes(NO_DECAY.to_vec()).expect("the patterns of this file are valid");
    base.init().with_group(spared, base.clone().with_weight_decay(0.0).build(), None)
}

/// The recipe's numbers, before any parameter is spared from decay.
pub fn base(recipe: &Recipe) -> AdamWConfig {
    AdamWConfig::new()
        .with_beta_1(recipe.betas[0] as f32)
        .with_beta_2(recipe.betas[1] as f32)
        .with_epsilon(recipe.epsilon as f32)
        .with_weight_decay(recipe.weight_decay as f32)
}

/// Scales all gradients so that their norm over all parameters together is at most `max_norm`, as
/// `torch.nn.utils.clip_grad_norm_` does. The norm stays on the device.
pub fn clip_global_norm<M: Module>(model: &M, grads: GradientsParams, max_norm: f64) -> GradientsParams {
    mean_clipped(model, grads, 1, max_norm)
}

/// Gradients summed over `samples` pictures become their mean, clipped as by [`clip_global_norm`] where `max_norm` is above 0,
/// in one pass.
pub fn mean_clipped<M: Module>(
    model: &M,
    grads: GradientsParams,
    samples: usize,
    max_norm: f64,
) -> GradientsParams {
    let mean = 1.0 / samples as f64;
    let mut squares = SumOfSquares { grads: &grads, total: None };
    model.visit(&mut squares);
    let Some(total) = squares.total else { return grads };
    let factor = if max_norm > 0.0 {
        let norm = total.sqrt().mul_scalar(mean) + 1e-6;
        norm.recip().mul_scalar(max_norm).clamp_max(1.0).mul_scalar(mean)
    } else {
        total.full_like(mean)
    };
    let mut scaling = Scale { grads, factor };
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
            let sum = grad.square().sum();
            self.total = Some(match self.total.take() {
                Some(total) => total + sum,
                None => sum,
            });
        }
    }
}

struct Scale {
    grads: GradientsParams,
    factor: Tensor<1>,
}

impl ModuleVisitor for Scale {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.grads.remove::<D>(param.id) {
            self.grads.register(param.id, grad * self.factor.clone().unsqueeze::<D>());
        }
    }
}
