//! AdamW's update of one parameter, and two passes over gradients before it: the sum of squares and a factor, for
//! clipping.

#[cfg(feature = "flex")]
use crate::cpu::{flex, optimizer as fused};
use burn::tensor::Tensor;

/// The numbers of an AdamW update (Loshchilov & Hutter 2019, "Decoupled Weight Decay Regularization", algorithm 2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// The learning rate of this update.
    pub learning_rate: f64,
    /// The shares of the averages of the gradients, and of their squares, that this update keeps.
    pub betas: [f32; 2],
    /// Added to the root of the second average.
    pub epsilon: f32,
    /// Decoupled weight decay: the parameter shrinks by this share, times the learning rate.
    pub weight_decay: f32,
    /// The number of this update, counted from 1.
    pub time: usize,
}

impl AdamW {
    /// The divisors that correct the averages, which start at 0.
    fn corrections(&self) -> [f32; 2] {
        self.betas.map(|beta| 1.0 - beta.powi(i32::try_from(self.time).unwrap_or(i32::MAX)))
    }

    #[cfg(feature = "flex")]
    fn coefficients(&self) -> fused::Coefficients {
        let [correction_1, correction_2] = self.corrections();
        fused::Coefficients {
            betas: self.betas,
            epsilon: self.epsilon,
            kept: self.kept() as f32,
            rate: (self.learning_rate / f64::from(correction_1)) as f32,
            square_rate: 1.0 / correction_2,
        }
    }

    /// The share of the parameter that weight decay keeps.
    fn kept(&self) -> f64 {
        1.0 - self.learning_rate * f64::from(self.weight_decay)
    }
}

/// The updated parameter and averages. All tensors have the same shape, and autodiff follows none of them. The update
/// works in the memory of tensors that are not shared.
///
/// # Panics
///
/// If the shapes do not fit.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use vitrine_kernels::AdamW;
///
/// let device = Device::default();
/// let update = AdamW { learning_rate: 0.1, betas: [0.9, 0.999], epsilon: 0.0, weight_decay: 0.5, time: 1 };
/// let [parameter, gradient] = [[1.0, 2.0], [0.25, -3.0]].map(|row| Tensor::<1>::from_floats(row, &device));
/// let averages = [Tensor::zeros([2], &device), Tensor::zeros([2], &device)];
/// let (parameter, _) = vitrine_kernels::adamw(update, parameter, gradient, averages);
/// // The first step is as long as the learning rate, whatever the gradient; before it, weight decay takes a twentieth.
/// let expected = Tensor::<1>::from_floats([0.95 - 0.1, 1.9 + 0.1], &device);
/// assert!((parameter - expected).abs().max().into_scalar::<f32>() < 1e-5);
/// ```
pub fn adamw<const D: usize>(
    update: AdamW,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    averages: [Tensor<D>; 2],
) -> (Tensor<D>, [Tensor<D>; 2]) {
    let shape = parameter.dims();
    assert!(
        gradient.dims() == shape && averages.iter().all(|average| average.dims() == shape),
        "adamw: the shapes of the parameter, its gradient and its averages differ"
    );
    #[cfg(feature = "flex")]
    if flex::takes_untracked(&parameter)
        && flex::takes_untracked(&gradient)
        && averages.iter().all(flex::takes_untracked)
    {
        return fused::adamw(update.coefficients(), parameter, gradient, averages);
    }
    adamw_composed(update, parameter, gradient, averages)
}

/// The definition of [`adamw`], in burn's own operations.
pub fn adamw_composed<const D: usize>(
    update: AdamW,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    [mean, square]: [Tensor<D>; 2],
) -> (Tensor<D>, [Tensor<D>; 2]) {
    let ([beta_1, beta_2], [correction_1, correction_2]) = (update.betas, update.corrections());
    let mean = mean.mul_scalar(beta_1) + gradient.clone().mul_scalar(1.0 - beta_1);
    let square = square.mul_scalar(beta_2) + gradient.square().mul_scalar(1.0 - beta_2);
    let root = square.clone().div_scalar(correction_2).sqrt().add_scalar(update.epsilon);
    let step = mean.clone().div_scalar(correction_1) / root;
    (parameter.mul_scalar(update.kept()) - step.mul_scalar(update.learning_rate), [mean, square])
}

