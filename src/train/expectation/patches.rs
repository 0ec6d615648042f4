//! Features of images that nothing was trained for: the responses of a convolution whose kernels are whitened patches of the images
//! themselves, of both signs, averaged over quadrants (Coates, Ng & Lee 2011, 'An Analysis of Single-Layer Networks in Unsupervised
//! Feature Learning', sections 3 and 4).

use burn::tensor::activation::relu;
use burn::tensor::module::{adaptive_avg_pool2d, conv2d};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Device, Tensor, TensorData};
use vitrine_kernels::{Cholesky, covariance};
use vitrine_models::linear_probe::Stop;

use crate::seed::mix;

/// The side of the images.
pub(super) const SIDE: usize = 32;
/// The side of a patch.
const PATCH: usize = 5;
/// The number of kernels.
const KERNELS: usize = 128;
/// The number of patches by whose covariance the kernels are whitened.
const PATCHES: usize = 10_000;
/// What is added to the variance of each element of a patch, of images with a standard deviation of about one, so that directions
/// that hardly vary are not amplified to noise.
const REGULARIZATION: f64 = 0.01;
/// The side of the grid over which responses are averaged.
const GRID: usize = 2;
/// The number of images that are convolved at once.
const BATCH: usize = 50;

/// The features of normalized images; `None` if `stop` ends it before they are complete.
///
/// # Shapes
/// - images: `[images, channels, 32, 32]`
/// - output: `[images, 1024]`
pub(super) fn features(
    images: &[f32],
    channels: usize,
    seed: u64,
    device: &Device,
    stop: Stop<'_>,
) -> Option<Vec<f32>> {
    let kernels = TensorData::new(kernels(images, channels, seed), [KERNELS, channels, PATCH, PATCH]);
    let kernels = Tensor::<4>::from_data(kernels, device);
    let mut features = Vec::new();
    for batch in images.chunks(BATCH * channels * SIDE * SIDE) {
        if stop() {
            return None;
        }
        let shape = [batch.len() / (channels * SIDE * SIDE), channels, SIDE, SIDE];
        let images = Tensor::<4>::from_data(TensorData::new(batch.to_vec(), shape), device);
        let responses = conv2d(images, kernels.clone(), None, ConvOptions::new([1, 1], [0, 0], [1, 1], 1));
        let both = Tensor::cat(vec![relu(responses.clone()), relu(responses.neg())], 1);
        let pooled = adaptive_avg_pool2d(both, [GRID, GRID]).into_data().convert::<f32>();
        features.extend(pooled.try_into_vec::<f32>().expect("the elements are f32"));
    }
    Some(features)
}

/// Patches of the images, one after the other, and the mean products of two elements of a patch, `[patch, patch]`, regularized.
fn patches(images: &[f32], channels: usize, seed: u64) -> (Vec<f32>, Vec<f64>) {
    let length = channels * PATCH * PATCH;
    let numbers = (0..PATCHES as u64).map(|number| mix(seed ^ number));
    let patches: Vec<f32> = numbers.flat_map(|random| patch(images, channels, random)).collect();
    let mut products = covariance(&patches, &vec![0.0; length]);
    products.iter_mut().step_by(length + 1).for_each(|square| *square += REGULARIZATION);
    (patches, products)
}

/// Kernels, `[kernels, patch]`: random patches `p` of the images as `C⁻¹ p / √(pᵀ C⁻¹ p)`, where `C` has the mean products of two
/// elements of a patch. Whitened patches thus have length one, and so do the responses of whitened patches to themselves.
fn kernels(images: &[f32], channels: usize, seed: u64) -> Vec<f32> {
    let length = channels * PATCH * PATCH;
    let (patches, products) = patches(images, channels, seed);
    let factor = Cholesky::new(&products, length, REGULARIZATION);
    // `[patch, kernels]`.
    let mut chosen: Vec<f64> = (0..length * KERNELS)
        .map(|place| f64::from(patches[place % KERNELS * length + place / KERNELS]))
        .collect();
    factor.solve_lower(&mut chosen, KERNELS);
    let mut squares = vec![0.0; KERNELS];
    for row in chosen.chunks_exact(KERNELS) {
        squares.iter_mut().zip(row).for_each(|(sum, value)| *sum += value * value);
    }
    factor.solve_upper(&mut chosen, KERNELS);
    let scaled = |kernel: usize, element: usize| {
        chosen[element * KERNELS + kernel] / squares[kernel].sqrt().max(f64::MIN_POSITIVE)
    };
    (0..KERNELS).flat_map(|kernel| (0..length).map(move |element| scaled(kernel, element) as f32)).collect()
}

