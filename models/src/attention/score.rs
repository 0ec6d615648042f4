//! Score functions: from queries and keys to scores.
//!
//! To add a score, write its module here, and give it a variant in [`ScoreFunction`] and in [`Score`]. The compiler
//! then lists the lines of this file that it still needs.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::mask::HIDDEN;
use super::{AttentionSpec, product};
use crate::Score;
use crate::graph::{Graph, Value};
use crate::linear::{constant, uniform};
use vitrine_kernels::DotProduct;

/// The score functions that a configuration chooses from, with their parameters for each head.
#[derive(Module, Debug)]
pub enum ScoreFunction {
    /// `scale * q · k`.
    Dot(f64),
    /// A dot product with a learned matrix between query and key.
    Bilinear(BilinearScore),
    /// A small MLP of query and key.
    Additive(AdditiveScore),
    /// The cosine of the angle between query and key.
    Cosine(CosineScore),
    /// A dot product with a learned factor, in which no token sees itself.
    Locality(LocalityScore),
}

/// Scores that are dot products: `scale * q · k + bias`.
#[derive(Debug)]
pub struct DotScore {
    /// `[batch, heads, queries, head_dim]`.
    pub q: Tensor<4>,
    /// `[batch, heads, keys, head_dim]`.
    pub k: Tensor<4>,
    /// The factor of all scores.
    pub scale: f64,
    /// `[1, 1, queries, keys]`. Its batch is 1, because the bias of windows, which is added to it, has its own batch.
    pub bias: Option<Tensor<4>>,
}

/// The result of a score function.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // taken apart at once
pub enum Scored {
    /// Dot products, which the fused attention can compute.
    Product(DotScore),
    /// The scores: `[batch, heads, queries, keys]`.
    Values(Tensor<4>),
}

