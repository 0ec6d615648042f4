//! The learner: a model with its optimizer and the running average of its weights, and the one training step of the
//! program.

mod ema;
mod layers;
mod loss;
pub mod micro_batch;
pub mod optimizer;

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer};
use burn::tensor::{Int, Tensor};
use vitrine_models::{ImageSize, VisionTransformer};

pub use layers::Layers;
pub use loss::Loss;

use crate::recipe::{Freeze, Precision, Recipe};

/// A model in training.
pub struct Learner {
    /// The model that is trained.
    pub model: VisionTransformer,
    /// The exponential moving average of its weights, if the recipe asks for it.
    pub average: Option<VisionTransformer>,
    /// The optimizer with its state.
    pub optimizer: ModuleOptimizer,
    /// The training loss.
    pub loss: Loss,
    layers: Layers,
    /// Sums of gradients since the last update, over `images` images.
    sums: GradientsAccumulator<VisionTransformer>,
    images: usize,
}

/// The results of a batch, which are still on the device.
pub struct BatchResult {
    /// The mean loss, `[1]`.
    pub loss: Tensor<1>,
    /// The predicted class of each image, `[batch]`.
    pub answers: Tensor<1, Int>,
}

impl Learner {
    /// A model on an autodiff device, with the optimizer and the average that the recipe asks for.
    pub fn new(model: VisionTransformer, recipe: &Recipe) -> Self {
        let average = (recipe.ema_decay > 0.0).then(|| model.valid());
        Self::restored(model, average, optimizer::new(recipe))
    }

    /// A learner from saved parts. Saving happens between two updates, so there are no gradients to restore.
    pub(crate) fn restored(
        model: VisionTransformer,
        average: Option<VisionTransformer>,
        optimizer: ModuleOptimizer,
    ) -> Self {
        let layers = Layers::new(&model);
        let loss = Loss::default();
        Self { model, average, optimizer, loss, layers, sums: GradientsAccumulator::new(), images: 0 }
    }

    /// The same learner with another loss than cross-entropy.
    pub fn with_loss(self, loss: Loss) -> Self {
        Self { loss, ..self }
    }

    /// Freezes a part of the model.
    pub fn freeze(&mut self, freeze: Freeze) {
        self.model = self.layers.freeze(self.model.clone(), freeze);
    }

    /// Adds the gradients of one batch, summed over its images. `seed` is for dropout and stochastic depth.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`, on the device of the model. The size may differ from the model's
    ///   if its parameters [fit all sizes](vitrine_models::ModelConfig::fits_all_sizes).
    /// - targets: `[batch, classes]`, as [`Loss::mean`] takes them
    pub fn backward(
        &mut self,
        recipe: &Recipe,
        images: Tensor<4>,
        targets: Tensor<2>,
        seed: u64,
    ) -> BatchResult {
        self.images += targets.dims()[0];
        let &Recipe { gradient_checkpointing, precision, .. } = recipe;
        let step = Step { loss: self.loss, gradient_checkpointing, precision, seed };
        let (model, sums) = (&self.model, &mut self.sums);
        gradients(model, step, images, targets, |grads| sums.accumulate(model, grads))
    }

    /// Updates the parameters with the mean of the gradients since the last update, if there are any. `updates` is the
    /// number of this update, from 1. Returns whether there were gradients.
    pub fn update(&mut self, recipe: &Recipe, learning_rate: f64, updates: usize) -> bool {
        let images = std::mem::take(&mut self.images);
        if images == 0 {
            return false;
        }
        let rates = self.layers.rates(learning_rate, recipe.layer_decay);
        let grads = optimizer::mean_clipped(&self.model, self.sums.grads(), images, recipe.clip_norm);
        self.model = vitrine_kernels::Precision::from(recipe.precision)
            .during(|| self.optimizer.step(rates, self.model.clone(), grads));
        if let Some(average) = self.average.take() {
            self.average = Some(ema::update(average, &self.model, recipe.ema_decay, updates));
        }
        true
    }

    /// The model to evaluate and save: the running average if there is one. Later updates do not change it, as they would a
    /// clone, which shares the statistics of batch norms.
    pub fn evaluated(&self) -> VisionTransformer {
        self.average.as_ref().unwrap_or(&self.model).valid()
    }
}

/// How the gradients of a batch are computed.
#[derive(Clone, Copy)]
struct Step {
    loss: Loss,
    gradient_checkpointing: bool,
    precision: Precision,
    /// The seed of dropout and stochastic depth.
    seed: u64,
}

