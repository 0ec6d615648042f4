//! A stage: blocks on one grid, after the patches of the previous stage are merged (Liu et al. 2021, section 3.1).

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};

use crate::attention::{Context, TokenMixer, WeightProbe};
use crate::block::Block;
use crate::graph::{Graph, Value};
use crate::linear::Linear;
use crate::norm::LayerNorm;
use crate::position::ConditionalPosition;
use crate::rotary::Rotary;
use crate::{BlockStyle, ModelConfig, Position, PositionPlace, Tokenizer};
use vitrine_kernels::{RowMap, gather_rows};

/// Blocks on one grid. A plain model is a single stage.
#[derive(Module, Debug)]
pub struct Stage {
    /// Merges the tokens of the previous stage; absent in the first stage.
    downsample: Option<PatchMerging>,
    blocks: Vec<Block>,
    rotary: Option<Rotary>,
    /// Follows the first block.
    conditional: Option<ConditionalPosition>,
    /// Whether only the first block adds positions to its queries and keys.
    first_only: bool,
    rows: usize,
    columns: usize,
    prefix: usize,
}

impl Stage {
    /// Fresh parameters.
    pub fn new(config: &ModelConfig, stage: usize, device: &Device) -> Self {
        let [rows, columns] = config.stage_grid(stage);
        let prefix = config.num_prefix_tokens();
        let head_dim = config.stage_dim(stage) / config.num_heads[stage];
        Self {
            downsample: (stage > 0).then(|| PatchMerging::new(config, stage, device)),
            blocks: (0..config.depth[stage]).map(|index| Block::new(config, stage, index, device)).collect(),
            rotary: config
                .rotary_options()
                .filter(|options| !options.learned)
                .map(|options| Rotary::new([rows, columns], prefix, head_dim, options, device)),
            conditional: (config.position == Position::Conditional)
                .then(|| ConditionalPosition::new(config.stage_dim(stage), device)),
            first_only: config.position_place == PositionPlace::FirstQueryKey,
            rows,
            columns,
            prefix,
        }
    }

    /// # Shapes
    /// - tokens: `[batch, tokens of the previous stage, dim of the previous stage]`
    /// - output: `[batch, tokens, dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use vitrine_models::{preset, stage::Stage};
    ///
    /// let device = Device::default();
    /// let config = preset::find("swin_pico_patch2_window4_32").expect("listed");
    /// let stage = Stage::new(&config, 1, &device);
    /// let tokens = Tensor::<3>::random([2, 16 * 16, 32], Distribution::Default, &device);
    /// let y = stage.forward(tokens.clone(), &None);
    /// assert_eq!(y.dims(), [2, 8 * 8, 64]); // a quarter of the tokens, twice as wide
    /// let first = stage.forward_block(0, tokens, &None); // merges patches first
    /// assert_eq!(stage.depth(), 2);
    /// assert_eq!(stage.forward_block(1, first, &None).into_data(), y.into_data());
    /// ```
    pub fn forward(&self, tokens: Tensor<3>, position: &Option<Tensor<3>>) -> Tensor<3> {
        (0..self.depth()).fold(tokens, |tokens, block| self.forward_block(block, tokens, position))
    }

    /// The first `count` tokens of [`Self::forward_block`], which are no patches. Only these are computed, if nothing needs the
    /// others.
    pub(crate) fn forward_first(
        &self,
        block: usize,
        count: usize,
        tokens: Tensor<3>,
        position: &Option<Tensor<3>>,
    ) -> Tensor<3> {
        let has_more = block == 0 && (self.downsample.is_some() || self.conditional.is_some());
        if has_more {
            return self.forward_block(block, tokens, position).narrow(1, 0, count);
        }
        self.blocks[block].forward_first(tokens, count, &self.context(block, position))
    }

    /// The layers that map all tokens: that of the merging and those of the blocks.
    pub(crate) fn linear_layers(&mut self) -> impl Iterator<Item = &mut Linear> {
        let merging = self.downsample.iter_mut().map(|merging| &mut merging.reduction);
        merging.chain(self.blocks.iter_mut().flat_map(Block::linear_layers))
    }

    /// The token mixers of all blocks.
    pub(crate) fn mixers(&mut self) -> impl Iterator<Item = &mut TokenMixer> {
        self.blocks.iter_mut().map(|block| &mut block.mixer)
    }

    /// The number of blocks.
    pub fn depth(&self) -> usize {
        self.blocks.len()
    }

