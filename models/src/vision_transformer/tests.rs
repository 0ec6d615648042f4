//! Models of every choice: shapes, batches, gradients, and the parts of a forward pass.

#![allow(clippy::unwrap_used)]
use super::*;
use crate::attention::TokenMixer;
use crate::linear::Linear;
use crate::testing::{self, base};
use crate::{
    AttentionOptions, ImageSize, Normalizer, Pool, Position, RelativePosition, StepMemory, Tokenizer,
};
use burn::module::ModuleMapper;
use burn::optim::GradientsParams;
use burn::tensor::{Distribution, Gradients, TensorData, Tolerance};

#[test]
fn every_variant_maps_images_to_logits_alone_and_in_a_batch() {
    let device = Device::default();
    for config in testing::variants() {
        let model = config.init(&device).unwrap();
        let ImageSize { height, width } = config.image_size;
        let images = Tensor::<4>::random([3, 2, height, width], Distribution::Default, &device);
        let [rows, columns] = config.stage_grid(config.num_stages() - 1);
        let tokens = rows * columns + config.num_prefix_tokens() + usize::from(config.class_depth > 0);
        let features = model.features(images.clone());
        assert_eq!(features.dims(), [3, tokens, config.last_dim()], "{config:?}");
        let logits = model.forward(images.clone());
        assert_eq!(logits.dims(), [3, 5]);
        let alone = model.forward(images.narrow(0, 1, 1));
        alone
            .into_data()
            .assert_approx_eq::<f32>(&logits.narrow(0, 1, 1).into_data(), Tolerance::absolute(1e-5));
    }
}

/// Moves every parameter away from its start value, far enough that every part of the model influences the logits.
pub(super) struct Vary {
    seed: u64,
    /// The largest distance of a value from about the mean of its parameter.
    spread: f32,
}

impl Vary {
    pub(super) fn new(seed: u64, spread: f32) -> Self {
        Self { seed, spread }
    }
}

impl ModuleMapper for Vary {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (value, device) = (param.val(), param.lazy_device());
        self.seed += 1;
        let count = value.shape().num_elements();
        let mean: f32 = value.clone().mean().into_scalar();
        let start = (mean * 10.0).round() / 10.0;
        let values: Vec<f32> = vitrine_kernels::testing::numbers(count, self.seed)
            .into_iter()
            .map(|number| start + self.spread * number)
            .collect();
        let varied = Tensor::<D>::from_data(TensorData::new(values, value.dims()), &device);
        Param::initialized(param.id, if device.is_autodiff() { varied.require_grad() } else { varied })
    }
}

/// A batch of `batch` images.
fn images(config: &ModelConfig, batch: usize, device: &Device) -> Tensor<4> {
    let shape = [batch, config.channels, config.image_size.height, config.image_size.width];
    Tensor::from_data(
        TensorData::new(vitrine_kernels::testing::numbers(shape.iter().product(), 77), shape),
        device,
    )
}

#[test]
fn a_model_at_another_size_equals_one_built_for_it_and_shares_its_parameters() {
    let device = Device::default().autodiff();
    let mut fitting = 0;
    for config in testing::variants().into_iter().filter(|config| !config.attention.normalizer.draws()) {
        let ImageSize { height, width } = config.image_size;
        let size = ImageSize { height: height + config.patch_size, width: 2 * width };
        let model = config.init(&device).unwrap().map(&mut Vary::new(3, 0.3));
        let Ok(other) = model.at_size(size) else {
            assert!(!config.fits_all_sizes(), "{config:?}");
            continue;
        };
        fitting += 1;
        let built = ModelConfig { image_size: size, ..config.clone() };
        let images = images(&built, 2, &device);
        let other_built = built.init(&device).unwrap().try_load_record(model.clone().into_record()).unwrap();
        let expected = other_built.forward(images.clone());
        let logits = other.forward(images);
        assert_eq!(other.config(), &built);
        let distance = (logits.clone() - expected).abs().max().into_scalar::<f32>();
        assert!(distance < 1e-5, "{distance}: {config:?}");
        let grads = logits.powf_scalar(2.0).sum().backward();
        let found = GradientsParams::from_grads(grads, &model).len();
        let whole = model.forward(self::images(&config, 2, &device)).powf_scalar(2.0).sum().backward();
        assert_eq!(found, GradientsParams::from_grads(whole, &model).len(), "{config:?}");
    }
    assert!(fitting > 20, "{fitting}");
}

