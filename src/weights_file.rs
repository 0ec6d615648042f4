//! Files of weights: safetensors and what `torch.save` writes. No file's content is ever run, and none is trusted: a tensor takes no
//! more memory than the file has bytes for it.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use half::{bf16, f16};
use memmap2::Mmap;
use pytorch_reader::{PickleValue, PytorchReader};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use vitrine_models::weights::{IndexTable, NamedTensor};

/// An open file: every tensor's key and shape, and the way to its values.
pub struct WeightsFile {
    /// In the order of the file, where it has one.
    pub entries: Vec<Entry>,
    /// Text that a safetensors header holds beside the tensors.
    pub metadata: HashMap<String, String>,
}

/// A tensor that was not read yet.
pub struct Entry {
    /// Its key.
    pub name: String,
    /// Lengths of the dimensions, outermost first.
    pub shape: Vec<usize>,
    path: PathBuf,
    values: Values,
}

enum Values {
    Mapped { map: Arc<Mmap>, range: Range<usize>, dtype: Dtype },
    Pickled(pytorch_reader::Tensor),
}

impl Entry {
    /// The values, widened to 32 bits.
    ///
    /// # Errors
    /// When they are no floating point numbers, or cannot be read.
    pub fn read(&self) -> Result<NamedTensor> {
        let values = self.values().with_context(|| format!("{}: {}", self.path.display(), self.name))?;
        Ok(NamedTensor { name: self.name.clone(), shape: self.shape.clone(), values })
    }

    fn values(&self) -> Result<Vec<f32>> {
        match &self.values {
            Values::Mapped { map, range, dtype } => {
                let bytes = map.get(range.clone()).context("the file has become shorter")?;
                widen(bytes, *dtype).ok_or_else(|| no_float(dtype))
            }
            Values::Pickled(tensor) => {
                let dtype = match tensor.dtype() {
                    pytorch_reader::DType::F64 => Dtype::F64,
                    pytorch_reader::DType::F32 => Dtype::F32,
                    pytorch_reader::DType::F16 => Dtype::F16,
                    pytorch_reader::DType::BF16 => Dtype::BF16,
                    other => return Err(no_float(&other)),
                };
                widen(&tensor.read()?, dtype).ok_or_else(|| no_float(&dtype))
            }
        }
    }
}

fn no_float(dtype: &dyn std::fmt::Debug) -> anyhow::Error {
    anyhow!("stored as {dtype:?}: weights are numbers of the kinds F32, F16, BF16 or F64")
}

/// Little-endian bytes to numbers of 32 bits; none where they are no floating point numbers.
fn widen(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    Some(match dtype {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::BF16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::F64 => bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
        _ => return None,
    })
}

/// Opens a file of weights, whichever kind it is.
///
/// # Errors
/// When it cannot be read, is cut short, of another kind, or asks for more than weights.
pub fn open(path: &Path) -> Result<WeightsFile> {
    let file = File::open(path).with_context(|| format!("{}: cannot be opened", path.display()))?;
    // SAFETY: the map is read only, and model files are replaced by renaming, never written in place; a foreign
    // program that truncates the file meanwhile is outside what any reader of a mapped file can guard against.
    let map = unsafe { Mmap::map(&file) }.with_context(|| format!("{}: cannot be read", path.display()))?;
    if is_pytorch(&map) { open_pytorch(path, map.len()) } else { open_safetensors(path, Arc::new(map)) }
}

/// Whether the content begins as something `torch.save` has written: an archive, a pickle, or a tar file.
fn is_pytorch(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PK\x03\x04")
        || bytes.starts_with(b"\x80\x02")
        || bytes.get(257..262) == Some(b"ustar")
}

fn open_safetensors(path: &Path, map: Arc<Mmap>) -> Result<WeightsFile> {
    let (entries, metadata) = safetensors_entries(path, &map)
        .map_err(|error| anyhow!("{}: not a safetensors file, or cut short ({error})", path.display()))?;
    Ok(WeightsFile { entries, metadata })
}

type Parts = (Vec<Entry>, HashMap<String, String>);

