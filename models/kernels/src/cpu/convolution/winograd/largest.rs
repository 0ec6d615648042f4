//! The largest of each two by two outputs of a tile, and the gradients of the outputs from those of the largest.
//!
//! All outputs of a tile are in a small memory of the task, `[side][side][channels]`.

use super::super::max_pool::{keep_larger, of_tap};
use super::transform::{lanes, vectors};
use crate::cpu::simd::{LANES, vectorized};

/// The two by two outputs of a tile of `side` by `side` of which the largest has this place.
#[inline(always)]
fn two_by_two(place: usize, side: usize) -> [usize; 4] {
    let (row, column) = (place / (side / 2), place % (side / 2));
    let first = 2 * row * side + 2 * column;
    [first, first + 1, first + side, first + side + 1]
}

vectorized! {
    /// Writes the largest outputs of a tile to the offsets of their places, and their taps to `winners`, unless that is empty.
    pub(super) fn pool(
        outputs: &[f32],
        side: usize,
        channels: usize,
        offsets: &[Option<usize>],
        y: &mut [f32],
        winners: &mut [u8],
    ) {
        for (place, offset) in offsets[..side * side / 4].iter().enumerate() {
            let Some(start) = offset else { continue };
            for (channel, _) in vectors(channels) {
                let (mut best, mut taps) = ([f32::NEG_INFINITY; LANES], [0; LANES]);
                for (tap, output) in (0..).zip(two_by_two(place, side)) {
                    keep_larger((&mut best, &mut taps), lanes(&outputs[output * channels..], channel), tap);
                }
                y[start + channel..][..LANES].copy_from_slice(&best);
                if !winners.is_empty() {
                    let winners = &mut winners[start + channel..][..LANES];
                    winners.iter_mut().zip(taps).for_each(|(winner, tap)| *winner = tap as u8);
                }
            }
        }
    }

    /// Writes the gradients of all outputs of a tile, from those of the largest, place by place, and their taps.
    pub(super) fn spread(gradients: &[&[f32]], winners: &[&[u8]], side: usize, outputs: &mut [f32]) {
        for (place, (gradients, winners)) in gradients.iter().zip(winners).enumerate() {
            let channels = gradients.len();
            for (channel, _) in vectors(channels) {
                let gradients = lanes(gradients, channel);
                let winners: &[u8; LANES] = winners[channel..].first_chunk().expect("channels in whole vectors");
                for (tap, output) in (0..).zip(two_by_two(place, side)) {
                    let gradients = of_tap(&gradients, winners, tap);
                    outputs[output * channels + channel..][..LANES].copy_from_slice(&gradients);
                }
            }
        }
    }
}
