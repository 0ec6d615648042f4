//! A tensor in an open file of weights: its key and shape are known, its values are read on demand.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;
use vitrine_kernels::{all_finite, resize_with_zeros, scale_bytes};
use vitrine_models::weights::{LazyTensor, NamedTensor};

use super::positioned;
use super::zip_end::TemporaryCopy;

/// A tensor in a file of weights, whose values have not been read yet.
pub struct StoredTensor {
    /// The key in the file.
    pub name: String,
    /// Lengths of the dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The file, for messages.
    pub(super) path: PathBuf,
    pub(super) storage: Storage,
}

/// Where a tensor's values are stored.
pub(super) enum Storage {
    /// A part of a safetensors file.
    Safetensors { file: Arc<File>, offset: u64, bytes: usize, dtype: Dtype },
    /// A part of a safetensors file with bytes, which are multiples of the scale of their row.
    Int8 { file: Arc<File>, offset: u64, bytes: usize, scales: Vec<f32> },
    /// A PyTorch file, which `tensor` opens when its values are read. It may be a temporary copy, which is removed
    /// together with the last tensor that is stored in it.
    Pickled { tensor: pytorch_reader::Tensor, _copy: Option<Arc<TemporaryCopy>> },
}

impl StoredTensor {
    /// Whether the values have fewer than 32 bits in the file.
    pub fn is_narrow(&self) -> bool {
        match &self.storage {
            Storage::Safetensors { dtype, .. } => *dtype != Dtype::F32,
            Storage::Int8 { .. } => true,
            Storage::Pickled { .. } => false,
        }
    }

    /// Reads the values, converted to 32-bit floating point, with all threads.
    ///
    /// # Errors
    /// If the values are not of a floating point type, one is not finite in 32 bits, or the file cannot be read.
    pub fn read(&self) -> Result<NamedTensor> {
        let mut values = Vec::new();
        self.read_into(&mut values)?;
        Ok(NamedTensor { name: self.name.clone(), shape: self.shape.clone(), values })
    }

    /// The tensor with its values read when a model takes them.
    pub fn lazy(&self) -> LazyTensor<'_, anyhow::Error> {
        LazyTensor {
            name: self.name.clone(),
            shape: self.shape.clone(),
            read: Box::new(|values| self.read_into(values)),
        }
    }

    /// [`Self::read`] into a vector, whose memory is used if it suffices.
    fn read_into(&self, values: &mut Vec<f32>) -> Result<()> {
        let place = || format!("{}: {}", self.path.display(), self.name);
        self.widen_into(values).with_context(place)?;
        if !values.par_chunks(1 << 16).all(all_finite)
            && let Some(index) = values.iter().position(|value| !value.is_finite())
        {
            return Err(anyhow!("value {index} is {}: weights must be finite numbers", values[index]))
                .with_context(place);
        }
        Ok(())
    }

    fn widen_into(&self, values: &mut Vec<f32>) -> Result<()> {
        match &self.storage {
            Storage::Safetensors { file, offset, bytes, dtype: Dtype::F32 } => {
                resize_with_zeros(values, bytes / size_of::<f32>());
                positioned::read(file, bytemuck::cast_slice_mut(values), *offset)?;
                if cfg!(target_endian = "big") {
                    values
                        .iter_mut()
                        .for_each(|value| *value = f32::from_bits(u32::from_le(value.to_bits())));
                }
            }
            Storage::Safetensors { file, offset, bytes, dtype: dtype @ (Dtype::F16 | Dtype::BF16) } => {
                let mut bits = vec![0u16; bytes / size_of::<u16>()];
                positioned::read(file, bytemuck::cast_slice_mut(&mut bits), *offset)?;
                if cfg!(target_endian = "big") {
                    bits.iter_mut().for_each(|bits| *bits = u16::from_le(*bits));
                }
                resize_with_zeros(values, bits.len());
                let parts = values.par_chunks_mut(1 << 16).zip(bits.par_chunks(1 << 16));
                parts.for_each(|(values, bits)| match dtype {
                    Dtype::F16 => bits.reinterpret_cast::<f16>().convert_to_f32_slice(values),
                    _ => bits.reinterpret_cast::<bf16>().convert_to_f32_slice(values),
                });
            }
            Storage::Safetensors { file, offset, bytes, dtype } => {
                let mut content = vec![0; *bytes];
                positioned::read(file, &mut content, *offset)?;
                *values = widen(&content, *dtype).ok_or_else(|| not_a_float(dtype))?;
            }
            Storage::Int8 { file, offset, bytes, scales } => {
                let mut content = vec![0u8; *bytes];
                positioned::read(file, &mut content, *offset)?;
                resize_with_zeros(values, *bytes);
                let row = bytes.checked_div(scales.len()).unwrap_or(0).max(1);
                let rows = values.par_chunks_mut(row).zip(content.par_chunks(row)).zip(scales);
                rows.for_each(|((values, bytes), scale)| scale_bytes(values, *scale, bytes));
            }
            Storage::Pickled { tensor, .. } => {
                let dtype = match tensor.dtype() {
                    pytorch_reader::DType::F64 => Dtype::F64,
                    pytorch_reader::DType::F32 => Dtype::F32,
                    pytorch_reader::DType::F16 => Dtype::F16,
                    pytorch_reader::DType::BF16 => Dtype::BF16,
                    other => return Err(not_a_float(&other)),
                };
                *values = widen(&tensor.read()?, dtype).ok_or_else(|| not_a_float(&dtype))?;
            }
        }
        Ok(())
    }
}

fn not_a_float(dtype: &dyn std::fmt::Debug) -> anyhow::Error {
    anyhow!("stored as {dtype:?}: weights must be F32, F16, BF16 or F64")
}

/// Converts little-endian bytes to 32-bit floating point; `None` if the type is not a floating point one.
fn widen(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    Some(match dtype {
        Dtype::F32 => bytes.as_chunks().0.par_iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => bytes.as_chunks().0.par_iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::BF16 => bytes.as_chunks().0.par_iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::F64 => bytes.as_chunks().0.par_iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
        _ => return None,
    })
}
