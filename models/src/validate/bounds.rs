//! The upper bounds of the numbers of a configuration. They prevent that a file makes the program ask for more memory
//! than a machine has, and that products of the numbers overflow.

use crate::attention::{MOST_PAIRS, neighborhood::is_fused};
use crate::embed::{ConvolutionEmbed, ResidualEmbed};
use crate::{ConfigError, Mixer, ModelConfig, Normalizer, Pool, Position, RelativePosition, Tokenizer};

/// The largest side of an image, in pixels.
const LARGEST_SIDE: usize = 16_384;
const LARGEST_DIM: usize = 1 << 16;
const MOST_STAGES: usize = 8;
const MOST_BLOCKS: usize = 1024;
const MOST_CLASSES: usize = 1 << 20;
/// The most parameters of a model: 64 GiB in float32.
const MOST_PARAMETERS: f64 = (1u64 << 34) as f64;
/// The most values of all tokens of one image: half a GiB in float32.
const MOST_ACTIVATIONS: f64 = (1u64 << 27) as f64;
/// The most multiply-adds of the attention of one image.
const MOST_ATTENTION: f64 = (1u64 << 58) as f64;

/// Checks every number separately, then the sizes that they make together.
///
/// # Errors
/// If a number is out of bounds. The message names the keys and their bounds.
pub(super) fn check(config: &ModelConfig) -> Result<(), ConfigError> {
    for (key, value, most) in numbers(config) {
        if value > most {
            return Err(ConfigError(format!("`{key}` is {value}: at most {most} is possible")));
        }
    }
    if config.mlp_ratio.is_nan() || config.mlp_ratio > 1024.0 {
        return Err(ConfigError(format!("`mlp_ratio` is {}: at most 1024 is possible", config.mlp_ratio)));
    }
    Ok(())
}

/// Every number on which memory or time depends: its key, its value and its upper bound.
fn numbers(config: &ModelConfig) -> Vec<(&'static str, usize, usize)> {
    let most = |values: &[usize]| values.iter().copied().max().unwrap_or(0);
    let total = |values: &[usize]| values.iter().fold(0, |sum: usize, value| sum.saturating_add(*value));
    let mut numbers = vec![
        ("image_size", config.image_size.height.max(config.image_size.width), LARGEST_SIDE),
        ("channels", config.channels, 1024),
        ("num_classes", config.num_classes, MOST_CLASSES),
        ("patch_size", config.patch_size, LARGEST_SIDE),
        ("embed_dim", config.embed_dim, LARGEST_DIM),
        ("stages of depth", config.depth.stages(), MOST_STAGES),
        ("depth", total(&config.depth.0), MOST_BLOCKS),
        ("num_heads", most(&config.num_heads.0), LARGEST_DIM << MOST_STAGES),
        ("registers", config.registers, 4096),
        ("class_depth", config.class_depth, MOST_BLOCKS),
        ("head_hidden", most(&config.head_hidden), MOST_CLASSES),
        ("layers of head_hidden", config.head_hidden.len(), 16),
        ("mixers", config.mixers.len(), MOST_BLOCKS),
        ("edges of adjacency", config.adjacency.as_ref().map_or(0, Vec::len), MOST_PAIRS),
    ];
    if let Some(grid) = config.rotary_options().and_then(|options| options.grid) {
        numbers.push(("rotary.grid", most(&grid), LARGEST_SIDE));
    }
    if let Some(sides) = &config.pretrained_windows {
        numbers.push(("pretrained_windows", most(&sides.0), 1024));
    }
    if let Tokenizer::Convolution { layers, kernel_size } = config.tokenizer {
        numbers.push(("tokenizer.convolution.layers", layers, 16));
        numbers.push(("tokenizer.convolution.kernel_size", kernel_size, 127));
    }
    if let Tokenizer::Residual { width, stride } = config.tokenizer {
        numbers.push(("tokenizer.residual.width", width, LARGEST_DIM));
        numbers.push(("tokenizer.residual.stride", stride, LARGEST_SIDE));
    }
    match config.pool {
        Pool::ClassToken
        | Pool::Mean
        | Pool::NormalizedMean
        | Pool::ClassTokenMean
        | Pool::TwoDepths { .. }
        | Pool::Sequence
        | Pool::Attention => {}
        Pool::Queries(queries) => numbers.push(("pool.queries", queries, 4096)),
        Pool::Recurrent { steps } => numbers.push(("pool.recurrent.steps", steps, 1024)),
        Pool::ClassQueries { depth } => numbers.push(("pool.class_queries.depth", depth, 64)),
    }
    numbers.extend(config.mixers.iter().filter_map(|mixer| match *mixer {
        Mixer::Window(size) => Some(("window", size, LARGEST_SIDE)),
        Mixer::ShiftedWindow(size) => Some(("shifted_window", size, LARGEST_SIDE)),
        Mixer::Neighborhood(radius) => Some(("neighborhood", radius, LARGEST_SIDE)),
        Mixer::FullNeighborhood(radius) => Some(("full_neighborhood", radius, LARGEST_SIDE)),
        Mixer::Graph { neighbors } => Some(("graph.neighbors", neighbors, LARGEST_SIDE)),
        Mixer::Global | Mixer::CrossCovariance | Mixer::Adjacency => None,
    }));
    numbers
}

