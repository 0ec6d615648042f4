//! Gradient checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174, section 4).
//!
//! The backward pass needs what every block has computed. Of the blocks of stages the inputs alone are kept here: their forward pass runs
//! once without record, and again, with one, when the backward pass comes to them. Memory grows with depth by a block's input, no longer
//! by all that is inside it, for a third more work. What comes before the first block that learns is not run again, and the
//! tokenizer runs once, with its record.

use burn::module::Module;
use burn::tensor::{Gradients, Tensor};

use super::VisionTransformer;
use crate::stage::{Stage, learns};

impl VisionTransformer {
    /// The gradients of `loss(self.forward(images))`, given to `found` part by part, the last block first; each parameter's is in
    /// exactly one of them. They are those of one backward pass, but for what dropout and drop path leave out: that is drawn from `seed`
    /// and the number of the part, from the device's own generator. Nothing else may draw from it in the meantime.
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
        let unrecorded = self.clone().no_grad();
        let device = images.device();
        let is_random =
            [self.config.dropout, self.config.attention_dropout, self.config.drop_path] != [0.0; 3];
        let draw_for = |part: usize| {
            if is_random {
                device.seed(seed.wrapping_add(part as u64));
            }
        };
        let first = self.first_part_that_learns();

        draw_for(0);
        // Recorded: the tokenizer's own running averages move once.
        let embedded = self.embed(images);
        let position = embedded.1.clone().map(Tensor::inner);
        let constant = position.clone().map(Tensor::from_inner);
        let mut tokens = embedded.0.clone().inner();
        let mut inputs = Vec::new();
        let blocks = unrecorded.blocks();
        for (part, &(stage, block)) in (1..).zip(&blocks) {
            if part >= first {
                inputs.push(tokens.clone());
            }
            draw_for(part);
            tokens = stage.forward_block(block, Tensor::from_inner(tokens), &constant).inner();
        }
        draw_for(blocks.len() + 1);
        drop(blocks);
        drop(unrecorded);

        let input = leaf(tokens);
        let grads = loss(self.classify(self.finish(input.clone()))).backward();
        let mut gradient = gradient_of(&input, &grads);
        found(grads);
        let mut position_gradient: Option<Tensor<3>> = None;
        let blocks = self.blocks();
        while let Some(input) = inputs.pop() {
            let part = first.max(1) + inputs.len();
            draw_for(part);
            let (stage, block) = blocks[part - 1];
            let (input, position) = (leaf(input), position.clone().map(leaf));
            let output = stage.forward_block(block, input.clone(), &position);
            let grads = along(output, gradient).backward();
            gradient = gradient_of(&input, &grads);
            if let Some(more) = position.and_then(|position| position.grad(&grads)) {
                position_gradient = Some(match position_gradient {
                    Some(sum) => sum + more,
                    None => more,
                });
            }
            found(grads);
        }

        if first == 0 {
            let (tokens, position) = embedded;
            let mut total = along(tokens, gradient);
            if let (Some(position), Some(gradient)) = (position, position_gradient) {
                total = total + along(position, gradient);
            }
            found(total.backward());
        }
    }

    /// 0 for what makes the first tokens, then a number for each block; one more if none of them has a parameter that learns.
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

    /// The blocks of all stages, in order.
    fn blocks(&self) -> Vec<(&Stage, usize)> {
        self.stages.iter().flat_map(|stage| (0..stage.depth()).map(move |block| (stage, block))).collect()
    }
}

/// The start of a record.
fn leaf(tokens: Tensor<3>) -> Tensor<3> {
    Tensor::from_inner(tokens).require_grad()
}

fn gradient_of(input: &Tensor<3>, grads: &Gradients) -> Tensor<3> {
    input.grad(grads).expect("every part's output depends on its input")
}

/// A number whose gradient by `output` is `gradient`.
fn along(output: Tensor<3>, gradient: Tensor<3>) -> Tensor<1> {
    (output * Tensor::from_inner(gradient)).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ModelConfig;
    use crate::testing::{self, base};
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
        for config in testing::variants() {
            let config = ModelConfig { dropout: 0.0, attention_dropout: 0.0, drop_path: 0.0, ..config };
            let model = config.init(&Device::default().autodiff()).unwrap();
            model.initialize();
            assert_same(&model, config.depth.sum() + 2);
        }
    }

    #[test]
    fn what_does_not_learn_is_not_run_again() {
        let device = Device::default().autodiff();
        let model = ModelConfig { depth: 3.into(), ..base() }.init(&device).unwrap();
        model.initialize();
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
