//! Export to ONNX, which ONNX Runtime, OpenVINO and others run.

mod preprocessing;
mod proto;

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::tensor::{DType, TensorData};
use prost::Message;
use vitrine_models::graph::{Attribute, Constant, Graph, Node, OPERATOR_SET, Value};
use vitrine_models::{Mixer, ModelConfig, VisionTransformer};

use self::proto::{ElementType, Extent};
use super::{Exported, python_string};
use crate::files::{has_extension, write_atomically};
use crate::model_file::ModelCard;
use crate::predict::Views;
use crate::usage::usage;
use crate::weights_file::{Precision, narrow};

/// The version of the file format that came with the operator set.
const FORMAT_VERSION: i64 = 9;
/// The program that an exported file names.
const PRODUCER: &str = "vitrine";
/// The most bytes that a message of Protocol Buffers may have.
const LARGEST_FILE: usize = i32::MAX as usize;

/// Writes a model as an ONNX file with one input `images` and one output: `logits`, or `embedding` if the model has no
/// classifier. The number of images in a batch is open.
///
/// The input is `[batch, channels, height, width]` in float32, preprocessed as the metadata states; with `with_preprocessing`,
/// `[batch, height, width, channels]` in bytes, of any size, and the graph preprocesses it. If the model classifies an image
/// together with its mirror image, the graph does so, too. The metadata hold the names of the classes, the preprocessing, and
/// the architecture.
///
/// # Errors
/// If `output` has another extension, a part has no standard operators, the file would be too large for the format, or it
/// cannot be written.
pub fn write(
    card: &ModelCard,
    model: &VisionTransformer,
    output: &Path,
    precision: Precision,
    with_preprocessing: bool,
) -> Result<Exported> {
    check(output)?;
    check_masks(&card.model)?;
    let mut graph = Graph::default();
    let (input, images) = match with_preprocessing {
        true => preprocessing::add(&mut graph, &card.preprocessing)?,
        false => planes(&mut graph, &card.model),
    };
    let answers = answers(&mut graph, card, model, &images);
    let too_large = |size: usize| {
        let way_out = match precision {
            Precision::F32 => ": store the weights in 16 bits with --dtype f16 or bf16",
            Precision::F16 | Precision::Bf16 => "",
        };
        let output = output.display();
        anyhow!(
            "--output {output}: it would have {size} bytes, and one ONNX file holds at most {LARGEST_FILE}{way_out}"
        )
    };
    let size = stored_bytes(&graph.constants, precision);
    ensure!(size <= LARGEST_FILE, too_large(size)); // before anything is copied
    let file = file(card, graph, input, &answers, precision)?;
    ensure!(file.encoded_len() <= LARGEST_FILE, too_large(file.encoded_len()));
    write_atomically(output, &file.encode_to_vec())?;
    let usage = format!(
        "import onnxruntime; session = onnxruntime.InferenceSession({})",
        python_string(output.display())
    );
    Ok(Exported { files: vec![output.to_owned()], usage, notes: notes(card, with_preprocessing) })
}

/// Checks the name of the file.
///
/// # Errors
/// If it has another extension than `.onnx`.
pub fn check(output: &Path) -> Result<()> {
    if !has_extension(output, "onnx") {
        usage!("--output {}: --layout onnx needs a .onnx file", output.display());
    }
    Ok(())
}

/// Whether a file was written by [`write()`], as its first fields say: the version of the format, and the program.
pub fn is_exported(path: &Path) -> bool {
    let ours = proto::Model {
        ir_version: Some(FORMAT_VERSION),
        producer_name: PRODUCER.to_owned(),
        ..proto::Model::default()
    };
    let first = ours.encode_to_vec();
    let mut found = vec![0; first.len()];
    let read = |mut file: std::fs::File| std::io::Read::read_exact(&mut file, &mut found);
    std::fs::File::open(path).and_then(read).is_ok() && found == first
}

/// The most pairs of tokens for which a graph holds a mask, 1 GiB: half of what a file may have.
const MOST_PAIRS: usize = 1 << 28;

/// Checks that the masks of neighborhoods fit a file. The program computes without them.
fn check_masks(config: &ModelConfig) -> Result<()> {
    let has_mask = |mixer: &Mixer| matches!(mixer, Mixer::Neighborhood(_) | Mixer::FullNeighborhood(_));
    let tokens = config.num_tokens();
    if config.mixers.iter().any(has_mask) && tokens.saturating_mul(tokens) > MOST_PAIRS {
        bail!(
            "`mixers`: ONNX needs a mask of all pairs for a neighborhood, and {tokens} tokens make too many for one file"
        );
    }
    Ok(())
}