/// Checks the sizes that the numbers of a configuration make together.
///
/// # Errors
/// If a size is out of bounds. The message names the keys and the size.
pub(super) fn check_together(config: &ModelConfig) -> Result<(), ConfigError> {
    for JointSize { value, most, keys, what } in sizes(config) {
        if value > most {
            return Err(ConfigError(format!("{keys} {value:.1e} {what}: at most {most:.1e} are possible")));
        }
    }
    Ok(())
}

/// A size that several numbers make together.
struct JointSize {
    value: f64,
    most: f64,
    /// The keys of the numbers, as the beginning of an error message.
    keys: &'static str,
    /// What the value counts.
    what: &'static str,
}

/// Every size on which memory or time depends.
fn sizes(config: &ModelConfig) -> [JointSize; 6] {
    let (tokens, dim) = (config.num_tokens() as f64, config.embed_dim as f64);
    let masked = |mixer: &Mixer| match mixer {
        Mixer::Neighborhood(_) | Mixer::FullNeighborhood(_) => !is_fused(config),
        Mixer::Graph { .. } | Mixer::Adjacency => true,
        Mixer::Global => config.relative_position(*mixer) != RelativePosition::None,
        Mixer::Window(_) | Mixer::ShiftedWindow(_) | Mixer::CrossCovariance => false,
    };
    let keeps_pairs = config.mixers.iter().any(masked)
        || config.attention.score.hides_own_token()
        || config.attention.normalizer != Normalizer::Softmax;
    let blocks = (config.depth.sum() + config.class_depth) as f64;
    let pairs = if keeps_pairs { tokens * tokens } else { 0.0 };
    let attention = tokens * tokens * dim * blocks;
    let size = |value, most, keys, what| JointSize { value, most, keys, what };
    let of_tokens = "`image_size`, `patch_size` and `embed_dim` make";
    let of_first_map = "`image_size` and `width` make";
    let of_attention = "`image_size`, `patch_size` and `depth` make";
    let of_pairs = "`image_size` and `patch_size` make";
    let classes = match config.pool {
        Pool::ClassQueries { .. } => config.num_classes as f64,
        Pool::ClassToken
        | Pool::Mean
        | Pool::NormalizedMean
        | Pool::ClassTokenMean
        | Pool::TwoDepths { .. }
        | Pool::Sequence
        | Pool::Attention
        | Pool::Queries(_)
        | Pool::Recurrent { .. } => 0.0,
    };
    let of_classes = "`num_classes` and `pool = { class_queries = ... }` make";
    let of_parameters = "`embed_dim`, `depth`, `mlp_ratio`, `num_classes` and `head_hidden` make";
    [
        size(tokens * dim, MOST_ACTIVATIONS, of_tokens, "numbers of an image's tokens"),
        size(first_map(config), MOST_ACTIVATIONS, of_first_map, "numbers of an image's first map"),
        size(attention, MOST_ATTENTION, of_attention, "multiply-adds"),
        size(pairs, MOST_PAIRS as f64, of_pairs, "pairs of tokens for a mask"),
        size(classes * classes, MOST_PAIRS as f64, of_classes, "pairs of classes"),
        size(parameters(config), MOST_PARAMETERS, of_parameters, "parameters"),
    ]
}