/// The sum of the squares of all elements, `[1]`.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let x = Tensor::<2>::from_floats([[3.0, 4.0]], &Device::default());
/// assert_eq!(vitrine_kernels::sum_of_squares(x).into_scalar::<f32>(), 25.0);
/// ```
pub fn sum_of_squares<const D: usize>(x: Tensor<D>) -> Tensor<1> {
    #[cfg(feature = "flex")]
    if flex::takes_untracked(&x) {
        return fused::sum_of_squares(x);
    }
    x.square().sum()
}

/// `x * factor`, in the memory of `x` if it is not shared. `factor` is `[1]`; autodiff follows neither.
///
/// # Panics
///
/// If the shapes do not fit.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::default();
/// let x = Tensor::<2>::from_floats([[3.0, 4.0]], &device);
/// let half = Tensor::<1>::from_floats([0.5], &device);
/// assert_eq!(vitrine_kernels::scaled(x, half).into_data().try_into_vec_as::<f32>()?, [1.5, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn scaled<const D: usize>(x: Tensor<D>, factor: Tensor<1>) -> Tensor<D> {
    assert_eq!(factor.dims(), [1], "scaled: there must be one factor");
    #[cfg(feature = "flex")]
    if flex::takes_untracked(&x) && flex::takes_untracked(&factor) {
        return fused::scaled(x, factor);
    }
    x * factor.unsqueeze::<D>()
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::testing::numbers;
    use burn::tensor::Device;

    fn tensor(length: usize, seed: u64) -> Tensor<1> {
        Tensor::from_floats(numbers(length, seed).as_slice(), &Device::flex())
    }

    fn data(tensor: Tensor<1>) -> Vec<f32> {
        tensor.into_data().try_into_vec_as::<f32>().expect("float32")
    }

    fn assert_close(found: Tensor<1>, expected: Tensor<1>) {
        for (found, expected) in data(found).into_iter().zip(data(expected)) {
            assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{found}, not {expected}");
        }
    }

    #[test]
    fn adamw_agrees_with_its_definition_and_does_not_change_shared_tensors() {
        for length in [0, 1, 63, 20_000] {
            let mut found =
                (tensor(length, 1), [Tensor::zeros([length], &Device::flex()), tensor(length, 9).square()]);
            let mut expected = found.clone();
            let before = data(found.0.clone());
            let held = found.0.clone();
            for time in 1..5 {
                let update = AdamW {
                    learning_rate: 0.01,
                    betas: [0.9, 0.99],
                    epsilon: 1e-8,
                    weight_decay: 0.05,
                    time,
                };
                let gradient = tensor(length, 10 + time as u64);
                found = adamw(update, found.0, gradient.clone(), found.1);
                expected = adamw_composed(update, expected.0, gradient, expected.1);
            }
            assert_eq!(data(held), before);
            assert_close(found.0, expected.0);
            let ([mean, square], [expected_mean, expected_square]) = (found.1, expected.1);
            assert_close(mean, expected_mean);
            assert_close(square, expected_square);
        }
    }

    #[test]
    fn sums_of_squares_and_scaling_agree_with_their_definitions() {
        for length in [0, 1, 100, 50_000] {
            let x = tensor(length, 3);
            let expected = data(x.clone()).iter().map(|value| f64::from(value * value)).sum::<f64>();
            let found = f64::from(data(sum_of_squares(x.clone()))[0]);
            assert!((found - expected).abs() <= 1e-5 * expected, "{found}, not {expected}");
            let factor = Tensor::from_floats([0.25], &Device::flex());
            assert_eq!(data(scaled(x.clone(), factor)), data(x * 0.25));
        }
    }
}
