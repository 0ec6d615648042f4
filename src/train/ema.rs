//! The running average of weights (Polyak & Juditsky 1992), which is evaluated and saved instead of the last ones.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, container::TensorContainer};
use vitrine_models::VisionTransformer;

/// `average * decay + model * (1 - decay)`, parameter by parameter; the average lives on the plain device.
///
/// The decay rises from 0.1 to `decay` with the number of updates, so that the start is forgotten soon.
pub fn update(
    average: VisionTransformer,
    model: &VisionTransformer,
    decay: f64,
    updates: usize,
) -> VisionTransformer {
    let warm = (1.0 + updates as f64) / (10.0 + updates as f64);
    let mut live = Collect(TensorContainer::new());
    model.visit(&mut live);
    average.map(&mut Blend { live: live.0, decay: decay.min(warm) })
}

struct Collect(TensorContainer<ParamId>);

impl ModuleVisitor for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // What is frozen stays as it is, to the last bit.
        if param.val().is_require_grad() {
            self.0.register(param.id, param.val().inner());
        }
    }
}

struct Blend {
    live: TensorContainer<ParamId>,
    decay: f64,
}

impl ModuleMapper for Blend {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.live.remove::<Tensor<D>>(&param.id) {
            Some(live) => {
                param.map(|average| average.mul_scalar(self.decay) + live.mul_scalar(1.0 - self.decay))
            }
            None => param,
        }
    }
}
