//! Linear layers and convolutions with weights of eight bits, for inference.
//!
//! Weights have a scale for each output channel (Jacob et al. 2018, arXiv:1712.05877; Wu et al. 2020, arXiv:2004.09602, section 4.1).
//! Activations become bytes when a layer reads them, with the range of each row, or of each image for a convolution: nothing is
//! calibrated, and nothing is cut off.

#[cfg(all(feature = "flex", target_arch = "x86_64"))]
use crate::cpu::{flex, int8};
#[cfg(all(feature = "flex", target_arch = "x86_64"))]
use crate::linear::linear_untracked;
use burn::tensor::{Device, Tensor, TensorData};
use std::ops::Range;
#[cfg(all(feature = "flex", target_arch = "x86_64"))]
use std::sync::Arc;

/// The largest byte of a weight.
const LARGEST: f32 = 127.0;

/// The most products of bytes that a sum of 32 bits holds, whatever they are.
#[cfg(all(feature = "flex", target_arch = "x86_64"))]
const MOST_TERMS: usize = i32::MAX as usize / (255 * 127);

/// Whether layers with weights of bytes multiply bytes on a device: flex, on a CPU with AVX512-VNNI.
///
/// # Examples
///
/// ```
/// use burn::tensor::Device;
///
/// assert!(!vitrine_kernels::multiplies_bytes(&Device::default().autodiff()));
/// ```
pub fn multiplies_bytes(device: &Device) -> bool {
    #[cfg(all(feature = "flex", target_arch = "x86_64"))]
    return flex::is_flex(device) && !device.is_autodiff() && int8::Int8::find().is_some();
    #[cfg(not(all(feature = "flex", target_arch = "x86_64")))]
    {
        let _ = device;
        false
    }
}

/// A weight that was [rounded](round_to_int8), as the products of bytes of this CPU read it.
#[derive(Clone, Debug)]
pub struct Int8Weight {
    #[cfg(all(feature = "flex", target_arch = "x86_64"))]
    cpu: int8::Int8,
    #[cfg(all(feature = "flex", target_arch = "x86_64"))]
    panels: Arc<int8::Panels>,
}

impl Int8Weight {
    /// The weight `[inputs, outputs]` of a linear layer. `None` if it is not on flex or autodiff follows it, or the CPU has no
    /// products of bytes.
    pub fn of_linear(weight: Tensor<2>) -> Option<Self> {
        Self::new(weight.transpose(), 1)
    }

    /// The kernels `[outputs, inputs, size, size]` of a convolution. `None` as for [`Self::of_linear`].
    pub fn of_kernels(weight: Tensor<4>) -> Option<Self> {
        let [outputs, inputs, size, _] = weight.dims();
        Self::new(weight.permute([0, 2, 3, 1]).reshape([outputs, inputs * size * size]), size)
    }

    /// A weight `[outputs, inner]`, whose inner elements make up `segments` parts.
    #[cfg(all(feature = "flex", target_arch = "x86_64"))]
    fn new(weight: Tensor<2>, segments: usize) -> Option<Self> {
        let [_, inner] = weight.dims();
        let cpu = int8::Int8::find()?;
        if inner == 0 || inner > MOST_TERMS || !flex::takes_untracked(&weight) {
            return None;
        }
        let values = values(weight);
        let (mut bytes, mut scales) = (Vec::with_capacity(values.len()), Vec::new());
        for values in values.chunks_exact(inner) {
            let scale = int8_scale(values.iter().copied());
            scales.push(scale);
            bytes.extend(values.iter().map(|&value| int8_byte(value, scale)));
        }
        let panels = int8::Panels::new(&bytes, [segments, inner / segments], &scales);
        Some(Self { cpu, panels: Arc::new(panels) })
    }

    #[cfg(not(all(feature = "flex", target_arch = "x86_64")))]
    fn new(_weight: Tensor<2>, _segments: usize) -> Option<Self> {
        None
    }

