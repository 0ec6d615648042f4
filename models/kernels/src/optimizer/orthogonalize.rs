//! Orthogonalized matrices, by which Muon updates parameters: the singular vectors of the input, with singular values
//! around 1.

#[cfg(feature = "flex")]
use crate::cpu::{flex, optimizer as fused};
use burn::tensor::Tensor;

/// The factors of x, x³ and x⁵ in the polynomial that each iteration applies (Jordan et al. 2024,
/// <https://kellerjordan.github.io/posts/muon/>).
const POLYNOMIAL: [f32; 3] = [3.4445, -4.7750, 2.0315];
/// The least norm by which a matrix is divided.
const EPSILON: f32 = 1e-7;

/// Matrices with the singular vectors of the matrices in `x` and singular values around 1, by so many iterations of Newton and
/// Schulz. Autodiff does not follow it.
///
/// Five iterations leave singular values between 0.68 and 1.21, but for those that were below 0.0016 times the norm of the matrix (the root
/// of the sum of its squares), which stay smaller. With three, it is those below 0.018 times the norm.
///
/// # Shapes
///
/// - x, output: `[matrices, rows, columns]`
///
/// # Panics
/// If `iterations` is 0.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<3>::from_floats([[[3.0, 0.0], [0.0, -0.2]]], &Device::default());
/// let y = vitrine_kernels::orthogonalize(x, 5).into_data().try_into_vec_as::<f32>()?;
/// let [a, b, c, d]: [f32; 4] = y[..].try_into()?;
/// assert!((0.68..1.21).contains(&a) && (0.68..1.21).contains(&-d) && b == 0.0 && c == 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn orthogonalize(x: Tensor<3>, iterations: usize) -> Tensor<3> {
    assert!(iterations > 0, "without an iteration, nothing is orthogonalized");
    #[cfg(feature = "flex")]
    if flex::takes_untracked(&x) {
        return fused::orthogonalize(x, POLYNOMIAL, iterations, EPSILON);
    }
    orthogonalize_composed(x, iterations)
}

