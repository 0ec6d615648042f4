//! A map: one value per patch, and its file in NumPy's format.

use super::Method;
use crate::npy;

/// The values of a method for the patches of one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// How it was computed.
    pub method: Method,
    /// Whether the values are about the class of the explanation, and not the same for all classes.
    pub is_about_class: bool,
    /// Rows of patches.
    pub rows: usize,
    /// Columns of patches.
    pub columns: usize,
    /// `[layers, rows, columns]`: one layer, or one per head.
    pub values: Vec<f32>,
    /// The class with the largest logit at each patch, `[rows, columns]`; empty for other methods than
    /// [`Method::PatchLogits`].
    pub classes: Vec<usize>,
}

impl Map {
    /// The layers, each `[rows, columns]`.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.values.chunks_exact(self.rows * self.columns)
    }

    /// The row and the column of the largest value of the first layer.
    pub fn peak(&self) -> [usize; 2] {
        let layer = self.values.iter().take(self.rows * self.columns).enumerate();
        let place = layer.max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(place, _)| place);
        [place / self.columns, place % self.columns]
    }

    /// Whether all values are 0, so that no patch counts.
    pub fn is_empty(&self) -> bool {
        self.values.iter().all(|&value| value == 0.0)
    }

    /// The values as a NumPy file: `[rows, columns]`, or `[heads, rows, columns]` if there are several layers.
    pub(super) fn npy(&self) -> Vec<u8> {
        let layers = self.layers().len();
        let heads = (layers > 1).then_some(layers);
        let shape: Vec<usize> = heads.into_iter().chain([self.rows, self.columns]).collect();
        file("<f4", &shape, self.values.iter().flat_map(|value| value.to_le_bytes()))
    }

    /// The classes of the patches as a NumPy file of 32-bit integers, if there are any.
    pub(super) fn classes_npy(&self) -> Option<Vec<u8>> {
        let values = self.classes.iter().flat_map(|&class| (class as i32).to_le_bytes());
        (!self.classes.is_empty()).then(|| file("<i4", &[self.rows, self.columns], values))
    }
}

fn file(kind: &str, shape: &[usize], values: impl Iterator<Item = u8>) -> Vec<u8> {
    let mut file = npy::header(kind, shape);
    file.extend(values);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_that_of_numpy() {
        // numpy.save of numpy.array([[1.0, 2.0, -0.5]], dtype="<f4")
        let map = Map {
            method: Method::GradCam,
            is_about_class: true,
            rows: 1,
            columns: 3,
            values: vec![1.0, 2.0, -0.5],
            classes: Vec::new(),
        };
        let mut expected =
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3), }".to_vec();
        expected.resize(127, b' ');
        expected.push(b'\n');
        expected.extend([1.0f32, 2.0, -0.5].iter().flat_map(|value| value.to_le_bytes()));
        assert_eq!(map.npy(), expected);
        assert_eq!((map.peak(), map.classes_npy()), ([0, 1], None));
    }
}
