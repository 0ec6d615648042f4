//! The weight of a convolution by taps, as the products read it: `[size, size, in, out]` as a matrix with a column for each
//! output channel, from and to the kernels that are its parameter: `[out, in, size, size]`.

use crate::cpu::flex::{self, sizes};
use crate::cpu::threads::{Buffer, Chunks, parallel};
use burn::backend::flex::FlexTensor;

/// Kernels by taps: `[size * size * in, out]`.
pub(super) fn from_kernels(kernels: &FlexTensor) -> FlexTensor {
    let [outputs, inputs, rows, columns] = sizes(kernels);
    by_tap(kernels.storage(), rows * columns, [inputs, 1], [outputs, inputs])
}

/// Kernels by taps, with a column for each input channel: `[size * size * out, in]`.
pub(super) fn transposed_from_kernels(kernels: &FlexTensor) -> FlexTensor {
    let [outputs, inputs, rows, columns] = sizes(kernels);
    by_tap(kernels.storage(), rows * columns, [outputs, inputs], [inputs, 1])
}

/// `[size * rows, columns]` from kernels of `size` taps. Rows and columns come with the distance between neighbors, in
/// kernels.
fn by_tap(
    kernels: &[f32],
    size: usize,
    [rows, row_stride]: [usize; 2],
    [columns, column_stride]: [usize; 2],
) -> FlexTensor {
    let mut by_tap = Buffer::new(kernels.len());
    let to = by_tap.shared();
    let chunks = Chunks::of(rows, 4);
    parallel(chunks.count(), |index| {
        for row in chunks.range(index) {
            // All taps of a row in turn, because they lie next to each other in kernels.
            for tap in 0..size {
                let start = (tap * rows + row) * columns;
                // SAFETY: each row has a task of its own.
                let values = unsafe { to.slice(start..start + columns) };
                for (column, value) in values.iter_mut().enumerate() {
                    *value = kernels[(row * row_stride + column * column_stride) * size + tap];
                }
            }
        }
    });
    // SAFETY: the rows of all taps are all elements.
    flex::tensor(unsafe { by_tap.written() }, [size * rows, columns])
}

/// A matrix by taps, `[size * size * in, out]`, as kernels.
pub(super) fn to_kernels(by_tap: &FlexTensor, side: usize) -> FlexTensor {
    let [taps, outputs] = sizes(by_tap);
    let (data, size) = (by_tap.storage::<f32>(), side * side);
    let inputs = taps / size;
    let mut kernels = Buffer::new(data.len());
    let to = kernels.shared();
    let chunks = Chunks::of(outputs, 16);
    parallel(chunks.count(), |index| {
        for output in chunks.range(index) {
            // SAFETY: each output channel has kernels of its own, and a task of its own.
            let kernels = unsafe { to.slice(output * taps..(output + 1) * taps) };
            for (input, kernel) in kernels.chunks_exact_mut(size).enumerate() {
                for (tap, value) in kernel.iter_mut().enumerate() {
                    *value = data[(tap * inputs + input) * outputs + output];
                }
            }
        }
    });
    // SAFETY: the kernels of all output channels are all elements.
    flex::tensor(unsafe { kernels.written() }, [outputs, inputs, side, side])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::numbers;

    #[test]
    fn kernels_by_taps_and_back_are_the_same() {
        for [outputs, inputs, side] in [[5, 3, 3], [16, 32, 3], [2, 1, 1], [1, 7, 2]] {
            let data = numbers(outputs * inputs * side * side, 1);
            let kernels = flex::tensor(data.clone(), [outputs, inputs, side, side]);
            let transposed = transposed_from_kernels(&kernels);
            let by_tap = from_kernels(&kernels);
            assert_eq!(sizes(&by_tap), [side * side * inputs, outputs]);
            // The last tap of the last input channel, for the first output channel.
            let last = (side * side * inputs - 1) * outputs;
            assert_eq!(by_tap.storage::<f32>()[last], data[inputs * side * side - 1]);
            for (tap, row, column) in [(0, inputs - 1, outputs - 1), (side * side - 1, 0, outputs / 2)] {
                let (of, transposed) = (by_tap.storage::<f32>(), transposed.storage::<f32>());
                let value = of[(tap * inputs + row) * outputs + column];
                assert_eq!(value, transposed[(tap * outputs + column) * inputs + row]);
            }
            assert_eq!(to_kernels(&by_tap, side).storage::<f32>(), data);
        }
    }
}
