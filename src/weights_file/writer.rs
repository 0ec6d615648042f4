//! Writing of safetensors files, in 32, 16 or 8 bits.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;
use vitrine_kernels::{int8_byte, int8_scale};
use vitrine_models::weights::{IndexTable, NamedTensor};

use super::SCALE;
use crate::files::write_atomically;

/// The number format in which weights are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Precision {
    /// 32 bits, unchanged.
    #[default]
    F32,
    /// 16 bits, 11 of them significant; weights above 65,504 are refused.
    F16,
    /// 16 bits, 8 of them significant, with the range of f32.
    Bf16,
}

/// Writes a safetensors file with floating point tensors, tables of 64-bit integers, and text in the header. The file
/// at `path` is replaced by a complete new one, or left as it is if an error occurs.
///
/// # Errors
/// If a value is too large for the precision, or the file cannot be written.
pub fn save(
    path: &Path,
    tensors: &[NamedTensor],
    tables: &[IndexTable],
    precision: Precision,
    metadata: HashMap<String, String>,
) -> Result<()> {
    let stored = tensors.iter().map(|tensor| Stored::of(tensor, precision)).collect::<Result<Vec<_>>>()?;
    write(path, &stored, tables, metadata)
}

/// [`save`], with bytes and a scale for each row in place of each weight whose values these give exactly.
///
/// # Errors
/// As for [`save`].
pub fn save_with_bytes(
    path: &Path,
    tensors: &[NamedTensor],
    tables: &[IndexTable],
    precision: Precision,
    metadata: HashMap<String, String>,
) -> Result<()> {
    let mut stored = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        match Stored::as_bytes(tensor) {
            Some(parts) => stored.extend(parts),
            None => stored.push(Stored::of(tensor, precision)?),
        }
    }
    write(path, &stored, tables, metadata)
}

/// A tensor as it is written.
struct Stored<'a> {
    name: Cow<'a, str>,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Stored<'a> {
    /// The tensor in a precision.
    fn of(tensor: &'a NamedTensor, precision: Precision) -> Result<Self> {
        let narrowed = narrow(&tensor.name, &tensor.values, precision)?;
        let (dtype, bytes) = match precision {
            Precision::F32 => (Dtype::F32, Cow::Borrowed(bytemuck::cast_slice(&tensor.values))),
            Precision::F16 => (Dtype::F16, Cow::Owned(narrowed)),
            Precision::Bf16 => (Dtype::BF16, Cow::Owned(narrowed)),
        };
        Ok(Self { name: Cow::Borrowed(&tensor.name), dtype, shape: tensor.shape.clone(), bytes })
    }

    /// The bytes and the scales of a weight, if all of its values are multiples of a scale of their row.
    fn as_bytes(tensor: &'a NamedTensor) -> Option<[Self; 2]> {
        let [rows, rest @ ..] = &tensor.shape[..] else { return None };
        let length = rest.iter().product::<usize>();
        if !tensor.name.ends_with("weight") || rest.is_empty() || length == 0 {
            return None;
        }
        let rounded = |values: &[f32]| {
            let scale = int8_scale(values.iter().copied());
            let bytes: Vec<u8> =
                values.iter().map(|&value| int8_byte(value, scale).cast_unsigned()).collect();
            let mut both = values.iter().zip(&bytes);
            let is_exact = both.all(|(value, byte)| f32::from(byte.cast_signed()) * scale == *value);
            is_exact.then_some((scale, bytes))
        };
        let parts: Vec<(f32, Vec<u8>)> =
            tensor.values.chunks_exact(length).map(rounded).collect::<Option<_>>()?;
        let scales: Vec<u8> = parts.iter().flat_map(|(scale, _)| scale.to_le_bytes()).collect();
        let bytes = parts.into_iter().flat_map(|(_, bytes)| bytes).collect();
        let name = &tensor.name;
        Some([
            Self {
                name: Cow::Borrowed(name),
                dtype: Dtype::I8,
                shape: tensor.shape.clone(),
                bytes: Cow::Owned(bytes),
            },
            Self {
                name: Cow::Owned(format!("{name}{SCALE}")),
                dtype: Dtype::F32,
                shape: vec![*rows],
                bytes: Cow::Owned(scales),
            },
        ])
    }
}

fn write(
    path: &Path,
    stored: &[Stored<'_>],
    tables: &[IndexTable],
    mut metadata: HashMap<String, String>,
) -> Result<()> {
    metadata.insert("format".to_owned(), "pt".to_owned());
    let floats = stored.iter().map(|tensor| {
        Ok((&*tensor.name, TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes)?))
    });
    let integers = tables.iter().map(|table| {
        let bytes = bytemuck::cast_slice(&table.values);
        Ok((table.name.as_str(), TensorView::new(Dtype::I64, table.shape.clone(), bytes)?))
    });
    let views = floats.chain(integers).collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    let mut bytes = safetensors::serialize(views, Some(metadata))?;
    sort_header(&mut bytes)?;
    write_atomically(path, &bytes)
}

/// Sorts the header's entries by name, so that equal models give equal bytes: the safetensors crate writes them in
/// random order.
fn sort_header(bytes: &mut [u8]) -> Result<()> {
    let (length, rest) = bytes.split_first_chunk_mut::<8>().context("safetensors gave back no header")?;
    let length = u64::from_le_bytes(*length) as usize;
    let header = rest.get_mut(..length).context("safetensors gave back no whole header")?;
    let sorted: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_slice(header)?;
    let mut text = serde_json::to_vec(&sorted)?;
    ensure!(text.len() <= length, "the header of a model grew when it was sorted");
    text.resize(length, b' ');
    header.copy_from_slice(&text);
    Ok(())
}

/// The bytes of the tensor `name` in 16 bits. Empty for 32 bits, which are written without a copy.
///
/// # Errors
/// If a value is too large for the precision.
pub fn narrow(name: &str, values: &[f32], precision: Precision) -> Result<Vec<u8>> {
    check_range(name, values, precision)?;
    Ok(match precision {
        Precision::F32 => Vec::new(),
        Precision::F16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
        Precision::Bf16 => values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect(),
    })
}

/// A tensor with the values that a file in a precision has of it.
///
/// # Errors
/// If a value is too large for the precision.
pub fn rounded(mut tensor: NamedTensor, precision: Precision) -> Result<NamedTensor> {
    check_range(&tensor.name, &tensor.values, precision)?;
    let round = |value: f32| match precision {
        Precision::F32 => value,
        Precision::F16 => f16::from_f32(value).to_f32(),
        Precision::Bf16 => bf16::from_f32(value).to_f32(),
    };
    tensor.values.iter_mut().for_each(|value| *value = round(*value));
    Ok(tensor)
}

/// Refuses values that are too large for a precision.
fn check_range(name: &str, values: &[f32], precision: Precision) -> Result<()> {
    if precision == Precision::F16 {
        let largest = values.iter().filter(|v| v.is_finite()).fold(0.0f32, |m, v| m.max(v.abs()));
        if largest > f16::MAX.to_f32() {
            bail!("{name}: {largest} is too large for f16; use bf16 or f32");
        }
    }
    Ok(())
}
