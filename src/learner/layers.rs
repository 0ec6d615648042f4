//! Parameters grouped by depth, for freezing and for layer-wise learning-rate decay.

use std::collections::BTreeMap;

use burn::lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler};
use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::tensor::Tensor;
use vitrine_models::{ModelConfig, VisionTransformer};

use crate::recipe::Freeze;

/// Parameters by layer: layer 0 makes tokens, each block has a layer of its own, and the last layer follows the blocks.
pub struct Layers {
    by_layer: BTreeMap<usize, Vec<ParamId>>,
    head: Vec<ParamId>,
    last: usize,
}

impl Layers {
    /// Groups the parameters of a model, with the layer numbers of BEiT and timm. Patch merging belongs to the next
    /// block.
    pub fn new(model: &VisionTransformer) -> Self {
        let config = model.config();
        let mut layers = Self {
            by_layer: BTreeMap::new(),
            head: Vec::new(),
            last: config.depth.sum() + config.class_depth + 1,
        };
        model.visit(&mut Collect { path: Vec::new(), config, layers: &mut layers });
        layers
    }

    /// The model with the layers that `freeze` names excluded from the backward pass. The head is always trained.
    pub fn freeze(&self, model: VisionTransformer, freeze: Freeze) -> VisionTransformer {
        let frozen = |layer: usize| match freeze {
            Freeze::Backbone => true,
            Freeze::Blocks(count) => layer <= count,
        };
        let ids = self
            .by_layer
            .iter()
            .filter(|(layer, _)| frozen(**layer))
            .flat_map(|(_, ids)| ids.iter().copied())
            .filter(|id| !self.head.contains(id));
        model.freeze_group(ParamGroup::from_ids(ids.collect()))
    }

    /// Layer-wise learning rates: `rate` in the last layer, multiplied by `decay` for each layer towards the input
    /// (Clark et al. 2020, ELECTRA, appendix A; Bao et al. 2022, BEiT, appendix H).
    pub fn rates(&self, rate: f64, decay: f64) -> ModuleLearningRate {
        if decay >= 1.0 {
            return rate.into();
        }
        let start = ModuleLrScheduler::new(rate);
        let mut groups = self.by_layer.iter().fold(start, |scheduler, (layer, ids)| {
            let share = decay.powi((self.last - layer) as i32);
            scheduler.with_group(ParamGroup::from_ids(ids.clone()), rate * share)
        });
        groups.step()
    }
}

struct Collect<'a> {
    path: Vec<String>,
    config: &'a ModelConfig,
    layers: &'a mut Layers,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
        let layer = layer_of(&path, self.config, self.layers.last);
        self.layers.by_layer.entry(layer).or_default().push(param.id);
        if is_head(&path) {
            self.layers.head.push(param.id);
        }
    }
}

/// Whether the parameter at a path belongs to the head, with the class queries and their decoder.
fn is_head(path: &[&str]) -> bool {
    matches!(path, ["head" | "distillation_head", ..] | ["pooling", "ClassQueries", ..])
}

/// The layer of the parameter at a path such as `stages.0.blocks.3.mixer.inner.qkv.weight`.
fn layer_of(path: &[&str], config: &ModelConfig, last: usize) -> usize {
    let number = |place: usize| path.get(place).and_then(|part| part.parse::<usize>().ok()).unwrap_or(0);
    match path.first().copied().unwrap_or_default() {
        "stages" => {
            let before: usize = config.depth.0.iter().take(number(1)).sum();
            let block = if path.get(2) == Some(&"blocks") { number(3) } else { 0 };
            before + block + 1
        }
        "class_blocks" => config.depth.sum() + number(1) + 1,
        // CaiT adds the class token after the blocks of the stages.
        "class_token" if config.class_depth > 0 => config.depth.sum() + 1,
        "norm" | "pooling" | "head" | "distillation_head" => last,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;
    use vitrine_models::preset;

    #[test]
    fn layers_are_counted_from_the_input() {
        let swin = preset::find("swin_tiny_patch4_window7_224").unwrap();
        let layer = |path: &str| layer_of(&path.split('.').collect::<Vec<_>>(), &swin, 13);
        assert_eq!(layer("patch_embed.tokenizer.weight"), 0);
        assert_eq!(layer("stages.0.blocks.1.mlp.inner.weight"), 2);
        assert_eq!(layer("stages.1.merging.norm.weight"), 3, "merging belongs to the next block");
        assert_eq!(layer("stages.2.blocks.5.mlp_norm.weight"), 10);
        assert_eq!((layer("norm.weight"), layer("head.output.bias")), (13, 13));
    }

    #[test]
    fn every_parameter_has_a_layer_and_rates_fall_towards_the_input() {
        for name in ["vit_pico_patch4_32", "cait_xxs24_224", "swin_pico_patch2_window4_32"] {
            let model = preset::find(name).unwrap().init(&Device::default()).unwrap();
            let layers = Layers::new(&model);
            assert_eq!(layers.by_layer.len(), layers.last + 1, "{name}");
            let rates = layers.rates(1e-2, 0.5);
            for (layer, ids) in &layers.by_layer {
                let expected = 1e-2 * 0.5f64.powi((layers.last - layer) as i32);
                assert!((rates.lr_from_param(ids[0], None) - expected).abs() < 1e-12, "{name} {layer}");
            }
        }
    }

    #[test]
    fn class_queries_learn_with_a_frozen_backbone() {
        let plain = preset::find("vit_pico_patch4_32").unwrap();
        let config = ModelConfig { pool: vitrine_models::Pool::ClassQueries { depth: 1 }, ..plain };
        let device = Device::default().autodiff();
        let model = config.init(&device).unwrap();
        let whole = model.num_params();
        let model = Layers::new(&model).freeze(model, Freeze::Backbone);
        let grads = model.forward(Tensor::<4>::ones([2, 3, 32, 32], &device)).sum().backward();
        let learning = burn::optim::GradientsParams::from_grads(grads, &model).len();
        // The queries, their norm, and the head's two; of the layer: three norms, the attention among queries, that to the
        // patches, and the MLP, with weights and biases.
        assert_eq!(learning, 1 + 2 + 2 + 2 * (3 + 2 + 4 + 2), "of {whole} parameters");
    }

    #[test]
    fn frozen_parameters_get_no_gradient() {
        struct Count(usize, usize);
        impl ModuleVisitor for Count {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0 += 1;
                self.1 += usize::from(param.val().is_require_grad());
            }
        }
        let config = preset::find("vit_pico_patch4_32").unwrap();
        for (freeze, learning) in [(Freeze::Backbone, 2), (Freeze::Blocks(3), 16), (Freeze::Blocks(0), 52)] {
            let model = config.init(&Device::default().autodiff()).unwrap();
            let model = Layers::new(&model).freeze(model, freeze);
            let mut count = Count(0, 0);
            model.visit(&mut count);
            assert_eq!((count.0, count.1), (54, learning), "{freeze:?}");
            let images = Tensor::<4>::ones([2, 3, 32, 32], &Device::default().autodiff());
            let grads = model.forward(images).sum().backward();
            let grads = burn::optim::GradientsParams::from_grads(grads, &model);
            assert_eq!(grads.len(), learning);
        }
    }
}
