//! The exponential moving average of weights (Polyak & Juditsky 1992), which is evaluated and saved instead of the
//! latest weights.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, container::TensorContainer};
use vitrine_models::VisionTransformer;
use vitrine_models::norm::BatchNorm;

/// `average * decay + model * (1 - decay)` for each parameter. The average is on the device without autodiff.
///
/// The effective decay starts at 2/11 and rises to `decay` with the number of updates, so that the random initial
/// weights are soon forgotten.
pub fn update(
    average: VisionTransformer,
    model: &VisionTransformer,
    decay: f64,
    updates: usize,
) -> VisionTransformer {
    let warm = (1.0 + updates as f64) / (10.0 + updates as f64);
    let mut live = Live::default();
    model.visit(&mut live);
    average.map(&mut Blend { live, decay: decay.min(warm) })
}

/// Values of a model in training, by parameter.
#[derive(Default)]
struct Live {
    /// Whether the present tensor is a running average of a batch norm.
    is_average: bool,
    /// Trainable parameters. Frozen ones are left out, because averaging could change their last bits.
    learning: TensorContainer<ParamId>,
    /// The running statistics of batch norms, which are averages already and are copied.
    running: TensorContainer<ParamId>,
}

impl ModuleVisitor for Live {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.is_average = BatchNorm::is_average(name);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.val().is_require_grad() {
            self.learning.register(param.id, param.val().inner());
        } else if self.is_average {
            self.running.register(param.id, param.val().inner());
        }
    }
}

struct Blend {
    live: Live,
    decay: f64,
}

impl ModuleMapper for Blend {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if let Some(live) = self.live.learning.remove::<Tensor<D>>(&param.id) {
            return param.map(|average| average.mul_scalar(self.decay) + live.mul_scalar(1.0 - self.decay));
        }
        match self.live.running.remove::<Tensor<D>>(&param.id) {
            Some(live) => param.map(|_| live),
            None => param,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::Device;
    use vitrine_models::{ModelConfig, preset};

    use super::*;
    use crate::learner::layers::Layers;
    use crate::recipe::Freeze;

    /// Sets every parameter to one number.
    struct Fill(f32);

    impl ModuleMapper for Fill {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let shape: [usize; D] = param.val().dims();
            let device = param.lazy_device();
            let filled = Tensor::<D>::full(shape, self.0, &device);
            Param::initialized(param.id, if device.is_autodiff() { filled.require_grad() } else { filled })
        }
    }

    /// Properties of all parameters of a model, in the order of a visit.
    #[derive(Default)]
    struct Found {
        ids: Vec<ParamId>,
        values: Vec<Vec<f32>>,
        learn: Vec<bool>,
        on_autodiff: Vec<bool>,
    }

    impl ModuleVisitor for Found {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            self.ids.push(param.id);
            self.learn.push(value.is_require_grad());
            self.on_autodiff.push(value.device().is_autodiff());
            self.values.push(value.into_data().try_into_vec_as::<f32>().unwrap());
        }
    }

    fn found(model: &VisionTransformer) -> Found {
        let mut found = Found::default();
        model.visit(&mut found);
        found
    }

    /// A small model in training.
    fn model() -> VisionTransformer {
        let config = ModelConfig { depth: 1.into(), ..preset::find("vit_pico_patch4_32").unwrap() };
        let model = config.init(&Device::default().autodiff()).unwrap();
        model.initialize();
        model
    }

    #[test]
    fn the_decay_rises_from_a_tenth_to_its_final_value() {
        let model = model().map(&mut Fill(1.0));
        for (updates, decay, expected) in [
            (0, 0.99, 0.9),
            (1, 0.99, 9.0 / 11.0),
            (8, 0.99, 0.5),
            (80, 0.99, 0.1),
            (1_000_000, 0.99, 0.01),
            (8, 0.3, 0.7),
        ] {
            let average = update(model.valid().map(&mut Fill(0.0)), &model, decay, updates);
            for value in found(&average).values.concat() {
                assert!((value - expected).abs() < 1e-6, "{value} for {expected} after {updates} updates");
            }
        }
        // The second update averages with the result of the first: 0.9 * 2/11 + 9/11.
        let average = update(model.valid().map(&mut Fill(0.0)), &model, 0.99, 0);
        let average = update(average, &model, 0.99, 1);
        assert!(found(&average).values.concat().iter().all(|value| (value - 10.8 / 11.0).abs() < 1e-6));
    }

    #[test]
    fn frozen_parameters_keep_every_bit() {
        let start = model();
        let average = start.valid();
        let model = start.map(&mut Fill(1.0));
        let model = Layers::new(&model).freeze(model, Freeze::Backbone);
        let before = found(&average).values;
        let after = found(&update(average, &model, 0.9, 5)).values;
        let learn = found(&model).learn;
        assert_eq!(learn.iter().filter(|learns| **learns).count(), 2, "weight and bias of the head");
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        for ((before, after), learns) in before.iter().zip(&after).zip(learn) {
            assert_eq!(bits(before) != bits(after), learns);
        }
    }

    #[test]
    fn the_statistics_of_batch_norms_are_copied_from_the_model() {
        let config = ModelConfig { depth: 1.into(), ..preset::find("hybrid_pico_patch4_32").unwrap() };
        let model = config.init(&Device::default().autodiff()).unwrap();
        model.initialize();
        let average = model.valid();
        let before = found(&average);
        let images = Tensor::<4>::random(
            [4, 3, 32, 32],
            burn::tensor::Distribution::Default,
            &Device::default().autodiff(),
        );
        let _ = model.forward(images);
        let (live, after) = (found(&model), found(&update(average, &model, 0.9, 5)));
        let mut moved = 0;
        for (index, learns) in live.learn.iter().enumerate() {
            if !learns && before.values[index] != live.values[index] {
                moved += 1;
                assert_eq!(after.values[index], live.values[index]);
            }
        }
        assert_eq!(
            moved, 15,
            "the stem's norm and two stages of two, each with a mean, a variance and a count"
        );
    }

    #[test]
    fn the_average_has_the_models_parameter_ids_and_no_autodiff() {
        let model = model();
        let average = update(model.valid(), &model, 0.9, 1);
        let (live, average) = (found(&model), found(&average));
        assert_eq!(live.ids, average.ids);
        assert!(live.on_autodiff.iter().all(|is_tracked| *is_tracked));
        assert!(average.on_autodiff.iter().chain(&average.learn).all(|is_tracked| !is_tracked));
    }
}
