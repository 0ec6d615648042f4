//! Tests of optimizers: which parameters have weight decay, which ones Muon updates, resuming, and the clipping of
//! gradients.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use burn::module::{ModuleMapper, ParamId};
use burn::optim::OptimizerRecord;
use burn::tensor::Int;
use vitrine_models::linear::Linear;
use vitrine_models::{
    AttentionOptions, BlockStyle, ImageSize, Mixer, ModelConfig, Pool, Position, RelativePosition, Score,
    Tokenizer, VisionTransformer, preset,
};

use clap::ValueEnum;

use super::*;

/// Sets every parameter to one, so that weight decay shows in its value.
struct Ones;

impl ModuleMapper for Ones {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let shape: [usize; D] = param.val().dims();
        let ones = Tensor::<D>::ones(shape, &param.lazy_device());
        Param::initialized(param.id, ones.require_grad())
    }
}

/// Gradients with the same value in all elements of all parameters.
struct Constant(f64, GradientsParams);

impl ModuleVisitor for Constant {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.1.register(param.id, param.val().inner().full_like(self.0));
    }
}

/// Gradients that differ from element to element and from step to step.
struct Waves(usize, GradientsParams);

impl ModuleVisitor for Waves {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let shape: [usize; D] = param.val().dims();
        let elements = shape.iter().product::<usize>() as i64;
        let angles = Tensor::<1, Int>::arange(0..elements, &param.lazy_device().inner()).float() * 1.7;
        self.1.register(param.id, (angles + self.0 as f64).sin().reshape(shape));
    }
}

/// The values of every parameter, by its path.
#[derive(Default)]
struct Values {
    path: Vec<String>,
    by_path: BTreeMap<String, Vec<f32>>,
}

impl ModuleVisitor for Values {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = param.val().into_data().try_into_vec_as::<f32>().unwrap();
        self.by_path.insert(self.path.join("."), values);
    }
}

fn ones(config: &ModelConfig) -> VisionTransformer {
    config.init(&Device::default().autodiff()).unwrap().map(&mut Ones)
}

fn values(model: &VisionTransformer) -> BTreeMap<String, Vec<f32>> {
    let mut values = Values::default();
    model.visit(&mut values);
    values.by_path
}

/// The first value of each parameter after one update of a model of ones, at learning rate 0.5, with the same value in
/// all gradients.
fn updated(config: &ModelConfig, mut optimizer: ModuleOptimizer, gradient: f64) -> BTreeMap<String, f32> {
    let model = ones(config);
    let mut gradients = Constant(gradient, GradientsParams::new());
    model.visit(&mut gradients);
    let model = optimizer.step(0.5, model, gradients.1);
    values(&model).into_iter().map(|(path, values)| (path, values[0])).collect()
}

/// The first value of each parameter after one update of a model of ones with zero gradients: 0.75 with weight decay, 1
/// without.
fn decayed(
    config: &ModelConfig,
    optimizer: Optimizer,
    new: fn(&Recipe) -> ModuleOptimizer,
) -> BTreeMap<String, f32> {
    updated(config, new(&Recipe { optimizer, weight_decay: 0.5, ..Recipe::default() }), 0.0)
}

/// A model with one block on four patches.
fn plain() -> ModelConfig {
    ModelConfig {
        image_size: ImageSize::square(8),
        embed_dim: 8,
        depth: 1.into(),
        num_heads: 2.into(),
        ..preset::find("vit_tiny_patch4_32").unwrap()
    }
}

/// A model with two stages of one block each.
fn staged(block: BlockStyle, score: Score, relative_position: RelativePosition) -> ModelConfig {
    ModelConfig {
        image_size: ImageSize::square(16),
        embed_dim: 8,
        depth: [1, 1].into(),
        num_heads: [2, 2].into(),
        mixers: vec![Mixer::Window(4)],
        block,
        attention: AttentionOptions {
            score,
            relative_position: Some(relative_position),
            ..AttentionOptions::default()
        },
        ..preset::find("swin_pico_patch2_window4_32").unwrap()
    }
}

/// Checks which parameters have weight decay with each optimizer. `spared` has those without, except biases and the
/// weights of norms; `decaying` those with decay, except the patch embedding, the MLP of the first block, and the head.
/// Paths in the first block are relative to it.
fn assert_spared(config: &ModelConfig, spared: &[&str], decaying: &[&str]) {
    for &optimizer in Optimizer::value_variants() {
        assert_spared_by(optimizer, config, spared, decaying);
    }
}