/// The bytes of constants in a file.
fn stored_bytes(constants: &[Constant], precision: Precision) -> usize {
    let bytes = |constant: &Constant| match precision {
        Precision::F16 | Precision::Bf16 if constant.is_weight => constant.data.as_bytes().len() / 2,
        Precision::F32 | Precision::F16 | Precision::Bf16 => constant.data.as_bytes().len(),
    };
    constants.iter().map(bytes).sum()
}

/// What the user must know about the input.
fn notes(card: &ModelCard, with_preprocessing: bool) -> Vec<String> {
    let [height, width] = card.preprocessing.image_size;
    let channels = card.preprocessing.channels;
    let kind = if channels == 1 { "gray" } else { "RGB" };
    let input = if with_preprocessing {
        format!(
            "`images` takes [batch, height, width, {channels}] in uint8 ({kind}), of any size, and is preprocessed in the graph"
        )
    } else {
        format!(
            "`images` takes [batch, {channels}, {height}, {width}] in float32 ({kind}), preprocessed as the metadata's \
             `preprocessing` states; --with-preprocessing puts that into the graph"
        )
    };
    let views = Views::of(card).list().len();
    let several =
        format!("the graph averages over {views} views of each image, as `classify` does with this model");
    [Some(input), (views > 1).then_some(several)].into_iter().flatten().collect()
}

/// The input of images that are preprocessed outside the graph.
fn planes(graph: &mut Graph, config: &ModelConfig) -> (proto::ValueInfo, Value) {
    let dims = [config.channels, config.image_size.height, config.image_size.width];
    let images = graph.input("images", &[&[1], &dims[..]].concat());
    let shape = [open("batch")].into_iter().chain(dims.map(fixed)).collect();
    (value_info(&images.name, ElementType::FLOAT, shape), images)
}

/// The answers about preprocessed images, averaged over the views that the model file states.
fn answers(graph: &mut Graph, card: &ModelCard, model: &VisionTransformer, images: &Value) -> Value {
    let ask = |graph: &mut Graph, images: &Value| match card.has_classifier() {
        true => model.trace(graph, images),
        false => model.trace_embedding(graph, images),
    };
    let views = Views::of(card).list();
    if views.len() == 1 {
        return ask(graph, images);
    }
    let (height, width) = (images.dims[2], images.dims[3]);
    let versions: Vec<Value> = views
        .iter()
        .map(|view| {
            let rows =
                if view.shift == 0 { images.clone() } else { graph.gather(images, 2, &view.rows(height)) };
            let is_whole = view.shift == 0 && !view.mirrored;
            if is_whole { rows } else { graph.gather(&rows, 3, &view.columns(width)) }
        })
        .collect();
    let all = graph.concat(&versions.iter().collect::<Vec<_>>(), 0);
    let answers = ask(graph, &Value { dims: images.dims.clone(), ..all });
    let count = views.len();
    let parts = graph.split_into(&Value { dims: vec![count, answers.dims[1]], ..answers }, 0, count);
    let sum = parts.into_iter().reduce(|sum, part| graph.add(&sum, &part)).expect("there is a view");
    graph.scale(&sum, 1.0 / count as f64)
}

/// The file of a graph whose result is `answers`.
fn file(
    card: &ModelCard,
    mut graph: Graph,
    input: proto::ValueInfo,
    answers: &Value,
    precision: Precision,
) -> Result<proto::Model> {
    let output = if card.has_classifier() { "logits" } else { "embedding" };
    for node in &mut graph.nodes {
        for name in node.outputs.iter_mut().chain(&mut node.inputs) {
            if *name == answers.name {
                output.clone_into(name);
            }
        }
    }
    let mut casts = Vec::new();
    let mut constants = Vec::with_capacity(graph.constants.len());
    for constant in graph.constants {
        let (stored, cast) = stored(constant, precision)?;
        constants.push(stored);
        casts.extend(cast);
    }
    let shape = vec![open("batch"), fixed(answers.dims[1])];
    Ok(proto::Model {
        ir_version: Some(FORMAT_VERSION),
        producer_name: PRODUCER.to_owned(),
        producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        graph: Some(proto::Graph {
            node: casts.into_iter().chain(graph.nodes.into_iter().map(node)).collect(),
            name: "vitrine".to_owned(),
            initializer: constants,
            input: vec![input],
            output: vec![value_info(output, ElementType::FLOAT, shape)],
        }),
        opset_import: vec![proto::OperatorSet { domain: String::new(), version: Some(OPERATOR_SET) }],
        metadata_props: metadata(card)?,
    })
}

