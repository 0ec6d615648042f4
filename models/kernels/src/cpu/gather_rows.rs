//! Fused reordering of rows: each row is copied once, and the backward pass is the same with the inverse map.

use crate::cpu::flex::{self, contiguous, sizes};
use crate::cpu::operation::Operation;
use crate::cpu::threads::{Buffer, Chunks, parallel};
use crate::row_map::{NOWHERE, RowMap};
use burn::backend::flex::FlexTensor;

#[derive(Clone, Debug)]
pub(crate) struct GatherRows {
    pub(crate) map: RowMap,
}

impl Operation<1> for GatherRows {
    type Inputs = [(); 1];
    type Saved = ();

    fn forward(&self, [x]: [FlexTensor; 1]) -> FlexTensor {
        gather(contiguous(x), &self.map.sources)
    }

    fn forward_saving(&self, x: [FlexTensor; 1], _wanted: [bool; 1]) -> (FlexTensor, ()) {
        (self.forward(x), ())
    }

    fn backward(self, (): (), gradient: FlexTensor, _wanted: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(gather(contiguous(gradient), &self.map.targets))]
    }
}

fn gather(x: FlexTensor, sources: &[u32]) -> FlexTensor {
    let [batch, rows, dim] = sizes(&x);
    let from = x.storage::<f32>();
    let mut output = Buffer::new(batch * sources.len() * dim);
    let chunks = Chunks::new(batch * sources.len(), 64);
    let shared = output.shared();
    parallel(chunks.count(), |index| {
        for row in chunks.range(index) {
            // SAFETY: the chunks are disjoint, and with them their rows.
            let to = unsafe { shared.slice(row * dim..(row + 1) * dim) };
            match sources[row % sources.len()] {
                NOWHERE => to.fill(0.0),
                source => {
                    let start = (row / sources.len() * rows + source as usize) * dim;
                    to.copy_from_slice(&from[start..start + dim]);
                }
            }
        }
    });
    // SAFETY: the chunks cover all rows, and each row was written by the task of its chunk.
    let output = unsafe { output.written() };
    flex::tensor(output, [batch, sources.len(), dim])
}
