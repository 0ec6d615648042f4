//! Preprocessing as operators, from bytes of any size to the input of the model.

use anyhow::Result;
use burn::tensor::{Device, Tensor};
use vitrine_datasets::{CropRounding, Interpolation, Preprocessing, ResizeRule};
use vitrine_models::graph::{Attribute, Graph, Value};

use super::proto::{self, ElementType};
use super::{fixed, open, value_info};

use crate::usage::usage;

/// Adds the input of images as bytes, and what makes the model's input of it.
///
/// # Errors
/// If the interpolation has no standard operator.
pub(super) fn add(graph: &mut Graph, steps: &Preprocessing) -> Result<(proto::ValueInfo, Value)> {
    let channels = steps.channels;
    // Rows and columns are open.
    let images = graph.input("images", &[1, 1, 1, channels]);
    let shape = vec![open("batch"), open("height"), open("width"), fixed(channels)];
    let input = value_info(&images.name, ElementType::UINT8, shape);
    let planes = graph.within("preprocessing", |graph| {
        let planes = graph.transpose(&images, &[0, 3, 1, 2]);
        let planes = cast(graph, &planes, ElementType::FLOAT);
        let resized = Scaling { graph, steps }.add(&planes)?;
        Ok::<_, anyhow::Error>(normalize(graph, steps, &resized))
    })?;
    Ok((input, planes))
}

fn cast(graph: &mut Graph, x: &Value, element: i32) -> Value {
    graph.node("Cast", &[x], vec![("to", Attribute::Int(element.into()))], x.dims.clone())
}

/// One number for each channel.
fn by_channel(graph: &mut Graph, name: &str, values: Vec<f32>) -> Value {
    let channels = values.len();
    let values = Tensor::<1>::from_floats(values.as_slice(), &Device::default());
    graph.constant(name, values.reshape([1, channels, 1, 1]))
}

fn normalize(graph: &mut Graph, steps: &Preprocessing, planes: &Value) -> Value {
    let pairs = || steps.mean.iter().zip(&steps.std);
    let scale = by_channel(graph, "scale", pairs().map(|(_, std)| 1.0 / (255.0 * std)).collect());
    let shift = by_channel(graph, "shift", pairs().map(|(mean, std)| -mean / std).collect());
    let scaled = graph.multiply(planes, &scale);
    graph.add(&scaled, &shift)
}

/// The resizing of planes.
struct Scaling<'a> {
    graph: &'a mut Graph,
    steps: &'a Preprocessing,
}