/// The number of values of the largest map in a tokenizer of convolutions.
fn first_map(config: &ModelConfig) -> f64 {
    match config.tokenizer {
        Tokenizer::Residual { width, .. } => {
            let width = ResidualEmbed::width(config, width, 1);
            ResidualEmbed::area(config) as f64 * width as f64
        }
        Tokenizer::Patch | Tokenizer::ShiftedPatch | Tokenizer::Convolution { .. } => 0.0,
    }
}

/// An estimate of the number of parameters, which is at least the number that matrix products use.
pub(crate) fn parameters(config: &ModelConfig) -> f64 {
    let product = |a: usize, b: usize| a as f64 * b as f64;
    let matrices = config.mlp.matrices() as f64;
    let stages: f64 = (0..config.num_stages())
        .map(|stage| {
            let dim = config.stage_dim(stage);
            let block = 4.0 * product(dim, dim) + matrices * product(dim, config.mlp_dim(stage));
            config.depth[stage] as f64 * block + 8.0 * product(dim, dim)
        })
        .sum();
    let classes = config.class_depth as f64
        * (4.0 * product(config.embed_dim, config.embed_dim)
            + matrices * product(config.embed_dim, config.mlp_dim(0)));
    let patch = |copies: usize| {
        product(copies * config.channels, config.embed_dim) * product(config.patch_size, config.patch_size)
    };
    let tokenizer = match config.tokenizer {
        Tokenizer::Patch => patch(1),
        Tokenizer::ShiftedPatch => patch(5),
        Tokenizer::Convolution { layers, kernel_size } => {
            let width = |after| ConvolutionEmbed::width(config, layers, after);
            let pairs: f64 = (0..layers).map(|layer| product(width(layer), width(layer + 1))).sum();
            product(kernel_size, kernel_size) * pairs
        }
        Tokenizer::Residual { width, stride } => {
            let width = |after| ResidualEmbed::width(config, width, after);
            let stages = 0..ResidualEmbed::stages(config);
            let pairs = stages.map(|stage| product(width(stage) + width(stage + 1), width(stage + 1)));
            let kernel = ResidualEmbed::kernel(stride);
            product(kernel, kernel) * product(config.channels, width(0)) + 9.0 * pairs.sum::<f64>()
        }
    };
    let widths = config.head_hidden.iter().chain([&config.num_classes]);
    let head: f64 = widths
        .scan(config.embedding_dim(), |width, &next| Some(product(std::mem::replace(width, next), next)))
        .sum();
    let tokens = product(config.num_tokens(), config.embed_dim);
    let of_network = config.position == Position::CoordinateMlp;
    let network = if of_network { product(config.embed_dim, config.embed_dim) } else { 0.0 };
    stages + classes + tokenizer + network + pooling(config) + 2.0 * head + tokens
}