fn assert_spared_by(optimizer: Optimizer, config: &ModelConfig, spared: &[&str], decaying: &[&str]) {
    let common = ["patch_embed.tokenizer.Patch.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"];
    let (mut found_spared, mut found_decaying) = (BTreeSet::new(), BTreeSet::new());
    for (path, value) in decayed(config, optimizer, new) {
        let path = path.strip_prefix("stages.0.blocks.0.").unwrap_or(&path).to_owned();
        if path.ends_with("bias") || path.ends_with("norm.weight") {
            assert_eq!(value, 1.0, "{path}");
        } else if value == 1.0 {
            found_spared.insert(path);
        } else {
            assert!((value - 0.75).abs() < 1e-6, "{path}: {value}");
            found_decaying.insert(path);
        }
    }
    let set = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<BTreeSet<String>>();
    assert_eq!(found_spared, set(spared), "{optimizer:?}, {config:?}");
    let decaying = [decaying, &common, &["head.output.weight"]].concat();
    assert_eq!(found_decaying, set(&decaying), "{optimizer:?}, {config:?}");
}

const ATTENTION: [&str; 2] = ["mixer.MultiHead.qkv.weight", "mixer.MultiHead.proj.weight"];

#[test]
fn decay_spares_tokens_positions_and_scales() {
    let config = ModelConfig {
        distillation_token: true,
        registers: 1,
        layer_scale: Some(0.1),
        attention: AttentionOptions { qk_norm: true, ..AttentionOptions::default() },
        ..plain()
    };
    assert_spared(
        &config,
        &[
            "class_token",
            "distillation_token",
            "registers",
            "position.learned",
            "mixer_scale.gamma",
            "mlp_scale.gamma",
        ],
        &[&ATTENTION[..], &["distillation_head.output.weight"]].concat(),
    );
    let cait = ModelConfig {
        class_depth: 1,
        layer_scale: Some(0.1),
        attention: AttentionOptions { talking_heads: true, ..AttentionOptions::default() },
        ..plain()
    };
    assert_spared(
        &cait,
        &[
            "class_token",
            "position.learned",
            "mixer_scale.gamma",
            "mlp_scale.gamma",
            "class_blocks.0.mixer_scale.gamma",
            "class_blocks.0.mlp_scale.gamma",
        ],
        &[
            &ATTENTION[..],
            &[
                "mixer.MultiHead.talking_heads.scores.weight",
                "mixer.MultiHead.talking_heads.weights.weight",
                "class_blocks.0.mixer.q.weight",
                "class_blocks.0.mixer.k.weight",
                "class_blocks.0.mixer.v.weight",
                "class_blocks.0.mixer.proj.weight",
                "class_blocks.0.mlp.fc1.weight",
                "class_blocks.0.mlp.fc2.weight",
            ],
        ]
        .concat(),
    );
}

#[test]
fn decay_spares_the_query_of_pooling_but_not_its_matrices() {
    let attention = ModelConfig { class_token: false, pool: Pool::Attention, ..plain() };
    assert_spared(
        &attention,
        &["position.learned", "pooling.Attention.latent"],
        &[
            &ATTENTION[..],
            &[
                "pooling.Attention.attention.q.weight",
                "pooling.Attention.attention.k.weight",
                "pooling.Attention.attention.v.weight",
                "pooling.Attention.attention.proj.weight",
                "pooling.Attention.mlp.fc1.weight",
                "pooling.Attention.mlp.fc2.weight",
            ],
        ]
        .concat(),
    );
    let sequence = ModelConfig { pool: Pool::Sequence, position: Position::None, ..attention };
    assert_spared(&sequence, &[], &[&ATTENTION[..], &["pooling.Sequence.sequence.weight"]].concat());
}

#[test]
fn decay_spares_the_factors_of_scores_but_not_their_matrices() {
    for &score in Score::ALL {
        let (spared, decaying): (&[&str], &[&str]) = match score {
            Score::ScaledDot | Score::Dot => (&[], &[]),
            Score::Bilinear => (&[], &["mixer.MultiHead.score.Bilinear.bilinear"]),
            Score::Additive => (
                &[],
                &[
                    "mixer.MultiHead.score.Additive.query",
                    "mixer.MultiHead.score.Additive.key",
                    "mixer.MultiHead.score.Additive.vector",
                ],
            ),
            Score::Cosine => (&["mixer.MultiHead.score.Cosine.logit_scale"], &[]),
            Score::Locality => (&["mixer.MultiHead.score.Locality.temperature"], &[]),
        };
        let attention = AttentionOptions { score, ..AttentionOptions::default() };
        assert_spared(
            &ModelConfig { attention, ..plain() },
            &[&["class_token", "position.learned"], spared].concat(),
            &[&ATTENTION[..], decaying].concat(),
        );
    }
    let mixers = vec![Mixer::CrossCovariance];
    assert_spared(
        &ModelConfig { mixers, ..plain() },
        &["class_token", "position.learned", "mixer.CrossCovariance.temperature"],
        &["mixer.CrossCovariance.qkv.weight", "mixer.CrossCovariance.proj.weight"],
    );
}

