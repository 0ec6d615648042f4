//! Micro-batches: the batches whose gradients are summed for an update, as plain numbers, so that any process can compute what each
//! contributes, in any order, and the trainer adds the contributions in theirs.

use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use vitrine_models::norm::BatchNorm;
use vitrine_models::{ImageSize, ModelConfig, VisionTransformer};

use super::layers::Layers;
use super::{BatchResult, Learner, Loss, Step, gradients};
use crate::recipe::{Freeze, Precision};

/// One of the batches whose gradients are summed for an update.
#[derive(Clone, Debug, PartialEq)]
pub struct MicroBatch {
    /// Number of images.
    pub size: usize,
    /// Height and width of the images, which may differ from the model's.
    pub image_size: ImageSize,
    /// Normalized images, `[size, channels, height, width]`.
    pub images: Vec<f32>,
    /// Targets as [`Loss::mean`] takes them, `[size, classes]`.
    pub targets: Vec<f32>,
    /// The seed of dropout and stochastic depth.
    pub seed: u64,
}

/// What all micro-batches of a run have in common, from which a [`Replica`] of its model is made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplicaConfig {
    /// The architecture.
    pub model: ModelConfig,
    /// The part of the model that is frozen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freeze: Option<Freeze>,
    /// Whether an image may have several labels.
    pub multi_label: bool,
    /// Whether activations are computed again in the backward pass.
    pub gradient_checkpointing: bool,
    /// The precision of products.
    #[serde(default, skip_serializing_if = "Precision::is_default")]
    pub precision: Precision,
}

/// What a micro-batch contributes to an update.
#[derive(Clone, Debug, PartialEq)]
pub struct Contribution {
    /// The mean loss.
    pub loss: f32,
    /// The predicted class of each image.
    pub answers: Vec<u32>,
    /// For each of the model's tensors, whether it has a gradient.
    pub has_gradient: Vec<bool>,
    /// A number for each of [`parameters`]: its gradient, summed over the images; for a running average of a norm that
    /// learns, that of this micro-batch; or else 0.
    pub values: Vec<f32>,
}

/// A copy of the model in training that computes contributions.
pub struct Replica {
    config: ReplicaConfig,
    model: VisionTransformer,
    device: Device,
}

impl Replica {
    /// A model on `device`, which has autodiff. Its parameters are those of the initialization until they are
    /// [set](Self::set_parameters).
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub fn new(config: ReplicaConfig, device: &Device) -> Result<Self, vitrine_models::ConfigError> {
        let mut model = config.model.init(device)?;
        if let Some(freeze) = config.freeze {
            model = Layers::new(&model).freeze(model, freeze);
        }
        Ok(Self { config, model, device: device.clone() })
    }

    /// What it was made from.
    pub fn config(&self) -> &ReplicaConfig {
        &self.config
    }

    /// The numbers of parameters in each of the model's tensors.
    pub fn sizes(&self) -> Vec<usize> {
        sizes(&self.model)
    }

    /// Takes over the [`parameters`] of another model of the same architecture.
    ///
    /// # Panics
    /// If their number differs.
    pub fn set_parameters(&mut self, values: &[f32]) {
        assert_eq!(values.len(), self.sizes().iter().sum::<usize>(), "the parameters of another model");
        self.model = self.model.clone().map(&mut Set(values));
    }

    /// Computes what a micro-batch contributes. The numbers of images and targets must be those that the sizes state.
    pub fn contribution(&self, batch: &MicroBatch) -> Contribution {
        let ReplicaConfig { model, multi_label, gradient_checkpointing, precision, .. } = &self.config;
        let device = &self.device;
        // So that those after the micro-batch are its own. Their values have no influence on it.
        map_averages(&self.model, |place, _| Some(vec![0.0; place.len()]));
        let ImageSize { height, width } = batch.image_size;
        let images = TensorData::new(batch.images.clone(), [batch.size, model.channels, height, width]);
        let targets = TensorData::new(batch.targets.clone(), [batch.size, model.num_classes]);
        let step = Step {
            loss: Loss::of(*multi_label),
            gradient_checkpointing: *gradient_checkpointing,
            precision: *precision,
            seed: batch.seed,
        };
        let mut sums = GradientsAccumulator::new();
        let BatchResult { loss, answers } = gradients(
            &self.model,
            step,
            Tensor::from_data(images, device),
            Tensor::from_data(targets, device),
            |grads| sums.accumulate(&self.model, grads),
        );
        let sizes = self.sizes();
        // With room for the rest of the contribution, which follows in a message.
        let room = sizes.iter().sum::<usize>() + sizes.len() + batch.size + 16;
        let values = Vec::with_capacity(room);
        let mut read = Read { gradients: sums.grads(), has_gradient: vec![], values };
        self.model.visit(&mut read);
        map_averages(&self.model, |place, averages| {
            read.values[place].copy_from_slice(&averages);
            None
        });
        Contribution {
            loss: loss.into_scalar(),
            answers: answers.into_data().iter::<i64>().map(|answer| answer as u32).collect(),
            has_gradient: read.has_gradient,
            values: read.values,
        }
    }
}

