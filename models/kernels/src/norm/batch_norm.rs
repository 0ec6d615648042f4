//! Batch normalization (Ioffe & Szegedy 2015, arXiv:1502.03167) of maps with the channels last, alone or followed by
//! GELU.

#[cfg(feature = "flex")]
use crate::cpu::{flex, norm as fused, operation};
use crate::gelu;
use burn::tensor::Tensor;

/// The mean and the biased variance of each channel, by which a map is normalized.
#[derive(Clone, Debug)]
pub struct Moments {
    /// `[channels]`.
    pub mean: Tensor<1>,
    /// `[channels]`.
    pub variance: Tensor<1>,
}

/// The mean and the biased variance over all dimensions but the last. Autodiff does not follow them: [`batch_norm`]
/// computes the part of the gradient that flows through them itself.
///
/// # Shapes
///
/// - x: `[..., channels]`, at least one row
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<2>::from_floats([[1.0, 0.0], [3.0, 0.0], [5.0, 6.0]], &Device::default());
/// let moments = vitrine_kernels::moments(x);
/// assert_eq!(moments.mean.into_data().try_into_vec_as::<f32>()?, [3.0, 2.0]);
/// let variance = moments.variance.into_data().try_into_vec_as::<f32>()?;
/// assert!((variance[0] - 8.0 / 3.0).abs() < 1e-6 && (variance[1] - 8.0).abs() < 1e-6);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn moments<const D: usize>(x: Tensor<D>) -> Moments {
    let x = if x.device().is_autodiff() { x.inner() } else { x };
    #[cfg(feature = "flex")]
    if flex::takes_untracked(&x) {
        let [mean, variance] = fused::moments(flex::untracked(x)).map(flex::wrap);
        return Moments { mean, variance };
    }
    moments_composed(x)
}

/// The definition of [`moments`], in burn's own operations.
pub fn moments_composed<const D: usize>(x: Tensor<D>) -> Moments {
    let (variance, mean) = rows(x).var_mean_bias(0);
    Moments { mean: mean.squeeze_dim(0), variance: variance.squeeze_dim(0) }
}

