//! A linear classifier of features.

use rayon::prelude::*;

/// A linear classifier: the logits of features `x` are `x * weight^T + bias`.
#[derive(Clone, Debug, PartialEq)]
pub struct LinearHead {
    /// `[classes, width]`, row by row.
    pub weight: Vec<f32>,
    /// `[classes]`.
    pub bias: Vec<f32>,
}

impl LinearHead {
    /// A classifier of features whose `mean` was subtracted before these weights were fitted.
    ///
    /// # Shapes
    /// - weight: `[classes, width]`
    /// - bias: `[classes]`
    /// - mean: `[width]`
    pub(super) fn of_centered(weight: &[f64], bias: &[f64], mean: &[f64]) -> Self {
        let rows = weight.chunks_exact(mean.len());
        let shifted = rows.zip(bias).map(|(row, bias)| bias - dot(row.iter().copied(), mean));
        Self {
            bias: shifted.map(|bias| bias as f32).collect(),
            weight: weight.iter().map(|value| *value as f32).collect(),
        }
    }

    /// The logits of images.
    ///
    /// # Shapes
    /// - features: `[images, width]`, row by row
    /// - output: `[images, classes]`
    pub fn logits(&self, features: &[f32]) -> Vec<f32> {
        let width = self.weight.len() / self.bias.len();
        let of_row = |row: &[f32]| -> Vec<f32> {
            let row: Vec<f64> = row.iter().map(|value| f64::from(*value)).collect();
            let products = self
                .weight
                .chunks_exact(width)
                .map(|weight| dot(weight.iter().map(|value| f64::from(*value)), &row));
            products.zip(&self.bias).map(|(product, bias)| (product + f64::from(*bias)) as f32).collect()
        };
        features.par_chunks_exact(width).flat_map_iter(of_row).collect()
    }
}

fn dot(a: impl Iterator<Item = f64>, b: &[f64]) -> f64 {
    a.zip(b).map(|(a, b)| a * b).sum()
}
