//! Tiles of neighboring queries: the tokens that they read, and the pairs of a tile that do not attend to each other.

use crate::cpu::gemm::{Matrix, MatrixMut};
use crate::cpu::simd::add;
use crate::neighbors::Neighborhood;
use std::ops::Range;

/// Rows of the queries of a tile.
pub(super) const ROWS: usize = 4;

/// Columns of the queries of a tile.
const COLUMNS: usize = 8;

/// Neighboring queries, and the smallest block of the grid that holds all of their neighborhoods.
pub(super) struct Tile {
    neighborhood: Neighborhood,
    /// Rows and columns of the queries.
    queries: [Range<usize>; 2],
    /// Rows and columns of the keys, apart from the prefix.
    keys: [Range<usize>; 2],
}

impl Tile {
    /// The most queries and the most keys of a tile.
    pub(super) fn largest(neighborhood: &Neighborhood) -> [usize; 2] {
        let [rows, columns] = [(0, ROWS), (1, COLUMNS)]
            .map(|(axis, side)| (2 * neighborhood.radius + side).min(neighborhood.grid[axis]));
        [ROWS * COLUMNS, neighborhood.prefix + rows * columns]
    }

    /// The tiles of these rows of the grid.
    pub(super) fn of_rows(neighborhood: Neighborhood, rows: Range<usize>) -> impl Iterator<Item = Self> {
        let columns = neighborhood.grid[1];
        rows.clone().step_by(ROWS).flat_map(move |row| {
            let rows = row..(row + ROWS).min(rows.end);
            (0..columns).step_by(COLUMNS).map(move |column| {
                let queries = [rows.clone(), column..(column + COLUMNS).min(columns)];
                let keys = [0, 1].map(|axis| {
                    let Range { start, end } = queries[axis];
                    // Neighborhoods begin and end in the order of their patches.
                    neighborhood.span(axis, start).start..neighborhood.span(axis, end - 1).end
                });
                Self { neighborhood, queries, keys }
            })
        })
    }

    /// The tokens of the queries, in the order of the rows of scores.
    pub(super) fn query_tokens(&self) -> impl Iterator<Item = usize> + use<> {
        patches(&self.neighborhood, &self.queries)
    }

    /// The tokens of the keys, in the order of the columns of scores.
    pub(super) fn key_tokens(&self) -> impl Iterator<Item = usize> + use<> {
        (0..self.neighborhood.prefix).chain(patches(&self.neighborhood, &self.keys))
    }

    /// Sets the scores of the keys that lie outside the neighborhood of a query to minus infinity, in rows of `width`.
    pub(super) fn hide(&self, scores: &mut [f32], width: usize) {
        let neighborhood = &self.neighborhood;
        let [key_rows, key_columns] = &self.keys;
        let mut rows = scores.chunks_exact_mut(width);
        for row in self.queries[0].clone() {
            let near_rows = neighborhood.span(0, row);
            for (column, scores) in self.queries[1].clone().zip(&mut rows) {
                let near = neighborhood.span(1, column);
                let near = near.start - key_columns.start..near.end - key_columns.start;
                let scores = scores[neighborhood.prefix..].chunks_exact_mut(key_columns.len());
                for (key_row, scores) in key_rows.clone().zip(scores) {
                    if near_rows.contains(&key_row) {
                        scores[..near.start].fill(f32::NEG_INFINITY);
                        scores[near.end..].fill(f32::NEG_INFINITY);
                    } else {
                        scores.fill(f32::NEG_INFINITY);
                    }
                }
            }
        }
    }
}

/// The tokens of the patches in these rows and columns, row by row.
fn patches(
    neighborhood: &Neighborhood,
    [rows, columns]: &[Range<usize>; 2],
) -> impl Iterator<Item = usize> + use<> {
    let (prefix, [_, width], columns) = (neighborhood.prefix, neighborhood.grid, columns.clone());
    rows.clone().flat_map(move |row| columns.clone().map(move |column| prefix + row * width + column))
}

/// Copies the rows of these tokens to `memory`, one after the other.
pub(super) fn gather<'s>(
    rows: Matrix<'_>,
    tokens: impl Iterator<Item = usize>,
    memory: &'s mut [f32],
) -> Matrix<'s> {
    let columns = rows.columns;
    let mut count = 0;
    for (token, row) in tokens.zip(memory.chunks_exact_mut(columns)) {
        row.copy_from_slice(rows.row(token));
        count += 1;
    }
    Matrix::new(memory, [count, columns], [columns, 1])
}

/// Adds `rows`, which lie one after the other, to the rows of these tokens.
pub(super) fn scatter(target: &mut MatrixMut<'_>, tokens: impl Iterator<Item = usize>, rows: &[f32]) {
    for (token, row) in tokens.zip(rows.chunks_exact(target.columns)) {
        add(target.row_mut(token), row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::neighbors::Border;

    #[test]
    fn every_patch_is_a_query_of_one_tile_which_has_all_of_its_neighbors() {
        for border in [Border::Cut, Border::Moved] {
            for (grid, radius) in [([9, 17], 3), ([5, 4], 1), ([1, 7], 2), ([4, 3], 9)] {
                let neighborhood = Neighborhood { grid, prefix: 2, radius, border };
                let mut seen = vec![0; neighborhood.tokens()];
                for tile in Tile::of_rows(neighborhood, 0..grid[0]) {
                    let [queries, keys] = Tile::largest(&neighborhood);
                    let tokens: Vec<usize> = tile.key_tokens().collect();
                    assert!(tile.query_tokens().count() <= queries && tokens.len() <= keys);
                    let mut scores = vec![0.0; tile.query_tokens().count() * tokens.len()];
                    tile.hide(&mut scores, tokens.len());
                    for (token, scores) in tile.query_tokens().zip(scores.chunks(tokens.len())) {
                        seen[token] += 1;
                        let near = tokens.iter().zip(scores).filter(|(_, score)| **score == 0.0);
                        let near: Vec<usize> = near.map(|(&token, _)| token).collect();
                        let place = [(token - 2) / grid[1], (token - 2) % grid[1]];
                        let spans = [0, 1].map(|axis| neighborhood.span(axis, place[axis]));
                        let expected: Vec<usize> =
                            [0, 1].into_iter().chain(patches(&neighborhood, &spans)).collect();
                        assert_eq!(near, expected, "{neighborhood:?}, token {token}");
                    }
                }
                assert!(seen[..2] == [0, 0] && seen[2..].iter().all(|&count| count == 1));
            }
        }
    }
}
