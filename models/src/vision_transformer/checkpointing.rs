//! Gradient checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174, section
//! 4).
//!
//! A backward pass needs all intermediate results of every block. Here only the inputs of blocks are kept: the forward
//! pass of a block runs once without record, and a second time, recorded, when the backward pass reaches the block.
//! Memory then grows with depth only by the input of a block, for a third more computation. Parts before the first
//! block that learns do not run a second time, and the tokenizer runs once, recorded.
//!
//! The parts are numbered: 0 is the embedding, then follow the blocks, and after them the final norm, pooling and head.

use burn::module::Module;
use burn::tensor::{Device, Gradients, Tensor};

use super::{BlockTokens, VisionTransformer};
use crate::ModelConfig;
use crate::stage::learns;

impl VisionTransformer {
    /// Computes the gradients of `loss(self.forward(images))` part by part, the last block first, and passes those of
    /// each part to `found`. The gradient of each parameter is in exactly one part.
    ///
    /// The gradients equal those of one backward pass, except for what dropout and stochastic depth leave out, and
    /// for attention that is sampled: those draw from the device's own generator, which is seeded for each part with `seed` and the number of the part.
    /// Nothing else may draw from this generator in the meantime.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`, on a device with autodiff, as the model
    /// - loss: from the logits, `[batch, num_classes]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::optim::GradientsParams;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default().autodiff();
    /// let model = preset::find("vit_pico_patch4_32").expect("listed").init(&device)?; // four blocks
    /// let images = Tensor::<4>::ones([2, 3, 32, 32], &device);
    /// let loss = |logits: Tensor<2>| logits.powf_scalar(2.0).mean();
    /// let mut found = Vec::new();
    /// let part = |grads| found.push(GradientsParams::from_grads(grads, &model).len());
    /// model.checkpointed_gradients(images.clone(), 0, loss, part);
    /// assert_eq!(found.len(), 1 + 4 + 1); // the head, each block, the tokenizer
    /// let whole = GradientsParams::from_grads(loss(model.forward(images)).backward(), &model);
    /// assert_eq!(found.iter().sum::<usize>(), whole.len());
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn checkpointed_gradients(
        &self,
        images: Tensor<4>,
        seed: u64,
        loss: impl FnOnce(Tensor<2>) -> Tensor<1>,
        mut found: impl FnMut(Gradients),
    ) {
        self.initialize();
        let random = PartSeeds { seed: self.is_random().then_some(seed), device: images.device() };
        let first = self.first_part_that_learns();
        random.start(0);
        // The embedding runs once, recorded, because the running averages of the tokenizer must move only once.
        let (embedded, position) = self.embed(images);
        let mut kept = self.forward_unrecorded(embedded.clone().inner(), &position, first, &random);

        let (output, early) = (leaf(kept.output), kept.early.map(leaf));
        let read = BlockTokens { last: output.clone(), early: early.clone() };
        let grads = loss(self.classify(self.finish(read))).backward();
        let mut gradient = gradient_of(&output, &grads);
        let early_gradient = early.map(|early| gradient_of(&early, &grads));
        found(grads);
        let mut position_gradient: Option<Tensor<3>> = None;
        while let Some(input) = kept.inputs.pop() {
            let part = first.max(1) + kept.inputs.len();
            random.start(part);
            let (input, position) = (leaf(input), position.clone().map(|position| leaf(position.inner())));
            let output = self.block_output(part - 1, input.clone(), &position);
            if let (Some(early), true) = (&early_gradient, self.early_block() == Some(part)) {
                gradient = gradient + early.clone();
            }
            let grads = along(output, gradient).backward();
            gradient = gradient_of(&input, &grads);
            position_gradient = sum(position_gradient, position.and_then(|position| position.grad(&grads)));
            found(grads);
        }

        if first == 0 {
            let tokens = along(embedded, gradient);
            let position =
                position.zip(position_gradient).map(|(position, gradient)| along(position, gradient));
            found(position.into_iter().fold(tokens, |total, position| total + position).backward());
        }
    }

    /// Runs all blocks without record, and keeps the inputs of the parts from `first` on.
    fn forward_unrecorded(
        &self,
        mut tokens: Tensor<3>,
        position: &Option<Tensor<3>>,
        first: usize,
        random: &PartSeeds,
    ) -> KeptInputs {
        let unrecorded = self.clone().no_grad();
        let position = position.clone().map(|position| Tensor::from_inner(position.inner()));
        let (mut inputs, mut early) = (Vec::new(), None);
        let blocks = unrecorded.blocks().len();
        for part in 1..=blocks {
            if part >= first {
                inputs.push(tokens.clone());
            }
            random.start(part);
            tokens = unrecorded.block_output(part - 1, Tensor::from_inner(tokens), &position).inner();
            if self.early_block() == Some(part) {
                early = Some(tokens.clone());
            }
        }
        random.start(blocks + 1);
        KeptInputs { inputs, output: tokens, early }
    }

    /// Whether a forward pass in training draws random numbers.
    fn is_random(&self) -> bool {
        let ModelConfig { dropout, attention_dropout, drop_path, attention, .. } = self.config;
        [dropout, attention_dropout, drop_path] != [0.0; 3] || attention.normalizer.draws()
    }

    /// The first part with a parameter that learns: 0 for the embedding, then the blocks; the part after the last block
    /// if none does.
    fn first_part_that_learns(&self) -> usize {
        let embedding = learns(&self.patch_embed)
            || learns(&self.class_token)
            || learns(&self.distillation_token)
            || learns(&self.registers)
            || learns(&self.position);
        if embedding {
            return 0;
        }
        let blocks = self.blocks();
        1 + blocks.iter().position(|(stage, block)| stage.learns(*block)).unwrap_or(blocks.len())
    }
}