/// The patch, `[channels, 5, 5]`, at a place that a random number determines.
fn patch(images: &[f32], channels: usize, random: u64) -> impl Iterator<Item = f32> {
    let places = (SIDE - PATCH + 1) as u64;
    let (left, rest) = (random % places, random / places);
    let (top, rest) = (rest % places, rest / places);
    let image = rest % (images.len() / (channels * SIDE * SIDE)) as u64;
    let first = (image as usize * channels * SIDE + top as usize) * SIDE + left as usize;
    let rows = (0..channels).flat_map(|channel| (0..PATCH).map(move |row| (channel * SIDE + row) * SIDE));
    rows.flat_map(move |row| images[first + row..][..PATCH].iter().copied())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Images of stripes and noise.
    fn images(count: usize, channels: usize) -> Vec<f32> {
        let pixel = |place: usize| {
            let noise = (mix(place as u64) % 1000) as f32 / 1000.0;
            ((place % SIDE) as f32 * 0.8).sin() + noise
        };
        (0..count * channels * SIDE * SIDE).map(pixel).collect()
    }

    #[test]
    fn whitened_patches_have_length_one() {
        for channels in [1, 3] {
            let (images, length) = (images(3, channels), channels * PATCH * PATCH);
            let (kernels, (_, products)) = (kernels(&images, channels, 5), patches(&images, channels, 5));
            assert_eq!(kernels.len(), KERNELS * length);
            for kernel in kernels.chunks_exact(length) {
                let sums = products.chunks_exact(length).map(|row| {
                    row.iter().zip(kernel).map(|(product, &value)| product * f64::from(value)).sum::<f64>()
                });
                let square: f64 = sums.zip(kernel).map(|(sum, &value)| sum * f64::from(value)).sum();
                assert!((square - 1.0).abs() < 1e-3, "{square}");
            }
        }
    }

    #[test]
    fn features_are_means_of_both_signs_over_quadrants() {
        let (images, device) = (images(BATCH + 1, 1), Device::default());
        assert_eq!(super::features(&images, 1, 5, &device, &|| true), None);
        let features = features(&images, 1, 5, &device, &|| false).unwrap();
        let width = 2 * KERNELS * GRID * GRID;
        assert_eq!(features.len(), (BATCH + 1) * width);
        let kernels = kernels(&images, 1, 5);
        // Of the last image, kernel 3 in the upper right quadrant.
        let (image, kernel) =
            (&images[BATCH * SIDE * SIDE..], &kernels[3 * PATCH * PATCH..][..PATCH * PATCH]);
        let places = (SIDE - PATCH + 1) / GRID;
        let response = |top: usize, left: usize| -> f32 {
            let products = (0..PATCH * PATCH)
                .map(|place| kernel[place] * image[(top + place / PATCH) * SIDE + left + place % PATCH]);
            products.sum()
        };
        let all = (0..places).flat_map(|top| (places..2 * places).map(move |left| (top, left)));
        let responses: Vec<f32> = all.map(|(top, left)| response(top, left)).collect();
        for (sign, number) in [(1.0, 3), (-1.0, KERNELS + 3)] {
            let mean =
                responses.iter().map(|value| (sign * value).max(0.0)).sum::<f32>() / responses.len() as f32;
            let found = features[BATCH * width + number * GRID * GRID + 1];
            assert!((found - mean).abs() < 1e-4, "{found} and {mean}");
        }
    }
}
