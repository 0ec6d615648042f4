//! Files of weights: safetensors and what `torch.save` writes. No file's content is ever run, and none is trusted: a tensor takes no
//! more memory than the file has bytes for it.

mod checkpoint;
mod pytorch;
mod zip_end;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;
use tempfile::TempPath;
use vitrine_datasets::open_regular;
use vitrine_models::weights::{IndexTable, NamedTensor};

/// An open file: every tensor's key and shape, and the way to its values.
pub struct WeightsFile {
    /// In the order of the file, where it has one.
    pub entries: Vec<Entry>,
    /// Text that a safetensors header holds next to the tensors.
    pub metadata: HashMap<String, String>,
    /// Of a training program's checkpoint: which part of it the tensors are, and what was left out.
    pub part: Option<String>,
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
    Mapped {
        map: Arc<Mmap>,
        range: Range<usize>,
        dtype: Dtype,
    },
    /// The tensor reads its file when asked, which may be a copy that goes when the last tensor does.
    Pickled {
        tensor: pytorch_reader::Tensor,
        _copy: Option<Arc<TempPath>>,
    },
}

impl Entry {
    /// The values, widened to 32 bits.
    ///
    /// # Errors
    /// When they are no floating point numbers, not finite in 32 bits, or cannot be read.
    pub fn read(&self) -> Result<NamedTensor> {
        let named = || format!("{}: {}", self.path.display(), self.name);
        let values = self.values().with_context(named)?;
        if let Some(place) = values.iter().position(|value| !value.is_finite()) {
            return Err(anyhow!("value {place} is {}: weights must be finite numbers", values[place]))
                .with_context(named);
        }
        Ok(NamedTensor { name: self.name.clone(), shape: self.shape.clone(), values })
    }

    fn values(&self) -> Result<Vec<f32>> {
        match &self.values {
            Values::Mapped { map, range, dtype } => {
                let bytes = map.get(range.clone()).context("the file has become shorter")?;
                widen(bytes, *dtype).ok_or_else(|| no_float(dtype))
            }
            Values::Pickled { tensor, .. } => {
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
    anyhow!("stored as {dtype:?}: weights must be F32, F16, BF16 or F64")
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
    let (file, _) = open_regular(path, u64::MAX)
        .map_err(|problem| anyhow!("{}: cannot be opened: {problem}", path.display()))?;
    // SAFETY: the map is read only, and model files are replaced by renaming, never written in place; a foreign
    // program that truncates the file meanwhile is outside what any reader of a mapped file can guard against.
    let map = unsafe { Mmap::map(&file) }.with_context(|| format!("{}: cannot be read", path.display()))?;
    refuse_what_stands_for_weights(&map).with_context(|| path.display().to_string())?;
    let (mut entries, metadata) = if is_pytorch(&map) {
        pytorch::refuse_negated(&map).with_context(|| path.display().to_string())?;
        (pytorch::open(path, &map)?, HashMap::new())
    } else {
        safetensors_entries(path, &Arc::new(map))
            .map_err(|error| anyhow!("{}: not a safetensors file, or cut short ({error})", path.display()))?
    };
    let part = checkpoint::unwrap(&mut entries);
    Ok(WeightsFile { entries, metadata, part })
}

/// Names what is downloaded in place of weights now and then.
fn refuse_what_stands_for_weights(bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        bail!("the file is empty: copy or download it again");
    }
    let start = bytes.get(..bytes.len().min(256)).unwrap_or_default();
    if start.starts_with(b"version https://git-lfs") {
        bail!("this is a git-lfs pointer, not the weights: fetch them with `git lfs pull`");
    }
    let text = String::from_utf8_lossy(start).trim_start().to_ascii_lowercase();
    if text.starts_with("<!doctype html") || text.starts_with("<html") {
        bail!("this is an HTML page, not the weights: the download returned a page instead of the file");
    }
    Ok(())
}

/// Whether the content begins as something `torch.save` has written: an archive, a pickle, or a tar file.
fn is_pytorch(bytes: &[u8]) -> bool {
    // The length of a safetensors header may look like the start of a pickle; the header's text follows.
    let is_pickle = matches!(bytes, [0x80, 2..=5, ..]) && bytes.get(8) != Some(&b'{');
    bytes.starts_with(b"PK\x03\x04") || is_pickle || bytes.get(257..262) == Some(b"ustar")
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

/// How numbers are stored.
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
    let mut bytes = safetensors::serialize(views, Some(metadata))?;
    sort_header(&mut bytes)?;
    crate::files::write_atomically(path, &bytes)
}

/// Puts the entries of a safetensors header in the order of their names: the same model gives the same bytes.
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
    fn an_archive_whose_root_has_21_letters_is_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch_archive");
        let file = open(&folder.join("vit_small_patch16_224.pth")).unwrap();
        let tensors: Vec<NamedTensor> = file.entries.iter().map(|entry| entry.read().unwrap()).collect();
        assert_eq!((tensors[0].name.as_str(), tensors[0].shape.as_slice()), ("a", &[2, 2][..]));
        assert_eq!(tensors[0].values, [0.5, -1.0, 2.0, 3.0]);
        assert_eq!(tensors[1].values, [0.0, 1.0, 2.0]);
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
    fn a_header_whose_length_looks_like_a_pickle_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        // 640 is 80 02 in bytes.
        let header = format!("{:640}", r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#);
        let content = [&640u64.to_le_bytes(), header.as_bytes(), &1.5f32.to_le_bytes()].concat();
        std::fs::write(&path, content).unwrap();
        assert_eq!(open(&path).unwrap().entries[0].read().unwrap().values, [1.5]);
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
