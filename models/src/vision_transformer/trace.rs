//! The whole model as operators.

use burn::module::Param;
use burn::tensor::Tensor;

use super::VisionTransformer;
use crate::PositionPlace;
use crate::graph::{Graph, Value};
use crate::pooling::Pooling;

impl VisionTransformer {
    /// [`Self::forward`] of a model that does not learn, as operators that are added to `graph`; returns the logits.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, classes]`
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use vitrine_models::{graph::Graph, preset};
    ///
    /// let config = preset::find("vit_pico_patch4_32").expect("listed").with_num_classes(10);
    /// let model = config.init(&Device::default())?;
    /// let mut graph = Graph::default();
    /// let images = graph.input("images", &[1, 3, 32, 32]);
    /// let logits = model.trace(&mut graph, &images);
    /// assert_eq!(logits.dims, [1, 10]);
    /// let softmax = graph.nodes.iter().filter(|node| node.operator == "Softmax").count();
    /// assert_eq!(softmax, 4); // one per block
    /// # Ok::<(), vitrine_models::ConfigError>(())
    /// ```
    pub fn trace(&self, graph: &mut Graph, images: &Value) -> Value {
        let tokens = self.trace_features(graph, images);
        self.trace_classify(graph, &tokens)
    }

    /// [`Self::embedding`] of a model that does not learn, as operators.
    ///
    /// # Shapes
    /// - images: `[batch, channels, height, width]`
    /// - output: `[batch, dim]`
    pub fn trace_embedding(&self, graph: &mut Graph, images: &Value) -> Value {
        let tokens = self.trace_features(graph, images);
        let pooled = self.pooling.trace(graph, &tokens);
        if self.distillation_head.is_none() {
            return pooled;
        }
        let distilled = distilled(graph, &tokens);
        let sum = graph.add(&pooled, &distilled);
        graph.scale(&sum, 0.5)
    }

    /// The features, and after them the tokens of the block that the pooling reads besides, as operators.
    fn trace_features(&self, graph: &mut Graph, images: &Value) -> Value {
        let (tokens, position) = self.trace_embed(graph, images);
        let several = self.stages.len() > 1;
        let mut early = None;
        let mut after_block = |block: usize, tokens: &Value| {
            if self.early_block() == Some(block + 1) {
                early = Some(tokens.clone());
            }
        };
        let tokens = self.stages.iter().enumerate().fold(tokens, |tokens, (index, stage)| {
            if several {
                graph.within(format!("layers.{index}"), |graph| {
                    stage.trace(graph, &tokens, &position, &mut after_block)
                })
            } else {
                stage.trace(graph, &tokens, &position, &mut after_block)
            }
        });
        let last = self.trace_finish(graph, &tokens);
        let Some(early) = early else { return last };
        let early = self.trace_finish(graph, &early);
        graph.concat(&[&last, &early], 1)
    }

    /// Tokens, and the positions that queries and keys get.
    fn trace_embed(&self, graph: &mut Graph, images: &Value) -> (Value, Option<Tensor<3>>) {
        let mut tokens = self.patch_embed.trace(graph, images);
        let patches = tokens.dims[1];
        let vectors = self.position.vectors();
        let (on_tokens, on_queries) = match self.config.position_place {
            PositionPlace::Tokens => (vectors, None),
            PositionPlace::QueryKey | PositionPlace::FirstQueryKey => (None, vectors),
        };
        let (on_patches, on_all): (Vec<_>, Vec<_>) =
            on_tokens.into_iter().partition(|vectors| vectors.dims()[1] == patches);
        for vectors in on_patches {
            let vectors = graph.constant("pos_embed", vectors);
            tokens = graph.add(&tokens, &vectors);
        }
        tokens = self.trace_join(graph, tokens);
        for vectors in on_all {
            let vectors = graph.constant("pos_embed", vectors);
            tokens = graph.add(&tokens, &vectors);
        }
        let [_, count, dim] = tokens.dims[..] else { panic!("tokens have three dimensions") };
        let position = on_queries.map(|vectors| {
            let missing = count - vectors.dims()[1];
            let nothing = Tensor::zeros([1, missing, dim], &vectors.device());
            if missing == 0 { vectors } else { Tensor::cat(vec![nothing, vectors], 1) }
        });
        let tokens = match &self.pre_norm {
            Some(norm) => norm.trace(graph, "norm_pre", &tokens),
            None => tokens,
        };
        (tokens, position)
    }

    /// The prefix tokens, then the patches.
    fn trace_join(&self, graph: &mut Graph, patches: Value) -> Value {
        let class_token = self.class_token.as_ref().filter(|_| self.config.class_depth == 0);
        let prefix: Vec<Param<Tensor<3>>> =
            [class_token, self.distillation_token.as_ref(), self.registers.as_ref()]
                .into_iter()
                .flatten()
                .cloned()
                .collect();
        if prefix.is_empty() {
            return patches;
        }
        let prefix = Tensor::cat(prefix.iter().map(Param::val).collect(), 1);
        let prefix = graph.constant("prefix_tokens", prefix);
        let prefix = graph.repeat(&prefix, &patches);
        graph.concat(&[&prefix, &patches], 1)
    }

    /// The tokens after the blocks.
    fn trace_finish(&self, graph: &mut Graph, patches: &Value) -> Value {
        let tokens = match &self.class_token {
            Some(token) if !self.class_blocks.is_empty() => {
                let token = graph.constant("cls_token", token.val());
                let token = graph.repeat(&token, patches);
                let token = self.class_blocks.iter().enumerate().fold(token, |token, (index, block)| {
                    graph.within(format!("blocks_token_only.{index}"), |graph| {
                        block.trace(graph, &token, patches)
                    })
                });
                graph.concat(&[&token, patches], 1)
            }
            _ => patches.clone(),
        };
        match &self.norm {
            Some(norm) => norm.trace(graph, "norm", &tokens),
            None => tokens,
        }
    }

    fn trace_classify(&self, graph: &mut Graph, tokens: &Value) -> Value {
        match &self.distillation_head {
            None => match &self.pooling {
                Pooling::ClassQueries(decoder) => {
                    let queries = decoder.trace(graph, tokens);
                    self.head.trace_class_queries(graph, &queries)
                }
                pooling => {
                    let pooled = pooling.trace(graph, tokens);
                    self.head.trace(graph, "head", &pooled)
                }
            },
            Some(head) => {
                let pooled = self.pooling.trace(graph, tokens);
                let distilled = distilled(graph, tokens);
                let logits = self.head.trace(graph, "head", &pooled);
                let distilled = head.trace(graph, "head_dist", &distilled);
                let sum = graph.add(&logits, &distilled);
                graph.scale(&sum, 0.5)
            }
        }
    }
}

/// The distillation token.
fn distilled(graph: &mut Graph, tokens: &Value) -> Value {
    let token = graph.narrow(tokens, 1, 1, 1);
    graph.reshape(&token, &[1, tokens.dims[2]])
}
