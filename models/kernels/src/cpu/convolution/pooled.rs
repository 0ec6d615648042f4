//! A convolution and the max pooling after it that halves the rows and columns: the outputs of a tile are pooled as soon
//! as they are computed, so that the map of all outputs, and its gradient in the backward pass, are never in memory.

use super::winograd::{self, Tiles};
use super::{FullConvolution, Maps, SavedMaps, taps};
use crate::cpu::flex::{contiguous, sizes};
use crate::cpu::operation::Operation;
use burn::backend::flex::FlexTensor;

/// A convolution of 3 by 3 that keeps the size of the map, of which the largest of each two by two outputs are the result.
#[derive(Clone, Debug)]
pub(crate) struct PooledConvolution(FullConvolution);

/// What the backward pass reads again.
#[derive(Clone, Debug)]
pub(crate) struct SavedPool {
    maps: SavedMaps,
    /// For each result, its tap.
    winners: Vec<u8>,
}

impl PooledConvolution {
    /// The operation in the precision of this thread, if inputs and kernels of these shapes are convolved in tiles.
    pub(crate) fn new(x: [usize; 4], kernels: [usize; 4]) -> Option<Self> {
        let convolution = FullConvolution::new(winograd::KERNEL);
        Maps::new(&convolution, x, kernels).suit_winograd().then_some(Self(convolution))
    }

    fn convolve(
        &self,
        inputs: [FlexTensor; 2],
        transposed_wanted: bool,
        winners_wanted: bool,
    ) -> (FlexTensor, SavedPool) {
        let [x, kernels] = inputs.map(contiguous);
        let maps = Maps::new(&self.0, sizes(&x), sizes(&kernels));
        let (tiles, weight) = (Tiles::new(&maps, true), taps::from_kernels(&kernels));
        let convolved = tiles.convolve(x.storage(), weight.storage(), transposed_wanted, winners_wanted);
        let maps = SavedMaps { x, kernels, transposed: convolved.transposed };
        (convolved.y, SavedPool { maps, winners: convolved.winners })
    }
}

impl Operation<2> for PooledConvolution {
    type Inputs = [(); 2];
    type Saved = SavedPool;

    fn forward(&self, inputs: [FlexTensor; 2]) -> FlexTensor {
        self.convolve(inputs, false, false).0
    }

    fn forward_saving(&self, inputs: [FlexTensor; 2], [x_wanted, _]: [bool; 2]) -> (FlexTensor, SavedPool) {
        self.convolve(inputs, x_wanted, true)
    }

    fn backward(self, saved: SavedPool, dy: FlexTensor, wanted: [bool; 2]) -> [Option<FlexTensor>; 2] {
        let SavedPool { maps: saved, winners } = saved;
        let maps = Maps::new(&self.0, sizes(&saved.x), sizes(&saved.kernels));
        saved.gradients(&Tiles::new(&maps, true), &contiguous(dy), &winners, wanted)
    }
}