#[test]
fn without_positions_the_order_of_patches_does_not_matter_and_with_them_it_does() {
    let device = Device::default();
    for position in Position::ALL.iter().copied() {
        let config = ModelConfig { position, num_heads: 2.into(), ..base() };
        let model = config.init(&device).unwrap().map(&mut Vary::new(0, 0.3));
        let images = images(&config, 1, &device);
        let swapped = Tensor::cat(vec![images.clone().narrow(2, 4, 4), images.clone().narrow(2, 0, 4)], 2);
        let change: f32 = (model.forward(images) - model.forward(swapped)).abs().max().into_scalar();
        match position {
            Position::None => assert!(change < 1e-4, "{change}"),
            _ => assert!(change > 1e-2, "{position:?}: {change}"),
        }
    }
}

#[test]
fn a_head_that_reads_the_class_token_alone_gets_the_same_without_the_other_tokens() {
    let device = Device::default();
    let mut compared = 0;
    for config in testing::variants().into_iter().filter(|config| config.class_token) {
        let config = ModelConfig { pool: Pool::ClassToken, ..config };
        if config.validate().is_err() {
            continue;
        }
        let model = config.init(&device).unwrap().map(&mut Vary::new(0, 0.3));
        let images = images(&config, 2, &device);
        let close = Tolerance::absolute(1e-5).set_relative(1e-5);
        let whole = model.classify(model.features(images.clone()));
        model.forward(images.clone()).into_data().assert_approx_eq::<f32>(&whole.into_data(), close);
        if !config.distillation_token {
            let whole = model.pooling.forward(model.features(images.clone()));
            model.embedding(images).into_data().assert_approx_eq::<f32>(&whole.into_data(), close);
        }
        compared += 1;
    }
    assert!(compared > 20, "{compared} variants");
}

#[test]
fn asking_for_attention_weights_does_not_change_the_logits() {
    let device = Device::default();
    for config in testing::variants() {
        let model = config.init(&device).unwrap();
        let ImageSize { height, width } = config.image_size;
        let images = Tensor::<4>::random([2, 2, height, width], Distribution::Default, &device);
        let (logits, maps) = model.forward_with_weights(images.clone());
        assert_eq!(maps.len(), config.depth.sum());
        logits
            .into_data()
            .assert_approx_eq::<f32>(&model.forward(images).into_data(), Tolerance::absolute(1e-5));
    }
}

/// Moves every parameter along a direction, and sums the squared length of the direction and the derivative along it.
struct Along<'a> {
    grads: &'a Gradients,
    size: f32,
    random: u64,
    /// The squared length of the direction.
    squared_length: f64,
    /// The derivative: gradient times direction.
    derivative: f64,
    /// The number of parameters without a gradient.
    without: usize,
}

impl ModuleMapper for Along<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let value = param.val();
        let gradient = value.grad(self.grads).unwrap_or_else(|| {
            self.without += 1;
            value.clone().inner().zeros_like()
        });
        let gradient = gradient.into_data();
        let mut moved = value.clone().into_data();
        for (value, &gradient) in
            moved.as_mut_slice::<f32>().unwrap().iter_mut().zip(gradient.as_slice::<f32>().unwrap())
        {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let direction = gradient * (self.random >> 40) as f32 / (1u64 << 23) as f32;
            self.squared_length += f64::from(direction).powi(2);
            self.derivative += f64::from(direction) * f64::from(gradient);
            *value += self.size * direction;
        }
        // With gradient tracking, because batch norm uses its running averages if nothing learns.
        Param::initialized(param.id, Tensor::from_data(moved, &value.device()).require_grad())
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    let device = Device::default().autodiff();
    // Hard attention is left out: by design its gradient is that of softmax.
    let is_smooth = |config: &ModelConfig| match config.attention.normalizer {
        Normalizer::Softmax | Normalizer::Relu => true,
        Normalizer::Hard | Normalizer::HardSampled => false,
    };
    for config in testing::variants().into_iter().filter(is_smooth) {
        let config = ModelConfig { attention_dropout: 0.0, ..config };
        let model = config.init(&device).unwrap().map(&mut Vary::new(0, 0.3));
        let images = images(&config, 2, &device);
        let weights = Tensor::<2>::from_data(
            TensorData::new(vitrine_kernels::testing::numbers(10, 78), [2, 5]),
            &device,
        );
        let loss = |model: &VisionTransformer| (model.forward(images.clone()) * weights.clone()).sum();
        let grads = loss(&model).backward();
        let step = |size: f32| {
            let mut along =
                Along { grads: &grads, size, random: 9, squared_length: 0.0, derivative: 0.0, without: 0 };
            let moved = model.clone().map(&mut along);
            (f64::from(loss(&moved).into_scalar::<f32>()), along)
        };
        let (_, along) = step(0.0);
        // The norm of the stem and two norms in each stage, each with a running mean, a variance and a count.
        let averages = match config.tokenizer {
            Tokenizer::Residual { stride, .. } => 3 * (1 + 2 * (config.patch_size / stride).ilog2() as usize),
            Tokenizer::Patch | Tokenizer::ShiftedPatch | Tokenizer::Convolution { .. } => 0,
        };
        assert_eq!(along.without, averages, "{config:?}");
        // A step of 0.005 along the direction, to each side.
        let size = (5e-3 / along.squared_length.sqrt()) as f32;
        let derivative = (step(size).0 - step(-size).0) / (2.0 * f64::from(size));
        assert!(
            (derivative / along.derivative - 1.0).abs() < 0.02,
            "{derivative} by differences, {} by gradients: {config:?}",
            along.derivative
        );
    }
}

