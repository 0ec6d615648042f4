//! Fused attention to neighborhoods: forward and backward without a pair of patches that do not attend to each other.
//!
//! Queries, keys and values of a head are transposed into [planes](plane), in which a row of the grid lies along the
//! vectors, one channel after the other. A shift by an offset is then a shift of the address:
//!
//! ```text
//! forward:
//! for each head of each sample                      a task
//!   for each row, LANES queries at a time
//!     for each row of the neighborhood              the scores of up to eight offsets: registers
//!       for each channel                            reads a vector of queries, and the keys at each offset
//!     softmax over the offsets                      in L1
//!     for up to eight channels                      the output: registers
//!       for each offset                             reads the weights, and the values at the offset
//! backward:
//! for each head of each sample                      a task
//!   for each row, LANES queries at a time           weights and their gradients again, kept for the whole head; dq
//!   for each row, LANES keys at a time              dk and dv, from the queries that attend to them
//! ```
//!
//! What is kept of a head is its planes and `patches * offsets` weights, in the scratch memory of a task.

mod geometry;
mod head;
mod lanes;
mod plane;

use super::flex::{self, sizes};
use super::operation::Operation;
use super::threads::{Buffer, parallel_with};
use crate::neighbors::Neighborhood;
use burn::backend::flex::FlexTensor;
use geometry::Geometry;
use head::{Gradients, Head};
use plane::HeadView;

#[derive(Clone, Debug)]
pub(crate) struct NeighborhoodAttention {
    pub(crate) scale: f32,
    pub(crate) neighborhood: Neighborhood,
}

impl Operation<3> for NeighborhoodAttention {
    type Inputs = [(); 3];
    /// The queries, keys and values.
    type Saved = [FlexTensor; 3];

    fn forward(&self, qkv: [FlexTensor; 3]) -> FlexTensor {
        let shape = sizes::<4>(&qkv[0]);
        let [batch, heads, patches, head_dim] = shape;
        let geometry = Geometry::new(self.neighborhood);
        let length = patches * head_dim;
        let mut output = Buffer::new(batch * heads * length);
        {
            let (qkv, outputs) = (qkv.each_ref().map(HeadView::of), output.shared());
            parallel_with(
                batch * heads,
                || Head::new(&geometry, head_dim),
                |head, pair| {
                    // SAFETY: each task has the output of its own head.
                    let output = unsafe { outputs.slice(pair * length..(pair + 1) * length) };
                    let [q, k, v] = qkv.map(|view| view.at([pair / heads, pair % heads]));
                    head.load(q, [k, v], self.scale);
                    head.forward(output);
                },
            );
        }
        // SAFETY: each task wrote the whole output of its head.
        flex::tensor(unsafe { output.written() }, shape)
    }

    fn forward_saving(&self, qkv: [FlexTensor; 3], _wanted: [bool; 3]) -> (FlexTensor, [FlexTensor; 3]) {
        (self.forward(qkv.clone()), qkv)
    }

    fn backward(self, qkv: [FlexTensor; 3], dy: FlexTensor, wanted: [bool; 3]) -> [Option<FlexTensor>; 3] {
        let [batch, heads, _, head_dim] = sizes::<4>(&qkv[0]);
        let geometry = Geometry::new(self.neighborhood);
        let shapes = qkv.each_ref().map(sizes::<4>);
        let lengths = shapes.map(|[_, _, tokens, _]| tokens * head_dim);
        let mut buffers = lengths.map(|length| Buffer::new(batch * heads * length));
        {
            let targets = buffers.each_mut().map(Buffer::shared);
            let (qkv, dy) = (qkv.each_ref().map(HeadView::of), HeadView::of(&dy));
            parallel_with(
                batch * heads,
                || Head::new(&geometry, head_dim),
                |head, pair| {
                    let place = [pair / heads, pair % heads];
                    let [q, k, v] = qkv.map(|view| view.at(place));
                    head.load(q, [k, v], self.scale);
                    // SAFETY: each task has the gradients of its own head.
                    let [dq, dk, dv] = [0, 1, 2].map(|part| unsafe {
                        targets[part].slice(pair * lengths[part]..(pair + 1) * lengths[part])
                    });
                    head.backward(dy.at(place), self.scale, Gradients { dq, dk, dv });
                },
            );
        }
        let mut gradients = buffers.into_iter().zip(shapes).zip(wanted).map(|((data, shape), wanted)| {
            // SAFETY: each task wrote all gradients of its head.
            wanted.then(|| flex::tensor(unsafe { data.written() }, shape))
        });
        [(); 3].map(|()| gradients.next().flatten())
    }
}
