//! The filters of a patch embedding for another patch size: the pseudo-inverse resize of Beyer et al. 2023, FlexiViT, section 3.4.

use rayon::prelude::*;
use vitrine_kernels::Cholesky;

use super::NamedTensor;
use crate::position::Resampling;

/// A patch embedding `[dim, channels, side, side]` for patches of another side.
///
/// A patch that a bicubic filter enlarges to this side has the token that it had before. For smaller patches, tokens are as near to
/// those of the larger ones as they can be on average, over patches of independent values.
pub(super) fn resized(tensor: NamedTensor, side: usize) -> NamedTensor {
    let [dim, channels, rows, columns] = tensor.shape[..] else { return tensor };
    if rows != columns || rows == side || rows == 0 || side == 0 {
        return tensor;
    }
    let matrix = inverse_resize(rows, side);
    let mut values = vec![0.0f32; dim * channels * side * side];
    let filters = tensor.values.par_chunks_exact(rows * rows);
    values.par_chunks_exact_mut(side * side).zip(filters).for_each(|(to, from)| {
        let from: Vec<f64> = from.iter().map(|&value| f64::from(value)).collect();
        // One axis after the other: `matrix * filter`, and that times the transpose of `matrix`.
        let down = product(&matrix, rows, |place, column| from[place * rows + column], [side, rows]);
        let across = product(&matrix, rows, |place, row| down[row * rows + place], [side, side]);
        // The first index of `across` is the column.
        for (index, value) in to.iter_mut().enumerate() {
            *value = across[index % side * side + index / side] as f32;
        }
    });
    NamedTensor { shape: vec![dim, channels, side, side], values, ..tensor }
}

/// The product of a matrix whose rows have `inner` values with another, whose values `right` gives by row and column: `shape`.
fn product(left: &[f64], inner: usize, right: impl Fn(usize, usize) -> f64, shape: [usize; 2]) -> Vec<f64> {
    let [rows, columns] = shape;
    let value = |index: usize| {
        let (row, column) = (index / columns, index % columns);
        left[row * inner..][..inner].iter().enumerate().map(|(place, a)| a * right(place, column)).sum()
    };
    (0..rows * columns).map(value).collect()
}

/// The pseudo-inverse of the transpose of the matrix that resizes one axis: `[to, from]`.
fn inverse_resize(from: usize, to: usize) -> Vec<f64> {
    let resize = Resampling::Antialiased.matrix(from, to);
    let at = |row: usize, column: usize| resize[row * from + column];
    let least = f64::EPSILON;
    if to < from {
        // The rows are independent.
        let gram = product(&resize, from, |place, row| at(row, place), [to, to]);
        let mut right = resize.clone();
        solve(&Cholesky::new(&gram, to, least), &mut right, from);
        return right;
    }
    let transposed: Vec<f64> = (0..from * to).map(|index| at(index % to, index / to)).collect();
    let gram = product(&transposed, to, at, [from, from]);
    let mut right = transposed;
    solve(&Cholesky::new(&gram, from, least), &mut right, to);
    (0..to * from).map(|index| right[index % from * to + index / from]).collect()
}

fn solve(factor: &Cholesky, right: &mut [f64], columns: usize) {
    factor.solve_lower(right, columns);
    factor.solve_upper(right, columns);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The filter of one channel for a patch of this side: sines, so that no value is like another.
    fn filter(side: usize) -> NamedTensor {
        let values = (0..side * side).map(|index| (index as f32 * 0.7).sin()).collect();
        NamedTensor { name: "patch_embed.proj.weight".to_owned(), shape: vec![1, 1, side, side], values }
    }

    fn dot(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn an_enlarged_patch_has_the_same_token() {
        let patch: Vec<f32> = (0..36).map(|index| (index as f32 * 1.3).cos()).collect();
        for side in [7, 8, 12, 15] {
            let larger = resized(filter(6), side);
            assert_eq!(larger.shape, [1, 1, side, side]);
            let enlarged = Resampling::Antialiased.resample(&patch, [6, 6], [side, side]);
            let [small, large] = [dot(&filter(6).values, &patch), dot(&larger.values, &enlarged)];
            assert!((small - large).abs() < 1e-4, "{side}: {large} for {small}");
        }
    }

    #[test]
    fn filters_of_other_patches_are_timms() {
        // timm.layers.resample_patch_embed(filter, [2, 2]) for the filter of side 4.
        let [smaller, larger] = [2, 5].map(|side| resized(filter(4), side).values);
        assert_eq!([smaller.len(), larger.len()], [4, 25]);
        for (ours, theirs) in smaller.iter().zip(TIMM_2) {
            assert!((ours - theirs).abs() < 1e-5, "{ours} for {theirs}");
        }
        for (ours, theirs) in larger.iter().zip(TIMM_5) {
            assert!((ours - theirs).abs() < 1e-5, "{ours} for {theirs}");
        }
    }

    const TIMM_2: [f32; 4] = [0.281572, 0.662524, 0.580258, -0.456574];
    /// The first row.
    const TIMM_5: [f32; 5] = [-0.188366, 0.330559, 0.815454, 0.967940, 0.861961];
}