/// What a program that runs the model must know about it.
fn metadata(card: &ModelCard) -> Result<Vec<proto::Entry>> {
    let entries = [
        ("classes", serde_json::to_string(&card.classes)?),
        ("multi_label", card.multi_label.to_string()),
        ("preprocessing", serde_json::to_string(&card.preprocessing)?),
        ("architecture", serde_json::to_string(&card.model)?),
    ];
    Ok(entries.map(|(key, value)| proto::Entry { key: key.to_owned(), value }).to_vec())
}

/// A constant as the file stores it; in 16 bits, also the node that widens it.
fn stored(constant: Constant, precision: Precision) -> Result<(proto::Tensor, Option<proto::Node>)> {
    let Constant { name, data, is_weight } = constant;
    let dims: Vec<i64> = data.shape().iter().map(|&dim| dim as i64).collect();
    let tensor = |name: String, data_type, raw_data| proto::Tensor {
        dims,
        data_type: Some(data_type),
        name,
        raw_data,
    };
    let data_type = match (data.dtype(), precision) {
        (DType::I64, _) => ElementType::INT64,
        (_, Precision::F16) if is_weight => ElementType::FLOAT16,
        (_, Precision::Bf16) if is_weight => ElementType::BFLOAT16,
        (_, Precision::F32 | Precision::F16 | Precision::Bf16) => ElementType::FLOAT,
    };
    if [ElementType::INT64, ElementType::FLOAT].contains(&data_type) {
        return Ok((tensor(name, data_type, little_endian(data)?), None));
    }
    let values = data.as_slice::<f32>().map_err(|error| anyhow!("{name}: {error:?}"))?;
    let raw = narrow(&name, values, precision)?;
    let narrowed = format!("{name}.stored");
    let cast = Node {
        name: format!("{name}.Cast"),
        operator: "Cast",
        inputs: vec![narrowed.clone()],
        outputs: vec![name],
        attributes: vec![("to", Attribute::Int(ElementType::FLOAT.into()))],
    };
    Ok((tensor(narrowed, data_type, raw), Some(node(cast))))
}

/// The bytes of a tensor of 32-bit floats or 64-bit integers.
fn little_endian(data: TensorData) -> Result<Vec<u8>> {
    match data.dtype() {
        DType::I64 => {
            let values = data.try_into_vec_as::<i64>().context("integers of a graph")?;
            Ok(values.into_iter().flat_map(i64::to_le_bytes).collect())
        }
        _ => {
            let values = data.try_into_vec_as::<f32>().context("numbers of a graph")?;
            Ok(values.into_iter().flat_map(f32::to_le_bytes).collect())
        }
    }
}

fn node(node: Node) -> proto::Node {
    proto::Node {
        input: node.inputs,
        output: node.outputs,
        name: node.name,
        op_type: node.operator.to_owned(),
        attribute: node.attributes.into_iter().map(attribute).collect(),
    }
}

fn attribute((name, value): (&'static str, Attribute)) -> proto::Attribute {
    let empty = proto::Attribute { name: name.to_owned(), ..proto::Attribute::default() };
    match value {
        Attribute::Int(value) => {
            proto::Attribute { i: Some(value), kind: Some(proto::Attribute::INT), ..empty }
        }
        Attribute::Float(value) => {
            proto::Attribute { f: Some(value), kind: Some(proto::Attribute::FLOAT), ..empty }
        }
        Attribute::Ints(values) => {
            proto::Attribute { ints: values, kind: Some(proto::Attribute::INTS), ..empty }
        }
        Attribute::Text(text) => {
            proto::Attribute { s: Some(text.into()), kind: Some(proto::Attribute::STRING), ..empty }
        }
    }
}

fn value_info(name: &str, element: i32, dim: Vec<proto::Dimension>) -> proto::ValueInfo {
    let tensor = proto::TensorType { elem_type: Some(element), shape: Some(proto::Shape { dim }) };
    proto::ValueInfo { name: name.to_owned(), kind: Some(proto::Type { tensor_type: Some(tensor) }) }
}

fn fixed(length: usize) -> proto::Dimension {
    proto::Dimension { extent: Some(Extent::Fixed(length as i64)) }
}

fn open(name: &str) -> proto::Dimension {
    proto::Dimension { extent: Some(Extent::Open(name.to_owned())) }
}