    /// The same blocks on another grid. Only for the stage of a plain model.
    pub(crate) fn at_grid(&self, grid: [usize; 2]) -> Self {
        let rotary = self.rotary.as_ref().map(|rotary| rotary.at_grid(grid, self.prefix));
        let [rows, columns] = grid;
        let mut blocks = self.blocks.clone();
        for own in blocks.iter_mut().filter_map(|block| block.mixer.rotary()) {
            *own = own.at_grid(grid, self.prefix);
        }
        Self { blocks, rotary, rows, columns, ..self.clone() }
    }

    /// One block of [`Self::forward`]; with the first block, the merging before it and the positions after it, too.
    ///
    /// # Panics
    ///
    /// If there is no such block.
    pub fn forward_block(&self, block: usize, tokens: Tensor<3>, position: &Option<Tensor<3>>) -> Tensor<3> {
        let tokens = if block == 0 { self.enter(tokens) } else { tokens };
        let tokens = self.blocks[block].forward(tokens, &self.context(block, position));
        self.place(block, tokens)
    }

    /// Whether a block has a parameter that gets a gradient; for the first block, also whether the merging before it or
    /// the positions after it have one.
    pub(crate) fn learns(&self, block: usize) -> bool {
        let first = || learns(&self.downsample) || learns(&self.conditional);
        learns(&self.blocks[block]) || (block == 0 && first())
    }

    /// The stage with the parameters of its first blocks frozen.
    #[cfg(test)]
    pub(crate) fn no_grad_before(self, count: usize) -> Self {
        let freeze = |(index, block): (usize, Block)| if index < count { block.no_grad() } else { block };
        Self { blocks: self.blocks.into_iter().enumerate().map(freeze).collect(), ..self }
    }

    /// [`Self::forward_block`], and the block's attention weights, to which a `probe` is added if there is one.
    pub(crate) fn forward_block_with_weights(
        &self,
        block: usize,
        tokens: Tensor<3>,
        position: &Option<Tensor<3>>,
        probe: Option<WeightProbe>,
    ) -> (Tensor<3>, Tensor<4>) {
        let tokens = if block == 0 { self.enter(tokens) } else { tokens };
        let context = Context { probe, ..self.context(block, position) };
        let (tokens, weights) = self.blocks[block].forward_with_weights(tokens, &context);
        (self.place(block, tokens), weights)
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(
        &self,
        graph: &mut Graph,
        tokens: &Value,
        position: &Option<Tensor<3>>,
        after_block: &mut dyn FnMut(usize, &Value),
    ) -> Value {
        let start = match &self.downsample {
            Some(merge) => graph.within("downsample", |graph| merge.trace(graph, tokens)),
            None => tokens.clone(),
        };
        self.blocks.iter().enumerate().fold(start, |tokens, (index, block)| {
            let context = self.context(index, position);
            let name = format!("blocks.{index}");
            let tokens = graph.within(name, |graph| block.trace(graph, &tokens, &context));
            let tokens = match &self.conditional {
                Some(position) if index == 0 => graph.within("pos_block", |graph| {
                    position.trace(graph, &tokens, self.prefix, [self.rows, self.columns])
                }),
                _ => tokens,
            };
            after_block(index, &tokens);
            tokens
        })
    }

    fn enter(&self, tokens: Tensor<3>) -> Tensor<3> {
        match &self.downsample {
            Some(merge) => merge.forward(tokens),
            None => tokens,
        }
    }

    /// The tokens after a block, with conditional positions if they follow it.
    fn place(&self, block: usize, tokens: Tensor<3>) -> Tensor<3> {
        match &self.conditional {
            Some(position) if block == 0 => position.forward(tokens, self.prefix, [self.rows, self.columns]),
            _ => tokens,
        }
    }

    fn context(&self, block: usize, position: &Option<Tensor<3>>) -> Context {
        Context {
            bias: None,
            position: position.clone().filter(|_| block == 0 || !self.first_only),
            rotary: self.rotary.clone(),
            grid: [self.rows, self.columns],
            prefix: self.prefix,
            probe: None,
        }
    }
}

/// Whether a parameter of `module` gets a gradient.
pub(crate) fn learns<M: Module>(module: &M) -> bool {
    struct Learns(bool);
    impl ModuleVisitor for Learns {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 |= param.val().is_require_grad();
        }
    }
    let mut found = Learns(false);
    module.visit(&mut found);
    found.0
}

/// Patch merging: two by two tokens become one token of twice the width. Odd grids are padded with zeros.
#[derive(Module, Debug)]
pub struct PatchMerging {
    norm: LayerNorm,
    reduction: Linear,
    norm_last: bool,
    /// A map for each copy of the grid that is merged: the grid itself and, in SL-Swin, its four diagonal shifts.
    #[module(skip)]
    copies: Vec<RowMap>,
}

