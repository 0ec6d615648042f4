//! Wide embeddings of few images, as their places within what these images span.

use rayon::prelude::*;
use vitrine_kernels::{Cholesky, DoubleMatrix, add_product};

use super::Embeddings;

/// The share of the mean squared length of the images by which images count as different: copies would otherwise be told apart by rounding.
const ROUNDING: f64 = 1e-6;
/// The rows that are held in float64 at a time, on one thread.
const ROWS: usize = 64;

/// The directions in which some images differ from their mean, fewer than there are images: `L^-1 X`, where `X` holds a row for each image
/// without the mean, and `L L^T = X X^T`. Their places in these directions are as far apart, and at the same angles, as the embeddings.
///
/// # Examples
///
/// ```
/// use vitrine::embed::{Embeddings, Span};
///
/// let mut wide = Embeddings::new(1000);
/// for image in 0..3 {
///     let mut row = vec![1.0; 1000];
///     row[image] = 5.0;
///     wide.push(image.to_string(), &row);
/// }
/// let places = Span::of(&wide).places(&wide);
/// assert_eq!(places.dim, 3);
/// let distance = |a: usize, b: usize| places.row(a).iter().zip(places.row(b)).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
/// assert!((distance(0, 1) - 32.0).abs() < 1e-3 && (distance(1, 2) - 32.0).abs() < 1e-3);
/// ```
#[derive(Clone, Debug)]
pub struct Span {
    mean: Vec<f64>,
    /// The images without the mean, `[images, dim]`.
    images: Vec<f64>,
    factor: Cholesky,
}

impl Span {
    /// The most images that are worth spanning: for each, a place has a value, and an image that is placed is compared with it.
    pub const MOST_IMAGES: usize = 2048;

    /// The span of some images.
    pub fn of(embeddings: &Embeddings) -> Self {
        let (count, mean) = (embeddings.len(), embeddings.mean());
        let images = deviations(&embeddings.values, &mean);
        let mut products = vec![0.0; count * count];
        multiply(&mut products, &images, &images, mean.len());
        let trace: f64 = products.iter().step_by(count + 1).sum();
        let least = (ROUNDING * trace / count.max(1) as f64).max(f64::MIN_POSITIVE);
        products.iter_mut().step_by(count + 1).for_each(|square| *square += least);
        Self { mean, images, factor: Cholesky::new(&products, count, least) }
    }

    /// The width of the embeddings.
    pub fn dim(&self) -> usize {
        self.mean.len()
    }

    /// The places of images, as embeddings with a value for each image of the span. What of another image lies outside the span is left
    /// out.
    ///
    /// # Panics
    /// If the embeddings have another width.
    pub fn places(&self, embeddings: &Embeddings) -> Embeddings {
        let dim = self.dim();
        assert_eq!(embeddings.dim, dim, "the width of the embeddings");
        let count = self.images.len() / dim.max(1);
        let mut values = vec![0.0; embeddings.len() * count];
        let rows = values.par_chunks_mut((ROWS * count).max(1)).zip(embeddings.values.par_chunks(ROWS * dim));
        rows.for_each(|(places, rows)| {
            let images = rows.len() / dim;
            // A column per image.
            let mut products = vec![0.0; count * images];
            let others = deviations(rows, &self.mean);
            let own = DoubleMatrix::new(&self.images, [count, dim], dim);
            add_product(&mut products, 1.0, own, DoubleMatrix::new(&others, [images, dim], dim).transposed());
            self.factor.solve_lower(&mut products, images);
            for (image, place) in places.chunks_exact_mut(count).enumerate() {
                place
                    .iter_mut()
                    .enumerate()
                    .for_each(|(at, value)| *value = products[at * images + image] as f32);
            }
        });
        Embeddings { paths: embeddings.paths.clone(), values, dim: count }
    }
}

/// The rows without the mean.
fn deviations(rows: &[f32], mean: &[f64]) -> Vec<f64> {
    let (mut deviations, width) = (vec![0.0; rows.len()], mean.len().max(1));
    deviations.par_chunks_exact_mut(width).zip(rows.par_chunks_exact(width)).for_each(|(deviations, row)| {
        let values = row.iter().zip(mean);
        deviations
            .iter_mut()
            .zip(values)
            .for_each(|(deviation, (value, mean))| *deviation = f64::from(*value) - mean);
    });
    deviations
}

