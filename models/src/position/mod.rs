//! Position vectors that are added to tokens: learned, computed from coordinates, or fixed sines and cosines over one or
//! two dimensions; and their resampling to another grid.

mod conditional;
mod coordinate_mlp;
mod resampling;

pub use conditional::ConditionalPosition;
pub use coordinate_mlp::CoordinateMlp;
pub use resampling::{Resampling, resample};

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};

use crate::linear::normal;
use crate::{ModelConfig, Position};

/// The position vectors of a model.
#[derive(Module, Debug)]
pub struct PositionEmbedding {
    /// Learned vectors: `[1, tokens, dim]`, with those of prefix tokens if these have positions.
    pub learned: Option<Param<Tensor<3>>>,
    /// Fixed vectors: `[1, patches, dim]`.
    fixed: Option<Tensor<3>>,
    /// The network that computes the vectors.
    pub network: Option<CoordinateMlp>,
}

impl PositionEmbedding {
    /// The embedding that the configuration asks for.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let [rows, columns] = config.grid();
        let (patches, dim) = (rows * columns, config.embed_dim);
        let table =
            |values: Vec<f32>| Some(Tensor::from_data(TensorData::new(values, [1, patches, dim]), device));
        let none = Self { learned: None, fixed: None, network: None };
        match config.position {
            // Rotary and conditional positions act within the stages.
            Position::None | Position::Rotary | Position::Conditional => none,
            Position::Learned => {
                let prefix = if config.prefix_position { config.num_prefix_tokens() } else { 0 };
                Self { learned: Some(normal([1, prefix + patches, dim], 0.02, device)), ..none }
            }
            Position::Sinusoidal => Self { fixed: table(sinusoidal(patches, dim)), ..none },
            Position::Sinusoidal2d => Self { fixed: table(sinusoidal_2d(rows, columns, dim)), ..none },
            Position::CoordinateMlp => {
                Self { network: Some(CoordinateMlp::new([rows, columns], dim, device)), ..none }
            }
        }
    }

    /// The vectors for a configuration with another grid and without learned vectors.
    pub(crate) fn at_grid(&self, config: &ModelConfig) -> Self {
        match &self.network {
            Some(network) => Self { network: Some(network.at_grid(config.grid())), ..self.clone() },
            None => {
                self.fixed.as_ref().map_or_else(|| self.clone(), |table| Self::new(config, &table.device()))
            }
        }
    }

    /// The vectors of all tokens, or only of the patches: `[1, tokens or patches, dim]`.
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use vitrine_models::{ModelConfig, Position, position::PositionEmbedding, preset};
    ///
    /// let device = Device::default();
    /// let config = preset::find("vit_pico_patch4_32").expect("listed"); // 64 patches, sines and cosines
    /// let vectors = PositionEmbedding::new(&config, &device).vectors().expect("positions are added");
    /// assert_eq!(vectors.dims(), [1, 64, 96]);
    /// assert_eq!(vectors.into_data().try_into_vec_as::<f32>()?[..4], [0.0, 1.0, 0.0, 1.0]);
    ///
    /// let rotary = ModelConfig { position: Position::Rotary, ..config };
    /// assert!(PositionEmbedding::new(&rotary, &device).vectors().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn vectors(&self) -> Option<Tensor<3>> {
        let computed = || self.network.as_ref().map(CoordinateMlp::vectors);
        self.learned.as_ref().map(Param::val).or_else(|| self.fixed.clone()).or_else(computed)
    }
}

/// The table `[length, dim]` of Vaswani et al. 2017, section 3.5, row by row:
/// `p[t, 2i] = sin(t / 10000^(2i/dim))` and `p[t, 2i+1] = cos(t / 10000^(2i/dim))`.
///
/// # Panics
/// If `dim` is odd.
///
/// # Examples
///
/// ```
/// use vitrine_models::position::sinusoidal;
///
/// let table = sinusoidal(2, 4);
/// assert_eq!(table[..4], [0.0, 1.0, 0.0, 1.0]);
/// for (value, expected) in table[4..].iter().zip([1f32.sin(), 1f32.cos(), 0.01f32.sin(), 0.01f32.cos()]) {
///     assert!((value - expected).abs() < 1e-6);
/// }
/// ```
pub fn sinusoidal(length: usize, dim: usize) -> Vec<f32> {
    assert!(dim.is_multiple_of(2), "the width of a position vector must hold pairs of sine and cosine");
    (0..length).flat_map(|place| waves(place, dim)).collect()
}

/// The table `[rows * columns, dim]` in which the first half of each vector encodes the row and the second half the
/// column, both as in [`sinusoidal`] (He et al. 2022, Masked Autoencoders, appendix A.1).
///
/// # Panics
/// If `dim` is not a multiple of 4.
///
/// # Examples
///
/// ```
/// use vitrine_models::position::sinusoidal_2d;
///
/// let table = sinusoidal_2d(2, 3, 8);
/// let vector = |row: usize, column: usize| &table[(row * 3 + column) * 8..][..8];
/// assert_eq!(vector(1, 0)[..4], vector(1, 2)[..4]); // the same row
/// assert_eq!(vector(0, 2)[4..], vector(1, 2)[4..]); // the same column
/// assert_ne!(vector(0, 2), vector(1, 2));
/// ```
pub fn sinusoidal_2d(rows: usize, columns: usize, dim: usize) -> Vec<f32> {
    assert!(dim.is_multiple_of(4), "the width of a position vector must hold two pairs of sine and cosine");
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
    fn rows_and_columns_are_encoded_separately_and_every_place_has_its_own_vector() {
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
