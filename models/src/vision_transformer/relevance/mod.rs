//! What a model looked at: maps of the image that say how much each patch counts for an answer.

#[cfg(test)]
mod tests;

use burn::tensor::{Device, Tensor, TensorData};

use super::VisionTransformer;
use crate::Pool;
use crate::attention::WeightProbe;
use crate::pooling::Pooling;

/// Why a model has no map of some kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoMap {
    /// Attention in windows, in stages, or between channels, whose weights are not about all patches of the image.
    #[error("its attention is not among all patches: it has windows, stages, or attends between channels")]
    NotAmongPatches,
    /// The class token is not among the tokens of the blocks.
    #[error("its class token joins after the blocks (`class_depth`)")]
    ClassBlocks,
    /// The pooling takes the class token or the mean of the patches.
    #[error("its pooling takes the class token or the mean of the patches, and so has no weights of its own")]
    UnweightedPooling,
}

impl VisionTransformer {
    /// The attention by which a block reads the patches, head by head: the row of the class token, or, for other
    /// poolings, the mean of the rows of the patches.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, heads, rows, columns]`
    ///
    /// # Errors
    /// If the weights of a block are not about all patches of the image.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn attention_map(&self, images: Tensor<4>, block: usize) -> Result<Tensor<4>, NoMap> {
        self.check_attention_among_patches()?;
        let (_, maps) = self.forward_with_weights(images);
        let weights = maps[block].clone();
        let [batch, heads, tokens, _] = weights.dims();
        let reader = self.plain_reader(batch, &weights.device()).unsqueeze_dim::<4>(1).repeat_dim(1, heads);
        let read = reader.matmul(weights); // [batch, heads, 1, tokens]
        let prefix = self.config.num_prefix_tokens();
        let [rows, columns] = self.config.grid();
        Ok(read.narrow(3, prefix, tokens - prefix).reshape([batch, heads, rows, columns]))
    }

    /// Attention rollout: the weights of all blocks, averaged over heads and with the residual connections, multiplied
    /// (Abnar and Zuidema 2020, 'Quantifying Attention Flow in Transformers', section 3), and read by the pooling; by class
    /// queries for all classes alike.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, rows, columns]`, at least 0
    ///
    /// # Errors
    /// If the weights of a block are not about all patches of the image.
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default();
    /// let model = preset::find("vit_pico_patch4_32").expect("listed").init(&device)?;
    /// let images = Tensor::<4>::random([2, 3, 32, 32], Distribution::Default, &device);
    /// let map = model.rollout(images).expect("its attention is global");
    /// assert_eq!(map.dims(), [2, 8, 8]);
    /// // Without prefix tokens, all of the answer comes from the patches.
    /// assert!((map.sum_dim(1).sum_dim(2) - 1.0).abs().max().into_scalar::<f32>() < 1e-4);
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn rollout(&self, images: Tensor<4>) -> Result<Tensor<3>, NoMap> {
        self.check_attention_among_patches()?;
        let (tokens, maps) = self.tokens_and_weights(images, &[]);
        let flow = maps.into_iter().map(|weights| {
            let mean = weights.mean_dim(1).squeeze_dim::<3>(1);
            let [_, count, _] = mean.dims();
            let with_residual = mean + Tensor::<2>::eye(count, &tokens.device()).unsqueeze();
            with_residual.clone() / with_residual.sum_dim(2)
        });
        let flow = flow.reduce(|before, next| next.matmul(before)).expect("a model has a block");
        Ok(self.read(self.reader(&tokens, None), flow))
    }

    /// The weights by which the pooling reads the patches, head by head: of class queries, which have a query per class, those
    /// of the query of each image's class in the last layer; of several queries or steps, their mean. For the poolings with
    /// weights, see [`Pooling::weights`].
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - classes: one for each image, which other poolings than class queries do not use
    /// - output: `[batch, heads or 1, rows, columns]`, with the grid of the last stage
    ///
    /// # Errors
    /// If the pooling takes the class token or the mean of the patches.
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::{ModelConfig, Pool, preset};
    ///
    /// let device = Device::default();
    /// let plain = preset::find("vit_pico_patch4_32").expect("listed"); // 10 classes, 3 heads, the mean of 64 patches
    /// let images = Tensor::<4>::ones([2, 3, 32, 32], &device);
    /// assert!(plain.init(&device)?.pooling_map(images.clone(), &[3, 7]).is_err());
    /// let model = ModelConfig { pool: Pool::ClassQueries { depth: 2 }, ..plain }.init(&device)?;
    /// let map = model.pooling_map(images, &[3, 7]).expect("its queries read the patches");
    /// assert_eq!(map.dims(), [2, 3, 8, 8]);
    /// assert!((map.sum_dim(2).sum_dim(3) - 1.0).abs().max().into_scalar::<f32>() < 1e-5);
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn pooling_map(&self, images: Tensor<4>, classes: &[usize]) -> Result<Tensor<4>, NoMap> {
        self.check_pooling_weighs_patches()?;
        let weights = self.pooling_weights(images).ok_or(NoMap::UnweightedPooling)?;
        let [batch, heads, ..] = weights.dims();
        let [rows, columns] = self.config.stage_grid(self.config.num_stages() - 1);
        Ok(self.row_of_patches(weights, Some(classes)).reshape([batch, heads, rows, columns]))
    }

    /// Attention weighted by its gradient: in each block the positive part of gradient times weight, averaged over heads
    /// and accumulated over blocks (Chefer et al. 2021, 'Generic Attention-model Explainability', section 3.1, equations
    /// 5 and 6), and read by the pooling; by class queries with the query of each image's class. The gradient is that of the
    /// logit of this class.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`, on a device with autodiff, as the model
    /// - classes: one for each image
    /// - output: `[batch, rows, columns]`, at least 0, without autodiff
    ///
    /// # Errors
    /// If the weights of a block are not about all patches of the image.
    pub fn gradient_attention(&self, images: Tensor<4>, classes: &[usize]) -> Result<Tensor<3>, NoMap> {
        self.check_attention_among_patches()?;
        let (device, batch, tokens) = (images.device(), images.dims()[0], self.config.num_tokens());
        let heads = self.config.num_heads[0];
        // Zeros that are added to the weights have their gradient.
        let probes: Vec<WeightProbe> = (0..self.config.depth.sum())
            .map(|_| Tensor::zeros([batch, heads, tokens, tokens], &device).require_grad())
            .collect();
        let (tokens, maps) = self.tokens_and_weights(images, &probes);
        let grads = chosen(self.classify(tokens.clone()), classes).backward();
        let identity = |count| Tensor::<2>::eye(count, &device.clone().inner()).unsqueeze::<3>();
        let count = self.config.num_tokens();
        let relevance = maps.into_iter().zip(&probes).fold(identity(count), |relevance, (weights, probe)| {
            let gradient = probe.grad(&grads).unwrap_or_else(|| weights.clone().inner().zeros_like());
            let counted = (weights.inner() * gradient).clamp_min(0.0).mean_dim(1).squeeze_dim::<3>(1);
            relevance.clone() + counted.matmul(relevance)
        });
        let own = identity(count); // what a patch says of itself without attention is left out
        Ok(self.read(self.reader(&tokens, Some(classes)).inner(), relevance - own))
    }

    /// Grad-CAM at the input of the last block: its channels, weighted by the mean of their gradients over the patches,
    /// summed; the positive part (Selvaraju et al. 2017, section 3). It suits every architecture: the last block still
    /// reads all patches, whatever the pooling. What a pooling reads of an earlier block is left out. The gradient is that of the logit
    /// of each image's class.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`, on a device with autodiff, as the model
    /// - classes: one for each image
    /// - output: `[batch, rows, columns]` of the grid that the last block reads, at least 0, without autodiff
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default().autodiff();
    /// let model = preset::find("swin_pico_patch2_window4_32").expect("listed").init(&device)?;
    /// let images = Tensor::<4>::random([2, 3, 32, 32], Distribution::Default, &device);
    /// let map = model.grad_cam(images, &[3, 7]);
    /// assert_eq!(map.dims(), [2, 4, 4]); // the grid of its last stage
    /// assert!(map.min().into_scalar::<f32>() >= 0.0);
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn grad_cam(&self, images: Tensor<4>, classes: &[usize]) -> Tensor<3> {
        let (tokens, position) = self.embed(images);
        let (stages, blocks) = (self.stages.len(), self.blocks());
        let mut read = tokens.clone();
        let output = self.through_blocks(tokens, |index, tokens| {
            let (stage, block) = blocks[index];
            read = if index + 1 == blocks.len() {
                Tensor::<3>::from_inner(tokens.inner()).require_grad()
            } else {
                tokens
            };
            stage.forward_block(block, read.clone(), &position)
        });
        let last = self.stages[stages - 1].depth() - 1;
        let grads = chosen(self.classify(self.finish(output)), classes).backward();
        let values = read.clone().inner();
        let gradient = read.grad(&grads).unwrap_or_else(|| values.zeros_like());
        // With a single block, the last stage reads the grid of the stage before, and merges it first.
        let grid = self.config.stage_grid(if last == 0 { stages.saturating_sub(2) } else { stages - 1 });
        let patches = |x: Tensor<3>| {
            let [_, count, _] = x.dims();
            let patches: usize = grid.iter().product();
            x.narrow(1, count - patches, patches)
        };
        let importance = patches(gradient).mean_dim(1);
        let map = (patches(values) * importance).sum_dim(2).clamp_min(0.0);
        let [batch, ..] = map.dims();
        map.reshape([batch, grid[0], grid[1]])
    }

    /// The logits of each patch by itself, as if it were the whole image after the blocks: the head applied to the patch,
    /// normalized as usual. For a model with a class token, it is the head of that token; poolings with queries read the
    /// patch alone.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, num_classes, rows, columns]`, with the grid of the last stage
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Distribution, Tensor, Tolerance};
    /// use vitrine_models::{ModelConfig, Pool, Position, preset};
    ///
    /// let device = Device::default();
    /// let plain = preset::find("vit_pico_patch4_32").expect("listed");
    /// let config = ModelConfig { image_size: vitrine_models::ImageSize::square(4), position: Position::None, ..plain };
    /// let model = config.init(&device)?; // a single patch
    /// let images = Tensor::<4>::random([2, 3, 4, 4], Distribution::Default, &device);
    /// let map = model.patch_logits(images.clone()).reshape([2, 10]);
    /// map.into_data().assert_approx_eq::<f32>(&model.forward(images).into_data(), Tolerance::absolute(1e-5));
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn patch_logits(&self, images: Tensor<4>) -> Tensor<4> {
        let tokens = self.all_tokens(images);
        let [batch, count, dim] = tokens.dims();
        let depths = 1 + usize::from(self.early_block().is_some());
        let count = count / depths;
        let [rows, columns] = self.config.stage_grid(self.config.num_stages() - 1);
        let patches = rows * columns;
        let each = |depth: usize| {
            let start = depth * count + count - patches;
            tokens.clone().narrow(1, start, patches).reshape([batch * patches, 1, dim])
        };
        let logits = match (&self.pooling, self.config.num_prefix_tokens()) {
            (Pooling::ClassToken(_), _) => self.head_of(each(0).squeeze_dim(1)),
            (_, prefix) => {
                // Poolings leave out the tokens before the patches.
                let before = |depth: usize| {
                    let before = tokens.clone().narrow(1, depth * count, prefix).unsqueeze_dim::<4>(1);
                    before.repeat_dim(1, patches).reshape([batch * patches, prefix, dim])
                };
                let with =
                    |depth| if prefix == 0 { vec![each(depth)] } else { vec![before(depth), each(depth)] };
                self.classify(Tensor::cat((0..depths).flat_map(with).collect(), 1))
            }
        };
        let classes = logits.dims()[1];
        logits.reshape([batch, patches, classes]).swap_dims(1, 2).reshape([batch, classes, rows, columns])
    }

    /// Checks that every block's weights are about all tokens, the class token among them.
    ///
    /// # Errors
    /// If they are not, so that [`Self::attention_map`], [`Self::rollout`], and [`Self::gradient_attention`] have no map.
    pub fn check_attention_among_patches(&self) -> Result<(), NoMap> {
        let among = self.config.mixers.iter().all(|mixer| mixer.weighs_all_tokens());
        if !among || self.config.num_stages() > 1 {
            return Err(NoMap::NotAmongPatches);
        }
        if self.config.class_depth > 0 { Err(NoMap::ClassBlocks) } else { Ok(()) }
    }

    /// Checks that the pooling has weights for the patches.
    ///
    /// # Errors
    /// If it has none, so that [`Self::pooling_map`] has no map.
    pub fn check_pooling_weighs_patches(&self) -> Result<(), NoMap> {
        match self.pooling {
            Pooling::ClassToken(_)
            | Pooling::Mean(_)
            | Pooling::ClassTokenMean(_)
            | Pooling::TwoDepths(_) => Err(NoMap::UnweightedPooling),
            Pooling::Sequence(_)
            | Pooling::Attention(_)
            | Pooling::Queries(_)
            | Pooling::Recurrent(_)
            | Pooling::ClassQueries(_) => Ok(()),
        }
    }

    /// The tokens after the last block, as [`Self::all_tokens`], and the weights of all blocks, to which `probes` are added.
    pub(super) fn tokens_and_weights(
        &self,
        images: Tensor<4>,
        probes: &[WeightProbe],
    ) -> (Tensor<3>, Vec<Tensor<4>>) {
        let mut maps = Vec::with_capacity(self.config.depth.sum());
        let (tokens, position) = self.embed(images);
        let blocks = self.blocks();
        let read = self.through_blocks(tokens, |index, tokens| {
            let ((stage, block), probe) = (blocks[index], probes.get(index).cloned());
            let (tokens, weights) = stage.forward_block_with_weights(block, tokens, &position, probe);
            maps.push(weights);
            tokens
        });
        (self.finish(read), maps)
    }

    /// How the answer reads the tokens: by the pooling's own weights, averaged over heads and rows, or by
    /// [`Self::plain_reader`]. Of class queries, the row of each image's class is read, if `classes` names them.
    ///
    /// # Shapes
    /// - tokens: `[batch, tokens, dim]`
    /// - output: `[batch, 1, tokens]`
    fn reader(&self, tokens: &Tensor<3>, classes: Option<&[usize]>) -> Tensor<3> {
        let [batch, _, _] = tokens.dims();
        let Some(weights) = self.pooling.weights(tokens.clone()) else {
            return self.plain_reader(batch, &tokens.device());
        };
        let of_patches = self.row_of_patches(weights.mean_dim(1), classes).squeeze_dim::<3>(1);
        match self.config.num_prefix_tokens() {
            0 => of_patches,
            prefix => Tensor::cat(vec![Tensor::zeros([batch, 1, prefix], &tokens.device()), of_patches], 2),
        }
    }

    /// From the rows of [`Pooling::weights`], one per query, step, or class, to one: of class queries, the row of each image's
    /// class, if `classes` names them; otherwise the mean.
    ///
    /// # Shapes
    /// - weights: `[batch, heads, rows, patches]`
    /// - output: `[batch, heads, 1, patches]`
    fn row_of_patches(&self, weights: Tensor<4>, classes: Option<&[usize]>) -> Tensor<4> {
        match (&self.pooling, classes) {
            (Pooling::ClassQueries(_), Some(classes)) => {
                let [batch, heads, count, _] = weights.dims();
                let chosen = one_hot(classes, count, &weights.device()).reshape([batch, 1, 1, count]);
                chosen.repeat_dim(1, heads).matmul(weights)
            }
            _ => weights.mean_dim(2),
        }
    }

    /// The logits of `[batch, dim]` vectors; of a distilled model, the mean of both heads.
    fn head_of(&self, x: Tensor<2>) -> Tensor<2> {
        match &self.distillation_head {
            None => self.head.forward(x),
            Some(head) => (self.head.forward(x.clone()) + head.forward(x)).div_scalar(2.0),
        }
    }

    /// The class token alone, all patches alike, or both with half of the weight each: `[batch, 1, tokens]`.
    fn plain_reader(&self, batch: usize, device: &Device) -> Tensor<3> {
        let (tokens, prefix) = (self.config.num_tokens(), self.config.num_prefix_tokens());
        let read = match self.config.pool {
            Pool::ClassToken => 0..1,
            Pool::Mean
            | Pool::NormalizedMean
            | Pool::ClassTokenMean
            | Pool::TwoDepths { .. }
            | Pool::Sequence
            | Pool::Attention
            | Pool::Queries(_)
            | Pool::Recurrent { .. }
            | Pool::ClassQueries { .. } => prefix..tokens,
        };
        let share = 1.0 / read.len() as f32;
        let mut values: Vec<f32> =
            (0..tokens).map(|token| if read.contains(&token) { share } else { 0.0 }).collect();
        if prefix > 0 && self.config.class_token && self.config.pool.reads_class_token_and_patches() {
            values.iter_mut().for_each(|value| *value /= 2.0);
            values[0] = 0.5;
        }
        Tensor::<3>::from_data(TensorData::new(values, [1, 1, tokens]), device).repeat_dim(0, batch)
    }

    /// The map of the patches that a reader sees through `flow`, `[batch, tokens, tokens]`.
    fn read(&self, reader: Tensor<3>, flow: Tensor<3>) -> Tensor<3> {
        let [batch, _, tokens] = reader.dims();
        let (prefix, [rows, columns]) = (self.config.num_prefix_tokens(), self.config.grid());
        reader.matmul(flow).narrow(2, prefix, tokens - prefix).reshape([batch, rows, columns])
    }
}

/// The sum over the images of the logit of each one's class.
fn chosen(logits: Tensor<2>, classes: &[usize]) -> Tensor<1> {
    let [batch, count] = logits.dims();
    assert_eq!(batch, classes.len(), "one class for each image");
    let one_hot = one_hot(classes, count, &logits.device());
    (logits * one_hot).sum()
}

/// A row for each class, with a 1 at its index: `[classes, count]`.
fn one_hot(classes: &[usize], count: usize, device: &Device) -> Tensor<2> {
    let rows: Vec<f32> =
        classes.iter().flat_map(|&class| (0..count).map(move |c| f32::from(u8::from(c == class)))).collect();
    Tensor::from_data(TensorData::new(rows, [classes.len(), count]), device)
}