    /// The weight of some of the outputs.
    ///
    /// # Panics
    ///
    /// If there are no such outputs.
    pub fn outputs(&self, range: Range<usize>) -> Self {
        #[cfg(all(feature = "flex", target_arch = "x86_64"))]
        return Self { cpu: self.cpu, panels: Arc::new(self.panels.part(range)) };
        #[cfg(not(all(feature = "flex", target_arch = "x86_64")))]
        {
            let _ = range;
            self.clone()
        }
    }
}

/// The weight with each value rounded to one of 255, the multiples of the scale of its output channel, which is the dimension
/// `channel`. A second time, this changes nothing.
///
/// # Examples
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let weight = Tensor::<2>::from_floats([[127.0, 0.0], [0.4, 0.0], [-1.6, -254.0]], &Device::default());
/// let rounded = vitrine_kernels::round_to_int8(weight, 1);
/// assert_eq!(rounded.into_data().try_into_vec_as::<f32>()?, [127.0, 0.0, 0.0, 0.0, -2.0, -254.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn round_to_int8<const D: usize>(weight: Tensor<D>, channel: usize) -> Tensor<D> {
    let weight = weight.swap_dims(0, channel);
    let (shape, device) = (weight.shape(), weight.device());
    let length = shape.iter().skip(1).product::<usize>().max(1);
    let mut values = values(weight);
    for values in values.chunks_exact_mut(length) {
        let scale = int8_scale(values.iter().copied());
        values.iter_mut().for_each(|value| *value = f32::from(int8_byte(*value, scale)) * scale);
    }
    Tensor::from_data(TensorData::new(values, shape), &device).swap_dims(0, channel)
}

/// Multiples of smaller scales may not be exact. They are far below everything that a weight could change.
const SMALLEST_SCALE: f32 = 1e-35;

/// The scale of the values of a channel: their largest magnitude over 127, rounded up to 16 significant bits, so that its multiples
/// by a byte are exact in float32. 0 if all values are 0 or smaller than any number that matters.
pub fn int8_scale(values: impl Iterator<Item = f32>) -> f32 {
    const DROPPED: u32 = (1 << 8) - 1;
    let largest = values.fold(0f32, |largest, value| largest.max(value.abs()));
    let scale = f32::from_bits(((largest / LARGEST).to_bits() + DROPPED) & !DROPPED);
    if scale < SMALLEST_SCALE { 0.0 } else { scale }
}

/// The byte that stands for a value of a channel with this scale.
pub fn int8_byte(value: f32, scale: f32) -> i8 {
    // Adding 1.5 * 2^23 to a number rounds it to an integer, ties to even.
    const ROUND: f32 = 12_582_912.0;
    if scale == 0.0 {
        return 0;
    }
    let rounded = (value / scale + ROUND) - ROUND;
    rounded.clamp(-LARGEST, LARGEST) as i8
}

fn values<const D: usize>(weight: Tensor<D>) -> Vec<f32> {
    weight.into_data().convert::<f32>().try_into_vec::<f32>().expect("converted to f32")
}

/// [`linear`](crate::linear) with a weight of bytes, followed by GELU, to 6e-5, if `is_gelu`. `None` if `x` is not on flex, is not float32, or
/// is followed by autodiff.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn linear_int8<const D: usize>(
    x: &Tensor<D>,
    weight: &Int8Weight,
    bias: Option<Tensor<1>>,
    is_gelu: bool,
) -> Option<Tensor<D>> {
    #[cfg(all(feature = "flex", target_arch = "x86_64"))]
    {
        let panels = &weight.panels;
        let sizes = [panels.inner(), panels.columns];
        linear_untracked(x, sizes, bias, |x, _, bias| {
            int8::multiply(weight.cpu, x, sizes[0], panels, bias, is_gelu)
        })
    }
    #[cfg(not(all(feature = "flex", target_arch = "x86_64")))]
    {
        let _ = (x, weight, bias, is_gelu);
        None
    }
}

