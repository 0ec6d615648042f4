//! The leading eigenvectors of a symmetric matrix, by power iteration.

/// The most steps of the iteration for an eigenvector.
const STEPS: usize = 4000;
/// The change of a vector of length 1 in a step, below which the iteration ends.
const CONVERGED: f64 = 1e-12;

/// An eigenvalue with its eigenvector.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Eigenpair {
    /// The eigenvalue.
    pub(crate) value: f64,
    /// The vector, of length 1; its largest entry is positive.
    pub(crate) vector: Vec<f64>,
}

/// The share of the largest eigenvalue below which one counts as zero.
const NEGLIGIBLE: f64 = 1e-12;
/// The share of a vector below which what is left of it is rounding.
const ROUNDING: f64 = 1e-10;

/// The `count` largest eigenvalues of a positive semidefinite matrix of `dim` rows and as many columns, largest first, or all
/// that are not zero if there are fewer. Vectors whose eigenvalues are nearly equal may be any that span the same space.
pub(crate) fn leading(matrix: &[f64], dim: usize, count: usize) -> Vec<Eigenpair> {
    let mut found: Vec<Eigenpair> = Vec::new();
    for _ in 0..count.min(dim) {
        let vector = next(matrix, dim, &found);
        let value = dot(&product(matrix, &vector), &vector);
        if value <= NEGLIGIBLE * found.first().map_or(0.0, |first| first.value) {
            break;
        }
        found.push(Eigenpair { value, vector });
    }
    found
}

/// The eigenvector of the largest eigenvalue among the vectors that are orthogonal to those `found`.
fn next(matrix: &[f64], dim: usize, found: &[Eigenpair]) -> Vec<f64> {
    // A start that no symmetry of the data makes orthogonal to the result.
    let mut vector: Vec<f64> = (0..dim).map(|place| 1.0 + (place as f64 * 0.754_877_666).fract()).collect();
    orthonormalize(&mut vector, found);
    for _ in 0..STEPS {
        let mut next = product(matrix, &vector);
        if !orthonormalize(&mut next, found) {
            break;
        }
        let change = next.iter().zip(&vector).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        vector = next;
        if change < CONVERGED {
            break;
        }
    }
    let largest = vector
        .iter()
        .copied()
        .fold(0.0, |largest: f64, entry| if entry.abs() > largest.abs() { entry } else { largest });
    if largest < 0.0 {
        vector.iter_mut().for_each(|entry| *entry = -*entry);
    }
    vector
}

/// Makes a vector orthogonal to those `found`, and its length 1. `false` if nothing but rounding is left of it.
fn orthonormalize(vector: &mut [f64], found: &[Eigenpair]) -> bool {
    let before = length(vector);
    // Twice, because the first pass leaves the rounding of what it takes away.
    for other in found.iter().chain(found) {
        let share = dot(vector, &other.vector);
        vector.iter_mut().zip(&other.vector).for_each(|(entry, other)| *entry -= share * other);
    }
    let length = length(vector);
    if length > 0.0 {
        vector.iter_mut().for_each(|entry| *entry /= length);
    }
    length > ROUNDING * before
}

fn length(vector: &[f64]) -> f64 {
    dot(vector, vector).sqrt()
}

/// A symmetric matrix times a vector.
fn product(matrix: &[f64], vector: &[f64]) -> Vec<f64> {
    matrix.chunks_exact(vector.len()).map(|row| dot(row, vector)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_those_of_the_matrix_largest_first() {
        // numpy.linalg.eigh: 4.7320508, 3.0, 1.2679492.
        let matrix = [2.0, -1.0, 0.0, -1.0, 3.0, -1.0, 0.0, -1.0, 4.0];
        let pairs = leading(&matrix, 3, 5);
        assert_eq!(pairs.len(), 3);
        for (pair, value) in pairs.iter().zip([3.0 + 3f64.sqrt(), 3.0, 3.0 - 3f64.sqrt()]) {
            assert!((pair.value - value).abs() < 1e-9, "{pair:?}");
            let image = product(&matrix, &pair.vector);
            for (image, entry) in image.iter().zip(&pair.vector) {
                assert!((image - value * entry).abs() < 1e-6, "{pair:?}");
            }
        }
    }

    #[test]
    fn a_matrix_has_as_many_vectors_as_its_rank_and_they_are_orthogonal() {
        assert_eq!(leading(&[0.0; 4], 2, 2), []);
        assert_eq!(leading(&[1.0, 0.0, 0.0, 0.0], 2, 2).len(), 1);
        // The covariance of gray patches in three equal channels.
        let gray: Vec<Vec<f64>> = (0..40usize)
            .map(|patch| (0..9).map(|place| ((patch * 9 + place).pow(2) as f64 * 0.37).sin() + 0.3).collect())
            .collect();
        let at = |a: usize, b: usize| gray.iter().map(|patch| patch[a % 9] * patch[b % 9]).sum::<f64>();
        let matrix: Vec<f64> = (0..27 * 27).map(|place| at(place / 27, place % 27)).collect();
        let pairs = leading(&matrix, 27, 16);
        assert_eq!(pairs.len(), 9);
        for (index, pair) in pairs.iter().enumerate() {
            let overlaps = pairs[..index].iter().map(|other| dot(&pair.vector, &other.vector).abs());
            assert!(overlaps.fold(0.0, f64::max) < 1e-9, "{index}");
        }
    }
}
