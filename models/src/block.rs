//! The residual block: a token mixer, then an MLP on every token, each in a branch with a norm whose output is added to
//! the tokens.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use crate::attention::{ChannelGating, Context, CrossAttention, TokenMixer};
use crate::drop_path::DropPath;
use crate::graph::{Graph, Value};
use crate::linear::{Linear, constant};
use crate::mlp::Mlp;
use crate::norm::LayerNorm;
use crate::{BlockStyle, GatePlace, ModelConfig};

/// A residual block: the branch of a token mixer, then the branch of an MLP. [`BlockStyle`] decides where the norms
/// are.
#[derive(Module, Debug)]
pub struct Block {
    /// The norm of the mixer's branch.
    pub mixer_norm: LayerNorm,
    /// The token mixer, which exchanges information between tokens.
    pub mixer: TokenMixer,
    mixer_scale: Option<LayerScale>,
    /// The norm of the MLP's branch.
    pub mlp_norm: LayerNorm,
    /// The MLP, which acts on each token.
    pub mlp: Mlp,
    mlp_scale: Option<LayerScale>,
    channel_attention: Option<ChannelGating>,
    drop_path: DropPath,
    #[module(skip)]
    style: BlockStyle,
    #[module(skip)]
    gate_place: GatePlace,
}

/// A learned factor for each channel of a branch (Touvron et al. 2021, CaiT, section 2.1).
#[derive(Module, Debug)]
pub struct LayerScale {
    /// `[dim]`.
    pub gamma: Param<Tensor<1>>,
}

impl LayerScale {
    fn new(config: &ModelConfig, dim: usize, device: &Device) -> Option<Self> {
        config.layer_scale.map(|value| Self { gamma: constant([dim], value, device) })
    }
}

impl Block {
    /// The block at `index` (from 0) of a stage, with fresh parameters.
    pub fn new(config: &ModelConfig, stage: usize, index: usize, device: &Device) -> Self {
        let dim = config.stage_dim(stage);
        let norm = || {
            let mut norm = LayerNorm::new(dim, config.norm_epsilon, device);
            if config.block == BlockStyle::ResidualPostNorm {
                // As in Swin v2, whose branches add nothing at the start.
                norm.weight = constant([dim], 0.0, device);
            }
            norm
        };
        let has_prefix = config.num_prefix_tokens() > 0;
        let mlp = Mlp::new(config.mlp, [dim, config.mlp_dim(stage)], has_prefix, config.dropout, device);
        Self {
            mixer_norm: norm(),
            mixer: TokenMixer::new(config, stage, index, device),
            mixer_scale: LayerScale::new(config, dim, device),
            mlp_norm: norm(),
            mlp: if config.mlp_norm { mlp.with_norm(config.norm_epsilon, device) } else { mlp },
            mlp_scale: LayerScale::new(config, dim, device),
            channel_attention: config
                .channel_attention
                .filter(|gate| gate.place != GatePlace::Tokenizer)
                .map(|gate| ChannelGating::new(gate, dim, device)),
            drop_path: DropPath::new(drop_path(config, stage, index)),
            style: config.block,
            gate_place: config.channel_attention.map(|gate| gate.place).unwrap_or_default(),
        }
    }

    /// # Shapes
    /// - x, output: `[batch, tokens, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use vitrine_models::{ModelConfig, attention::Context, block::Block, preset};
    ///
    /// let device = Device::default();
    /// // With a factor of 0 for both branches the block is the identity.
    /// let plain = preset::find("vit_pico_patch4_32").expect("listed");
    /// let config = ModelConfig { layer_scale: Some(0.0), ..plain };
    /// let block = Block::new(&config, 0, 0, &device);
    /// let x = Tensor::<3>::random([2, 64, 96], Distribution::Default, &device);
    /// let y = block.forward(x.clone(), &Context { grid: [8, 8], ..Context::default() });
    /// assert_eq!(y.into_data(), x.into_data());
    /// ```
    pub fn forward(&self, x: Tensor<3>, context: &Context) -> Tensor<3> {
        let mixed = self.mixer.forward(self.before_mixer(x.clone()), context);
        self.finish(x, mixed, context)
    }

    /// The layers that map all tokens: the mixer's projections and those of the MLP.
    pub(crate) fn linear_layers(&mut self) -> impl Iterator<Item = &mut Linear> {
        self.mixer.linear_layers().into_iter().chain(self.mlp.linear_layers())
    }

    /// The first `count` tokens of [`Self::forward`], which are no patches. Only these are computed, if nothing in the block
    /// needs the others.
    ///
    /// # Shapes
    /// - x: `[batch, tokens, dim]`
    /// - output: `[batch, count, dim]`
    pub(crate) fn forward_first(&self, x: Tensor<3>, count: usize, context: &Context) -> Tensor<3> {
        let first = |tokens: Tensor<3>| tokens.narrow(1, 0, count);
        let is_tokenwise = self.channel_attention.is_none() && self.mlp.is_tokenwise();
        let normalized = self.before_mixer(x.clone());
        let mixed = is_tokenwise.then(|| self.mixer.forward_first(&normalized, count, context)).flatten();
        match mixed {
            Some(mixed) => self.finish(first(x), mixed, context),
            None => {
                let mixed = self.mixer.forward(normalized, context);
                first(self.finish(x, mixed, context))
            }
        }
    }