/// Parameters with weight decay in both stages of a Swin.
const STAGED: [&str; 7] = [
    "mixer.Window.inner.qkv.weight",
    "mixer.Window.inner.proj.weight",
    "stages.1.downsample.reduction.weight",
    "stages.1.blocks.0.mixer.Window.inner.qkv.weight",
    "stages.1.blocks.0.mixer.Window.inner.proj.weight",
    "stages.1.blocks.0.mlp.fc1.weight",
    "stages.1.blocks.0.mlp.fc2.weight",
];

#[test]
fn decay_spares_relative_positions() {
    assert_spared(
        &staged(BlockStyle::PreNorm, Score::ScaledDot, RelativePosition::Table),
        &[
            "mixer.Window.relative_position.offsets.Table.table",
            "stages.1.blocks.0.mixer.Window.relative_position.offsets.Table.table",
        ],
        &STAGED,
    );
    assert_spared(
        &staged(BlockStyle::ResidualPostNorm, Score::Cosine, RelativePosition::Continuous),
        &[
            "mixer.Window.inner.score.Cosine.logit_scale",
            "mixer.Window.relative_position.offsets.Continuous.hidden.weight",
            "mixer.Window.relative_position.offsets.Continuous.output.weight",
            "stages.1.blocks.0.mixer.Window.inner.score.Cosine.logit_scale",
            "stages.1.blocks.0.mixer.Window.relative_position.offsets.Continuous.hidden.weight",
            "stages.1.blocks.0.mixer.Window.relative_position.offsets.Continuous.output.weight",
        ],
        &STAGED,
    );
}

#[test]
fn factors_of_scores_are_recognized_by_name() {
    let (group, id) = (group(NO_DECAY), ParamId::new());
    let is_spared =
        |name: &str| group.matches(&id, Some(&format!("stages.0.blocks.0.mixer.MultiHead.{name}")));
    for name in ["score.New.scale", "score.New.key_scale", "score.New.inner.factor", "score.temperature"] {
        assert!(is_spared(name), "{name}");
    }
    for name in ["score.New.matrix", "score.New.scale.weight", "talking_heads.scores.weight", "qkv.weight"] {
        assert!(!is_spared(name), "{name}");
    }
}

#[test]
fn the_uniform_optimizer_decays_everything() {
    for &optimizer in Optimizer::value_variants() {
        for (path, value) in decayed(&plain(), optimizer, uniform) {
            assert!((value - 0.75).abs() < 1e-6, "{optimizer:?}, {path}: {value}");
        }
    }
}

/// Paths of the parameters that Muon updates. The first step of AdamW changes each value by the whole learning rate of
/// 0.5, that of Muon by less than a quarter of it.
fn by_muon(config: &ModelConfig) -> BTreeSet<String> {
    let recipe = Recipe { optimizer: Optimizer::Muon, weight_decay: 0.0, ..Recipe::default() };
    let values = updated(config, new(&recipe), 1.0);
    for (path, value) in &values {
        assert!((value - 0.5).abs() < 1e-6 || (0.85..0.99).contains(value), "{path}: {value}");
    }
    values.into_iter().filter(|(_, value)| *value > 0.75).map(|(path, _)| path).collect()
}

#[test]
fn muon_takes_the_matrices_of_blocks_and_the_convolutions_after_the_first() {
    let set = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<BTreeSet<String>>();
    let classic = ModelConfig {
        tokenizer: Tokenizer::Convolution { layers: 2, kernel_size: 3 },
        class_depth: 1,
        layer_scale: Some(0.1),
        attention: AttentionOptions { score: Score::Bilinear, ..AttentionOptions::default() },
        ..plain()
    };
    assert_eq!(
        by_muon(&classic),
        set(&[
            "patch_embed.tokenizer.Convolution.layers.1.weight",
            "stages.0.blocks.0.mixer.MultiHead.qkv.weight",
            "stages.0.blocks.0.mixer.MultiHead.score.Bilinear.bilinear",
            "stages.0.blocks.0.mixer.MultiHead.proj.weight",
            "stages.0.blocks.0.mlp.fc1.weight",
            "stages.0.blocks.0.mlp.fc2.weight",
            "class_blocks.0.mixer.q.weight",
            "class_blocks.0.mixer.k.weight",
            "class_blocks.0.mixer.v.weight",
            "class_blocks.0.mixer.proj.weight",
            "class_blocks.0.mlp.fc1.weight",
            "class_blocks.0.mlp.fc2.weight",
        ])
    );
    let residual = ModelConfig { tokenizer: Tokenizer::Residual { width: 4, stride: 1 }, ..plain() };
    let convolutions =
        by_muon(&residual).into_iter().filter(|path| path.starts_with("patch_embed")).collect();
    let stages: BTreeSet<String> = convolutions;
    assert!(residual.patch_size >= 4, "the tokenizer needs at least two stages");
    assert!(!stages.contains("patch_embed.tokenizer.Residual.stem.weight"), "{stages:?}");
    for path in ["0.conv1", "0.conv2", "1.conv1", "1.conv2"] {
        assert!(
            stages.contains(&format!("patch_embed.tokenizer.Residual.stages.{path}.weight")),
            "{stages:?}"
        );
    }
    let staged = staged(BlockStyle::ResidualPostNorm, Score::Cosine, RelativePosition::Continuous);
    let first = ["mixer.Window.inner.qkv.weight", "mixer.Window.inner.proj.weight"];
    let first = [first, ["mlp.fc1.weight", "mlp.fc2.weight"]].concat();
    let all = |stage: usize| first.iter().map(move |path| format!("stages.{stage}.blocks.0.{path}"));
    let mut expected: BTreeSet<String> = all(0).chain(all(1)).collect();
    expected.insert("stages.1.downsample.reduction.weight".to_owned());
    assert_eq!(by_muon(&staged), expected);
}