/// The definition of [`orthogonalize`], in burn's own operations.
pub fn orthogonalize_composed(x: Tensor<3>, iterations: usize) -> Tensor<3> {
    let [_, rows, columns] = x.dims();
    if rows > columns {
        // The products are smaller on this side.
        return orthogonalize_composed(x.swap_dims(1, 2), iterations).swap_dims(1, 2);
    }
    let norm = x.clone().square().sum_dims(&[1, 2]).sqrt().clamp_min(EPSILON);
    let mut x = x / norm;
    let [a, b, c] = POLYNOMIAL;
    for _ in 0..iterations {
        let square = x.clone().matmul(x.clone().swap_dims(1, 2)); // [matrices, rows, rows]
        let fourth = square.clone().matmul(square.clone());
        let polynomial = square.mul_scalar(b) + fourth.mul_scalar(c);
        x = polynomial.matmul(x.clone()) + x.mul_scalar(a);
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, Distribution};

    #[test]
    fn singular_values_end_around_one() {
        let device = Device::default();
        for [rows, columns] in [[4, 40], [40, 4], [1, 7], [1, 1]] {
            let x = Tensor::<3>::random([2, rows, columns], Distribution::Normal(0.0, 3.0), &device);
            let result = orthogonalize(x.clone(), 5);
            assert_eq!(result.dims(), [2, rows, columns]);
            let wide = |x: Tensor<3>| if rows > columns { x.swap_dims(1, 2) } else { x };
            let (result, x) = (wide(result), wide(x));
            let small = rows.min(columns);
            let error = result.clone().matmul(result.clone().swap_dims(1, 2))
                - Tensor::<2>::eye(small, &device).unsqueeze::<3>();
            // The squares of singular values are between 0.68² and 1.2².
            assert!(error.abs().max().into_scalar::<f32>() < 0.6, "{rows} x {columns}");
            // Each vector of the smaller side keeps its direction: the result is the nearest orthogonal matrix, not
            // any.
            let signs = (result * x).sum_dim(2).min().into_scalar::<f32>();
            assert!(signs > 0.0, "{rows} x {columns}");
        }
        let zeros = Tensor::<3>::zeros([1, 3, 5], &device);
        assert_eq!(orthogonalize(zeros.clone(), 5).into_data(), zeros.into_data());
    }

    #[test]
    fn iterations_are_enough_for_singular_values_of_a_share_of_the_norm() {
        let device = Device::default();
        // A diagonal matrix has its own values as singular values; the large one makes the norm 1.
        for (iterations, least) in [(3, 0.018), (5, 0.0016)] {
            let [just_enough, too_small] = [1.0, 0.4].map(|factor: f32| {
                let x = Tensor::<3>::from_floats([[[1.0, 0.0], [0.0, factor * least]]], &device);
                let y: Vec<f32> = orthogonalize(x, iterations).into_data().iter::<f32>().collect();
                assert!((0.68..1.21).contains(&y[0]), "{y:?}");
                y[3]
            });
            assert!((0.68..1.21).contains(&just_enough), "{iterations}: {just_enough}");
            assert!((0.0..0.5).contains(&too_small), "{iterations}: {too_small}");
        }
    }

    #[cfg(feature = "flex")]
    #[test]
    fn rounded_products_change_little_also_where_singular_values_differ() {
        use crate::testing::numbers;
        use crate::{Precision, multiplies_bfloat16};

        let device = Device::flex();
        for [matrices, rows, columns] in [[1, 128, 1152], [3, 128, 128], [1, 150, 70], [2, 16, 16]] {
            for decay in [1.0f32, 0.97, 0.9] {
                let values = numbers(matrices * rows * columns, 5);
                let values = values.iter().enumerate().map(|(index, value)| {
                    let (row, column) = (index / columns % rows, index % columns);
                    value * decay.powi(row.min(column) as i32)
                });
                let values: Vec<f32> = values.collect();
                let x =
                    Tensor::<1>::from_floats(values.as_slice(), &device).reshape([matrices, rows, columns]);
                let exact = orthogonalize(x.clone(), 5);
                let rounded = Precision::Bfloat16.during(|| orthogonalize(x, 5));
                let norm = |x: Tensor<3>| x.square().mean().sqrt().into_scalar::<f32>();
                let (error, size) = (norm(rounded - exact.clone()), norm(exact));
                assert!(
                    error < 0.05 * size,
                    "{matrices} of {rows} x {columns}, {decay}: {error}, not {size}"
                );
                let is_large = rows.min(columns) > 24;
                assert_eq!(error > 0.0, is_large && multiplies_bfloat16(&device));
            }
        }
    }

    #[test]
    fn the_fused_iteration_agrees_with_its_definition() {
        use crate::testing::numbers;

        let device = Device::flex();
        for [matrices, rows, columns] in
            [[3, 128, 128], [1, 128, 1152], [1, 150, 70], [2, 1, 9], [1, 33, 33], [0, 4, 4]]
        {
            let data: Vec<f32> = numbers(matrices * rows * columns, 5);
            // Matrices of equal rows, which have one singular value that is not rounding error.
            let one_row = (0..data.len()).map(|index| data[index % columns]).collect();
            let small = data.iter().map(|value| 1e-6 * value).collect();
            for (values, tolerance) in [(data, 5e-4f32), (small, 5e-4), (one_row, 1e-2)] {
                let x =
                    Tensor::<1>::from_floats(values.as_slice(), &device).reshape([matrices, rows, columns]);
                for iterations in [1, 3, 5] {
                    let both =
                        [orthogonalize(x.clone(), iterations), orthogonalize_composed(x.clone(), iterations)];
                    let [found, expected] =
                        both.map(|x| x.into_data().try_into_vec_as::<f32>().expect("float32"));
                    assert_eq!(found.len(), expected.len());
                    let squares = expected.iter().map(|value| value * value).sum::<f32>();
                    let size = (squares / expected.len().max(1) as f32).sqrt();
                    let error = found.iter().zip(&expected).map(|(found, expected)| (found - expected).abs());
                    let error = error.fold(0.0, f32::max);
                    assert!(
                        error <= tolerance * size,
                        "{iterations} of {matrices} of {rows} x {columns}: {error}, not {size}"
                    );
                }
            }
        }
    }
}
