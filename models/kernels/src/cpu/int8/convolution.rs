//! A convolution on bytes, without gathering its inputs.
//!
//! The bytes of an image lie in rows of pixels with padding on both sides, and with padding above and below. Seen as a matrix whose rows
//! begin a pixel apart, and overlap, it holds the inputs of each place: a row of the kernel is a segment. Where the kernel passes the
//! end of a row of pixels, it reads the padding, and outputs at places within the padding are not written.

use super::detect::Int8;
use super::kernels::{self, Left, Output};
use super::panels::{DEPTH, Panels};
use super::rows::{Range, with_bytes};
use crate::cpu::threads::{Buffer, Chunks, parallel};

/// The multiple of rows that a kernel reads.
const GROUP: usize = 32;

/// The convolution of stride 1 that keeps the size of `[images, rows, columns, channels]` maps, by a kernel of `kernel` rows.
pub(crate) fn convolve(
    int8: Int8,
    x: &[f32],
    [images, rows, columns, channels]: [usize; 4],
    kernel: usize,
    panels: &Panels,
) -> Vec<f32> {
    let (padding, width) = (kernel / 2, panels.columns);
    let (pitch, line) = (columns + 2 * padding, columns * channels);
    let image = rows * line;
    let mut data = Buffer::<f32>::new(images * rows * columns * width);
    let outputs = data.shared();
    let bands = bands(images, rows);
    parallel(images * bands.count(), |index| {
        let (number, band) = (index / bands.count(), bands.range(index % bands.count()));
        let x = &x[number * image..][..image];
        let range = Range::of(int8, x);
        let map = (band.len() + 2 * padding) * pitch * channels;
        // Kernels read whole blocks of whole groups of places.
        let slack = GROUP * channels + kernel * channels + DEPTH;
        let places = (number * rows + band.start) * columns..(number * rows + band.end) * columns;
        // SAFETY: the bands of all images are disjoint, and with them their outputs.
        let y = unsafe { outputs.slice(places.start * width..places.end * width) };
        let start = y.as_mut_ptr();
        let to = |place: usize| {
            let (row, column) = (place / pitch, place % pitch);
            (column < columns).then(|| start.wrapping_add((row * columns + column) * width))
        };
        let addresses: Vec<Option<*mut f32>> = (0..band.len() * pitch).map(to).collect();
        let output = Output { range: |_| range, to: |place: usize| addresses[place], bias: None };
        with_bytes(map + slack, |memory| {
            memory[..map].fill(range.zero as u8);
            for row in band.start.saturating_sub(padding)..(band.end + padding).min(rows) {
                let at = ((row + padding - band.start) * pitch + padding) * channels;
                range.quantize(int8, &x[row * line..][..line], &mut memory[at..][..line]);
            }
            let left = Left {
                start: memory.as_ptr(),
                rows: addresses.len(),
                row_stride: channels,
                segment_stride: pitch * channels,
            };
            // SAFETY: the last group of places reads at most `slack` bytes beyond the map; `y` has the columns of each place.
            unsafe { kernels::multiply(int8, left, panels, &output) };
        });
    });
    // SAFETY: the bands cover all images, and each task wrote all channels of all places of its band.
    unsafe { data.written() }
}

/// The bands of rows that an image is cut into: a single one if there are images enough for all threads.
fn bands(images: usize, rows: usize) -> Chunks {
    /// Each band quantizes the rows above and below it, too.
    const SMALLEST: usize = 4;
    let threads = rayon::current_num_threads();
    let wanted = if images >= 2 * threads { 1 } else { 2 * threads };
    Chunks::of(rows, rows.div_ceil(wanted).max(SMALLEST))
}
