//! The classifier: from one vector per image, or from one per class, to class logits.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::ModelConfig;
use crate::graph::{Graph, Value};
use crate::linear::Linear;

/// A linear layer to the logits, after hidden layers with GELU if the configuration asks for them.
#[derive(Module, Debug)]
pub struct Head {
    hidden: Vec<Linear>,
    output: Linear,
}

impl Head {
    /// A head with the hidden widths that the configuration lists, and fresh parameters.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let mut width = config.embedding_dim();
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
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::module::Module;
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::{ModelConfig, head::Head, preset};
    ///
    /// let device = Device::default();
    /// let plain = preset::find("vit_pico_patch4_32").expect("listed");
    /// let config = ModelConfig { head_hidden: vec![32], ..plain };
    /// let head = Head::new(&config, &device);
    /// assert_eq!(head.num_params(), (96 * 32 + 32) + (32 * 10 + 10));
    /// // Biases start at zero.
    /// let logits = head.forward(Tensor::zeros([2, 96], &device));
    /// assert_eq!(logits.into_data().try_into_vec_as::<f32>()?, [0.0; 20]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.output.forward(self.hidden.iter().fold(x, |x, layer| layer.forward_gelu(x)))
    }

    /// [`Self::forward`] as operators; `name` is the name of the head.
    pub(crate) fn trace(&self, graph: &mut Graph, name: &str, x: &Value) -> Value {
        let hidden = self.hidden.iter().enumerate().fold(x.clone(), |x, (index, layer)| {
            let hidden = layer.trace(graph, &format!("{name}.hidden.{index}"), &x);
            graph.gelu(&hidden)
        });
        self.output.trace(graph, name, &hidden)
    }

    /// [`Self::forward_class_queries`] as operators.
    pub(crate) fn trace_class_queries(&self, graph: &mut Graph, x: &Value) -> Value {
        graph.within("head", |graph| {
            let weight = graph.weight("weight", self.output.weight.val().transpose().unsqueeze::<3>());
            let products = graph.multiply(x, &weight);
            let sums = graph.reduce("ReduceSum", &products, 2);
            let logits = graph.reshape(&sums, &[sums.dims[0], sums.dims[1]]);
            match &self.output.bias {
                Some(bias) => {
                    let bias = graph.constant("bias", bias.val());
                    graph.add(&logits, &bias)
                }
                None => logits,
            }
        })
    }

    /// The logits from one vector per class: that of a class has the class's own column of the last layer (Liu et al.
    /// 2021, Query2Label, equation 3).
    ///
    /// # Shapes
    /// - x: `[batch, num_classes, dim]`
    /// - output: `[batch, num_classes]`
    pub fn forward_class_queries(&self, x: Tensor<3>) -> Tensor<2> {
        let Linear { weight, bias, .. } = &self.output;
        let logits = (x * weight.val().transpose().unsqueeze()).sum_dim(2).squeeze_dim::<2>(2);
        match bias {
            Some(bias) => logits + bias.val().unsqueeze(),
            None => logits,
        }
    }
}
