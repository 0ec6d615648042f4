//! From one vector an image to class logits.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::ModelConfig;
use crate::linear::Linear;

/// Hidden layers with GELU, if any, then a linear layer to the logits.
#[derive(Module, Debug)]
pub struct Head {
    hidden: Vec<Linear>,
    output: Linear,
}

impl Head {
    /// A head of the widths that the configuration lists.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let mut width = config.last_dim();
        let mut hidden = Vec::with_capacity(config.head_hidden.len());
        for &next in &config.head_hidden {
            hidden.push(Linear::new(width, next, true, device));
            width = next;
        }
        Self { hidden, output: Linear::new(width, config.num_classes, true, device) }
    }

    /// # Shapes
    /// - x: `[batch, dim]`
    /// - output: `[batch, num_classes]`
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.output.forward(self.hidden.iter().fold(x, |x, layer| layer.forward_gelu(x)))
    }
}