impl ScoreFunction {
    /// Fresh parameters, if the score has any.
    ///
    /// # Examples
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use vitrine_models::attention::{AttentionSpec, ScoreFunction};
    /// use vitrine_models::preset;
    ///
    /// let device = Device::default();
    /// let config = preset::find("vit_pico_patch4_32").expect("listed");
    /// let score = ScoreFunction::new(&AttentionSpec::of_stage(&config, 0), &device); // scaled_dot, heads of width 32
    /// let [q, k] = [2.0, 3.0].map(|value| Tensor::<4>::full([1, 3, 1, 32], value, &device));
    /// let scores = score.forward(q, k).into_data().try_into_vec_as::<f32>()?;
    /// assert!(scores.iter().all(|score| (score - 6.0 * 32f32.sqrt()).abs() < 1e-4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(spec: &AttentionSpec, device: &Device) -> Self {
        let heads = [spec.num_heads, spec.head_dim()];
        match spec.options.score {
            Score::ScaledDot => Self::Dot((spec.head_dim() as f64).powf(-0.5)),
            Score::Dot => Self::Dot(1.0),
            Score::Bilinear => Self::Bilinear(BilinearScore::new(heads, device)),
            Score::Additive => Self::Additive(AdditiveScore::new(heads, device)),
            Score::Cosine => Self::Cosine(CosineScore::new(heads, device)),
            Score::Locality => Self::Locality(LocalityScore::new(heads, device)),
        }
    }

    /// The score as a [`DotProduct`], which self-attention computes directly from the joint projection; `None` if it is
    /// not one.
    pub fn dot_product(&self) -> Option<DotProduct> {
        match self {
            Self::Dot(scale) => Some(DotProduct::scaled(*scale)),
            Self::Cosine(score) => Some(score.dot_product()),
            Self::Locality(score) => Some(score.dot_product()),
            Self::Bilinear(_) | Self::Additive(_) => None,
        }
    }

    /// Whether the scores are dot products without a bias.
    pub(super) fn is_unbiased_product(&self) -> bool {
        match self {
            Self::Dot(_) | Self::Bilinear(_) | Self::Cosine(_) => true,
            Self::Additive(_) | Self::Locality(_) => false,
        }
    }

    /// The bias that this score adds between `tokens` tokens: `[1, 1, tokens, tokens]`; `None` for most scores.
    pub fn bias(&self, tokens: usize, device: &Device) -> Option<Tensor<4>> {
        match self {
            Self::Locality(_) => Some(LocalityScore::bias(tokens, device)),
            Self::Dot(_) | Self::Bilinear(_) | Self::Additive(_) | Self::Cosine(_) => None,
        }
    }

    /// The scores, as values or as dot products that are not computed yet.
    ///
    /// # Shapes
    /// - q: `[batch, heads, queries, head_dim]`; k: `[batch, heads, keys, head_dim]`
    ///
    /// # Panics
    /// For the locality score, if there are not as many keys as queries.
    pub fn score(&self, q: Tensor<4>, k: Tensor<4>) -> Scored {
        match self {
            Self::Dot(scale) => Scored::Product(DotScore { q, k, scale: *scale, bias: None }),
            Self::Bilinear(score) => Scored::Product(score.product(q, k)),
            Self::Additive(score) => Scored::Values(score.values(q, k)),
            Self::Cosine(score) => Scored::Product(score.product(q, k)),
            Self::Locality(score) => Scored::Product(score.product(q, k)),
        }
    }

    /// The scores as values.
    ///
    /// # Shapes
    /// - q: `[batch, heads, queries, head_dim]`; k: `[batch, heads, keys, head_dim]`
    /// - output: `[batch, heads, queries, keys]`
    pub fn forward(&self, q: Tensor<4>, k: Tensor<4>) -> Tensor<4> {
        self.score(q, k).values()
    }

    /// [`Self::forward`] as operators.
    pub(crate) fn trace(&self, graph: &mut Graph, q: &Value, k: &Value) -> Value {
        match self {
            Self::Dot(scale) => {
                let q = if *scale == 1.0 { q.clone() } else { graph.scale(q, *scale) };
                products(graph, &q, k)
            }
            Self::Bilinear(score) => {
                let matrices = graph.weight("bilinear", score.bilinear.val().unsqueeze::<4>());
                let q = graph.matmul(q, &matrices);
                products(graph, &q, k)
            }
            Self::Additive(score) => score.trace(graph, q, k),
            Self::Cosine(score) => {
                let factors = graph.constant("logit_scale", score.factors().unsqueeze::<4>());
                let (q, k) = (l2_normalize(graph, q), l2_normalize(graph, k));
                let q = graph.multiply(&q, &factors);
                products(graph, &q, &k)
            }
            Self::Locality(score) => {
                let factors = graph.constant("temperature", score.temperature.val().unsqueeze::<4>());
                let own = LocalityScore::bias(q.dims[2], &score.temperature.val().device());
                let own = graph.constant("own", own);
                let q = graph.multiply(q, &factors);
                let scores = products(graph, &q, k);
                graph.add(&scores, &own)
            }
        }
    }
}

/// The product of every query with every key, as operators.
fn products(graph: &mut Graph, q: &Value, k: &Value) -> Value {
    let k = graph.transpose(k, &[0, 1, 3, 2]);
    graph.matmul(q, &k)
}

/// [`vitrine_kernels::l2_normalize`] as operators.
pub(super) fn l2_normalize(graph: &mut Graph, x: &Value) -> Value {
    let length = graph.reduce("ReduceL2", x, 3);
    let least = graph.number(1e-12);
    let length = graph.binary("Max", &length, &least);
    graph.binary("Div", x, &length)
}

impl Scored {
    /// The scores: `[batch, heads, queries, keys]`.
    pub fn values(self) -> Tensor<4> {
        match self {
            Self::Values(values) => values,
            Self::Product(DotScore { q, k, scale, bias }) => {
                let scores = vitrine_kernels::matmul(q, k.swap_dims(2, 3)).mul_scalar(scale);
                match bias {
                    Some(bias) => scores + bias,
                    None => scores,
                }
            }
        }
    }
}