impl PatchMerging {
    /// The merging before `stage`, which is at least 1. Swin v2 normalizes after the reduction, other models before it.
    pub fn new(config: &ModelConfig, stage: usize, device: &Device) -> Self {
        let shifted = config.tokenizer == Tokenizer::ShiftedPatch;
        let shifts: &[[isize; 2]] =
            if shifted { &[[0, 0], [-1, -1], [-1, 1], [1, -1], [1, 1]] } else { &[[0, 0]] };
        let grid = config.stage_grid(stage - 1);
        let (input, output) = (4 * shifts.len() * config.stage_dim(stage - 1), config.stage_dim(stage));
        let norm_last = config.block == BlockStyle::ResidualPostNorm;
        Self {
            norm: LayerNorm::new(if norm_last { output } else { input }, config.norm_epsilon, device),
            reduction: Linear::new(input, output, shifted, device),
            norm_last,
            copies: shifts.iter().map(|&shift| merge_map(grid, shift)).collect(),
        }
    }

    /// # Shapes
    /// - tokens: `[batch, rows * columns, dim]`
    /// - output: `[batch, rows / 2 * columns / 2, 2 * dim]`, sides rounded up
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor, s};
    /// use vitrine_models::{preset, stage::PatchMerging};
    ///
    /// let device = Device::default();
    /// let config = preset::find("swin_pico_patch2_window4_32").expect("listed");
    /// let merge = PatchMerging::new(&config, 1, &device); // of 16 by 16 tokens
    /// // All tokens are zero but the one in row 1 and column 1, which becomes part of the first merged token.
    /// let tokens = Tensor::<3>::zeros([1, 256, 32], &device).slice_fill(s![.., 17, 0], 1.0);
    /// let merged = merge.forward(tokens);
    /// assert_eq!(merged.dims(), [1, 64, 64]);
    /// let sizes = merged.abs().sum_dim(2).into_data().try_into_vec_as::<f32>()?;
    /// assert!(sizes[0] > 0.0 && sizes[1..].iter().all(|&size| size == 0.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forward(&self, tokens: Tensor<3>) -> Tensor<3> {
        let [batch, _, dim] = tokens.dims();
        let merged = self
            .copies
            .iter()
            .map(|copy| gather_rows(tokens.clone(), copy).reshape([batch, copy.rows() / 4, 4 * dim]));
        let merged = Tensor::cat(merged.collect(), 2);
        if self.norm_last {
            self.norm.forward(self.reduction.forward(merged))
        } else {
            self.reduction.forward(self.norm.forward(merged))
        }
    }

    /// [`Self::forward`] as operators.
    fn trace(&self, graph: &mut Graph, tokens: &Value) -> Value {
        let dim = tokens.dims[2];
        let copies: Vec<Value> = self
            .copies
            .iter()
            .map(|copy| {
                let rows = graph.gather_rows(tokens, copy.sources());
                graph.reshape(&rows, &[1, copy.rows() / 4, 4 * dim])
            })
            .collect();
        let merged = match &copies[..] {
            [copy] => copy.clone(),
            copies => graph.concat(&copies.iter().collect::<Vec<_>>(), 2),
        };
        if self.norm_last {
            let reduced = self.reduction.trace(graph, "reduction", &merged);
            self.norm.trace(graph, "norm", &reduced)
        } else {
            let normalized = self.norm.trace(graph, "norm", &merged);
            self.reduction.trace(graph, "reduction", &normalized)
        }
    }
}

/// The map from tokens to the four tokens of each merged token, in the order of Microsoft's Swin: down first, then to
/// the right. The tokens are taken from `down` rows and `right` columns further on.
fn merge_map([rows, columns]: [usize; 2], [down, right]: [isize; 2]) -> RowMap {
    let place = |place: usize, shift: isize, side: usize| {
        place.checked_add_signed(shift).filter(|&place| place < side)
    };
    let (merged_rows, merged_columns) = (rows.div_ceil(2), columns.div_ceil(2));
    let sources: Vec<Option<usize>> = (0..merged_rows * merged_columns * 4)
        .map(|index| {
            let (cell, corner) = (index / 4, index % 4);
            let row = place(cell / merged_columns * 2 + corner % 2, down, rows)?;
            let column = place(cell % merged_columns * 2 + corner / 2, right, columns)?;
            Some(row * columns + column)
        })
        .collect();
    RowMap::new(&sources, rows * columns)
}
