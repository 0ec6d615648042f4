//! Embeddings of images, a row per image.

/// Embeddings of images with the names of the images.
///
/// # Examples
///
/// ```
/// use vitrine::embed::Embeddings;
///
/// let mut embeddings = Embeddings::new(2);
/// embeddings.push("a.png".to_owned(), &[3.0, 4.0]);
/// embeddings.normalize();
/// assert_eq!((embeddings.len(), embeddings.row(0)), (1, &[0.6, 0.8][..]));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Embeddings {
    /// The name of each image, usually its path, in the order of the rows.
    pub paths: Vec<String>,
    /// The embeddings, row by row: `[images, dim]`. All are finite.
    pub values: Vec<f32>,
    /// The width of an embedding.
    pub dim: usize,
}

impl Embeddings {
    /// No embeddings yet, of a width of `dim`.
    pub fn new(dim: usize) -> Self {
        Self { paths: Vec::new(), values: Vec::new(), dim }
    }

    /// Adds the embedding of an image.
    ///
    /// # Shapes
    /// - embedding: `[dim]`
    ///
    /// # Panics
    /// If the embedding has another width.
    pub fn push(&mut self, path: String, embedding: &[f32]) {
        assert_eq!(embedding.len(), self.dim, "the width of an embedding");
        self.paths.push(path);
        self.values.extend_from_slice(embedding);
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// The embedding of an image: `[dim]`.
    ///
    /// # Panics
    /// If there is no such image.
    pub fn row(&self, index: usize) -> &[f32] {
        &self.values[index * self.dim..(index + 1) * self.dim]
    }

    /// Scales each row to a length of 1 (L2). A row of zeros stays as it is.
    pub fn normalize(&mut self) {
        for row in self.values.chunks_exact_mut(self.dim.max(1)) {
            normalize(row);
        }
    }
}

/// Scales a vector to a length of 1 (L2), unless it is zero.
pub fn normalize(row: &mut [f32]) {
    let length = length(row);
    if length > 0.0 {
        row.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}

/// The length of a vector (L2).
pub(super) fn length(row: &[f32]) -> f64 {
    row.iter().map(|&value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_length_one_unless_they_are_zero_however_large_they_are() {
        let mut embeddings = Embeddings::new(2);
        embeddings.push("a".to_owned(), &[3e30, 4e30]);
        embeddings.push("b".to_owned(), &[0.0, 0.0]);
        embeddings.push("c".to_owned(), &[0.0, -1e-30]);
        embeddings.normalize();
        for (found, expected) in embeddings.values.iter().zip([0.6, 0.8, 0.0, 0.0, 0.0, -1.0]) {
            assert!((found - expected).abs() < 1e-6, "{:?}", embeddings.values);
        }
        assert_eq!(embeddings.len(), 3);
    }
}