/// The options of [`batch_norm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchNorm {
    /// Whether the moments are those of the map itself, so that its gradient flows through them. Otherwise they are
    /// constants.
    pub of_batch: bool,
    /// Whether GELU follows.
    pub gelu: bool,
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` for each channel, followed by GELU if `norm` says so.
///
/// # Shapes
///
/// - x: `[..., channels]`
/// - gamma, beta, and both moments: `[channels]`
/// - output: `[..., channels]`
///
/// # Panics
///
/// If the shapes do not fit.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_kernels::BatchNorm;
///
/// let device = Device::default();
/// let x = Tensor::<2>::from_floats([[1.0, 0.0], [3.0, 8.0]], &device);
/// let [gamma, beta] = [[1.0, 10.0], [0.0, 5.0]].map(|row| Tensor::<1>::from_floats(row, &device));
/// let moments = vitrine_kernels::moments(x.clone());
/// let y = vitrine_kernels::batch_norm(x, gamma, beta, moments, 0.0, BatchNorm { of_batch: true, gelu: false });
/// assert_eq!(y.into_data().try_into_vec_as::<f32>()?, [-1.0, -5.0, 1.0, 15.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn batch_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    moments: Moments,
    epsilon: f64,
    norm: BatchNorm,
) -> Tensor<D> {
    let channels = x.dims()[D - 1];
    for (what, found) in [
        ("gamma", gamma.dims()),
        ("beta", beta.dims()),
        ("mean", moments.mean.dims()),
        ("variance", moments.variance.dims()),
    ] {
        assert_eq!(found, [channels], "batch norm: {what} of {channels} channels");
    }
    #[cfg(feature = "flex")]
    if [&gamma, &beta, &moments.mean, &moments.variance].into_iter().all(flex::takes) && flex::takes(&x) {
        let [gamma, beta, mean, variance] =
            [gamma, beta, moments.mean, moments.variance].map(Tensor::into_dispatch);
        let BatchNorm { of_batch, gelu } = norm;
        let operation = fused::BatchNormalization { epsilon, of_batch, gelu };
        return operation::apply(operation, [x.into_dispatch(), gamma, beta, mean, variance]);
    }
    batch_norm_composed(x, gamma, beta, moments, epsilon, norm)
}

/// The definition of [`batch_norm`], in burn's own operations.
pub fn batch_norm_composed<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    moments: Moments,
    epsilon: f64,
    norm: BatchNorm,
) -> Tensor<D> {
    let shape = x.dims();
    let x = rows(x);
    let (variance, mean) = if norm.of_batch {
        x.clone().var_mean_bias(0)
    } else {
        (moments.variance.unsqueeze(), moments.mean.unsqueeze())
    };
    let y = (x - mean) / variance.add_scalar(epsilon).sqrt() * gamma.unsqueeze() + beta.unsqueeze();
    let y = y.reshape(shape);
    if norm.gelu { gelu::gelu_composed(y) } else { y }
}

/// The map as a matrix, with a row for each place.
fn rows<const D: usize>(x: Tensor<D>) -> Tensor<2> {
    let shape = x.dims();
    x.reshape([shape[..D - 1].iter().product::<usize>(), shape[D - 1]])
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::{assert_derivative, assert_same};

    type BatchNormFn = fn(Tensor<3>, Tensor<1>, Tensor<1>, Moments, f64, BatchNorm) -> Tensor<3>;

    fn run(
        operation: BatchNormFn,
        norm: BatchNorm,
        [batch, places, channels]: [usize; 3],
    ) -> impl Fn(&[Tensor<1>]) -> Tensor<1> {
        move |leaf| {
            let x = leaf[0].clone().reshape([batch, places, channels]);
            let moments = if norm.of_batch {
                moments(x.clone())
            } else {
                let device = &x.device().inner();
                let of = |from: f32| {
                    Tensor::<1, burn::tensor::Int>::arange(0..channels as i64, device).float() * from + from
                };
                Moments { mean: of(0.1), variance: of(0.5) }
            };
            operation(x, leaf[1].clone(), leaf[2].clone(), moments, 1e-5, norm)
                .reshape([batch * places * channels])
        }
    }

    const KINDS: [BatchNorm; 4] = [
        BatchNorm { of_batch: true, gelu: false },
        BatchNorm { of_batch: true, gelu: true },
        BatchNorm { of_batch: false, gelu: false },
        BatchNorm { of_batch: false, gelu: true },
    ];

    #[test]
    fn batch_norm_agrees_with_its_definition() {
        for norm in KINDS {
            for sizes in [
                [2, 5, 7],
                [1, 5, 16],
                [64, 65, 24],
                [3, 17, 130],
                [7, 1, 3],
                [5, 401, 3],
                [5, 401, 1],
                [3, 40, 64],
            ] {
                let lengths = [sizes.iter().product(), sizes[2], sizes[2]];
                assert_same(&lengths, run(batch_norm, norm, sizes), run(batch_norm_composed, norm, sizes));
            }
        }
    }

    #[test]
    fn batch_norm_has_the_derivative_of_central_differences() {
        for norm in KINDS {
            assert_derivative(&[2 * 5 * 4, 4, 4], run(batch_norm, norm, [2, 5, 4]));
        }
    }

    #[test]
    fn moments_far_from_zero_lose_no_digits() {
        let device = burn::tensor::Device::flex();
        let values = crate::testing::numbers(5000 * 3, 5);
        let x = Tensor::<1>::from_floats(values.as_slice(), &device).reshape([5000, 3]);
        let near = moments(x.clone());
        let far = moments(x.add_scalar(1024.0));
        let apart: f32 = (far.variance / near.variance - 1.0).abs().max().into_scalar();
        assert!(apart < 1e-3, "{apart}");
        let apart: f32 = (far.mean - near.mean - 1024.0).abs().max().into_scalar();
        assert!(apart < 1e-3, "{apart}");
    }
}