#[test]
fn a_saved_optimizer_continues_with_the_same_bits() {
    let step = |optimizer: &mut ModuleOptimizer, model: VisionTransformer, number: usize| {
        let mut gradients = Waves(number, GradientsParams::new());
        model.visit(&mut gradients);
        optimizer.step(1e-2, model, gradients.1)
    };
    for &optimizer in Optimizer::value_variants() {
        let recipe = Recipe { optimizer, ..Recipe::default() };
        let mut first = new(&recipe);
        let model = (0..2).fold(ones(&plain()), |model, number| step(&mut first, model, number));
        let saved = OptimizerRecord::from_bytes(first.into_bytes().unwrap()).unwrap();
        let next = |mut optimizer: ModuleOptimizer| {
            values(&(2..4).fold(model.clone(), |model, number| step(&mut optimizer, model, number)))
        };
        let whole = next(first);
        assert_eq!(next(new(&recipe).load_record(saved)), whole, "{optimizer:?}");
        assert_ne!(next(new(&recipe)), whole, "{optimizer:?}: the state has no effect");
    }
}

/// A linear layer, and gradients of its two parameters whose global norm is 10.
fn layer() -> (Linear, GradientsParams) {
    let device = Device::default();
    let layer = Linear::new(2, 2, true, &device);
    let mut grads = GradientsParams::new();
    grads.register(layer.weight.id, Tensor::<2>::from_floats([[6.0, 0.0], [0.0, 0.0]], &device));
    grads.register(layer.bias.as_ref().unwrap().id, Tensor::<1>::from_floats([0.0, -8.0], &device));
    (layer, grads)
}

#[test]
fn gradients_become_a_mean_and_are_clipped_together() {
    for (samples, max_norm, expected) in [
        (1, 0.0, [6.0, -8.0]),
        (2, 0.0, [3.0, -4.0]),
        // The norm of the sums is 10; with two samples, the norm of the means is 5.
        (1, 5.0, [3.0, -4.0]),
        (2, 5.0, [3.0, -4.0]),
        (2, 1.0, [0.6, -0.8]),
        (4, 100.0, [1.5, -2.0]),
    ] {
        let (layer, grads) = layer();
        let clipped = mean_clipped(&layer, grads, samples, max_norm);
        let weight = clipped.get::<2>(layer.weight.id).unwrap();
        let bias = clipped.get::<1>(layer.bias.as_ref().unwrap().id).unwrap();
        let weight = weight.into_data().try_into_vec_as::<f32>().unwrap();
        let bias = bias.into_data().try_into_vec_as::<f32>().unwrap();
        let found = [weight[0], weight[1], weight[2], weight[3], bias[0], bias[1]];
        for (found, expected) in found.into_iter().zip([expected[0], 0.0, 0.0, 0.0, 0.0, expected[1]]) {
            assert!((found - expected).abs() < 1e-5, "{found} for {expected}: {samples}, {max_norm}");
        }
    }
}

#[test]
fn parameters_without_gradients_are_ignored_by_clipping() {
    let (layer, mut grads) = layer();
    let bias = layer.bias.as_ref().unwrap().id;
    grads.remove::<1>(bias).unwrap();
    let clipped = clip_global_norm(&layer, grads, 3.0);
    assert!(clipped.get::<1>(bias).is_none());
    let weight = clipped.get::<2>(layer.weight.id).unwrap();
    assert!((weight.max().into_scalar::<f32>() - 3.0).abs() < 1e-5);
    assert!(clip_global_norm(&layer, GradientsParams::new(), 3.0).is_empty());
}
