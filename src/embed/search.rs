//! Exact search for the rows with the largest cosine similarity.
//!
//! ```text
//! for block of ROWS rows, in parallel:        the block stays in the level-2 cache
//!     for group of GROUP queries:
//!         for row of the block:
//!             dot products of the row with the group
//!             the best `top` of each query keep the row if it beats their worst
//! merge the best of all blocks
//! ```

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use rayon::prelude::*;

use super::embeddings::{Embeddings, length};

/// The rows of a block.
const ROWS: usize = 256;
/// The queries whose products with a row are computed together.
const GROUP: usize = 4;

/// A row that is similar to a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbor {
    /// The index of the row.
    pub index: usize,
    /// The cosine of the angle between the row and the query, from -1 to 1; 0 if one of them is zero.
    pub similarity: f32,
}

impl Eq for Neighbor {}

impl Ord for Neighbor {
    /// The better of two is the less: the one with the larger similarity, or the smaller index.
    fn cmp(&self, other: &Self) -> Ordering {
        other.similarity.total_cmp(&self.similarity).then(self.index.cmp(&other.index))
    }
}

impl PartialOrd for Neighbor {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The best neighbors of a query so far, at most `top`. The worst of them is on top of the heap.
#[derive(Clone)]
struct Best {
    heap: BinaryHeap<Neighbor>,
    top: usize,
}

impl Best {
    /// Keeps a neighbor if it is among the best and `allowed`.
    fn offer(&mut self, neighbor: Neighbor, allowed: impl Fn() -> bool) {
        let is_full = self.heap.len() >= self.top;
        if is_full && self.heap.peek().is_none_or(|worst| neighbor >= *worst) || !allowed() {
            return;
        }
        if is_full {
            self.heap.pop();
        }
        self.heap.push(neighbor);
    }
}

impl Embeddings {
    /// For each query the `top` rows with the largest cosine similarity, the most similar one first, and of equal ones the
    /// one with the smaller index. All rows are compared, on all threads; the result does not depend on their number.
    ///
    /// `allowed` is asked about the index of a query and that of a row that would be among the best so far, and keeps the
    /// row out by `false`: for example, if it is the query itself.
    ///
    /// # Panics
    /// If the queries have another width.
    ///
    /// # Examples
    ///
    /// ```
    /// use vitrine::embed::Embeddings;
    ///
    /// let mut images = Embeddings::new(2);
    /// for (name, embedding) in [("right", [1.0, 0.0]), ("up", [0.0, 2.0]), ("both", [3.0, 3.0])] {
    ///     images.push(name.to_owned(), &embedding);
    /// }
    /// let found = &images.nearest(&images, 1, |query, row| query != row)[0];
    /// assert_eq!(images.paths[found[0].index], "both");
    /// assert!((found[0].similarity - 0.5f32.sqrt()).abs() < 1e-6);
    /// ```
    pub fn nearest(
        &self,
        queries: &Self,
        top: usize,
        allowed: impl Fn(usize, usize) -> bool + Sync,
    ) -> Vec<Vec<Neighbor>> {
        assert_eq!(queries.dim, self.dim, "the width of queries and rows");
        let mut unit = queries.clone();
        unit.normalize();
        let none = || vec![Best { heap: BinaryHeap::new(), top }; unit.len()];
        if top == 0 || self.dim == 0 {
            return vec![Vec::new(); unit.len()];
        }
        let searched = |mut best: Vec<Best>, (block, rows): (usize, &[f32])| {
            search(&unit, rows, block * ROWS, &allowed, &mut best);
            best
        };
        let merged = |mut a: Vec<Best>, b: Vec<Best>| {
            for (a, b) in a.iter_mut().zip(b) {
                b.heap.into_iter().for_each(|neighbor| a.offer(neighbor, || true));
            }
            a
        };
        let blocks = self.values.par_chunks(ROWS * self.dim).enumerate();
        let best = blocks.fold(none, searched).reduce(none, merged);
        best.into_iter().map(|best| best.heap.into_sorted_vec()).collect()
    }
}

/// Offers the rows of a block, which begins with row `first`, to the best of each query.
///
/// # Shapes
/// - unit: `[queries, dim]`, of length 1
/// - rows: `[rows, dim]`
/// - best: `[queries]`
fn search(
    unit: &Embeddings,
    rows: &[f32],
    first: usize,
    allowed: &impl Fn(usize, usize) -> bool,
    best: &mut [Best],
) {
    let dim = unit.dim;
    let scales: Vec<f64> = rows.chunks_exact(dim).map(|row| inverse(length(row))).collect();
    for start in (0..unit.len()).step_by(GROUP) {
        let last = unit.len() - 1;
        // The last group is filled up with the last query, whose surplus products are not used.
        let group: [&[f32]; GROUP] = std::array::from_fn(|place| unit.row((start + place).min(last)));
        for (place, row) in rows.chunks_exact(dim).enumerate() {
            let products = vitrine_kernels::dot_products(row, group);
            let queries = best[start..].iter_mut().zip(products).enumerate();
            for (query, (best, product)) in queries {
                let similarity = (f64::from(product) * scales[place]).clamp(-1.0, 1.0) as f32;
                let neighbor = Neighbor { index: first + place, similarity };
                best.offer(neighbor, || allowed(start + query, neighbor.index));
            }
        }
    }
}

fn inverse(length: f64) -> f64 {
    if length > 0.0 { 1.0 / length } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Embeddings of pseudo-random values from -1 to 1, the same for the same seed.
    fn random(rows: usize, dim: usize, seed: u64) -> Embeddings {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        let mut embeddings = Embeddings::new(dim);
        for row in 0..rows {
            embeddings.push(row.to_string(), &(0..dim).map(|_| next()).collect::<Vec<_>>());
        }
        embeddings
    }

    /// The same by the definition: all similarities in double precision, sorted.
    fn by_definition(rows: &Embeddings, query: &[f32], top: usize) -> Vec<(usize, f64)> {
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let cosine = |row: &[f32]| dot(row, query) / (dot(row, row) * dot(query, query)).sqrt();
        let mut all: Vec<(usize, f64)> =
            (0..rows.len()).map(|index| (index, cosine(rows.row(index)))).collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(top);
        all
    }

    #[test]
    fn the_neighbors_are_those_of_a_full_sort_for_widths_and_numbers_of_queries_that_fill_no_group() {
        for (rows, dim, queries) in [(1000, 19, 7), (3, 8, 1), (257, 1, 4), (600, 64, 9)] {
            let (images, queries) = (random(rows, dim, 1), random(queries, dim, 2));
            let found = images.nearest(&queries, 5, |_, _| true);
            assert_eq!(found.len(), queries.len());
            for (query, found) in found.iter().enumerate() {
                let expected = by_definition(&images, queries.row(query), 5);
                assert_eq!(found.len(), expected.len());
                for (found, (index, similarity)) in found.iter().zip(expected) {
                    assert!((f64::from(found.similarity) - similarity).abs() < 1e-6);
                    // With one dimension, all similarities are 1 or -1.
                    assert!(dim == 1 || found.index == index, "{found:?} instead of {index}");
                }
            }
        }
    }

    #[test]
    fn equal_rows_come_in_their_order_and_zeros_are_similar_to_nothing() {
        let mut images = Embeddings::new(2);
        for row in [[0.0, 0.0], [2.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [3.0, 0.0]] {
            images.push(String::new(), &row);
        }
        let indices = |found: &[Neighbor]| found.iter().map(|neighbor| neighbor.index).collect::<Vec<_>>();
        let mut query = Embeddings::new(2);
        query.push(String::new(), &[5.0, 0.0]);
        let found = &images.nearest(&query, 9, |_, _| true)[0];
        assert_eq!(indices(found), [1, 2, 4, 0, 3]);
        assert_eq!(
            found.iter().map(|found| found.similarity).collect::<Vec<_>>(),
            [1.0, 1.0, 1.0, 0.0, -1.0]
        );
        let without = &images.nearest(&query, 2, |_, row| row != 1)[0];
        assert_eq!(indices(without), [2, 4]);
        assert!(images.nearest(&query, 0, |_, _| true)[0].is_empty());
        assert!(Embeddings::new(2).nearest(&query, 3, |_, _| true)[0].is_empty());
        assert!(images.nearest(&Embeddings::new(2), 3, |_, _| true).is_empty());
    }
}