    /// [`Self::forward`], which also returns the attention weights of [`TokenMixer::forward_with_weights`].
    pub fn forward_with_weights(&self, x: Tensor<3>, context: &Context) -> (Tensor<3>, Tensor<4>) {
        let (mixed, weights) = self.mixer.forward_with_weights(self.before_mixer(x.clone()), context);
        (self.finish(x, mixed, context), weights)
    }

    /// The input of the mixer: the tokens, normalized if the block normalizes before its branches.
    fn before_mixer(&self, x: Tensor<3>) -> Tensor<3> {
        match self.style {
            BlockStyle::PreNorm | BlockStyle::Compact => self.mixer_norm.forward(x),
            BlockStyle::PostNorm | BlockStyle::ResidualPostNorm => x,
        }
    }

    fn finish(&self, x: Tensor<3>, mixed: Tensor<3>, context: &Context) -> Tensor<3> {
        let mlp = |x| self.gate(self.mlp.forward(x, context.prefix, context.grid), GatePlace::Mlp, context);
        let mixed = self.gate(mixed, GatePlace::Mixer, context);
        match self.style {
            BlockStyle::PreNorm => {
                let x = self.add(x, mixed, &self.mixer_scale);
                let mapped = mlp(self.mlp_norm.forward(x.clone()));
                self.add(x, mapped, &self.mlp_scale)
            }
            BlockStyle::PostNorm => {
                let x = self.mixer_norm.forward(self.add(x, mixed, &self.mixer_scale));
                let mapped = mlp(x.clone());
                self.mlp_norm.forward(self.add(x, mapped, &self.mlp_scale))
            }
            BlockStyle::ResidualPostNorm => {
                let x = self.add(x, self.mixer_norm.forward(mixed), &self.mixer_scale);
                let mapped = self.mlp_norm.forward(mlp(x.clone()));
                self.add(x, mapped, &self.mlp_scale)
            }
            BlockStyle::Compact => {
                let x = self.mlp_norm.forward(self.add(x, mixed, &self.mixer_scale));
                let mapped = mlp(x.clone());
                self.add(x, mapped, &self.mlp_scale)
            }
        }
    }

    fn gate(&self, branch: Tensor<3>, place: GatePlace, context: &Context) -> Tensor<3> {
        match &self.channel_attention {
            Some(gate) if self.gate_place == place => gate.forward(branch, context.prefix, context.grid),
            _ => branch,
        }
    }

    fn add(&self, x: Tensor<3>, branch: Tensor<3>, scale: &Option<LayerScale>) -> Tensor<3> {
        let keep = self.drop_path.factors(&x);
        add(x, branch, scale, keep)
    }
}

impl Block {
    /// [`Self::forward`] as operators, for a context without a bias.
    pub(crate) fn trace(&self, graph: &mut Graph, x: &Value, context: &Context) -> Value {
        let before = match self.style {
            BlockStyle::PreNorm | BlockStyle::Compact => self.mixer_norm.trace(graph, "norm1", x),
            BlockStyle::PostNorm | BlockStyle::ResidualPostNorm => x.clone(),
        };
        let mixed = self.mixer.trace(graph, &before, context);
        let mixed = self.trace_gate(graph, mixed, GatePlace::Mixer, context);
        let mlp = |graph: &mut Graph, x: &Value| {
            let mapped = self.mlp.trace(graph, x, context.prefix, context.grid);
            self.trace_gate(graph, mapped, GatePlace::Mlp, context)
        };
        match self.style {
            BlockStyle::PreNorm => {
                let x = trace_add(graph, x, &mixed, ("ls1", &self.mixer_scale));
                let normalized = self.mlp_norm.trace(graph, "norm2", &x);
                let mapped = mlp(graph, &normalized);
                trace_add(graph, &x, &mapped, ("ls2", &self.mlp_scale))
            }
            BlockStyle::PostNorm => {
                let x = trace_add(graph, x, &mixed, ("ls1", &self.mixer_scale));
                let x = self.mixer_norm.trace(graph, "norm1", &x);
                let mapped = mlp(graph, &x);
                let x = trace_add(graph, &x, &mapped, ("ls2", &self.mlp_scale));
                self.mlp_norm.trace(graph, "norm2", &x)
            }
            BlockStyle::ResidualPostNorm => {
                let mixed = self.mixer_norm.trace(graph, "norm1", &mixed);
                let x = trace_add(graph, x, &mixed, ("ls1", &self.mixer_scale));
                let mapped = mlp(graph, &x);
                let mapped = self.mlp_norm.trace(graph, "norm2", &mapped);
                trace_add(graph, &x, &mapped, ("ls2", &self.mlp_scale))
            }
            BlockStyle::Compact => {
                let x = trace_add(graph, x, &mixed, ("ls1", &self.mixer_scale));
                let x = self.mlp_norm.trace(graph, "norm2", &x);
                let mapped = mlp(graph, &x);
                trace_add(graph, &x, &mapped, ("ls2", &self.mlp_scale))
            }
        }
    }

