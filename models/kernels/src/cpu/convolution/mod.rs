//! Fused kernels that slide over maps: convolution, depth-wise convolution and max pooling.
//!
//! Convolution has two forms: as products with the [gathered] inputs of each output, and, if the shape suits, in
//! [tiles](winograd).

mod depthwise;
mod gathered;
mod max_pool;
mod pooled;
mod sliding;
mod taps;
mod winograd;

pub(crate) use depthwise::DepthwiseConvolution;
pub(crate) use max_pool::MaxPooling;
pub(crate) use pooled::PooledConvolution;
pub(crate) use sliding::Kernel;

use super::flex::{contiguous, sizes};
use super::gemm::Bfloat16;
use super::operation::Operation;
use burn::backend::flex::FlexTensor;
use winograd::{Filters, ResultGradients, Tiles};

/// A convolution in which each output channel reads all input channels.
#[derive(Clone, Debug)]
pub(crate) struct FullConvolution {
    kernel: Kernel,
    /// The instructions of products that may be rounded.
    bfloat16: Option<Bfloat16>,
}

impl FullConvolution {
    /// A convolution in the precision of this thread.
    pub(crate) fn new(kernel: Kernel) -> Self {
        Self { kernel, bfloat16: Bfloat16::wanted() }
    }
}

/// The inputs, which the backward pass reads again.
#[derive(Clone, Debug)]
pub(crate) struct SavedMaps {
    x: FlexTensor,
    kernels: FlexTensor,
    /// The transposed filters of tiles, if the forward pass has made them.
    transposed: Option<Filters>,
}

impl Operation<2> for FullConvolution {
    type Inputs = [(); 2];
    type Saved = SavedMaps;

    fn forward(&self, inputs: [FlexTensor; 2]) -> FlexTensor {
        self.forward_saving(inputs, [false; 2]).0
    }

    fn forward_saving(&self, inputs: [FlexTensor; 2], [x_wanted, _]: [bool; 2]) -> (FlexTensor, SavedMaps) {
        let [x, kernels] = inputs.map(contiguous);
        let maps = Maps::new(self, sizes(&x), sizes(&kernels));
        let weight = taps::from_kernels(&kernels);
        let (output, transposed) = if maps.suit_winograd() {
            let convolved = Tiles::new(&maps, false).convolve(x.storage(), weight.storage(), x_wanted, false);
            (convolved.y, convolved.transposed)
        } else {
            (maps.outputs(x.storage(), weight.storage()), None)
        };
        (output, SavedMaps { x, kernels, transposed })
    }

    fn backward(self, saved: SavedMaps, dy: FlexTensor, wanted: [bool; 2]) -> [Option<FlexTensor>; 2] {
        let maps = Maps::new(&self, sizes(&saved.x), sizes(&saved.kernels));
        let dy = contiguous(dy);
        if maps.suit_winograd() {
            return saved.gradients(&Tiles::new(&maps, false), &dy, &[], wanted);
        }
        let weight = taps::from_kernels(&saved.kernels);
        let [dx, dweight] = maps.gradients(saved.x.storage(), weight.storage(), dy.storage(), wanted);
        [dx, dweight.map(|dweight| taps::to_kernels(&dweight, self.kernel.size))]
    }
}

impl SavedMaps {
    /// The `wanted` gradients in tiles, from those of the results. `winners` are the taps of the largest outputs, with pooling.
    fn gradients(
        self,
        tiles: &Tiles<'_>,
        dy: &FlexTensor,
        winners: &[u8],
        wanted: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let Self { x, kernels, transposed } = self;
        let from_kernels = || tiles.transposed_filters(taps::transposed_from_kernels(&kernels).storage());
        let transposed = wanted[0].then(|| transposed.unwrap_or_else(from_kernels));
        let of = ResultGradients { dy: dy.storage(), winners };
        let [dx, dweight] = tiles.gradients(x.storage(), transposed, of, wanted[1]);
        [dx, dweight.map(|dweight| taps::to_kernels(&dweight, winograd::KERNEL.size))]
    }
}

/// The sizes of a convolution, and how it multiplies.
#[derive(Clone, Copy, Debug)]
struct Maps {
    kernel: Kernel,
    /// The instructions of products that may be rounded.
    bfloat16: Option<Bfloat16>,
    images: usize,
    /// Rows and columns.
    input: [usize; 2],
    /// Rows and columns.
    output: [usize; 2],
    in_channels: usize,
    out_channels: usize,
}

impl Maps {
    fn new(
        &FullConvolution { kernel, bfloat16 }: &FullConvolution,
        [images, rows, columns, in_channels]: [usize; 4],
        [out_channels, ..]: [usize; 4],
    ) -> Self {
        let (input, output) = ([rows, columns], [rows, columns].map(|size| kernel.places(size)));
        Self { kernel, bfloat16, images, input, output, in_channels, out_channels }
    }

    /// The number of values that an output reads.
    fn taps(&self) -> usize {
        self.kernel.size * self.kernel.size * self.in_channels
    }

    /// The places of an output map, each with an output for every channel.
    fn places(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// The number of values of an input image.
    fn image(&self) -> usize {
        self.input[0] * self.input[1] * self.in_channels
    }
}