#[test]
fn dropout_and_drop_path_act_only_in_training() {
    let device = Device::default();
    let config = ModelConfig { dropout: 0.3, attention_dropout: 0.3, drop_path: 0.5, ..base() };
    let model = config.init(&device.clone().autodiff()).unwrap();
    model.initialize();
    let images = Tensor::<4>::random([2, 2, 8, 12], Distribution::Default, &device);
    let gap = |a: Tensor<2>, b: Tensor<2>| (a - b).abs().max().into_scalar::<f32>();
    let tracked = || Tensor::from_data(images.to_data(), &device.clone().autodiff());
    assert!(gap(model.forward(tracked()), model.forward(tracked())) > 0.0);
    let valid = model.valid();
    assert_eq!(gap(valid.forward(images.clone()), valid.forward(images.clone())), 0.0);
}

#[test]
fn sampled_attention_draws_only_in_training() {
    let device = Device::default();
    let attention = AttentionOptions { normalizer: Normalizer::HardSampled, ..base().attention };
    let config = ModelConfig { attention, ..base() };
    let tracked = device.clone().autodiff();
    let model = config.init(&tracked).unwrap();
    model.initialize();
    let images = images(&config, 2, &tracked);
    assert_ne!(model.forward(images.clone()).into_data(), model.forward(images.clone()).into_data());
    // In inference it is hard attention.
    let hard = AttentionOptions { normalizer: Normalizer::Hard, ..attention };
    let hard = ModelConfig { attention: hard, ..config }.init(&device).unwrap();
    let hard = crate::weights::from_timm(hard, crate::weights::to_timm(&model)).unwrap();
    let images = images.inner();
    let gap = (model.valid().forward(images.clone()) - hard.forward(images)).abs().max().into_scalar::<f32>();
    assert!(gap < 1e-6, "{gap}");
}

#[test]
fn weights_of_eight_bits_answer_nearly_as_those_of_32_in_every_variant() {
    let device = Device::default();
    let variants = || testing::variants().into_iter().filter(|config| !config.attention.normalizer.draws());
    // Attention of many tokens is rounded, too.
    let large = |config: ModelConfig| {
        let ImageSize { height, width } = config.image_size;
        ModelConfig { image_size: ImageSize { height: 4 * height, width: 4 * width }, ..config }
    };
    for config in variants().chain(variants().map(large)) {
        let model = config.init(&device).unwrap().map(&mut Vary::new(5, 0.3));
        let images = images(&config, 3, &device);
        let logits = |model: &VisionTransformer| model.forward(images.clone());
        let (exact, rounded) = (logits(&model), model.clone().quantized());
        assert!(rounded.is_quantized() && !model.is_quantized());
        let spread = exact.clone().abs().max().into_scalar::<f32>();
        let error = (exact - logits(&rounded)).abs().max().into_scalar::<f32>() / spread;
        // Where a token attends to a single other one, rounding may choose another.
        let bound = if config.attention.normalizer == crate::Normalizer::Hard { 0.3 } else { 0.06 };
        assert!(error > 0.0 && error < bound, "{error}: {config:?}");
        let again = rounded.clone().quantized();
        assert_eq!(logits(&again).into_data(), logits(&rounded).into_data(), "{config:?}");
    }
}

