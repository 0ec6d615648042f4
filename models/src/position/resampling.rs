//! Resampling of learned positions for another grid of patches.

use serde::{Deserialize, Serialize};

/// The bicubic filter by which positions are resampled for another image size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resampling {
    /// Widened to shrink, with a = -0.5, as in timm and in transformers' DINOv2 with registers (PyTorch's `antialias`).
    #[default]
    Antialiased,
    /// Four places of each axis, with a = -0.75 and the places beyond the border equal to those at it, as in
    /// transformers' ViT, DINOv2, CLIP, and SigLIP (PyTorch without `antialias`).
    Plain,
}

impl Resampling {
    /// Whether the filter is the usual one, which model files need not state.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// A table of vectors on a grid, resampled to another grid.
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
    /// use vitrine_models::position::Resampling;
    ///
    /// let halved = Resampling::Plain.resample(&[0.0, 1.0, 4.0, 9.0], [1, 4], [1, 2]);
    /// for (value, expected) in halved.iter().zip([0.21875, 6.78125]) {
    ///     assert!((value - expected).abs() < 1e-5);
    /// }
    /// ```
    pub fn resample(self, table: &[f32], from: [usize; 2], to: [usize; 2]) -> Vec<f32> {
        let places = from[0] * from[1];
        assert!(
            places > 0 && table.len().is_multiple_of(places),
            "{} values for a grid of {from:?}",
            table.len()
        );
        let dim = table.len() / places;
        let columns = self.resample_axis(table, [from[0], from[1], dim], to[1]);
        // The second axis: each row of the grid is one long vector.
        self.resample_axis(&columns, [1, from[0], to[1] * dim], to[0])
    }

    /// Resamples the middle dimension: `[outer, length, inner]` to `[outer, target, inner]`.
    fn resample_axis(self, values: &[f32], [outer, length, inner]: [usize; 3], target: usize) -> Vec<f32> {
        let mut output = vec![0.0f32; outer * target * inner];
        for (place, taps) in (0..target).map(|place| (place, self.taps(place, length, target))) {
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

    /// The matrix `[target, length]` that resamples one axis.
    pub(crate) fn matrix(self, length: usize, target: usize) -> Vec<f64> {
        let mut matrix = vec![0.0; target * length];
        for place in 0..target {
            for (source, weight) in self.taps(place, length, target) {
                matrix[place * length + source] += weight;
            }
        }
        matrix
    }

    /// The input places that an output place is computed from, and their weights.
    fn taps(self, place: usize, length: usize, target: usize) -> Vec<(usize, f64)> {
        let scale = length as f64 / target as f64;
        match self {
            Self::Antialiased => antialiased(place, length, scale),
            Self::Plain => plain(place, length, scale),
        }
    }
}

/// A table of vectors on a grid, resampled to another grid by an antialiased bicubic filter, as timm does for another
/// image size: [`Resampling::Antialiased`].
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
    Resampling::Antialiased.resample(table, from, to)
}

/// The cubic filter of Keys, whose slope at a distance of 1 is `a`.
fn cubic(a: f64, x: f64) -> f64 {
    match x.abs() {
        x if x < 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

fn antialiased(place: usize, length: usize, scale: f64) -> Vec<(usize, f64)> {
    let width = scale.max(1.0);
    let center = (place as f64 + 0.5) * scale;
    let first = ((center - 2.0 * width + 0.5) as isize).max(0) as usize;
    let end = ((center + 2.0 * width + 0.5) as usize).min(length);
    let weights: Vec<f64> =
        (first..end).map(|source| cubic(-0.5, (source as f64 - center + 0.5) / width)).collect();
    let sum: f64 = weights.iter().sum();
    (first..end).zip(weights).map(|(source, weight)| (source, weight / sum)).collect()
}

fn plain(place: usize, length: usize, scale: f64) -> Vec<(usize, f64)> {
    let center = (place as f64 + 0.5) * scale - 0.5;
    let before = center.floor();
    (-1..=2)
        .map(|step| {
            let source = before + f64::from(step);
            (source.clamp(0.0, length as f64 - 1.0) as usize, cubic(-0.75, source - center))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::position::sinusoidal_2d;

    #[test]
    fn resampling_keeps_a_grid_of_the_same_size_and_a_constant() {
        let table = sinusoidal_2d(3, 4, 8);
        for filter in [Resampling::Antialiased, Resampling::Plain] {
            for (a, b) in filter.resample(&table, [3, 4], [3, 4]).iter().zip(&table) {
                assert!((a - b).abs() < 1e-6);
            }
            let constant = filter.resample(&[2.0; 12], [2, 3], [5, 7]);
            assert!(constant.iter().all(|value| (value - 2.0).abs() < 1e-6));
        }
    }

    #[test]
    fn the_plain_filter_is_pytorchs_without_antialiasing() {
        // torch.nn.functional.interpolate(grid, size, mode="bicubic", align_corners=False)
        let grid: Vec<f32> = (0..16).map(|x| ((x * x) % 7) as f32).collect();
        let expected = PLAIN_3;
        for (ours, torch) in Resampling::Plain.resample(&grid, [4, 4], [3, 3]).iter().zip(expected) {
            assert!((ours - torch).abs() < 1e-5, "{ours} for {torch}");
        }
    }

    const PLAIN_3: [f32; 9] =
        [0.429_19, 2.772_57, 1.984005, 1.914027, 3.327148, 0.923215, 3.267158, 0.586662, 1.033277];
}
