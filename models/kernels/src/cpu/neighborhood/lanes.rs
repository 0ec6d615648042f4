//! The inner loops: products of vectors of patches at several offsets.

use crate::cpu::simd::{LANES, exp, mul_add, vectorized};

type Vector = [f32; LANES];

/// Rows of a plane from some column on: channel `c` begins at `c * stride`.
#[derive(Clone, Copy)]
pub(super) struct Channels<'a> {
    pub(super) data: &'a [f32],
    pub(super) stride: usize,
}

/// Vectors at consecutive offsets: that of offset `d` begins at `start + d * step`.
#[derive(Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) data: &'a [f32],
    pub(super) start: usize,
    pub(super) step: usize,
}

#[inline(always)]
fn vector(data: &[f32], at: usize) -> &Vector {
    data[at..].first_chunk().expect("planes have a vector at every offset")
}

vectorized! {
    /// `scores[d] = sum over channels of x * y`, with `y` read `d` columns further.
    pub(super) fn dots(scores: &mut [Vector], x: Channels<'_>, y: Channels<'_>, channels: usize) {
        let mut offset = 0;
        while offset < scores.len() {
            let rest = &mut scores[offset..];
            let y = Channels { data: &y.data[offset..], ..y };
            offset += match rest.len() {
                1 => dots_of::<FMA, 1>(rest, x, y, channels),
                2 => dots_of::<FMA, 2>(rest, x, y, channels),
                3 => dots_of::<FMA, 3>(rest, x, y, channels),
                4 => dots_of::<FMA, 4>(rest, x, y, channels),
                5 => dots_of::<FMA, 5>(rest, x, y, channels),
                6 => dots_of::<FMA, 6>(rest, x, y, channels),
                7 => dots_of::<FMA, 7>(rest, x, y, channels),
                _ => dots_of::<FMA, 8>(rest, x, y, channels),
            };
        }
    }

    /// `sums[c] += sum over offsets of weights[d] * values[c]`, with `values` read `d` columns further, or, if `back`, `d`
    /// columns before.
    pub(super) fn add_weighted(sums: &mut [Vector], weights: Weights<'_>, offsets: usize, values: Channels<'_>, back: bool) {
        let mut channel = 0;
        while channel < sums.len() {
            let rest = &mut sums[channel..];
            let values = Channels { data: &values.data[channel * values.stride..], ..values };
            channel += match rest.len() {
                1 => weighted_of::<FMA, 1>(rest, weights, offsets, values, back),
                2 | 3 => weighted_of::<FMA, 2>(rest, weights, offsets, values, back),
                4..8 => weighted_of::<FMA, 4>(rest, weights, offsets, values, back),
                _ => weighted_of::<FMA, 8>(rest, weights, offsets, values, back),
            };
        }
    }

    /// Softmax over all vectors, in each lane.
    pub(super) fn softmax(scores: &mut [Vector]) {
        let mut largest = [f32::NEG_INFINITY; LANES];
        for score in scores.iter() {
            for lane in 0..LANES {
                largest[lane] = if score[lane] > largest[lane] { score[lane] } else { largest[lane] };
            }
        }
        let mut total = [0.0; LANES];
        for score in scores.iter_mut() {
            for lane in 0..LANES {
                score[lane] = exp::<FMA>(score[lane] - largest[lane]);
                total[lane] += score[lane];
            }
        }
        let rate = total.map(|total| 1.0 / total);
        for score in scores.iter_mut() {
            for lane in 0..LANES {
                score[lane] *= rate[lane];
            }
        }
    }

    /// Changes the gradients of weights into those of their scores, in each lane.
    pub(super) fn softmax_backward(weights: &[Vector], gradients: &mut [Vector]) {
        let mut common = [0.0; LANES];
        for (weight, gradient) in weights.iter().zip(gradients.iter()) {
            for lane in 0..LANES {
                common[lane] = mul_add::<FMA>(weight[lane], gradient[lane], common[lane]);
            }
        }
        for (weight, gradient) in weights.iter().zip(gradients.iter_mut()) {
            for lane in 0..LANES {
                gradient[lane] = weight[lane] * (gradient[lane] - common[lane]);
            }
        }
    }

    /// `scores[p] = sum over channels of x * tokens[p]`, for tokens that all patches share, `[prefix, channels]`.
    pub(super) fn shared_dots(scores: &mut [Vector], x: Channels<'_>, tokens: &[f32]) {
        let channels = tokens.len() / scores.len().max(1);
        for (score, token) in scores.iter_mut().zip(tokens.chunks_exact(channels.max(1))) {
            *score = [0.0; LANES];
            for (channel, &value) in token.iter().enumerate() {
                let x = vector(x.data, channel * x.stride);
                for lane in 0..LANES {
                    score[lane] = mul_add::<FMA>(x[lane], value, score[lane]);
                }
            }
        }
    }

    /// `sums[c] += sum over tokens of weights[p] * tokens[p][c]`.
    pub(super) fn add_shared(sums: &mut [Vector], weights: &[Vector], tokens: &[f32]) {
        for (weight, token) in weights.iter().zip(tokens.chunks_exact(sums.len().max(1))) {
            for (sum, &value) in sums.iter_mut().zip(token) {
                for lane in 0..LANES {
                    sum[lane] = mul_add::<FMA>(weight[lane], value, sum[lane]);
                }
            }
        }
    }

    /// `sums[p][c] += weights[p] * x[c]`: the gradient of shared tokens, still in lanes.
    pub(super) fn add_products(sums: &mut [Vector], weights: &[Vector], x: Channels<'_>) {
        let channels = sums.len() / weights.len().max(1);
        for (sums, weight) in sums.chunks_exact_mut(channels.max(1)).zip(weights) {
            for (channel, sum) in sums.iter_mut().enumerate() {
                let x = vector(x.data, channel * x.stride);
                for lane in 0..LANES {
                    sum[lane] = mul_add::<FMA>(weight[lane], x[lane], sum[lane]);
                }
            }
        }
    }
}

/// [`dots`] of the first `N` offsets, in registers.
#[inline(always)]
fn dots_of<const FMA: bool, const N: usize>(
    scores: &mut [Vector],
    x: Channels<'_>,
    y: Channels<'_>,
    channels: usize,
) -> usize {
    let mut sums = [[0.0f32; LANES]; N];
    for channel in 0..channels {
        let x = vector(x.data, channel * x.stride);
        let y = &y.data[channel * y.stride..][..N - 1 + LANES];
        for (offset, sum) in sums.iter_mut().enumerate() {
            for lane in 0..LANES {
                sum[lane] = mul_add::<FMA>(x[lane], y[offset + lane], sum[lane]);
            }
        }
    }
    scores[..N].copy_from_slice(&sums);
    N
}

/// [`add_weighted`] of the first `N` channels, in registers.
#[inline(always)]
fn weighted_of<const FMA: bool, const N: usize>(
    sums: &mut [Vector],
    weights: Weights<'_>,
    offsets: usize,
    values: Channels<'_>,
    back: bool,
) -> usize {
    let mut local = [[0.0f32; LANES]; N];
    local.copy_from_slice(&sums[..N]);
    for offset in 0..offsets {
        let weight = vector(weights.data, weights.start + offset * weights.step);
        let shift = if back { offsets - 1 - offset } else { offset };
        for (channel, sum) in local.iter_mut().enumerate() {
            let value = vector(values.data, channel * values.stride + shift);
            for lane in 0..LANES {
                sum[lane] = mul_add::<FMA>(weight[lane], value[lane], sum[lane]);
            }
        }
    }
    sums[..N].copy_from_slice(&local);
    N
}