impl Learner {
    /// Adds what a micro-batch contributes, as [`backward`](Self::backward) does with one that it computes itself.
    ///
    /// # Panics
    /// If the contribution is that of another architecture.
    pub fn add(&mut self, contribution: &Contribution) -> BatchResult {
        let Contribution { loss, answers, has_gradient, values } = contribution;
        let mut gradients = Gradients { values, has_gradient, found: GradientsParams::new() };
        self.model.visit(&mut gradients);
        self.sums.accumulate(&self.model, gradients.found);
        self.images += answers.len();
        follow(&self.model, values);
        let device = self.model.devices().swap_remove(0).inner();
        let answers: Vec<i64> = answers.iter().map(|&answer| i64::from(answer)).collect();
        let count = answers.len();
        BatchResult {
            loss: Tensor::from_data(TensorData::new(vec![*loss], [1]), &device),
            answers: Tensor::from_data(TensorData::new(answers, [count]), &device),
        }
    }
}

/// All numbers that a model holds, in the order of its modules: parameters, frozen ones included, and running averages.
pub fn parameters(model: &VisionTransformer) -> Vec<f32> {
    struct All(Vec<f32>);
    impl ModuleVisitor for All {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(numbers(param.val()));
        }
    }
    let mut all = All(Vec::new());
    model.visit(&mut all);
    all.0
}

/// How many of [`parameters`] each tensor has.
pub fn sizes(model: &VisionTransformer) -> Vec<usize> {
    struct Sizes(Vec<usize>);
    impl ModuleVisitor for Sizes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.lazy_shape().num_elements());
        }
    }
    let mut sizes = Sizes(Vec::new());
    model.visit(&mut sizes);
    sizes.0
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_into_vec().expect("converted to f32")
}

/// Moves the running averages of batch norms that learn toward those of a micro-batch.
fn follow(model: &VisionTransformer, of_batch: &[f32]) {
    let (mut running, mut found) = (Vec::new(), Vec::new());
    map_averages(model, |place, values| {
        running.push(values);
        found.push(of_batch[place].to_vec());
        None
    });
    for (running, found) in running.as_chunks_mut::<3>().0.iter_mut().zip(found.as_chunks::<3>().0) {
        BatchNorm::follow_averages(running, found);
    }
    let mut followed = running.into_iter();
    map_averages(model, |_, _| followed.next());
}

/// Passes the running averages of batch norms that learn to `change`, tensor by tensor: their place among the [`parameters`], and their
/// values, which it may replace.
fn map_averages(model: &VisionTransformer, change: impl FnMut(Range<usize>, Vec<f32>) -> Option<Vec<f32>>) {
    // A clone shares the running averages, which are set in place.
    let _ = model.clone().map(&mut Averages { change, end: 0, is_average: false, learns: false });
}

/// What [`map_averages`] knows of the tensors so far.
struct Averages<F> {
    change: F,
    /// The number of parameters.
    end: usize,
    /// Whether the present tensor is a running average.
    is_average: bool,
    /// Whether the last parameter learns. Those of a batch norm come before its running averages.
    learns: bool,
}

impl<F: FnMut(Range<usize>, Vec<f32>) -> Option<Vec<f32>>> ModuleMapper for Averages<F> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.is_average = BatchNorm::is_average(name);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let start = self.end;
        self.end += param.lazy_shape().num_elements();
        if !self.is_average {
            self.learns = param.val().is_require_grad();
        } else if self.learns
            && let Some(values) = (self.change)(start..self.end, numbers(param.val()))
        {
            return with_values(param, values);
        }
        param
    }
}

/// Sets all numbers of a model.
struct Set<'a>(&'a [f32]);

impl ModuleMapper for Set<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (own, rest) = self.0.split_at(param.lazy_shape().num_elements());
        self.0 = rest;
        with_values(param, own.to_vec())
    }
}

/// The parameter with other values.
fn with_values<const D: usize>(param: Param<Tensor<D>>, values: Vec<f32>) -> Param<Tensor<D>> {
    let data = TensorData::new(values, param.lazy_shape());
    let value = Tensor::from_data(data, &param.lazy_device());
    let id = param.id;
    param.transform_for_load(value, id)
}

/// Reads the gradients that a backward pass has left.
struct Read {
    gradients: GradientsParams,
    has_gradient: Vec<bool>,
    values: Vec<f32>,
}

impl ModuleVisitor for Read {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = self.gradients.remove::<D>(param.id);
        self.has_gradient.push(gradient.is_some());
        match gradient {
            Some(gradient) => self.values.extend(numbers(gradient)),
            None => self.values.resize(self.values.len() + param.lazy_shape().num_elements(), 0.0),
        }
    }
}

