//! What lies where in an image: means of the patches in the cells of a grid.

use burn::tensor::{Tensor, TensorData};

use super::VisionTransformer;
use crate::ModelConfig;

/// The rows and columns of cells, as far as the grid of tokens has that many (the finest level of Lazebnik et al. 2006, 'Beyond Bags of
/// Features').
const CELLS: usize = 4;

impl ModelConfig {
    /// The width of [`VisionTransformer::layout`].
    pub fn layout_dim(&self) -> usize {
        let [rows, columns] = self.last_grid().map(|side| side.min(CELLS));
        let depths = 1 + usize::from(self.earlier_block().is_some());
        depths * rows * columns * self.last_dim()
    }

    /// The rows and columns of tokens after the last block.
    fn last_grid(&self) -> [usize; 2] {
        self.stage_grid(self.num_stages() - 1)
    }

    /// The number of blocks after which a layout reads tokens besides those after the last one: three quarters of the blocks. `None` for
    /// models whose earlier tokens have another width or another norm.
    fn earlier_block(&self) -> Option<usize> {
        let early = self.depth.sum() * 3 / 4;
        (self.num_stages() == 1 && self.class_depth == 0 && early > 0).then_some(early)
    }
}

impl VisionTransformer {
    /// What lies where in images: the means of the patches in each cell of a grid of four rows and four columns, after the last block and
    /// after three quarters of the blocks, all after the final norm, cell by cell. Unlike an [embedding](Self::embedding), it is another
    /// one if the same things lie in other places.
    ///
    /// Cells of a grid that four does not divide overlap, as in PyTorch's `adaptive_avg_pool2d`. Models of several stages, and those with
    /// class blocks, are read after the last block alone.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, layout_dim]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::preset;
    ///
    /// let config = preset::find("vit_pico_patch4_32").expect("listed"); // 96 channels
    /// let device = Device::default();
    /// let layout = config.init(&device)?.layout(Tensor::ones([3, 3, 32, 32], &device));
    /// assert_eq!((layout.dims(), config.layout_dim()), ([3, 2 * 16 * 96], 2 * 16 * 96));
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn layout(&self, images: Tensor<4>) -> Tensor<2> {
        let early = self.config.earlier_block();
        let (mut tokens, position) = self.embed(images);
        let mut earlier = None;
        for (index, (stage, block)) in self.blocks().into_iter().enumerate() {
            tokens = stage.forward_block(block, tokens, &position);
            if early == Some(index + 1) {
                earlier = Some(tokens.clone());
            }
        }
        let depths = [Some(tokens), earlier].into_iter().flatten();
        let cells = depths.map(|tokens| self.cells(self.finish_tokens(tokens))).collect();
        Tensor::cat(cells, 1)
    }

    /// The mean of the patches in each cell, `[batch, cells * dim]`, of tokens `[batch, tokens, dim]`.
    fn cells(&self, tokens: Tensor<3>) -> Tensor<2> {
        let [rows, columns] = self.config.last_grid();
        let [_, count, _] = tokens.dims();
        let patches = rows * columns;
        let [across, along] = [shares(rows), shares(columns)];
        let weights: Vec<f32> = across
            .iter()
            .flat_map(|across| along.iter().map(move |along| (across, along)))
            .flat_map(|(across, along)| across.iter().flat_map(move |a| along.iter().map(move |b| a * b)))
            .collect();
        let cells = across.len() * along.len();
        let weights = Tensor::from_data(TensorData::new(weights, [1, cells, patches]), &tokens.device());
        weights.matmul(tokens.narrow(1, count - patches, patches)).flatten(1, 2)
    }
}

/// The share of each of `places` in the mean of each cell along an axis.
fn shares(places: usize) -> Vec<Vec<f32>> {
    let cells = places.min(CELLS);
    let cell = |cell: usize| {
        let (first, last) = (cell * places / cells, ((cell + 1) * places).div_ceil(cells));
        let share = 1.0 / (last - first) as f32;
        (0..places).map(|place| if (first..last).contains(&place) { share } else { 0.0 }).collect()
    };
    (0..cells).map(cell).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::{Device, Distribution, Tolerance};

    use super::*;
    use crate::preset;

    #[test]
    fn cells_of_other_grids_are_those_of_pytorch() {
        // torch.nn.functional.adaptive_avg_pool1d of the places 0 to 5: 0.5, 1.5, 3.5, and 4.5.
        let mean =
            |cell: &Vec<f32>| -> f32 { (0u8..).zip(cell).map(|(at, share)| f32::from(at) * share).sum() };
        assert_eq!(shares(6).iter().map(mean).collect::<Vec<_>>(), [0.5, 1.5, 3.5, 4.5]);
        assert_eq!(shares(3), [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]);
        assert_eq!(shares(8)[1], [0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn a_cell_is_the_mean_of_its_patches_after_each_of_two_depths() {
        let device = Device::default();
        let plain = preset::find("vit_pico_patch4_32").unwrap();
        let depth = plain.depth.sum();
        let model = ModelConfig { class_token: true, registers: 2, ..plain }.init(&device).unwrap();
        let images = Tensor::<4>::random([2, 3, 32, 32], Distribution::Default, &device);
        let found = model.layout(images.clone()).reshape([2, 2, 16, 96]);
        // The pooling of two depths has the mean of all patches of both.
        let pool = crate::Pool::TwoDepths { early: depth * 3 / 4 };
        let pooled = crate::pooling::Pooling::new(&ModelConfig { pool, ..model.config.clone() }, &device);
        let last = model.features(images.clone());
        let (mut tokens, position) = model.embed(images);
        for (stage, block) in model.blocks().into_iter().take(depth * 3 / 4) {
            tokens = stage.forward_block(block, tokens, &position);
        }
        let both = Tensor::cat(vec![last.clone(), model.finish_tokens(tokens)], 1);
        let expected = pooled.forward(both).narrow(1, 96, 2 * 96).reshape([2, 2, 96]);
        let mean = found.clone().mean_dim(2).squeeze_dim::<3>(2);
        mean.into_data().assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(1e-5));
        // The second cell of the third row: rows 4 and 5, columns 2 and 3 of eight, behind the class token and two registers.
        let patch = |row: usize, column: usize| last.clone().narrow(1, 3 + 8 * row + column, 1);
        let four = Tensor::cat(vec![patch(4, 2), patch(4, 3), patch(5, 2), patch(5, 3)], 1).mean_dim(1);
        let cell = found.narrow(1, 0, 1).narrow(2, 9, 1).reshape([2, 1, 96]);
        cell.into_data().assert_approx_eq::<f32>(&four.into_data(), Tolerance::absolute(1e-5));
    }

    #[test]
    fn every_model_has_a_layout_of_its_width() {
        let device = Device::default();
        for config in crate::testing::variants() {
            let side = config.image_size;
            let images = Tensor::ones([1, config.channels, side.height, side.width], &device);
            let layout = config.init(&device).unwrap().layout(images);
            assert_eq!(layout.dims(), [1, config.layout_dim()], "{config:?}");
        }
    }
}