impl Score {
    /// The multiply-adds of the scores of `tokens` queries with `area` keys each, in self-attention.
    pub(super) fn cost(self, spec: &AttentionSpec, [tokens, area]: [usize; 2]) -> u64 {
        product([tokens, area, spec.dim]) + self.matrices_cost(spec, [tokens, tokens])
    }

    /// The multiply-adds of the scores of all `queries` with all `keys`.
    pub(super) fn cross_cost(self, spec: &AttentionSpec, [queries, keys]: [usize; 2]) -> u64 {
        product([queries, keys, spec.dim]) + self.matrices_cost(spec, [queries, keys])
    }

    /// The multiply-adds of the score's own matrices.
    fn matrices_cost(self, spec: &AttentionSpec, [queries, keys]: [usize; 2]) -> u64 {
        let matrix = |tokens| product([tokens, spec.dim, spec.head_dim()]);
        match self {
            Self::ScaledDot | Self::Dot | Self::Cosine | Self::Locality => 0,
            Self::Bilinear => matrix(queries),
            Self::Additive => matrix(queries) + matrix(keys),
        }
    }

    /// Whether training keeps the scores of all pairs, because the score has no fused form.
    pub(crate) fn keeps_scores(self) -> bool {
        match self {
            Self::Additive => true,
            Self::ScaledDot | Self::Dot | Self::Bilinear | Self::Cosine | Self::Locality => false,
        }
    }

    /// Whether no token sees itself.
    pub(crate) fn hides_own_token(self) -> bool {
        match self {
            Self::Locality => true,
            Self::ScaledDot | Self::Dot | Self::Bilinear | Self::Additive | Self::Cosine => false,
        }
    }

    /// Whether the score normalizes queries and keys to length 1 itself.
    pub(crate) fn normalizes(self) -> bool {
        match self {
            Self::Cosine => true,
            Self::ScaledDot | Self::Dot | Self::Bilinear | Self::Additive | Self::Locality => false,
        }
    }
}

/// `q · matrix · k` ('general' in Luong et al. 2015, section 3.1).
#[derive(Module, Debug)]
pub struct BilinearScore {
    /// The matrix between query and key: `[heads, head_dim, head_dim]`.
    pub bilinear: Param<Tensor<3>>,
}

impl BilinearScore {
    fn new([heads, dim]: [usize; 2], device: &Device) -> Self {
        Self { bilinear: uniform([heads, dim, dim], 1.0 / (dim as f64).sqrt(), device) }
    }

    fn product(&self, q: Tensor<4>, k: Tensor<4>) -> DotScore {
        DotScore { q: vitrine_kernels::matmul(q, self.bilinear.val().unsqueeze()), k, scale: 1.0, bias: None }
    }
}

/// `vector · tanh(query * q + key * k)` (Bahdanau et al. 2015, appendix A.1.2).
#[derive(Module, Debug)]
pub struct AdditiveScore {
    /// The matrix of queries, which are multiplied from the left: `[heads, head_dim, head_dim]`.
    pub query: Param<Tensor<3>>,
    /// The matrix of keys, which are multiplied from the left: `[heads, head_dim, head_dim]`.
    pub key: Param<Tensor<3>>,
    /// The vector that the sum is multiplied with: `[heads, head_dim, 1]`.
    pub vector: Param<Tensor<3>>,
}

impl AdditiveScore {
    fn new([heads, dim]: [usize; 2], device: &Device) -> Self {
        let bound = 1.0 / (dim as f64).sqrt();
        Self {
            query: uniform([heads, dim, dim], bound, device),
            key: uniform([heads, dim, dim], bound, device),
            vector: uniform([heads, dim, 1], bound, device),
        }
    }

    /// # Shapes
    /// - q: `[batch, heads, queries, head_dim]`; k: `[batch, heads, keys, head_dim]`
    /// - output: `[batch, heads, queries, keys]`
    fn values(&self, q: Tensor<4>, k: Tensor<4>) -> Tensor<4> {
        let [batch, heads, queries, dim] = q.dims();
        let keys = k.dims()[2];
        let q =
            vitrine_kernels::matmul(q, self.query.val().unsqueeze()).reshape([batch, heads, queries, 1, dim]);
        let k = vitrine_kernels::matmul(k, self.key.val().unsqueeze()).reshape([batch, heads, 1, keys, dim]);
        let hidden = (q + k).tanh().reshape([batch, heads, queries * keys, dim]);
        vitrine_kernels::matmul(hidden, self.vector.val().unsqueeze()).reshape([batch, heads, queries, keys])
    }