    fn trace_gate(&self, graph: &mut Graph, branch: Value, place: GatePlace, context: &Context) -> Value {
        match &self.channel_attention {
            Some(gate) if self.gate_place == place => {
                gate.trace(graph, &branch, context.prefix, context.grid)
            }
            _ => branch,
        }
    }
}

/// [`add`] outside training, as operators.
fn trace_add(
    graph: &mut Graph,
    x: &Value,
    branch: &Value,
    (name, scale): (&str, &Option<LayerScale>),
) -> Value {
    match scale {
        Some(scale) => {
            let gamma = graph.within(name, |graph| graph.constant("gamma", scale.gamma.val()));
            let branch = graph.multiply(branch, &gamma);
            graph.add(x, &branch)
        }
        None => graph.add(x, branch),
    }
}

/// A block that changes only the class token, by attention to itself and to the patches (Touvron et al. 2021, CaiT,
/// section 2.2).
#[derive(Module, Debug)]
pub struct ClassBlock {
    mixer_norm: LayerNorm,
    mixer: CrossAttention,
    mixer_scale: Option<LayerScale>,
    mlp_norm: LayerNorm,
    mlp: Mlp,
    mlp_scale: Option<LayerScale>,
}

impl ClassBlock {
    /// Fresh parameters. As in CaiT, these blocks have no dropout and plain attention, whatever the other blocks have.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let dim = config.embed_dim;
        let norm = || LayerNorm::new(dim, config.norm_epsilon, device);
        Self {
            mixer_norm: norm(),
            mixer: CrossAttention::new(dim, config.num_heads[0], config.qkv_bias, device),
            mixer_scale: LayerScale::new(config, dim, device),
            mlp_norm: norm(),
            mlp: Mlp::new(config.mlp, [dim, config.mlp_dim(0)], false, 0.0, device),
            mlp_scale: LayerScale::new(config, dim, device),
        }
    }

    /// # Shapes
    /// - class_token, output: `[batch, 1, dim]`
    /// - patches: `[batch, patches, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor, Tolerance};
    /// use vitrine_models::{block::ClassBlock, preset};
    ///
    /// let device = Device::default();
    /// let block = ClassBlock::new(&preset::find("vit_pico_patch4_32").expect("listed"), &device);
    /// let token = Tensor::<3>::ones([1, 1, 96], &device);
    /// let patches = Tensor::<3>::random([1, 64, 96], Distribution::Normal(0.0, 1.0), &device);
    /// let y = block.forward(token.clone(), patches.clone());
    /// assert_eq!(y.dims(), [1, 1, 96]);
    /// // The order of the patches does not matter.
    /// let reversed = block.forward(token, patches.flip([1]));
    /// y.into_data().assert_approx_eq::<f32>(&reversed.into_data(), Tolerance::absolute(1e-5));
    /// ```
    pub fn forward(&self, class_token: Tensor<3>, patches: Tensor<3>) -> Tensor<3> {
        let all = self.mixer_norm.forward(Tensor::cat(vec![class_token.clone(), patches], 1));
        let mixed = self.mixer.forward(all.clone().narrow(1, 0, 1), all);
        let class_token = add(class_token, mixed, &self.mixer_scale, None);
        let mapped = self.mlp.forward(self.mlp_norm.forward(class_token.clone()), 1, [0, 0]);
        add(class_token, mapped, &self.mlp_scale, None)
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, class_token: &Value, patches: &Value) -> Value {
        let all = graph.concat(&[class_token, patches], 1);
        let all = self.mixer_norm.trace(graph, "norm1", &all);
        let first = graph.narrow(&all, 1, 0, 1);
        let mixed = graph.within("attn", |graph| self.mixer.trace(graph, &first, &all));
        let class_token = trace_add(graph, class_token, &mixed, ("ls1", &self.mixer_scale));
        let normalized = self.mlp_norm.trace(graph, "norm2", &class_token);
        let mapped = self.mlp.trace(graph, &normalized, 1, [0, 0]);
        trace_add(graph, &class_token, &mapped, ("ls2", &self.mlp_scale))
    }
}

fn add(x: Tensor<3>, branch: Tensor<3>, scale: &Option<LayerScale>, keep: Option<Tensor<1>>) -> Tensor<3> {
    vitrine_kernels::residual(x, branch, scale.as_ref().map(|scale| scale.gamma.val()), keep)
}

/// The probability that a block drops its branches: it rises linearly over the blocks of all stages; with class blocks
/// (CaiT), it is the same for all.
fn drop_path(config: &ModelConfig, stage: usize, index: usize) -> f64 {
    if config.class_depth > 0 {
        return config.drop_path;
    }
    let before: usize = config.depth.0[..stage].iter().sum();
    let last = (config.depth.sum() - 1).max(1) as f64;
    config.drop_path * (before + index) as f64 / last
}
