//! Gradient checkpointing (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174, section 4).
//!
//! The backward pass needs what every block has computed. Kept here is each block's input alone: a block's forward pass runs once without
//! record, and again, with one, when the backward pass comes to it. Memory then grows with the width of the model and one block, no
//! longer with all that is inside the blocks, for a third more work.

use burn::module::Module;
use burn::tensor::{Gradients, Tensor};

use super::VisionTransformer;
use crate::stage::Stage;

impl VisionTransformer {
    /// The gradients of `loss(self.forward(images))`, given to `found` part by part, the last block first; each parameter's is in
    /// exactly one of them. They are those of one backward pass, but for what dropout and drop path leave out: that is drawn from `seed`
    /// and the number of the part.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`, on a device with autodiff, as the model
    /// - loss: from the logits, `[batch, num_classes]`
    pub fn checkpointed_gradients(
        &self,
        images: Tensor<4>,
        seed: u64,
        loss: impl FnOnce(Tensor<2>) -> Tensor<1>,
        mut found: impl FnMut(Gradients),
    ) {
        let device = images.device();
        let draw_for = |part: usize| device.seed(seed.wrapping_add(part as u64));
        self.materialise();
        let unrecorded = self.clone().no_grad();

        draw_for(0);
        let (tokens, position) = unrecorded.embed(images.clone());
        let position = position.map(Tensor::inner);
        let constant = position.clone().map(Tensor::from_inner);
        let mut tokens = tokens.inner();
        let mut inputs = Vec::new();
        for (stage, block) in unrecorded.blocks() {
            inputs.push(tokens.clone());
            draw_for(inputs.len());
            tokens = stage.forward_block(block, Tensor::from_inner(tokens), &constant).inner();
        }
        drop(unrecorded);

        draw_for(inputs.len() + 1);
        let input = leaf(tokens);
        let grads = loss(self.classify(self.finish(input.clone()))).backward();
        let mut slope = slope_of(&input, &grads);
        found(grads);
        let mut position_slope: Option<Tensor<3>> = None;
        for (stage, block) in self.blocks().rev() {
            draw_for(inputs.len());
            let Some(input) = inputs.pop() else { unreachable!("as many as blocks") };
            let (input, position) = (leaf(input), position.clone().map(leaf));
            let output = stage.forward_block(block, input.clone(), &position);
            let grads = along(output, slope).backward();
            slope = slope_of(&input, &grads);
            if let Some(more) = position.and_then(|position| position.grad(&grads)) {
                position_slope = Some(match position_slope {
                    Some(sum) => sum + more,
                    None => more,
                });
            }
            found(grads);
        }

        draw_for(0);
        let (tokens, position) = self.embed(images);
        // the leaf is for embeddings that do not learn: without one there would be nothing to differentiate
        let mut total = along(tokens, slope) + Tensor::zeros([1], &device).require_grad();
        if let (Some(position), Some(slope)) = (position, position_slope) {
            total = total + along(position, slope);
        }
        found(total.backward());
    }

    /// The blocks of all stages, in order.
    fn blocks(&self) -> impl DoubleEndedIterator<Item = (&Stage, usize)> {
        self.stages.iter().flat_map(|stage| (0..stage.depth()).map(move |block| (stage, block)))
    }
}

/// The start of a record.
fn leaf(tokens: Tensor<3>) -> Tensor<3> {
    Tensor::from_inner(tokens).require_grad()
}

fn slope_of(input: &Tensor<3>, grads: &Gradients) -> Tensor<3> {
    input.grad(grads).unwrap_or_else(|| input.clone().inner().zeros_like())
}

/// A number whose gradient by `output` is `slope`.
fn along(output: Tensor<3>, slope: Tensor<3>) -> Tensor<1> {
    (output * Tensor::from_inner(slope)).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ModelConfig;
    use crate::testing::{self, base};
    use burn::module::{ModuleVisitor, Param};
    use burn::tensor::{Device, TensorData};

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

    fn checkpointed(model: &VisionTransformer, images: &Tensor<4>, seed: u64) -> Vec<Vec<TensorData>> {
        let mut parts = Vec::new();
        model.checkpointed_gradients(images.clone(), seed, loss, |grads| parts.push(grads));
        assert_eq!(parts.len(), model.config().depth.sum() + 2);
        found(model, &parts)
    }

    fn loss(logits: Tensor<2>) -> Tensor<1> {
        let shape = logits.dims();
        let weights = TensorData::new(testing::numbers(shape.iter().product(), 5), shape);
        let device = logits.device();
        (logits * Tensor::from_data(weights, &device)).sum()
    }

    fn images(config: &ModelConfig, device: &Device) -> Tensor<4> {
        let shape = [3, config.channels, config.image_size.height, config.image_size.width];
        Tensor::from_data(TensorData::new(testing::numbers(shape.iter().product(), 6), shape), device)
    }

    #[test]
    fn gradients_are_those_of_one_backward_pass() {
        let device = Device::default().autodiff();
        for config in testing::variants() {
            let config = ModelConfig { dropout: 0.0, attention_dropout: 0.0, drop_path: 0.0, ..config };
            let model = config.init(&device).unwrap();
            let images = images(&config, &device);
            let whole = found(&model, &[loss(model.forward(images.clone())).backward()]);
            let parts = checkpointed(&model, &images, 0);
            for (index, (whole, parts)) in whole.iter().zip(&parts).enumerate() {
                assert_eq!(parts.len(), 1, "parameter {index} of {config:?}");
                whole[0].assert_approx_eq::<f32>(&parts[0], burn::tensor::Tolerance::rel_abs(1e-5, 1e-6));
            }
        }
    }

    #[test]
    fn the_second_forward_pass_drops_what_the_first_one_dropped() {
        let device = Device::default().autodiff();
        let config =
            ModelConfig { dropout: 0.3, attention_dropout: 0.3, drop_path: 0.5, depth: 3.into(), ..base() };
        let model = config.init(&device).unwrap();
        model.materialise();
        let images = images(&config, &device);
        let stage = &model.stages[0];
        device.seed(9);
        let (tokens, position) = model.embed(images.clone());
        let tokens = (0..stage.depth()).fold(tokens, |tokens, block| {
            device.seed(9 + block as u64 + 1);
            stage.forward_block(block, tokens, &position)
        });
        device.seed(9 + stage.depth() as u64 + 1);
        let whole = found(&model, &[loss(model.classify(model.finish(tokens))).backward()]);
        let same = checkpointed(&model, &images, 9);
        for (whole, parts) in whole.iter().zip(&same) {
            whole[0].assert_approx_eq::<f32>(&parts[0], burn::tensor::Tolerance::rel_abs(1e-5, 1e-6));
        }
        assert_ne!(same, checkpointed(&model, &images, 10));
    }

    #[test]
    fn what_does_not_learn_gets_no_gradient() {
        let device = Device::default().autodiff();
        let model = base().init(&device).unwrap();
        let frozen = VisionTransformer { patch_embed: model.patch_embed.clone().no_grad(), ..model };
        let frozen = VisionTransformer {
            class_token: frozen.class_token.map(Module::no_grad),
            position: frozen.position.clone().no_grad(),
            ..frozen
        };
        let images = images(frozen.config(), &device);
        let whole = found(&frozen, &[loss(frozen.forward(images.clone())).backward()]);
        let parts = checkpointed(&frozen, &images, 0);
        let counts = |found: &[Vec<TensorData>]| found.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(counts(&whole), counts(&parts));
        assert!(counts(&parts).contains(&0));
    }
}
