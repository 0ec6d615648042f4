//! Products of bytes against plain integers, on VNNI and, where there is AMX, on AMX.

use super::convolution::convolve;
use super::linear::multiply;
use super::{Int8, Panels};
use crate::testing::numbers;

/// A weight of bytes with scales, from pseudo-random numbers.
fn weight(inner: usize, columns: usize) -> (Vec<i8>, Vec<f32>) {
    let bytes = numbers(inner * columns, 1).iter().map(|value| (value * 127.0) as i8).collect();
    (bytes, numbers(columns, 2).iter().map(|value| value.abs() + 0.1).collect())
}

/// The bytes of values as the definition has them: the scale, the zero, and each byte.
fn quantized(values: &[f32]) -> (f32, i32, Vec<i32>) {
    let (least, largest) =
        values.iter().fold((0f32, 0f32), |(least, largest), &value| (least.min(value), largest.max(value)));
    let scale = (largest - least) / 255.0;
    let zero = if scale > 0.0 { (-least / scale).round_ties_even() as i32 } else { 0 };
    let factor = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let bytes = values.iter().map(|value| ((value * factor).round_ties_even() as i32 + zero).clamp(0, 255));
    (scale, zero, bytes.collect())
}

/// With and without AMX.
fn forms() -> Vec<Int8> {
    let found = Int8::find();
    found.into_iter().flat_map(|int8| [int8, int8.without_amx()]).collect()
}

fn assert_close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= 1e-5 * largest, "{index}: {found}, not {expected}");
    }
}

#[test]
fn a_linear_layer_multiplies_bytes_exactly() {
    for [rows, inner, columns] in
        [[1, 5, 3], [7, 64, 16], [33, 65, 40], [6, 192, 100], [200, 130, 33], [15, 3, 1], [0, 4, 4]]
    {
        let (bytes, scales) = weight(inner, columns);
        let panels = Panels::new(&bytes, [1, inner], &scales);
        let (x, bias) = (numbers(rows * inner, 3), numbers(columns, 4));
        let mut expected = Vec::new();
        for x in x.chunks_exact(inner) {
            let (scale, zero, x) = quantized(x);
            for column in 0..columns {
                let terms = x.iter().enumerate();
                let sum: i32 =
                    terms.map(|(index, x)| (x - zero) * i32::from(bytes[column * inner + index])).sum();
                expected.push(sum as f32 * scale * scales[column] + bias[column]);
            }
        }
        for int8 in forms() {
            assert_close(&multiply(int8, &x, inner, &panels, Some(&bias), false), &expected);
        }
    }
}

#[test]
fn a_convolution_multiplies_bytes_exactly() {
    for [images, rows, columns, channels, out_channels, kernel] in [
        [1, 5, 7, 4, 3, 3],
        [3, 8, 8, 24, 40, 3],
        [2, 16, 9, 64, 48, 3],
        [1, 3, 2, 5, 16, 1],
        [2, 6, 6, 3, 33, 5],
        [7, 1, 1, 2, 2, 3],
    ] {
        let taps = kernel * kernel * channels;
        let (bytes, scales) = weight(taps, out_channels);
        let panels = Panels::new(&bytes, [kernel, kernel * channels], &scales);
        let x = numbers(images * rows * columns * channels, 5);
        let mut expected = Vec::new();
        for x in x.chunks_exact(rows * columns * channels) {
            let (scale, zero, x) = quantized(x);
            let at = |row: usize, column: usize, channel: usize| {
                let (row, column) = (row.checked_sub(kernel / 2), column.checked_sub(kernel / 2));
                match (row, column) {
                    (Some(row), Some(column)) if row < rows && column < columns => {
                        x[(row * columns + column) * channels + channel] - zero
                    }
                    _ => 0,
                }
            };
            for place in 0..rows * columns {
                for output in 0..out_channels {
                    let sum: i32 = (0..taps)
                        .map(|tap| {
                            let (down, along) = (tap / (kernel * channels), tap / channels % kernel);
                            at(place / columns + down, place % columns + along, tap % channels)
                                * i32::from(bytes[output * taps + tap])
                        })
                        .sum();
                    expected.push(sum as f32 * scale * scales[output]);
                }
            }
        }
        for int8 in forms() {
            let shape = [images, rows, columns, channels];
            assert_close(&convolve(int8, &x, shape, kernel, &panels), &expected);
        }
    }
}

#[test]
fn values_that_are_not_finite_spoil_their_row_alone() {
    let (bytes, scales) = weight(70, 20);
    let panels = Panels::new(&bytes, [1, 70], &scales);
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = numbers(40 * 70, 6);
        x[3 * 70 + 69] = special;
        for int8 in forms() {
            let y = multiply(int8, &x, 70, &panels, None, false);
            for (row, y) in y.chunks_exact(20).enumerate() {
                assert!(y.iter().all(|value| value.is_nan() == (row == 3)), "{special} in row {row}: {y:?}");
            }
        }
    }
}
