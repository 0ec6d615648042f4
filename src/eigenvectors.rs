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

/// The `count` largest eigenvalues of a positive semidefinite matrix of `dim` rows and as many columns, largest first, or all
/// of them if there are fewer. Vectors whose eigenvalues are nearly equal may be any that span the same space.
pub(crate) fn leading(matrix: &[f64], dim: usize, count: usize) -> Vec<Eigenpair> {
    let mut found: Vec<Eigenpair> = Vec::new();
    for _ in 0..count.min(dim) {
        let vector = next(matrix, dim, &found);
        found.push(Eigenpair { value: dot(&product(matrix, &vector), &vector), vector });
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

/// Makes a vector orthogonal to those `found`, and its length 1. `false` if nothing is left of it, which then stays.
fn orthonormalize(vector: &mut [f64], found: &[Eigenpair]) -> bool {
    for other in found {
        let share = dot(vector, &other.vector);
        vector.iter_mut().zip(&other.vector).for_each(|(entry, other)| *entry -= share * other);
    }
    let length = dot(vector, vector).sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|entry| *entry /= length);
    }
    length > 0.0
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
    fn a_matrix_without_rank_has_vectors_too() {
        let pairs = leading(&[1.0, 0.0, 0.0, 0.0], 2, 2);
        assert_eq!(pairs.iter().map(|pair| pair.value).collect::<Vec<_>>(), [1.0, 0.0]);
        assert!(dot(&pairs[0].vector, &pairs[1].vector).abs() < 1e-12);
    }
}