impl Scaling<'_> {
    fn add(&mut self, planes: &Value) -> Result<Value> {
        let target = self.steps.image_size;
        Ok(match self.steps.resize {
            ResizeRule::Squash => {
                let size = self.sides(target);
                self.resize(planes, &size)?
            }
            ResizeRule::SquashCrop { .. } => {
                let size = self.sides(self.steps.size_before_crop());
                let scaled = self.resize(planes, &size)?;
                self.crop(&scaled, &size)
            }
            ResizeRule::ShorterSide { .. } => {
                let size = self.covering(planes, self.steps.size_before_crop());
                let scaled = self.resize(planes, &size)?;
                self.crop(&scaled, &size)
            }
            ResizeRule::Letterbox => {
                let size = self.within(planes, target);
                let scaled = self.resize(planes, &size)?;
                self.border(&scaled, &size)
            }
        })
    }

    /// Two fixed sides.
    fn sides(&mut self, sides: [usize; 2]) -> Value {
        self.graph.integers(&sides.map(|side| side as i64))
    }

    /// Rows and columns of the planes.
    fn size(&mut self, planes: &Value) -> Value {
        let ends = [("start", Attribute::Int(2)), ("end", Attribute::Int(4))];
        self.graph.node("Shape", &[planes], ends.to_vec(), vec![2])
    }

    /// The size in float64, in which the program computes it.
    fn exact(&mut self, size: &Value) -> Value {
        cast(self.graph, size, ElementType::DOUBLE)
    }

    /// Rows and columns, scaled with their ratio to cover `target`.
    fn covering(&mut self, planes: &Value, target: [usize; 2]) -> Value {
        let size = self.size(planes);
        let [rows, columns] = target;
        let target = self.sides(target);
        if rows == columns {
            let shorter = self.graph.reduce("ReduceMin", &size, 0);
            let product = self.graph.multiply(&size, &target);
            return self.graph.binary("Div", &product, &shorter); // of integers, rounded down
        }
        let scaled = self.scaled(&size, &target, "ReduceMin");
        self.graph.binary("Max", &scaled, &target)
    }

    /// Rows and columns, scaled with their ratio to fit into `target`.
    fn within(&mut self, planes: &Value, target: [usize; 2]) -> Value {
        let size = self.size(planes);
        let target = self.sides(target);
        let scaled = self.scaled(&size, &target, "ReduceMax");
        let one = self.graph.integers(&[1]);
        let scaled = self.graph.binary("Max", &scaled, &one);
        self.graph.binary("Min", &scaled, &target)
    }

    /// The size divided by one of its two ratios to the target, rounded.
    fn scaled(&mut self, size: &Value, target: &Value, choice: &'static str) -> Value {
        let (size, target) = (self.exact(size), self.exact(target));
        let ratios = self.graph.binary("Div", &size, &target);
        let ratio = self.graph.reduce(choice, &ratios, 0);
        let scaled = self.graph.binary("Div", &size, &ratio);
        let rounded = self.graph.unary("Round", &scaled);
        cast(self.graph, &rounded, ElementType::INT64)
    }

    /// Planes of this size, rounded to whole numbers as an image is.
    fn resize(&mut self, planes: &Value, size: &Value) -> Result<Value> {
        let mode = match self.steps.interpolation {
            Interpolation::Bilinear => "linear",
            Interpolation::Bicubic => "cubic",
            Interpolation::Lanczos => {
                usage!(
                    "--with-preprocessing: ONNX has no operator for the model's `lanczos` interpolation: leave it out"
                )
            }
        };
        let attributes = vec![
            ("antialias", Attribute::Int(1)),
            ("axes", Attribute::Ints(vec![2, 3])),
            ("coordinate_transformation_mode", Attribute::Text("half_pixel")),
            ("cubic_coeff_a", Attribute::Float(-0.5)),
            ("exclude_outside", Attribute::Int(1)),
            ("mode", Attribute::Text(mode)),
        ];
        let nothing = Value { name: String::new(), dims: Vec::new() };
        let [height, width] = self.steps.image_size;
        let dims = vec![1, planes.dims[1], height, width];
        let resized = self.graph.node("Resize", &[planes, &nothing, &nothing, size], attributes, dims);
        let rounded = self.graph.unary("Round", &resized);
        let (black, white) = (self.graph.number(0.0), self.graph.number(255.0));
        Ok(self.graph.node("Clip", &[&rounded, &black, &white], Vec::new(), rounded.dims.clone()))
    }

    /// The center of planes that have this size.
    fn crop(&mut self, planes: &Value, size: &Value) -> Value {
        let target = self.sides(self.steps.image_size);
        let rest = self.graph.binary("Sub", size, &target);
        let start = match self.steps.crop_rounding {
            CropRounding::HalfToEven => {
                let rest = self.exact(&rest);
                let two = self.sides([2, 2]);
                let two = self.exact(&two);
                let half = self.graph.binary("Div", &rest, &two);
                let rounded = self.graph.unary("Round", &half);
                cast(self.graph, &rounded, ElementType::INT64)
            }
            CropRounding::Down => {
                let two = self.sides([2, 2]);
                self.graph.binary("Div", &rest, &two)
            }
        };
        let end = self.graph.add(&start, &target);
        let axes = self.sides([2, 3]);
        self.graph.node("Slice", &[planes, &start, &end, &axes], Vec::new(), planes.dims.clone())
    }

    /// Planes of this size in the middle of the mean color.
    fn border(&mut self, planes: &Value, size: &Value) -> Value {
        let mean = &self.steps.mean;
        let color = mean.iter().map(|mean| (255.0 * mean).round_ties_even().clamp(0.0, 255.0)).collect();
        let color = by_channel(self.graph, "border", color);
        let target = self.sides(self.steps.image_size);
        let rest = self.graph.binary("Sub", &target, size);
        let two = self.sides([2, 2]);
        let before = self.graph.binary("Div", &rest, &two);
        let after = self.graph.binary("Sub", &rest, &before);
        let pads = self.graph.concat(&[&before, &after], 0);
        let axes = self.sides([2, 3]);
        let nothing = Value { name: String::new(), dims: Vec::new() };
        // Zeros are the only border that every channel can share.
        let difference = self.graph.binary("Sub", planes, &color);
        let padded =
            self.graph.node("Pad", &[&difference, &pads, &nothing, &axes], Vec::new(), planes.dims.clone());
        self.graph.add(&padded, &color)
    }
}