/// Turns the gradients of a contribution into those of a model.
struct Gradients<'a> {
    values: &'a [f32],
    has_gradient: &'a [bool],
    found: GradientsParams,
}

impl ModuleVisitor for Gradients<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape = param.lazy_shape();
        let (own, rest) = self.values.split_at(shape.num_elements());
        self.values = rest;
        if self.has_gradient.split_off_first().is_some_and(|has| *has) {
            let data = TensorData::new(own.to_vec(), shape);
            self.found.register::<D>(param.id, Tensor::from_data(data, &param.lazy_device().inner()));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::Distribution;
    use vitrine_models::{preset, weights};

    use super::*;
    use crate::recipe::Recipe;

    fn device() -> Device {
        Device::default().autodiff()
    }

    fn batches(config: &ModelConfig, count: u64) -> Vec<MicroBatch> {
        let ImageSize { height, width } = config.image_size;
        let (size, classes) = (4, config.num_classes);
        (0..count)
            .map(|seed| {
                let shape = [size, config.channels, height, width];
                let images = Tensor::<4>::random(shape, Distribution::Default, &device().inner());
                let mut targets = vec![0.0; size * classes];
                (0..size).for_each(|image| targets[image * classes + image % classes] = 1.0);
                MicroBatch { size, image_size: config.image_size, images: numbers(images), targets, seed }
            })
            .collect()
    }

    fn tensors(batch: &MicroBatch, config: &ModelConfig) -> (Tensor<4>, Tensor<2>) {
        let ImageSize { height, width } = batch.image_size;
        let images = TensorData::new(batch.images.clone(), [batch.size, config.channels, height, width]);
        let targets = TensorData::new(batch.targets.clone(), [batch.size, config.num_classes]);
        (Tensor::from_data(images, &device()), Tensor::from_data(targets, &device()))
    }

    /// Trains by contributions of replicas, which are computed in reverse order, and by the learner's own backward passes.
    fn assert_same_bits(config: &ModelConfig, recipe: &Recipe) {
        let config = config.clone().with_num_classes(3);
        // Not by a seed, which is that of all tests that run at the same time.
        let start = config.init(&device()).unwrap();
        let copy = weights::from_timm(config.init(&device()).unwrap(), weights::to_timm(&start)).unwrap();
        let of_replica = ReplicaConfig {
            model: config.clone(),
            freeze: recipe.freeze,
            multi_label: false,
            gradient_checkpointing: recipe.gradient_checkpointing,
            precision: recipe.precision,
        };
        let mut replica = Replica::new(of_replica, &device()).unwrap();
        let mut learners = [start, copy].map(|model| Learner::new(model, recipe));
        for learner in &mut learners {
            recipe.freeze.into_iter().for_each(|freeze| learner.freeze(freeze));
        }
        let [own, others] = &mut learners;
        for update in 1..=3 {
            let batches = batches(&config, 3);
            replica.set_parameters(&parameters(&others.model));
            let mut contributions: Vec<Contribution> =
                batches.iter().rev().map(|batch| replica.contribution(batch)).collect();
            contributions.reverse();
            for (batch, contribution) in batches.iter().zip(&contributions) {
                let (images, targets) = tensors(batch, &config);
                let result = own.backward(recipe, images, targets, batch.seed);
                let other = others.add(contribution);
                assert_eq!(result.loss.into_scalar::<f32>(), other.loss.into_scalar::<f32>());
                assert_eq!(
                    result.answers.into_data().iter::<i64>().collect::<Vec<_>>(),
                    other.answers.into_data().iter::<i64>().collect::<Vec<_>>()
                );
            }
            for learner in [&mut *own, &mut *others] {
                assert!(learner.update(recipe, 1e-2, update));
            }
            let [own, others] = [&own.model, &others.model].map(weights::to_timm);
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            let differ =
                own.iter().zip(&others).filter(|(own, other)| bits(&own.values) != bits(&other.values));
            let differ: Vec<&str> = differ.map(|(own, _)| own.name.as_str()).collect();
            assert!(differ.is_empty(), "update {update}: {differ:?}");
        }
    }

    #[test]
    fn contributions_of_a_replica_give_the_bits_of_own_backward_passes() {
        for name in ["vit_pico_patch4_32", "hybrid_pico_patch4_32"] {
            let config = preset::find(name).unwrap();
            for (gradient_checkpointing, freeze, precision) in [
                (false, None, Precision::F32),
                (true, None, Precision::Bf16),
                (false, Some(Freeze::Blocks(1)), Precision::Bf16),
            ] {
                let recipe = Recipe { gradient_checkpointing, freeze, precision, ..Recipe::default() };
                assert_same_bits(&config, &recipe);
            }
        }
    }
}
