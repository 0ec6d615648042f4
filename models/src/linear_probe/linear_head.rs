//! A linear classifier of features.

use rayon::prelude::*;
use vitrine_kernels::{DoubleMatrix, add_product};

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
        /// Images at a time, on one thread.
        const IMAGES: usize = 256;
        let (classes, width) = (self.bias.len(), self.weight.len() / self.bias.len());
        let weight: Vec<f64> = self.weight.iter().map(|value| f64::from(*value)).collect();
        let weight = DoubleMatrix::new(&weight, [classes, width], width).transposed();
        let of_images = |features: &[f32]| -> Vec<f32> {
            let x: Vec<f64> = features.iter().map(|value| f64::from(*value)).collect();
            let images = features.len() / width;
            let biases = std::iter::repeat_n(&self.bias, images).flatten();
            let mut logits: Vec<f64> = biases.map(|bias| f64::from(*bias)).collect();
            add_product(&mut logits, 1.0, DoubleMatrix::new(&x, [images, width], width), weight);
            logits.into_iter().map(|logit| logit as f32).collect()
        };
        features.par_chunks(IMAGES * width).flat_map_iter(of_images).collect()
    }
}

fn dot(a: impl Iterator<Item = f64>, b: &[f64]) -> f64 {
    a.zip(b).map(|(a, b)| a * b).sum()
}
