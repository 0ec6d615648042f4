//! A model as a graph of standard operators, for programs that run models without this one.
//!
//! The modules describe themselves: the method `trace` of each stands next to its `forward` and adds the same arithmetic to a
//! [`Graph`], with parameters as constants. The operators and their attributes are those of ONNX, operator set
//! [`OPERATOR_SET`]. Dimensions are those of one image: the first dimension of a value that depends on the input grows with the
//! batch, and every shape in the graph leaves it open.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};

use burn::tensor::{DType, Tensor, TensorData};

/// The version of ONNX's operator set: the first with GELU.
pub const OPERATOR_SET: i64 = 20;

/// ONNX's number for the type float32.
pub const FLOAT: i64 = 1;

/// A graph of operators that is being built.
#[derive(Debug, Default)]
pub struct Graph {
    /// The operators, each after those whose outputs it takes.
    pub nodes: Vec<Node>,
    /// Parameters and other tensors that do not depend on the input.
    pub constants: Vec<Constant>,
    /// The names of the modules around the place where nodes are added.
    scope: Vec<String>,
    names: HashMap<String, usize>,
    shared: HashMap<String, Value>,
    /// The constants by a hash of their values.
    by_content: HashMap<u64, Vec<usize>>,
}

/// One operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The name, which starts with the modules around it.
    pub name: String,
    /// The name in ONNX's operator set.
    pub operator: &'static str,
    /// The names of the inputs.
    pub inputs: Vec<String>,
    /// The names of the outputs.
    pub outputs: Vec<String>,
    /// The attributes.
    pub attributes: Vec<(&'static str, Attribute)>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f32),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// A text.
    Text(&'static str),
}

/// A tensor of float32 or int64 that does not depend on the input.
#[derive(Clone, Debug)]
pub struct Constant {
    /// The name.
    pub name: String,
    /// Shape and values.
    pub data: TensorData,
    /// Whether these are weights of a product or convolution, which a file may store in 16 bits.
    pub is_weight: bool,
}

/// A tensor of the graph: an input, a constant, or the output of a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The name.
    pub name: String,
    /// The dimensions for one image.
    pub dims: Vec<usize>,
}

impl Graph {
    /// An input with these dimensions for one image.
    pub fn input(&mut self, name: &str, dims: &[usize]) -> Value {
        Value { name: self.unique(name), dims: dims.to_vec() }
    }

    /// Adds what `module` adds, under the name of the module.
    pub fn within<T>(&mut self, module: impl Into<String>, add: impl FnOnce(&mut Self) -> T) -> T {
        self.scope.push(module.into());
        let added = add(self);
        self.scope.pop();
        added
    }

    /// The weights of a product or convolution, which a file may store in 16 bits.
    pub fn weight<const D: usize>(&mut self, name: &str, tensor: Tensor<D>) -> Value {
        self.data(name, tensor.into_data().convert_dtype(DType::F32), true)
    }

    /// Other numbers, which keep 32 bits: parameters of norms, positions, masks.
    pub fn constant<const D: usize>(&mut self, name: &str, tensor: Tensor<D>) -> Value {
        self.data(name, tensor.into_data().convert_dtype(DType::F32), false)
    }

    /// Whole numbers, one after the other.
    pub fn integers(&mut self, values: &[i64]) -> Value {
        self.share(format!("{values:?}"), |graph| {
            graph.data("integers", TensorData::new(values.to_vec(), [values.len()]), false)
        })
    }

    /// A single number, which has no dimension.
    pub fn number(&mut self, value: f64) -> Value {
        self.share(format!("{value:?}"), |graph| {
            graph.data("number", TensorData::new(vec![value as f32], Vec::<usize>::new()), false)
        })
    }

    /// The value that `add` made the first time that this key was asked for. It belongs to no module.
    fn share(&mut self, key: String, add: impl FnOnce(&mut Self) -> Value) -> Value {
        if let Some(value) = self.shared.get(&key) {
            return value.clone();
        }
        let scope = std::mem::take(&mut self.scope);
        let value = add(self);
        self.scope = scope;
        self.shared.insert(key, value.clone());
        value
    }