/// `out += rows * others^T`, for matrices whose rows have `dim` values.
fn multiply(out: &mut [f64], rows: &[f64], others: &[f64], dim: usize) {
    let columns = others.len() / dim.max(1);
    let others = DoubleMatrix::new(others, [columns, dim], dim).transposed();
    let parts = out.par_chunks_mut((ROWS * columns).max(1)).zip(rows.par_chunks((ROWS * dim).max(1)));
    parts.for_each(|(out, rows)| {
        add_product(out, 1.0, DoubleMatrix::new(rows, [rows.len() / dim, dim], dim), others);
    });
}

/// Embeddings that are placed as they come, within the span of the first of them, so that few are held in full.
#[derive(Clone, Debug)]
pub struct Placing {
    span: Option<Span>,
    /// Those that are not placed yet.
    waiting: Embeddings,
    places: Embeddings,
}

impl Placing {
    /// No embeddings yet, of a width of `dim`.
    pub fn new(dim: usize) -> Self {
        Self { span: None, waiting: Embeddings::new(dim), places: Embeddings::default() }
    }

    /// Adds the embedding of an image.
    ///
    /// # Panics
    /// If it has another width.
    pub fn push(&mut self, path: String, embedding: &[f32]) {
        self.waiting.push(path, embedding);
        let enough = if self.span.is_some() { ROWS } else { Span::MOST_IMAGES };
        if self.waiting.len() >= enough {
            self.place();
        }
    }

    /// The span, and the places of all images in it.
    pub fn finish(mut self) -> (Span, Embeddings) {
        self.place();
        (self.span.expect("there is one as soon as images are placed"), self.places)
    }

    fn place(&mut self) {
        let empty = Embeddings::new(self.waiting.dim);
        let waiting = std::mem::replace(&mut self.waiting, empty);
        let span = self.span.get_or_insert_with(|| Span::of(&waiting));
        let placed = span.places(&waiting);
        self.places.dim = placed.dim;
        self.places.paths.extend(placed.paths);
        self.places.values.extend(placed.values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embed::Whitening;

    /// Images that differ in all of 300 directions, most in the first ones.
    fn wide(count: usize) -> Embeddings {
        let mut images = Embeddings::new(300);
        for image in 0..count {
            let value = |place: usize| {
                let noise = ((image * 7919 + place * 104_729) % 1013) as f32 / 1013.0;
                2.0 + noise / (1.0 + place as f32).sqrt()
            };
            images.push(image.to_string(), &(0..300).map(value).collect::<Vec<f32>>());
        }
        images
    }

    fn cosine(a: &[f32], b: &[f32]) -> f32 {
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        product(a, b) / (product(a, a) * product(b, b)).sqrt()
    }

    #[test]
    fn whitened_places_are_as_alike_as_whitened_embeddings() {
        let mut full = wide(60);
        let places = &mut Span::of(&full).places(&full);
        Whitening::within(places, 300).unwrap().apply(places);
        Whitening::of(&full).unwrap().apply(&mut full);
        for (a, b) in [(0, 1), (3, 59), (17, 18), (30, 5)] {
            let (expected, found) = (cosine(full.row(a), full.row(b)), cosine(places.row(a), places.row(b)));
            assert!((expected - found).abs() < 1e-3, "{a} and {b}: {expected}, {found}");
        }
    }

    #[test]
    fn images_placed_later_are_compared_with_the_first_ones_as_if_they_were_in_full() {
        let (first, all) = (Span::MOST_IMAGES, Span::MOST_IMAGES + ROWS + 3);
        // Two directions, which the first images span.
        let row = |image: usize| [(image % 13) as f32, (image % 7) as f32, 1.0];
        let mut placing = Placing::new(3);
        (0..all).for_each(|image| placing.push(image.to_string(), &row(image)));
        let (span, places) = placing.finish();
        assert_eq!((places.len(), places.dim, span.dim()), (all, first, 3));
        assert_eq!(places.paths[first + 5], (first + 5).to_string());
        let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
        for (a, b) in [(3, first + 1), (first + 2, all - 1), (100, 200)] {
            let (expected, found) = (distance(&row(a), &row(b)), distance(places.row(a), places.row(b)));
            assert!((expected - found).abs() < 1e-2 * (1.0 + expected), "{a} and {b}: {expected}, {found}");
        }
    }

    #[test]
    fn copies_have_the_same_place_and_no_images_have_none() {
        let mut images = wide(30);
        let copy = images.row(4).to_vec();
        images.push("copy".to_owned(), &copy);
        let places = Span::of(&images).places(&images);
        assert!(cosine(places.row(4), places.row(30)) > 0.999_99);
        let (span, places) = Placing::new(300).finish();
        assert!(places.is_empty() && span.places(&images).values.is_empty());
    }
}
