//! Orthogonalized matrices, by which Muon updates parameters: the singular vectors of the input, with singular values
//! around 1.

#[cfg(feature = "flex")]
use crate::cpu::{flex, optimizer as fused};
use burn::tensor::Tensor;

/// The factors of x, x³ and x⁵ in the polynomial of each iteration: the best two for singular values of 0.03 to 1, by the method of
/// Amsel et al. 2025 ('The Polar Express', <https://arxiv.org/abs/2505.16932>). They need 3 products of square matrices, of which those
/// that are symmetric count half, where three iterations of one polynomial (<https://github.com/KellerJordan/cifar10-airbench>) need 5.5.
const POLYNOMIALS: [[f32; 3]; 2] = [[7.3625, -20.7434, 15.1606], [2.9175, -2.1824, 0.4755]];
/// The least norm by which a matrix is divided.
const EPSILON: f32 = 1e-7;

/// Matrices with the singular vectors of the matrices in `x` and singular values around 1, by two iterations of Newton and Schulz
/// with polynomials of their own. Autodiff does not follow it.
///
/// Singular values end between 0.61 and 1.39, but for those below 0.03 times the norm of the matrix (the root of the sum of its squares),
/// which stay smaller.
///
/// # Shapes
///
/// - x, output: `[matrices, rows, columns]`
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<3>::from_floats([[[3.0, 0.0], [0.0, -0.2]]], &Device::default());
/// let y = vitrine_kernels::orthogonalize(x).into_data().try_into_vec_as::<f32>()?;
/// let [a, b, c, d]: [f32; 4] = y[..].try_into()?;
/// assert!((0.61..1.39).contains(&a) && (0.61..1.39).contains(&-d) && b == 0.0 && c == 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn orthogonalize(x: Tensor<3>) -> Tensor<3> {
    by_polynomials(x, &POLYNOMIALS)
}

/// The polynomials of the singular values of matrices, one after the other, after division by the norm.
fn by_polynomials(x: Tensor<3>, polynomials: &[[f32; 3]]) -> Tensor<3> {
    #[cfg(feature = "flex")]
    if flex::takes_untracked(&x) {
        return fused::orthogonalize(x, polynomials, EPSILON);
    }
    composed(x, polynomials)
}

/// The definition of [`orthogonalize`], in burn's own operations.
pub fn orthogonalize_composed(x: Tensor<3>) -> Tensor<3> {
    composed(x, &POLYNOMIALS)
}

/// The definition of [`by_polynomials`].
fn composed(x: Tensor<3>, polynomials: &[[f32; 3]]) -> Tensor<3> {
    let [_, rows, columns] = x.dims();
    if rows > columns {
        // The products are smaller on this side.
        return composed(x.swap_dims(1, 2), polynomials).swap_dims(1, 2);
    }
    let norm = x.clone().square().sum_dims(&[1, 2]).sqrt().clamp_min(EPSILON);
    let mut x = x / norm;
    for &[a, b, c] in polynomials {
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
            let result = orthogonalize(x.clone());
            assert_eq!(result.dims(), [2, rows, columns]);
            let wide = |x: Tensor<3>| if rows > columns { x.swap_dims(1, 2) } else { x };
            let (result, x) = (wide(result), wide(x));
            let small = rows.min(columns);
            let error = result.clone().matmul(result.clone().swap_dims(1, 2))
                - Tensor::<2>::eye(small, &device).unsqueeze::<3>();
            // The squares of singular values are between 0.61² and 1.39².
            assert!(error.abs().max().into_scalar::<f32>() < 0.94, "{rows} x {columns}");
            // Each vector of the smaller side keeps its direction: the result is the nearest orthogonal matrix, not
            // any.
            let signs = (result * x).sum_dim(2).min().into_scalar::<f32>();
            assert!(signs > 0.0, "{rows} x {columns}");
        }
        let zeros = Tensor::<3>::zeros([1, 3, 5], &device);
        assert_eq!(orthogonalize(zeros.clone()).into_data(), zeros.into_data());
    }

    #[test]
    fn two_iterations_are_enough_for_singular_values_of_a_share_of_the_norm() {
        let device = Device::default();
        // A diagonal matrix has its own values as singular values.
        let ends = |value: f32| {
            let rest = (1.0 - value * value).sqrt();
            let x = Tensor::<3>::from_floats([[[rest, 0.0], [0.0, value]]], &device);
            orthogonalize(x).into_data().iter::<f32>().last().unwrap()
        };
        for step in 0..100 {
            let value = 0.03 * (1.0 / 0.03f32).powf(step as f32 / 99.0);
            assert!((0.61..1.39).contains(&ends(value)), "{value}: {}", ends(value));
        }
        assert!((0.2..0.3).contains(&ends(0.012)), "{}", ends(0.012));
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
                let exact = orthogonalize(x.clone());
                let rounded = Precision::Bfloat16.during(|| orthogonalize(x));
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
                let [first, second] = POLYNOMIALS;
                for polynomials in [&POLYNOMIALS[..1], &POLYNOMIALS, &[first, second, second]] {
                    let both = [by_polynomials(x.clone(), polynomials), composed(x.clone(), polynomials)];
                    let [found, expected] =
                        both.map(|x| x.into_data().try_into_vec_as::<f32>().expect("float32"));
                    assert_eq!(found.len(), expected.len());
                    let squares = expected.iter().map(|value| value * value).sum::<f32>();
                    let size = (squares / expected.len().max(1) as f32).sqrt();
                    let error = found.iter().zip(&expected).map(|(found, expected)| (found - expected).abs());
                    let error = error.fold(0.0, f32::max);
                    assert!(
                        error <= tolerance * size,
                        "{polynomials:?} of {matrices} of {rows} x {columns}: {error}, not {size}"
                    );
                }
            }
        }
    }
}