/// An estimate of the parameters of the pooling.
fn pooling(config: &ModelConfig) -> f64 {
    let (dim, hidden) = (config.last_dim() as f64, config.mlp_dim(config.num_stages() - 1) as f64);
    match config.pool {
        Pool::ClassToken
        | Pool::Mean
        | Pool::NormalizedMean
        | Pool::ClassTokenMean
        | Pool::TwoDepths { .. }
        | Pool::Sequence => 0.0,
        Pool::Attention => 4.0 * dim * dim + 2.0 * dim * hidden,
        Pool::Queries(queries) => 4.0 * dim * dim + queries as f64 * dim,
        Pool::Recurrent { .. } => 11.0 * dim * dim,
        Pool::ClassQueries { depth } => {
            let matrices = config.mlp.matrices() as f64;
            depth as f64 * (8.0 * dim * dim + matrices * dim * hidden) + config.num_classes as f64 * dim
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{preset, testing};
    use burn::module::Module;
    use burn::tensor::Device;
    use serde_json::{Number, Value, json};

    /// Calls `visit` with every copy of `value` in which one number is replaced, and with the path to this number.
    fn spoiled(value: &Value, replacements: &[Value], visit: &mut dyn FnMut(&str, Value)) {
        fn ways(value: &Value, way: &str, found: &mut Vec<String>) {
            match value {
                Value::Number(_) => found.push(way.to_owned()),
                Value::Array(items) => {
                    items.iter().enumerate().for_each(|(i, item)| ways(item, &format!("{way}/{i}"), found));
                }
                Value::Object(entries) => {
                    entries.iter().for_each(|(key, item)| ways(item, &format!("{way}/{key}"), found));
                }
                _ => {}
            }
        }
        let mut found = Vec::new();
        ways(value, "", &mut found);
        for way in found {
            for replacement in replacements {
                let mut copy = value.clone();
                *copy.pointer_mut(&way).unwrap() = replacement.clone();
                visit(&way, copy);
            }
        }
    }

    #[test]
    fn any_number_at_any_place_is_refused_or_makes_a_model_of_bounded_size() {
        let device = Device::default();
        let huge = [1 << 31, 1 << 32, 1 << 48, 1 << 63, u64::MAX - 1, u64::MAX].map(|number| json!(number));
        let small = [0, 1, 2, 3, 5, 64, 1000, 70_000, 1_000_000_000].map(|number| json!(number));
        let odd = [
            json!(-1),
            json!(1e300),
            json!(-1e300),
            json!(1e-300),
            Value::Number(Number::from_f64(0.5).unwrap()),
        ];
        let replacements: Vec<Value> = huge.into_iter().chain(small).chain(odd).collect();
        let presets = preset::all().into_iter().map(|entry| entry.config());
        let (mut refused, mut made) = (0, 0);
        for config in testing::variants().into_iter().chain(presets) {
            assert_eq!(config.validate(), Ok(()));
            spoiled(&serde_json::to_value(&config).unwrap(), &replacements, &mut |way, copy| {
                let Ok(config) = serde_json::from_value::<ModelConfig>(copy.clone()) else {
                    return refused += 1;
                };
                if config.validate().is_err() {
                    return refused += 1;
                }
                made += 1;
                // Models with many blocks are not built, because that takes long: only their number of blocks is
                // checked.
                assert!(config.depth.sum() + config.class_depth <= 2 * MOST_BLOCKS, "{way}: {copy}");
                assert!(crate::Complexity::of(&config).total() > 0, "{way}: {copy}");
                if config.depth.sum() + config.class_depth <= 24 && parameters(&config) < 1e7 {
                    let counted = config.init(&device).unwrap().num_params() as f64;
                    let estimate = parameters(&config);
                    assert!(counted <= 1.5 * estimate + 1e6, "{way}: {counted} {estimate} {copy}");
                }
            });
        }
        assert!(refused > 10_000 && made > 1000, "{refused} {made}");
    }

    #[test]
    fn nan_and_infinity_are_refused() {
        type NanChange = fn(&mut ModelConfig);
        let spoils: [NanChange; 5] = [
            |c| c.mlp_ratio = f64::NAN,
            |c| c.layer_scale = Some(f64::NAN),
            |c| c.norm_epsilon = f64::NAN,
            |c| c.dropout = f64::NAN,
            |c| c.attention_dropout = f64::NAN,
        ];
        for (number, spoil) in spoils.into_iter().enumerate() {
            let mut config = preset::find("vit_pico_patch4_32").unwrap();
            spoil(&mut config);
            assert!(config.validate().is_err(), "{number}");
        }
    }

    #[test]
    fn presets_are_estimated_well() {
        for entry in preset::all() {
            let config = entry.config();
            let counted = config.init(&Device::default()).unwrap().num_params() as f64;
            let ratio = parameters(&config) / counted;
            assert!((0.8..1.6).contains(&ratio), "{}: {ratio}", entry.name);
        }
    }
}