    /// A constant with these values. One that is there already is taken again, as masks and tables repeat in every block.
    fn data(&mut self, name: &str, data: TensorData, is_weight: bool) -> Value {
        let mut hasher = DefaultHasher::new();
        hasher.write(data.as_bytes());
        let same_hash = self.by_content.entry(hasher.finish()).or_default();
        let is_same = |&&index: &&usize| {
            let known = &self.constants[index];
            known.is_weight == is_weight && known.data == data
        };
        let dims = data.shape().to_vec();
        if let Some(&index) = same_hash.iter().find(is_same) {
            return Value { name: self.constants[index].name.clone(), dims };
        }
        same_hash.push(self.constants.len());
        let name = self.unique(name);
        self.constants.push(Constant { name: name.clone(), data, is_weight });
        Value { name, dims }
    }

    /// The name behind those of the modules around it, with a number if it is taken.
    fn unique(&mut self, name: &str) -> String {
        let scope = self.scope.iter().map(String::as_str);
        let name = scope.chain([name]).collect::<Vec<_>>().join(".");
        let count = self.names.entry(name.clone()).or_default();
        *count += 1;
        match *count {
            1 => name,
            count => format!("{name}:{count}"),
        }
    }

    /// Adds an operator with one output.
    pub fn node(
        &mut self,
        operator: &'static str,
        inputs: &[&Value],
        attributes: Vec<(&'static str, Attribute)>,
        dims: Vec<usize>,
    ) -> Value {
        let name = self.unique(operator);
        self.nodes.push(Node {
            name: name.clone(),
            operator,
            inputs: inputs.iter().map(|input| input.name.clone()).collect(),
            outputs: vec![name.clone()],
            attributes,
        });
        Value { name, dims }
    }

    /// An operator that acts on each number by itself.
    pub fn unary(&mut self, operator: &'static str, x: &Value) -> Value {
        self.node(operator, &[x], Vec::new(), x.dims.clone())
    }

    /// An operator of two tensors, number by number, with the usual broadcasting.
    ///
    /// # Panics
    ///
    /// If the dimensions do not fit each other.
    pub fn binary(&mut self, operator: &'static str, a: &Value, b: &Value) -> Value {
        let dims = broadcast(&a.dims, &b.dims);
        self.node(operator, &[a, b], Vec::new(), dims)
    }

    /// The sum.
    pub fn add(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("Add", a, b)
    }

    /// The product, number by number.
    pub fn multiply(&mut self, a: &Value, b: &Value) -> Value {
        self.binary("Mul", a, b)
    }

    /// Every number times a fixed one.
    pub fn scale(&mut self, x: &Value, factor: f64) -> Value {
        let factor = self.number(factor);
        self.multiply(x, &factor)
    }

    /// The product of matrices in the last two dimensions.
    ///
    /// # Panics
    ///
    /// If the dimensions do not fit each other.
    pub fn matmul(&mut self, a: &Value, b: &Value) -> Value {
        let (rows, columns) = (a.dims[a.dims.len() - 2], b.dims[b.dims.len() - 1]);
        let [inner, same] = [a.dims[a.dims.len() - 1], b.dims[b.dims.len() - 2]];
        assert_eq!(inner, same, "matrices of {:?} and {:?} have no product", a.dims, b.dims);
        let mut dims = broadcast(&a.dims[..a.dims.len() - 2], &b.dims[..b.dims.len() - 2]);
        dims.extend([rows, columns]);
        self.node("MatMul", &[a, b], Vec::new(), dims)
    }

    /// A linear layer of this name with a weight `[in, out]` and a bias `[out]`.
    pub fn linear(&mut self, name: &str, x: &Value, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Value {
        self.within(name, |graph| {
            let weight = graph.weight("weight", weight);
            let product = graph.matmul(x, &weight);
            match bias {
                Some(bias) => {
                    let bias = graph.constant("bias", bias);
                    graph.add(&product, &bias)
                }
                None => product,
            }
        })
    }

    /// The same numbers in another shape; the first dimension is left open.
    ///
    /// # Panics
    ///
    /// If the shapes hold different numbers of values.
    pub fn reshape(&mut self, x: &Value, dims: &[usize]) -> Value {
        let count = |dims: &[usize]| dims.iter().product::<usize>();
        assert_eq!(count(&x.dims), count(dims), "{:?} does not fit {dims:?}", x.dims);
        let shape: Vec<i64> = [-1].into_iter().chain(dims[1..].iter().map(|&dim| dim as i64)).collect();
        let shape = self.integers(&shape);
        self.node("Reshape", &[x, &shape], Vec::new(), dims.to_vec())
    }

    /// The dimensions in another order.
    pub fn transpose(&mut self, x: &Value, order: &[usize]) -> Value {
        let dims = order.iter().map(|&axis| x.dims[axis]).collect();
        let order = order.iter().map(|&axis| axis as i64).collect();
        self.node("Transpose", &[x], vec![("perm", Attribute::Ints(order))], dims)
    }

    /// The values joined along a dimension.
    pub fn concat(&mut self, parts: &[&Value], axis: usize) -> Value {
        let mut dims = parts[0].dims.clone();
        dims[axis] = parts.iter().map(|part| part.dims[axis]).sum();
        self.node("Concat", parts, vec![("axis", Attribute::Int(axis as i64))], dims)
    }

    /// `count` places of a dimension from `start` on.
    pub fn narrow(&mut self, x: &Value, axis: usize, start: usize, count: usize) -> Value {
        assert!(start + count <= x.dims[axis], "{start} and {count} more are beyond {:?}", x.dims);
        if count == x.dims[axis] {
            return x.clone();
        }
        let mut dims = x.dims.clone();
        dims[axis] = count;
        let [start, end, axis] = [start, start + count, axis].map(|number| self.integers(&[number as i64]));
        self.node("Slice", &[x, &start, &end, &axis], Vec::new(), dims)
    }

    /// A dimension in `N` parts of the same size.
    pub fn split<const N: usize>(&mut self, x: &Value, axis: usize) -> [Value; N] {
        self.split_into(x, axis, N).try_into().unwrap_or_else(|_| unreachable!("there are {N} parts"))
    }

    /// A dimension in `count` parts of the same size.
    pub fn split_into(&mut self, x: &Value, axis: usize, count: usize) -> Vec<Value> {
        let mut dims = x.dims.clone();
        dims[axis] /= count;
        let name = self.unique("Split");
        let parts: Vec<Value> =
            (0..count).map(|part| Value { name: format!("{name}.{part}"), dims: dims.clone() }).collect();
        let attributes =
            vec![("axis", Attribute::Int(axis as i64)), ("num_outputs", Attribute::Int(count as i64))];
        let outputs = parts.iter().map(|part| part.name.clone()).collect();
        self.nodes.push(Node { name, operator: "Split", inputs: vec![x.name.clone()], outputs, attributes });
        parts
    }

    /// The places of a dimension that `indices` name, in their order.
    pub fn gather(&mut self, x: &Value, axis: usize, indices: &[usize]) -> Value {
        let mut dims = x.dims.clone();
        dims[axis] = indices.len();
        let indices: Vec<i64> = indices.iter().map(|&index| index as i64).collect();
        let indices = self.integers(&indices);
        self.node("Gather", &[x, &indices], vec![("axis", Attribute::Int(axis as i64))], dims)
    }

    /// The rows of the tokens that `sources` name, in their order; a row of zeros for `None`.
    pub fn gather_rows(&mut self, x: &Value, sources: impl Iterator<Item = Option<usize>>) -> Value {
        let rows = x.dims[1];
        let sources: Vec<Option<usize>> = sources.collect();
        if sources.iter().copied().eq((0..rows).map(Some)) {
            return x.clone();
        }
        let x = match sources.contains(&None) {
            true => self.pad(x, &[0, 0, 0], &[0, 1, 0]),
            false => x.clone(),
        };
        let indices: Vec<usize> = sources.iter().map(|source| source.unwrap_or(rows)).collect();
        self.gather(&x, 1, &indices)
    }

    /// The values with this many zeros before and after them in each dimension.
    pub fn pad(&mut self, x: &Value, before: &[usize], after: &[usize]) -> Value {
        if before.iter().chain(after).all(|&count| count == 0) {
            return x.clone();
        }
        let dims = x.dims.iter().zip(before.iter().zip(after)).map(|(dim, (a, b))| dim + a + b).collect();
        let pads: Vec<i64> = before.iter().chain(after).map(|&count| count as i64).collect();
        let pads = self.integers(&pads);
        self.node("Pad", &[x, &pads], Vec::new(), dims)
    }

    /// The value of the last dimension that is in this place, counted from 1, when they are sorted from the smallest on.
    pub fn smallest(&mut self, x: &Value, place: usize) -> Value {
        let mut dims = x.dims.clone();
        let last = dims.len() - 1;
        dims[last] = place;
        let count = self.integers(&[place as i64]);
        let name = self.unique("TopK");
        let sorted = Value { name: name.clone(), dims };
        let attributes = vec![("axis", Attribute::Int(-1)), ("largest", Attribute::Int(0))];
        self.nodes.push(Node {
            operator: "TopK",
            inputs: vec![x.name.clone(), count.name],
            outputs: vec![name.clone(), format!("{name}.places")],
            attributes,
            name,
        });
        self.narrow(&sorted, last, place - 1, 1)
    }

    /// A statistic over a dimension, which stays with one place: `ReduceMean`, `ReduceMax`, `ReduceSum`, `ReduceL2`.
    pub fn reduce(&mut self, operator: &'static str, x: &Value, axis: usize) -> Value {
        let mut dims = x.dims.clone();
        dims[axis] = 1;
        let axis = self.integers(&[axis as i64]);
        self.node(operator, &[x, &axis], Vec::new(), dims)
    }

    /// A constant whose first dimension is 1, repeated for each image of `like`.
    pub fn repeat(&mut self, constant: &Value, like: &Value) -> Value {
        let batch = [("start", Attribute::Int(0)), ("end", Attribute::Int(1))];
        let batch = self.node("Shape", &[like], batch.to_vec(), vec![1]);
        let rest: Vec<i64> = constant.dims[1..].iter().map(|&dim| dim as i64).collect();
        let rest = self.integers(&rest);
        let shape = self.concat(&[&batch, &rest], 0);
        self.node("Expand", &[constant, &shape], Vec::new(), constant.dims.clone())
    }

    /// The softmax over the last dimension.
    pub fn softmax(&mut self, x: &Value) -> Value {
        self.node("Softmax", &[x], vec![("axis", Attribute::Int(-1))], x.dims.clone())
    }

    /// The exact GELU.
    pub fn gelu(&mut self, x: &Value) -> Value {
        self.unary("Gelu", x)
    }

    /// A convolution that keeps rows and columns; channels come before them. `per_channel` says that each channel has a filter
    /// of its own.
    pub fn same_convolution(
        &mut self,
        map: &Value,
        weight: &Value,
        bias: Option<&Value>,
        per_channel: bool,
    ) -> Value {
        let pads = [weight.dims[2] / 2, weight.dims[3] / 2].map(|side| side as i64);
        let groups = if per_channel { map.dims[1] } else { 1 };
        let mut dims = map.dims.clone();
        dims[1] = weight.dims[0];
        let inputs: Vec<&Value> = [map, weight].into_iter().chain(bias).collect();
        let attributes =
            vec![("pads", Attribute::Ints([pads, pads].concat())), ("group", Attribute::Int(groups as i64))];
        self.node("Conv", &inputs, attributes, dims)
    }

    /// A convolution whose stride is the side of its square kernels; channels come before rows and columns.
    pub fn patch_convolution(&mut self, images: &Value, weight: &Value, bias: Option<&Value>) -> Value {
        let side = weight.dims[2];
        let [batch, _, height, width] = images.dims[..] else { panic!("images have four dimensions") };
        let inputs: Vec<&Value> = [images, weight].into_iter().chain(bias).collect();
        let strides = vec![("strides", Attribute::Ints(vec![side as i64; 2]))];
        self.node("Conv", &inputs, strides, vec![batch, weight.dims[0], height / side, width / side])
    }

    /// The largest value of every window; channels come before rows and columns.
    pub fn max_pool(&mut self, map: &Value, [kernel, stride, padding]: [usize; 3]) -> Value {
        let side = |side: usize| (side + 2 * padding - kernel) / stride + 1;
        let dims = vec![map.dims[0], map.dims[1], side(map.dims[2]), side(map.dims[3])];
        let twice = |value: usize| vec![value as i64; 2];
        let attributes = vec![
            ("kernel_shape", Attribute::Ints(twice(kernel))),
            ("strides", Attribute::Ints(twice(stride))),
            ("pads", Attribute::Ints([twice(padding), twice(padding)].concat())),
        ];
        self.node("MaxPool", &[map], attributes, dims)
    }

    /// From a map with channels before rows and columns to tokens in reading order.
    pub fn tokens_of_map(&mut self, map: &Value) -> Value {
        let [batch, channels, rows, columns] = map.dims[..] else { panic!("a map has four dimensions") };
        let flat = self.reshape(map, &[batch, channels, rows * columns]);
        self.transpose(&flat, &[0, 2, 1])
    }

    /// From tokens in reading order to a map with channels before rows and columns.
    pub fn map_of_tokens(&mut self, tokens: &Value, [rows, columns]: [usize; 2]) -> Value {
        let [batch, _, channels] = tokens.dims[..] else { panic!("tokens have three dimensions") };
        let flat = self.transpose(tokens, &[0, 2, 1]);
        self.reshape(&flat, &[batch, channels, rows, columns])
    }
}

/// The dimensions of an operation of two tensors, number by number.
fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let length = a.len().max(b.len());
    let side =
        |dims: &[usize], axis: usize| (axis + dims.len()).checked_sub(length).map_or(1, |axis| dims[axis]);
    (0..length)
        .map(|axis| match (side(a, axis), side(b, axis)) {
            (1, other) | (other, 1) => other,
            (one, other) => {
                assert_eq!(one, other, "{a:?} and {b:?} do not fit each other");
                one
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashSet;

    use burn::tensor::Device;

    use super::*;
    use crate::testing;

    #[test]
    fn every_model_is_a_graph_whose_values_are_made_before_they_are_used() {
        for config in testing::variants() {
            let model = config.init(&Device::default()).unwrap();
            let mut graph = Graph::default();
            let size = config.image_size;
            let images = graph.input("images", &[1, config.channels, size.height, size.width]);
            let logits = model.trace(&mut graph, &images);
            assert_eq!(logits.dims, [1, config.num_classes], "{config:?}");
            let constants = graph.constants.iter().map(|constant| constant.name.clone());
            let mut known: HashSet<String> = constants.chain([images.name]).collect();
            assert_eq!(known.len(), graph.constants.len() + 1, "names are taken twice: {config:?}");
            let mut used = HashSet::new();
            for node in &graph.nodes {
                for input in &node.inputs {
                    assert!(known.contains(input), "{input} of {} is not made yet: {config:?}", node.name);
                    used.insert(input.clone());
                }
                assert!(node.outputs.iter().all(|output| known.insert(output.clone())), "{config:?}");
            }
            let unused = graph.constants.iter().find(|constant| !used.contains(&constant.name));
            assert!(unused.is_none(), "{:?} is not used: {config:?}", unused.map(|constant| &constant.name));
            assert!(known.contains(&logits.name));
        }
    }

    #[test]
    fn dimensions_are_broadcast_from_the_last_one() {
        assert_eq!(broadcast(&[2, 1, 5], &[3, 1]), [2, 3, 5]);
        assert_eq!(broadcast(&[], &[4]), [4]);
    }

    #[test]
    #[should_panic(expected = "do not fit each other")]
    fn dimensions_that_differ_are_not_broadcast() {
        broadcast(&[2, 3], &[2, 4]);
    }
}
