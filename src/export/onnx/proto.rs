//! The messages of ONNX's file format that an exported model needs (`onnx.proto`, version 9 of the format).

use prost::{Message, Oneof};

/// A file.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Model {
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    #[prost(string, tag = "2")]
    pub producer_name: String,
    #[prost(string, tag = "3")]
    pub producer_version: String,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSet>,
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OperatorSet {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(int64, optional, tag = "2")]
    pub version: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<Node>,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub s: Option<Vec<u8>>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// One of the constants `FLOAT`, `INT`, `STRING`, `INTS`.
    #[prost(int32, optional, tag = "20")]
    pub kind: Option<i32>,
}

impl Attribute {
    pub(super) const FLOAT: i32 = 1;
    pub(super) const INT: i32 = 2;
    pub(super) const STRING: i32 = 3;
    pub(super) const INTS: i32 = 7;
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    /// One of the constants of [`ElementType`].
    #[prost(int32, optional, tag = "2")]
    pub data_type: Option<i32>,
    #[prost(string, tag = "8")]
    pub name: String,
    /// The values in little-endian order.
    #[prost(bytes = "vec", tag = "9")]
    pub raw_data: Vec<u8>,
}

/// ONNX's numbers for the types of values.
pub(super) struct ElementType;

impl ElementType {
    pub(super) const FLOAT: i32 = vitrine_models::graph::FLOAT as i32;
    pub(super) const UINT8: i32 = 2;
    pub(super) const INT64: i32 = 7;
    pub(super) const FLOAT16: i32 = 10;
    pub(super) const DOUBLE: i32 = 11;
    pub(super) const BFLOAT16: i32 = 16;
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub kind: Option<Type>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Type {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorType {
    #[prost(int32, optional, tag = "1")]
    pub elem_type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Shape {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Dimension {
    #[prost(oneof = "Extent", tags = "1, 2")]
    pub extent: Option<Extent>,
}

/// A dimension's length, or the name of a length that the caller chooses.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Extent {
    #[prost(int64, tag = "1")]
    Fixed(i64),
    #[prost(string, tag = "2")]
    Open(String),
}