/// Computes the gradients of a batch, summed over its images, and gives them to `add`, in several parts with
/// checkpointing. The shapes are those of [`Learner::backward`].
fn gradients(
    model: &VisionTransformer,
    step: Step,
    images: Tensor<4>,
    targets: Tensor<2>,
    mut add: impl FnMut(GradientsParams),
) -> BatchResult {
    let [batch, _classes] = targets.dims();
    let device = targets.device().inner();
    let [_, _, height, width] = images.dims();
    let size = ImageSize { height, width };
    let other = (size != model.config().image_size)
        .then(|| model.at_size(size).expect("the recipe was checked against the model"));
    let model = other.as_ref().unwrap_or(model);
    let mut result = None;
    let loss = |logits: Tensor<2>| {
        let answers = logits.clone().inner().argmax(1).flatten(0, 1);
        let loss = step.loss.mean(logits, targets);
        result = Some(BatchResult { loss: loss.clone().inner(), answers });
        loss.mul_scalar(batch as f64)
    };
    let mut add = |grads| add(GradientsParams::from_grads(grads, model));
    vitrine_kernels::Precision::from(step.precision).during(|| {
        if step.gradient_checkpointing {
            model.checkpointed_gradients(images, step.seed, loss, add);
        } else {
            device.seed(step.seed);
            add(loss(model.forward(images)).backward());
        }
    });
    result.expect("the loss was computed")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use burn::tensor::{Device, Distribution};
    use vitrine_models::preset;

    fn model() -> VisionTransformer {
        let config = preset::find("vit_pico_patch4_32").unwrap().with_num_classes(3);
        let model = config.init(&Device::default().autodiff()).unwrap();
        model.initialize();
        model
    }

    /// Four images and their targets.
    fn batch() -> (Tensor<4>, Tensor<2>) {
        let device = Device::default().autodiff();
        let images = Tensor::random([4, 3, 32, 32], Distribution::Default, &device);
        let targets = Tensor::<2>::from_floats(
            [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]],
            &device,
        );
        (images, targets)
    }

    /// The largest difference between the logits of two models.
    fn difference(a: &Learner, b: &Learner, images: &Tensor<4>) -> f32 {
        let logits = |learner: &Learner| learner.model.valid().forward(images.clone().inner());
        (logits(a) - logits(b)).abs().max().into_scalar()
    }

    #[test]
    fn rounded_products_change_an_update_little_and_nothing_where_they_are_no_faster() {
        let (images, targets) = batch();
        let start = model();
        let trained = |precision, gradient_checkpointing| {
            // A large epsilon, as below.
            let recipe = Recipe {
                precision,
                gradient_checkpointing,
                clip_norm: 0.0,
                epsilon: 1e-2,
                ..Recipe::default()
            };
            let mut learner = Learner::new(start.clone(), &recipe);
            learner.backward(&recipe, images.clone(), targets.clone(), 0);
            assert!(learner.update(&recipe, 5e-3, 1));
            learner
        };
        let exact = trained(Precision::F32, false);
        let before = difference(&exact, &Learner::new(start.clone(), &Recipe::default()), &images);
        for gradient_checkpointing in [false, true] {
            let rounded = trained(Precision::Bf16, gradient_checkpointing);
            let apart = difference(&exact, &rounded, &images);
            let same = trained(Precision::F32, gradient_checkpointing);
            assert!(apart < 0.1 * before, "{apart} of {before}");
            let is_rounded = vitrine_kernels::multiplies_bfloat16(&Device::default());
            assert_eq!(difference(&rounded, &same, &images) > 0.0, is_rounded);
        }
    }

    #[test]
    fn accumulation_and_checkpointing_give_the_update_of_one_batch() {
        // A large epsilon: with a small one, Adam would turn rounding errors of small gradients into full steps.
        let recipe = Recipe { clip_norm: 0.0, epsilon: 1e-2, ..Recipe::default() };
        let (images, targets) = batch();
        let start = model();
        let mut whole = Learner::new(start.clone(), &recipe);
        let result = whole.backward(&recipe, images.clone(), targets.clone(), 0);
        assert!(result.loss.into_scalar::<f32>() > 0.0);
        let answers = result.answers.into_data();
        assert_eq!(answers.num_elements(), 4);
        assert!(answers.iter::<i64>().all(|answer| (0..3).contains(&answer)));
        assert!(whole.update(&recipe, 5e-3, 1));
        for checkpointing in [false, true] {
            let recipe = Recipe { gradient_checkpointing: checkpointing, ..recipe.clone() };
            let mut parts = Learner::new(start.clone(), &recipe);
            for part in [0..1, 1..4] {
                let (first, count) = (part.start, part.len());
                let (images, targets) =
                    (images.clone().narrow(0, first, count), targets.clone().narrow(0, first, count));
                parts.backward(&recipe, images, targets, 0);
            }
            let before = difference(&whole, &parts, &images);
            assert!(before > 1e-3, "the update of the whole batch changed nothing");
            assert!(parts.update(&recipe, 5e-3, 1));
            let apart = difference(&whole, &parts, &images);
            assert!(apart < 0.02 * before, "{apart} of {before}, checkpointing {checkpointing}");
            assert!(!parts.update(&recipe, 5e-3, 2), "an update without gradients");
        }
    }

    #[test]
    fn the_average_is_evaluated_if_there_is_one() {
        for ema_decay in [0.0, 0.9] {
            let recipe = Recipe { ema_decay, ..Recipe::default() };
            let mut learner = Learner::new(model(), &recipe);
            let (images, targets) = batch();
            learner.backward(&recipe, images.clone(), targets, 0);
            learner.update(&recipe, 1e-2, 1);
            let logits = |model: VisionTransformer| model.forward(images.clone().inner());
            let apart: f32 =
                (logits(learner.evaluated()) - logits(learner.model.valid())).abs().max().into_scalar();
            assert_eq!(apart > 0.0, ema_decay > 0.0);
        }
    }

    #[test]
    fn later_updates_leave_an_evaluated_model_as_it_is() {
        let device = Device::default().autodiff();
        for ema_decay in [0.0, 0.9] {
            let recipe = Recipe { ema_decay, ..Recipe::default() };
            let config = preset::find("hybrid_pico_patch4_32").unwrap().with_num_classes(3);
            let mut learner = Learner::new(config.init(&device).unwrap(), &recipe);
            let mut update = |number: usize| {
                let (images, targets) = batch();
                learner.backward(&recipe, images, targets, 1);
                learner.update(&recipe, 1e-3, number);
                learner.evaluated()
            };
            let kept = update(1);
            let before = vitrine_models::weights::to_timm(&kept);
            let later = update(2);
            assert_eq!(vitrine_models::weights::to_timm(&kept), before, "{ema_decay}");
            assert_ne!(vitrine_models::weights::to_timm(&later), before, "{ema_decay}");
        }
    }
}