    fn trace(&self, graph: &mut Graph, q: &Value, k: &Value) -> Value {
        let [query, key, vector] = [("query", &self.query), ("key", &self.key), ("vector", &self.vector)]
            .map(|(name, param)| graph.weight(name, param.val().unsqueeze::<4>()));
        let (queries, keys) = (q.dims[2], k.dims[2]);
        let (q, k) = (graph.matmul(q, &query), graph.matmul(k, &key));
        let [batch, heads, _, dim] = k.dims[..] else { panic!("keys have four dimensions") };
        let q = graph.reshape(&q, &[q.dims[0], heads, queries, 1, dim]);
        let k = graph.reshape(&k, &[batch, heads, 1, keys, dim]);
        let sum = graph.add(&q, &k);
        let hidden = graph.unary("Tanh", &sum);
        let hidden = graph.reshape(&hidden, &[batch, heads, queries * keys, dim]);
        let scores = graph.matmul(&hidden, &vector);
        graph.reshape(&scores, &[batch, heads, queries, keys])
    }
}

/// The cosine of the angle between query and key times a factor of at most 100 (Liu et al. 2022, Swin v2, section 3.2).
#[derive(Module, Debug)]
pub struct CosineScore {
    /// The logarithm of the factor: `[heads, 1, 1]`.
    pub logit_scale: Param<Tensor<3>>,
}

impl CosineScore {
    fn new([heads, _]: [usize; 2], device: &Device) -> Self {
        Self { logit_scale: constant([heads, 1, 1], 10f64.ln(), device) }
    }

    fn product(&self, q: Tensor<4>, k: Tensor<4>) -> DotScore {
        let q = vitrine_kernels::l2_normalize(q) * self.factors().unsqueeze();
        DotScore { q, k: vitrine_kernels::l2_normalize(k), scale: 1.0, bias: None }
    }

    fn dot_product(&self) -> DotProduct {
        let factors = self.factors().flatten(0, 2);
        DotProduct { factors: Some(factors), normalize: true, ..DotProduct::scaled(1.0) }
    }

    /// The factor of each head: `[heads, 1, 1]`.
    fn factors(&self) -> Tensor<3> {
        self.logit_scale.val().clamp_max(100f64.ln()).exp()
    }
}

/// `q · k` times a learned factor; no token sees itself (Lee et al. 2021, section 3.2).
#[derive(Module, Debug)]
pub struct LocalityScore {
    /// The factor: `[heads, 1, 1]`.
    pub temperature: Param<Tensor<3>>,
}

impl LocalityScore {
    fn new([heads, dim]: [usize; 2], device: &Device) -> Self {
        Self { temperature: constant([heads, 1, 1], 1.0 / (dim as f64).sqrt(), device) }
    }

    /// # Panics
    /// If there are not as many keys as queries.
    fn product(&self, q: Tensor<4>, k: Tensor<4>) -> DotScore {
        assert_eq!(
            q.dims()[2],
            k.dims()[2],
            "the locality score is for self-attention, with as many keys as queries"
        );
        let bias = Self::bias(q.dims()[2], &q.device());
        DotScore { q: q * self.temperature.val().unsqueeze(), k, scale: 1.0, bias: Some(bias) }
    }

    fn dot_product(&self) -> DotProduct {
        let factors = self.temperature.val().flatten(0, 2);
        DotProduct { factors: Some(factors), ..DotProduct::scaled(1.0) }
    }

    /// The bias that masks every token from itself.
    fn bias(tokens: usize, device: &Device) -> Tensor<4> {
        Tensor::<2>::eye(tokens, device).mul_scalar(HIDDEN).unsqueeze()
    }
}