fn safetensors_entries(path: &Path, map: &Arc<Mmap>) -> Result<Parts, safetensors::SafeTensorError> {
    let (_, header) = SafeTensors::read_metadata(map)?;
    let file = SafeTensors::deserialize(map)?;
    let start = map.as_ptr().addr();
    let mut entries: Vec<(usize, Entry)> = file
        .iter()
        .map(|(name, view)| {
            let first = view.data().as_ptr().addr() - start;
            let values = Values::Mapped {
                map: Arc::clone(map),
                range: first..first + view.data().len(),
                dtype: view.dtype(),
            };
            let shape = view.shape().to_vec();
            (first, Entry { name: name.to_owned(), shape, path: path.to_owned(), values })
        })
        .collect();
    entries.sort_by_key(|(first, _)| *first);
    let metadata = header.metadata().clone().unwrap_or_default();
    Ok((entries.into_iter().map(|(_, entry)| entry).collect(), metadata))
}

/// Where training programs keep the weights in their checkpoints, averaged ones first.
const WRAPPERS: [&str; 8] =
    ["state_dict_ema", "model_ema", "ema", "state_dict", "model_state_dict", "model", "teacher", "student"];

fn open_pytorch(path: &Path, length: usize) -> Result<WeightsFile> {
    let damaged = |error: &dyn std::fmt::Display| {
        anyhow!("{}: not a PyTorch file, or damaged ({error})", path.display())
    };
    let content = PytorchReader::read_pickle_data(path, None).map_err(|error| damaged(&error))?;
    refuse_foreign_objects(&content).with_context(|| path.display().to_string())?;
    let reader = PytorchReader::new(path).map_err(|error| damaged(&error))?;
    let mut tensors: Vec<(String, pytorch_reader::Tensor)> = reader.into_tensors().into_iter().collect();
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    unwrap(&mut tensors);
    let claimed = tensors.iter().map(|(_, tensor)| tensor.byte_len()).fold(0, usize::saturating_add);
    // Weights that layers share are stored once and listed for each.
    if claimed > length.saturating_mul(4) {
        bail!(
            "{}: its tensors claim {claimed} bytes, and the whole file has {length}: damaged, or made to exhaust memory",
            path.display()
        );
    }
    let entries = tensors
        .into_iter()
        .map(|(name, tensor)| Entry {
            name,
            shape: tensor.shape().to_vec(),
            path: path.to_owned(),
            values: Values::Pickled(tensor),
        })
        .collect();
    Ok(WeightsFile { entries, metadata: HashMap::new() })
}

/// Strips what stands before all names of the weights in a training program's checkpoint, and leaves out what else it holds.
fn unwrap(tensors: &mut Vec<(String, pytorch_reader::Tensor)>) {
    let wrapper = WRAPPERS.iter().map(|name| format!("{name}.")).find(|prefix| {
        // A model may have a part of that name: only a wrapper holds whole models.
        tensors.iter().filter(|(name, _)| name.starts_with(prefix.as_str())).count() > 4
    });
    for prefix in wrapper.iter().map(String::as_str).chain(["module.", "_orig_mod.", "backbone."]) {
        let inside = tensors.iter().filter(|(name, _)| name.starts_with(prefix)).count();
        if inside > 0 && (inside == tensors.len() || Some(prefix) == wrapper.as_deref()) {
            tensors.retain_mut(|(name, _)| {
                let rest = name.strip_prefix(prefix).map(str::to_owned);
                rest.map(|rest| *name = rest).is_some()
            });
        }
    }
}

/// The modules whose objects checkpoints of weights have: PyTorch's own, and what settings are kept in.
const KNOWN_MODULES: [&str; 9] = [
    "torch",
    "collections",
    "numpy",
    "argparse",
    "yacs",
    "omegaconf",
    "pathlib",
    "_codecs",
    "ml_collections",
];

/// Refuses a pickle that names functions or classes which weights have no use for. Nothing of a pickle is run here, but where such a
/// file comes from, something else may.
fn refuse_foreign_objects(value: &PickleValue) -> Result<()> {
    match value {
        PickleValue::List(values) => values.iter().try_for_each(refuse_foreign_objects),
        PickleValue::Dict(values) => values.values().try_for_each(refuse_foreign_objects),
        PickleValue::Unsupported(name) => {
            let module = name.split('.').next().unwrap_or_default();
            let plain = !name.contains('.') || ["builtins.set", "builtins.complex"].contains(&name.as_str());
            if plain || KNOWN_MODULES.contains(&module) {
                return Ok(());
            }
            bail!(
                "the pickle asks for `{name}`, which weights have no use for: the file may be made to run code where it is \
                 opened; get the weights as .safetensors"
            )
        }
        PickleValue::None
        | PickleValue::Bool(_)
        | PickleValue::Int(_)
        | PickleValue::Float(_)
        | PickleValue::String(_)
        | PickleValue::Bytes(_) => Ok(()),
    }
}

