//! Position vectors that are added to tokens: learned, computed from coordinates, or fixed sines and cosines over one or
//! two dimensions; and their resampling to another grid.

mod conditional;
mod coordinate_mlp;

pub use conditional::ConditionalPosition;
pub use coordinate_mlp::CoordinateMlp;

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

/// A table of vectors on a grid, resampled to another grid by an antialiased bicubic filter, as timm does for another
/// image size.
///
/// # Shapes
/// - table: `[rows * columns, dim]`, row by row, with `from = [rows, columns]`
/// - output: the same for `to`
///
/// # Panics
/// If `table` does not hold whole vectors for `from`.
///
/// # Examples
///
/// ```
/// use vitrine_models::position::resample;
///
/// let wider = resample(&[0.0, 1.0], [1, 2], [1, 4]);
/// for (value, expected) in wider.iter().zip([-0.0882, 0.2071, 0.7929, 1.0882]) {
///     assert!((value - expected).abs() < 1e-4);
/// }
/// ```
pub fn resample(table: &[f32], from: [usize; 2], to: [usize; 2]) -> Vec<f32> {
    let places = from[0] * from[1];
    assert!(
        places > 0 && table.len().is_multiple_of(places),
        "{} values for a grid of {from:?}",
        table.len()
    );
    let dim = table.len() / places;
    let columns = resample_axis(table, [from[0], from[1], dim], to[1]);
    // The second axis: each row of the grid is one long vector.
    resample_axis(&columns, [1, from[0], to[1] * dim], to[0])
}

/// Resamples the middle dimension: `[outer, length, inner]` to `[outer, target, inner]`.
fn resample_axis(values: &[f32], [outer, length, inner]: [usize; 3], target: usize) -> Vec<f32> {
    let mut output = vec![0.0f32; outer * target * inner];
    for (place, taps) in (0..target).map(|place| (place, taps(place, length, target))) {
        for group in 0..outer {
            let row = &mut output[(group * target + place) * inner..][..inner];
            for &(source, weight) in &taps {
                let from = &values[(group * length + source) * inner..][..inner];
                row.iter_mut().zip(from).for_each(|(to, from)| *to += weight as f32 * from);
            }
        }
    }
    output
}

/// The input places that an output place is computed from, and their weights: the cubic filter of Keys with a = -0.5,
/// widened to shrink (PyTorch's `antialias`).
fn taps(place: usize, length: usize, target: usize) -> Vec<(usize, f64)> {
    let scale = length as f64 / target as f64;
    let width = scale.max(1.0);
    let center = (place as f64 + 0.5) * scale;
    let first = ((center - 2.0 * width + 0.5) as isize).max(0) as usize;
    let end = ((center + 2.0 * width + 0.5) as usize).min(length);
    let cubic = |x: f64| match x.abs() {
        x if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
        x if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
        _ => 0.0,
    };
    let weights: Vec<f64> =
        (first..end).map(|source| cubic((source as f64 - center + 0.5) / width)).collect();
    let sum: f64 = weights.iter().sum();
    (first..end).zip(weights).map(|(source, weight)| (source, weight / sum)).collect()
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

    #[test]
    fn resampling_keeps_a_grid_of_the_same_size_and_a_constant() {
        let table = sinusoidal_2d(3, 4, 8);
        for (a, b) in resample(&table, [3, 4], [3, 4]).iter().zip(&table) {
            assert!((a - b).abs() < 1e-6);
        }
        assert!(resample(&[2.0; 12], [2, 3], [5, 7]).iter().all(|value| (value - 2.0).abs() < 1e-6));
    }
}