/// The inputs of blocks, and the output of the last one, without record.
struct KeptInputs {
    inputs: Vec<Tensor<3>>,
    output: Tensor<3>,
    /// The output of the block whose tokens the pooling reads besides.
    early: Option<Tensor<3>>,
}

/// The random numbers of each part, which must be the same when its forward pass runs again.
struct PartSeeds {
    /// `None` if no part draws random numbers.
    seed: Option<u64>,
    device: Device,
}

impl PartSeeds {
    /// Seeds the device's generator for a part.
    fn start(&self, part: usize) {
        if let Some(seed) = self.seed {
            self.device.seed(seed.wrapping_add(part as u64));
        }
    }
}

/// A tensor at which a record starts.
fn leaf(tokens: Tensor<3>) -> Tensor<3> {
    Tensor::from_inner(tokens).require_grad()
}

fn gradient_of(input: &Tensor<3>, grads: &Gradients) -> Tensor<3> {
    input.grad(grads).expect("every part's output depends on its input")
}

/// A number whose gradient with respect to `output` is `gradient`.
fn along(output: Tensor<3>, gradient: Tensor<3>) -> Tensor<1> {
    (output * Tensor::from_inner(gradient)).sum()
}

fn sum(total: Option<Tensor<3>>, more: Option<Tensor<3>>) -> Option<Tensor<3>> {
    match (total, more) {
        (Some(total), Some(more)) => Some(total + more),
        (total, more) => total.or(more),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::tests::Vary;
    use super::*;
    use crate::testing::{self, base};
    use crate::{ModelConfig, Pool};
    use burn::module::{ModuleVisitor, Param};
    use burn::tensor::{Device, TensorData, Tolerance};

    /// Each parameter's gradient in each of some parts.
    struct Found<'a> {
        parts: &'a [Gradients],
        gradients: Vec<Vec<TensorData>>,
    }

    impl ModuleVisitor for Found<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let parts = self.parts.iter().filter_map(|grads| value.grad(grads));
            self.gradients.push(parts.map(Tensor::into_data).collect());
        }
    }

    fn found(model: &VisionTransformer, parts: &[Gradients]) -> Vec<Vec<TensorData>> {
        let mut found = Found { parts, gradients: Vec::new() };
        model.visit(&mut found);
        found.gradients
    }

    fn loss(logits: Tensor<2>) -> Tensor<1> {
        let shape = logits.dims();
        let weights = TensorData::new(vitrine_kernels::testing::numbers(shape.iter().product(), 5), shape);
        let device = logits.device();
        (logits * Tensor::from_data(weights, &device)).sum()
    }

    /// Checks the gradients against those of one backward pass, and that they come in so many parts.
    fn assert_same(model: &VisionTransformer, parts: usize) {
        let config = model.config();
        let shape = [3, config.channels, config.image_size.height, config.image_size.width];
        let images = TensorData::new(vitrine_kernels::testing::numbers(shape.iter().product(), 6), shape);
        let images = Tensor::<4>::from_data(images, &Device::default().autodiff());
        let whole = found(model, &[loss(model.forward(images.clone())).backward()]);
        let mut all = Vec::new();
        model.checkpointed_gradients(images, 0, loss, |grads| all.push(grads));
        assert_eq!(all.len(), parts, "{config:?}");
        for (index, (whole, parts)) in whole.iter().zip(found(model, &all)).enumerate() {
            assert_eq!(parts.len(), whole.len(), "parameter {index} of {config:?}");
            for (whole, part) in whole.iter().zip(&parts) {
                whole.assert_approx_eq::<f32>(part, Tolerance::rel_abs(1e-5, 1e-6));
            }
        }
    }

    #[test]
    fn gradients_are_those_of_one_backward_pass() {
        // Without what is random, because parts are seeded one by one.
        for config in testing::variants().into_iter().filter(|config| !config.attention.normalizer.draws()) {
            let config = ModelConfig { dropout: 0.0, attention_dropout: 0.0, drop_path: 0.0, ..config };
            let model = config.init(&Device::default().autodiff()).unwrap();
            model.initialize();
            assert_same(&model, config.depth.sum() + 2);
        }
    }

    #[test]
    fn what_does_not_learn_is_not_run_again() {
        let three = ModelConfig { depth: 3.into(), ..base() };
        let two_depths =
            |early| ModelConfig { class_token: true, pool: Pool::TwoDepths { early }, ..three.clone() };
        for config in [three.clone(), two_depths(1), two_depths(2)] {
            check_what_learns(&config);
        }
    }

    fn check_what_learns(config: &ModelConfig) {
        // The same weights every time: where gradients nearly cancel, the bound would be too narrow for some.
        let model = config.init(&Device::default().autodiff()).unwrap().map(&mut Vary::new(3, 0.05));
        let embedding_frozen = VisionTransformer {
            patch_embed: model.patch_embed.clone().no_grad(),
            class_token: model.class_token.clone().map(Module::no_grad),
            position: model.position.clone().no_grad(),
            ..model
        };
        assert_same(&embedding_frozen, 4);
        let stages = embedding_frozen.stages.clone();
        let stages = stages.into_iter().map(|stage| stage.no_grad_before(2)).collect();
        assert_same(&VisionTransformer { stages, ..embedding_frozen.clone() }, 2);
        let stages = embedding_frozen.stages.clone().into_iter().map(Module::no_grad).collect();
        assert_same(&VisionTransformer { stages, ..embedding_frozen }, 1);
    }
}
