//! Muon: momentum with orthogonalized update matrices (Jordan et al. 2024,
//! <https://kellerjordan.github.io/posts/muon/>).
//!
//! Updates are scaled as by `torch.optim.Muon` with `adjust_lr_fn="match_rms_adamw"` (Liu et al. 2025, "Muon is
//! Scalable for LLM Training", section 2.2): to the size of AdamW's, so that AdamW's learning rate and weight decay can
//! be used. torch orthogonalizes in bfloat16 and with five iterations of one polynomial, this implementation in the recipe's precision and with
//! two of their own: models here learn as much from them, in less time (`benches/peers/README.md`).

use burn::optim::LearningRate;
use burn::optim::momentum::{Momentum, MomentumConfig, MomentumState};
use burn::tensor::{Device, Tensor};

use crate::recipe::Recipe;

/// The typical root mean square of AdamW's updates, to which Muon's updates are scaled.
const RMS: f64 = 0.2;

/// The Muon update rule, which is for hidden matrices only.
#[derive(Clone)]
pub(super) struct Muon {
    momentum: Momentum,
    weight_decay: f64,
    /// Number of matrices next to each other in a two-dimensional parameter: 3 for the joint weight of queries, keys,
    /// and values, otherwise 1.
    parts: usize,
}

impl Muon {
    pub(super) fn new(recipe: &Recipe, parts: usize) -> Self {
        let config = MomentumConfig { momentum: recipe.momentum, dampening: 0.0, nesterov: true };
        Self { momentum: Momentum::new(&config), weight_decay: recipe.weight_decay, parts }
    }

    /// Splits a parameter into the matrices that are orthogonalized separately: a two-dimensional one into `parts`
    /// groups of columns, and a three-dimensional one along its first axis. A convolution kernel, `[out, ...]`, becomes
    /// one matrix with `out` rows.
    ///
    /// # Shapes
    /// - output: `[matrices, rows, columns]`
    fn matrices<const D: usize>(&self, x: Tensor<D>) -> Tensor<3> {
        match x.dims().as_slice() {
            &[rows, columns] => x.reshape([rows, self.parts, columns / self.parts]).swap_dims(0, 1),
            &[matrices, rows, columns] => x.reshape([matrices, rows, columns]),
            shape => x.reshape([1, shape[0] as i64, -1]),
        }
    }
}

impl burn::optim::Optimizer for Muon {
    type State<const D: usize> = MomentumState<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let (gradient, state) = self.momentum.transform(gradient, state);
        let matrices = self.matrices(gradient);
        let [_, rows, columns] = matrices.dims();
        let update = vitrine_kernels::orthogonalize(matrices);
        // Back from `[matrices, rows, columns]` to the shape of the parameter.
        let update = if D == 2 { update.swap_dims(0, 1) } else { update };
        let update = update.reshape(parameter.dims());
        let rate = learning_rate * RMS * (rows.max(columns) as f64).sqrt();
        let kept = 1.0 - learning_rate * self.weight_decay;
        (parameter.mul_scalar(kept) - update.mul_scalar(rate), Some(state))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.to_device(device)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::tensor::Distribution;

    #[test]
    fn an_update_is_as_large_as_adamws_whatever_the_shape() {
        fn rms<const D: usize>(parts: usize, shape: [usize; D]) -> f32 {
            let device = Device::default();
            let recipe = Recipe { weight_decay: 0.0, ..Recipe::default() };
            let gradient = Tensor::<D>::random(shape, Distribution::Normal(0.0, 1e-3), &device);
            let (update, _) = burn::optim::Optimizer::step(
                &Muon::new(&recipe, parts),
                1.0,
                gradient.zeros_like(),
                gradient,
                None,
            );
            assert_eq!(update.dims(), shape);
            update.square().mean().sqrt().into_scalar()
        }
        for rms in
            [rms(1, [64, 16]), rms(1, [16, 64]), rms(3, [32, 96]), rms(1, [5, 16, 16]), rms(1, [64, 2, 3, 3])]
        {
            assert!((0.13..0.25).contains(&rms), "{rms}");
        }
    }
}
