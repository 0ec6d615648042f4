//! Position embeddings: none, learned, or fixed sines and cosines over one or two dimensions.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};

use crate::linear::normal;
use crate::{ModelConfig, Position};

/// What is added to the tokens so that they know where they are.
#[derive(Module, Debug)]
pub struct PositionEmbedding {
    /// `[1, tokens, dim]`, prefix tokens included.
    pub learned: Option<Param<Tensor<3>>>,
    /// `[1, tokens, dim]`; prefix tokens have no place and get zeros.
    fixed: Option<Tensor<3>>,
}

impl PositionEmbedding {
    /// The embedding that the configuration asks for.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let [rows, columns] = config.grid();
        let dim = config.embed_dim;
        let table = |values: Vec<f32>| {
            let mut all = vec![0.0; config.num_prefix_tokens() * dim];
            all.extend(values);
            Tensor::from_data(TensorData::new(all, [1, config.num_tokens(), dim]), device)
        };
        let (learned, fixed) = match config.position {
            Position::None => (None, None),
            Position::Learned => (Some(normal([1, config.num_tokens(), dim], 0.02, device)), None),
            Position::Sinusoidal => (None, Some(table(sinusoidal(rows * columns, dim)))),
            Position::Sinusoidal2d => (None, Some(table(sinusoidal_2d(rows, columns, dim)))),
        };
        Self { learned, fixed }
    }

    /// # Shapes
    /// - tokens, output: `[batch, tokens, dim]`
    pub fn forward(&self, tokens: Tensor<3>) -> Tensor<3> {
        match (&self.learned, &self.fixed) {
            (Some(learned), _) => tokens + learned.val(),
            (None, Some(fixed)) => tokens + fixed.clone(),
            (None, None) => tokens,
        }
    }
}

/// The table `[length, dim]` of Vaswani et al. 2017, section 3.5, row by row:
/// `p[t, 2i] = sin(t / 10000^(2i/dim))` and `p[t, 2i+1] = cos(t / 10000^(2i/dim))`.
///
/// # Panics
/// When `dim` is odd.
pub fn sinusoidal(length: usize, dim: usize) -> Vec<f32> {
    assert!(dim.is_multiple_of(2), "sines and cosines come in pairs");
    (0..length).flat_map(|place| waves(place, dim)).collect()
}

/// The table `[rows * columns, dim]`: the first half of each vector encodes the row, the second the column,
/// both as [`sinusoidal`] does (the form used by He et al. 2022, Masked Autoencoders, appendix A.1).
///
/// # Panics
/// When `dim` is not a multiple of 4.
pub fn sinusoidal_2d(rows: usize, columns: usize, dim: usize) -> Vec<f32> {
    assert!(dim.is_multiple_of(4), "two pairs of sine and cosine are needed");
    (0..rows * columns)
        .flat_map(|place| waves(place / columns, dim / 2).chain(waves(place % columns, dim / 2)))
        .collect()
}

fn waves(place: usize, dim: usize) -> impl Iterator<Item = f32> {
    (0..dim).map(move |i| {
        let pair = (i / 2 * 2) as f64;
        let angle = place as f64 / 10_000f64.powf(pair / dim as f64);
        if i % 2 == 0 { angle.sin() as f32 } else { angle.cos() as f32 }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_dimensions_are_told_apart_and_no_place_is_taken_twice() {
        let (rows, columns, dim) = (5, 7, 32);
        let table = sinusoidal_2d(rows, columns, dim);
        let row = |place: usize| &table[place * dim..(place + 1) * dim];
        assert_eq!(row(0)[..16], row(3)[..16], "same row, same first half");
        assert_eq!(row(1)[16..], row(columns + 1)[16..], "same column, same second half");
        for a in 0..rows * columns {
            for b in 0..a {
                assert_ne!(row(a), row(b));
            }
        }
    }
}