/// [`convolution`](crate::convolution) of stride 1 that keeps the size of the map, with kernels of bytes. `None` as for
/// [`linear_int8`].
///
/// # Panics
///
/// If the shapes do not fit.
pub fn convolution_int8(x: &Tensor<4>, weight: &Int8Weight) -> Option<Tensor<4>> {
    #[cfg(all(feature = "flex", target_arch = "x86_64"))]
    if flex::takes_untracked(x) {
        let [images, rows, columns, channels] = x.dims();
        let panels = &weight.panels;
        let (kernel, outputs) = (panels.segments, panels.columns);
        assert_eq!(
            kernel * kernel * channels,
            panels.inner(),
            "convolution_int8: the weight does not fit the map"
        );
        crate::counting::count(&[images * rows * columns * outputs, kernel * kernel * channels]);
        let x = flex::contiguous(flex::untracked(x.clone()));
        let shape = [images, rows, columns, channels];
        let x = &x.storage::<f32>()[..shape.iter().product()];
        let y = int8::convolve(weight.cpu, x, shape, kernel, panels);
        return Some(flex::wrap(flex::tensor(y, [images, rows, columns, outputs])));
    }
    let _ = (x, weight);
    None
}

#[cfg(all(test, feature = "flex", target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::testing::numbers;
    use burn::tensor::Tolerance;

    fn tensor<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
        let values = numbers(shape.iter().product(), seed);
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    /// The values as their bytes give them: multiples of a scale from the least to the largest of each row and 0.
    fn fake_quantized(x: Tensor<2>) -> Tensor<2> {
        let [rows, _] = x.dims();
        let zero = Tensor::<2>::zeros([rows, 1], &x.device());
        let least = x.clone().min_dim(1).min_pair(zero.clone());
        let scale = (x.clone().max_dim(1).max_pair(zero) - least.clone()) / 255.0;
        let offset = (-least / scale.clone()).round();
        (((x / scale.clone()).round() + offset.clone()).clamp(0.0, 255.0) - offset) * scale
    }

    #[test]
    fn rounding_twice_changes_nothing() {
        for channel in 0..3 {
            let once = round_to_int8(tensor([5, 6, 7], 1), channel);
            let twice = round_to_int8(once.clone(), channel);
            assert_eq!(once.clone().into_data(), twice.into_data());
            let error = (once - tensor([5, 6, 7], 1)).abs().max().into_scalar::<f32>();
            assert!(error > 0.0 && error <= 0.502 / LARGEST, "{error}");
        }
    }

    #[test]
    fn a_layer_on_bytes_is_that_of_rounded_weights_and_activations() {
        let (x, weight, bias) = (tensor([40, 65], 1), round_to_int8(tensor([65, 33], 2), 1), tensor([33], 3));
        let Some(bytes) = Int8Weight::of_linear(weight.clone()) else { return };
        for is_gelu in [false, true] {
            let found = linear_int8(&x, &bytes, Some(bias.clone()), is_gelu).unwrap();
            let expected =
                crate::linear_composed(fake_quantized(x.clone()), weight.clone(), Some(bias.clone()));
            let expected = if is_gelu { crate::gelu_composed(expected) } else { expected };
            found.into_data().assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(1e-4));
        }
        let part = linear_int8(&x, &bytes.outputs(5..20), None, false).unwrap();
        let expected = crate::linear_composed(fake_quantized(x), weight.narrow(1, 5, 15), None);
        part.into_data().assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(1e-4));
    }

    #[test]
    fn a_convolution_on_bytes_is_that_of_rounded_weights_and_maps() {
        let (x, weight) = (tensor([3, 6, 5, 24], 1), round_to_int8(tensor([40, 24, 3, 3], 2), 0));
        let Some(bytes) = Int8Weight::of_kernels(weight.clone()) else { return };
        let found = convolution_int8(&x, &bytes).unwrap();
        let maps = fake_quantized(x.reshape([3, 6 * 5 * 24])).reshape([3, 6, 5, 24]);
        let expected = crate::convolution_composed(maps, weight, crate::Convolution::same(3));
        found.into_data().assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(1e-4));
    }

    #[test]
    fn what_autodiff_follows_stays_in_floating_point() {
        let Some(bytes) = Int8Weight::of_linear(tensor([4, 4], 1)) else { return };
        let x = tensor::<2>([2, 4], 2).autodiff();
        assert!(linear_int8(&x, &bytes, None, false).is_none());
    }
}