#[test]
fn packed_weights_answer_and_are_read_as_they_were_in_every_variant() {
    let device = Device::default();
    for config in testing::variants().into_iter().filter(|config| !config.attention.normalizer.draws()) {
        let model = config.init(&device).unwrap().map(&mut Vary::new(5, 0.3));
        let mut packed = model.clone().packed().packed();
        let images = images(&config, 3, &device);
        let expected = model.forward(images.clone());
        let largest = expected.clone().abs().max().into_scalar::<f32>().max(1.0);
        let gap = |other: &VisionTransformer| {
            (other.forward(images.clone()) - expected.clone()).abs().max().into_scalar::<f32>() / largest
        };
        assert!(gap(&packed) <= 1e-5, "{}: {config:?}", gap(&packed));
        // Nothing has made a parameter again, if there are copies on this CPU.
        let is_copied = |layer: &Linear| {
            let weight = Tensor::<2>::ones(layer.weight.lazy_shape(), &device);
            vitrine_kernels::PackedWeight::suits(&weight)
        };
        let is_kept = |layer: &mut Linear| layer.weight.is_initialized() != is_copied(layer);
        assert!(packed.linear_layers().all(is_kept), "{config:?}");
        let keeps_biases = |model: &mut VisionTransformer| {
            let mut biases: Vec<bool> = Vec::new();
            for mixer in model.stages.iter_mut().flat_map(Stage::mixers) {
                biases.extend(mixer.relative_position().map(|bias| bias.is_fixed()));
            }
            biases
        };
        assert!(keeps_biases(&mut packed).iter().all(|is_fixed| *is_fixed), "{config:?}");
        // A copy for training takes nothing from the model.
        let mut unpacked = packed.clone().unpacked();
        assert!(keeps_biases(&mut unpacked).iter().all(|is_fixed| !is_fixed), "{config:?}");
        assert!(gap(&unpacked.train().valid()) <= 1e-5, "{config:?}");
        assert!(keeps_biases(&mut packed).iter().all(|is_fixed| *is_fixed), "{config:?}");
        let kept = crate::weights::to_timm(&model);
        for read in [packed.clone().unpacked(), packed.clone()] {
            let found = crate::weights::to_timm(&read);
            assert_eq!(found.len(), kept.len());
            for (found, kept) in found.iter().zip(&kept) {
                assert!((&found.name, &found.shape) == (&kept.name, &kept.shape));
                assert_eq!(found.values, kept.values, "{}: {config:?}", found.name);
            }
        }
        // A clone shares the parameters, so that the layers use them from now on.
        assert!(packed.linear_layers().all(|layer| layer.weight.is_initialized()), "{config:?}");
        assert!(gap(&packed) <= 1e-5, "{}: {config:?}", gap(&packed));
    }
}

#[test]
fn biases_that_are_kept_for_inference_are_in_the_estimate_of_memory() {
    let device = Device::default();
    let attention =
        AttentionOptions { relative_position: Some(RelativePosition::Table), ..AttentionOptions::default() };
    let plain = crate::preset::find("vit_pico_patch4_32").unwrap();
    // Pairs of few tokens, which are kept, and of many, which are not.
    let [few, many] =
        [32, 64].map(|side| ModelConfig { image_size: ImageSize::square(side), attention, ..plain.clone() });
    for config in testing::variants().iter().chain([&few, &many]) {
        let mut model = config.init(&device).unwrap().packed();
        let mixers = model.stages.iter_mut().flat_map(Stage::mixers);
        let biases = mixers.filter_map(TokenMixer::relative_position).filter(|bias| bias.is_fixed());
        let kept: usize = biases.map(|bias| bias.forward().shape().num_elements()).sum();
        assert_eq!(StepMemory::of(config).biases, 4 * kept as u64, "{config:?}");
    }
    let (few, many) = (StepMemory::of(&few), StepMemory::of(&many));
    assert!(few.biases > 0 && few.inference(1) == few.parameters + few.biases + few.forward);
    assert_eq!(many.biases, 0);
}

#[test]
fn other_weights_take_the_place_of_packed_ones() {
    for name in ["vit_pico_patch4_32", "swin_pico_patch2_window4_32"] {
        let config = crate::preset::find(name).unwrap();
        for relative_position in [None, Some(RelativePosition::Table), Some(RelativePosition::Continuous)] {
            let attention = AttentionOptions { relative_position, ..config.attention };
            other_weights_take_the_place_of(&ModelConfig { attention, ..config.clone() });
        }
    }
}

fn other_weights_take_the_place_of(config: &ModelConfig) {
    let device = Device::default();
    let model = |seed| config.init(&device).unwrap().map(&mut Vary::new(seed, 0.3));
    let images = images(config, 3, &device);
    let [first, second] = [5, 6].map(model);
    let expected = second.forward(images.clone()).into_data();
    let replaced =
        crate::weights::from_timm(first.clone().packed(), crate::weights::to_timm(&second)).unwrap();
    replaced
        .forward(images.clone())
        .into_data()
        .assert_approx_eq::<f32>(&expected, Tolerance::absolute(1e-5));
    // Training replaces the parameters.
    let trained = |model: VisionTransformer| model.train().map(&mut Vary::new(7, 0.3)).valid();
    let [expected, found] =
        [first.clone(), first.packed()].map(trained).map(|model| model.forward(images.clone()));
    found.into_data().assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(1e-5));
}
