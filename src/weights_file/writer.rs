//! Writing of safetensors files, in 32 or 16 bits.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};
use safetensors::{Dtype, tensor::TensorView};
use serde_json::Value;
use vitrine_models::weights::{IndexTable, NamedTensor};

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
    mut metadata: HashMap<String, String>,
) -> Result<()> {
    metadata.insert("format".to_owned(), "pt".to_owned());
    let dtype = match precision {
        Precision::F32 => Dtype::F32,
        Precision::F16 => Dtype::F16,
        Precision::Bf16 => Dtype::BF16,
    };
    let narrowed = tensors
        .iter()
        .map(|tensor| narrow(&tensor.name, &tensor.values, precision))
        .collect::<Result<Vec<_>>>()?;
    let floats = tensors.iter().zip(&narrowed).map(|(tensor, bytes)| {
        let bytes = if bytes.is_empty() { bytemuck::cast_slice(&tensor.values) } else { bytes };
        Ok((tensor.name.as_str(), TensorView::new(dtype, tensor.shape.clone(), bytes)?))
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
    match precision {
        Precision::F32 => Ok(Vec::new()),
        Precision::F16 => {
            let largest = values.iter().filter(|v| v.is_finite()).fold(0.0f32, |m, v| m.max(v.abs()));
            if largest > f16::MAX.to_f32() {
                bail!("{name}: {largest} is too large for f16; use bf16 or f32");
            }
            Ok(values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect())
        }
        Precision::Bf16 => Ok(values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect()),
    }
}