/// How numbers are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Precision {
    /// 32 bits: as they are.
    #[default]
    F32,
    /// 16 bits, 11 of them significant; beyond 65,504 there is infinity.
    F16,
    /// 16 bits, 8 of them significant, with the range of 32.
    Bf16,
}

/// Writes a safetensors file, whole or not at all.
///
/// # Errors
/// When a value is too large for the precision, or the file cannot be written.
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
    let narrowed = tensors.iter().map(|tensor| narrow(tensor, precision)).collect::<Result<Vec<_>>>()?;
    let floats = tensors.iter().zip(&narrowed).map(|(tensor, bytes)| {
        let bytes = if bytes.is_empty() { bytemuck::cast_slice(&tensor.values) } else { bytes };
        Ok((tensor.name.as_str(), TensorView::new(dtype, tensor.shape.clone(), bytes)?))
    });
    let integers = tables.iter().map(|table| {
        let bytes = bytemuck::cast_slice(&table.values);
        Ok((table.name.as_str(), TensorView::new(Dtype::I64, table.shape.clone(), bytes)?))
    });
    let views = floats.chain(integers).collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    crate::files::write_atomically(path, &safetensors::serialize(views, Some(metadata))?)
}

/// The bytes of a tensor in 16 bits; empty for 32, which need no copy.
fn narrow(tensor: &NamedTensor, precision: Precision) -> Result<Vec<u8>> {
    match precision {
        Precision::F32 => Ok(Vec::new()),
        Precision::F16 => {
            let largest = tensor.values.iter().filter(|v| v.is_finite()).fold(0.0f32, |m, v| m.max(v.abs()));
            if largest > f16::MAX.to_f32() {
                bail!("{}: {largest} is too large for f16; use bf16 or f32", tensor.name);
            }
            Ok(tensor.values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect())
        }
        Precision::Bf16 => {
            Ok(tensor.values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor() -> NamedTensor {
        NamedTensor { name: "a".to_owned(), shape: vec![2, 2], values: vec![0.1, -2.0, 3.5, 65_000.0] }
    }

    #[test]
    fn sixteen_bits_are_widened_when_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        for (precision, tolerance) in [(Precision::F32, 0.0), (Precision::F16, 1e-3), (Precision::Bf16, 8e-3)]
        {
            save(&path, &[tensor()], &[], precision, HashMap::new()).unwrap();
            let read = open(&path).unwrap().entries[0].read().unwrap();
            assert_eq!(read.shape, [2, 2]);
            for (a, b) in read.values.iter().zip(tensor().values) {
                assert!((a - b).abs() <= tolerance * b.abs(), "{precision:?}: {a} for {b}");
            }
        }
        let large = NamedTensor { values: vec![0.0, 0.0, 0.0, 1e6], ..tensor() };
        let error = save(&path, &[large], &[], Precision::F16, HashMap::new()).unwrap_err();
        assert!(error.to_string().contains("bf16"), "{error}");
    }

    #[test]
    fn whole_numbers_are_no_weights() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let table = IndexTable { name: "index".to_owned(), shape: vec![2], values: vec![1, 2] };
        save(&path, &[], &[table], Precision::F32, HashMap::new()).unwrap();
        let error = format!("{:#}", open(&path).unwrap().entries[0].read().unwrap_err());
        assert!(error.contains("index") && error.contains("I64"), "{error}");
    }

    #[test]
    fn files_that_are_no_weights_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.bin");
        let contents: [&[u8]; 6] = [
            b"",
            b"short",
            &u64::MAX.to_le_bytes(),
            b"\x10\x00\x00\x00\x00\x00\x00\x00{\"a\":{\"dtype\":\"F",
            b"PK\x03\x04 no archive",
            b"\x80\x02no pickle",
        ];
        for content in contents {
            std::fs::write(&path, content).unwrap();
            let error = format!("{:#}", open(&path).err().unwrap());
            assert!(error.contains("w.bin"), "{error}");
        }
    }

    #[test]
    fn tensors_that_overlap_or_leave_the_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        for header in [
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
            r#"{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}"#,
            r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#,
            r#"{"a":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,8]}}"#,
        ] {
            let content = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 12]].concat();
            std::fs::write(&path, content).unwrap();
            assert!(open(&path).is_err(), "{header}");
        }
    }
}
