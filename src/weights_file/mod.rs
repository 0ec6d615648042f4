//! Files of weights: safetensors, and the archives and pickles that `torch.save` writes.
//!
//! Files are not trusted: no code in them is run, and a tensor takes no more memory than the file has bytes for it.

mod checkpoint;
mod checksum;
mod positioned;
mod pytorch;
mod tensor;
mod writer;
mod zip_end;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use vitrine_datasets::open_regular;

pub use checksum::checksum;
use tensor::Storage;
pub use tensor::StoredTensor;
pub use writer::{Precision, narrow, rounded, save, save_with_bytes};

/// What the name of the scales of a tensor of bytes, one for each of its rows, has at the end.
const SCALE: &str = "_scale";

/// An open file of weights.
pub struct WeightsFile {
    /// The tensors: of a safetensors file in the order of their bytes, of a PyTorch file sorted by name.
    pub tensors: Vec<StoredTensor>,
    /// The text entries of a safetensors header; empty for a PyTorch file.
    pub metadata: HashMap<String, String>,
    /// For a training checkpoint: which of its parts the tensors are, and which were left out.
    pub checkpoint_note: Option<String>,
}

/// Opens a file of weights. Its content tells whether it is a safetensors or a PyTorch file.
///
/// # Errors
/// If the file cannot be read, is cut short, is of another kind, or holds objects other than weights and settings.
pub fn open(path: &Path) -> Result<WeightsFile> {
    let (file, _) = open_regular(path, u64::MAX)
        .map_err(|problem| anyhow!("{}: cannot be opened: {problem}", path.display()))?;
    // SAFETY: the map is read only, and unmapped before this function returns. This program replaces model files by renaming,
    // never by writing in place. Another program that truncates the file meanwhile is outside what any reader of a mapped file
    // can guard against.
    let map = unsafe { Mmap::map(&file) }.with_context(|| format!("{}: cannot be read", path.display()))?;
    refuse_placeholders(&map).with_context(|| path.display().to_string())?;
    refuse_other_formats(&map).with_context(|| path.display().to_string())?;
    let (mut tensors, metadata) = if is_pytorch(&map) {
        pytorch::refuse_negative_bits(&map).with_context(|| path.display().to_string())?;
        (pytorch::open(path, &map)?, HashMap::new())
    } else {
        open_safetensors(path, file, &map)
            .map_err(|error| anyhow!("{}: not a safetensors file, or cut short ({error})", path.display()))?
    };
    let checkpoint_note = checkpoint::unwrap(&mut tensors);
    Ok(WeightsFile { tensors, metadata, checkpoint_note })
}

/// Refuses files that downloads leave in place of weights: empty ones, git-lfs pointers, and HTML pages.
fn refuse_placeholders(bytes: &[u8]) -> Result<()> {
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

/// Refuses models in other formats, which their first bytes tell.
fn refuse_other_formats(bytes: &[u8]) -> Result<()> {
    let format = if is_onnx(bytes) {
        "an ONNX file"
    } else if bytes.starts_with(b"\x89HDF\r\n\x1a\n") {
        "an HDF5 file, as Keras writes it"
    } else if bytes.starts_with(b"GGUF") {
        "a GGUF file"
    } else {
        return Ok(());
    };
    bail!(
        "this is {format}, which cannot be read: take the weights of this model as a safetensors or PyTorch file (.safetensors, .pth, .pt, \
         .bin)"
    )
}

/// Whether a content begins like an ONNX file: with the version of the format, a small number, and one of the fields that follow it.
fn is_onnx(bytes: &[u8]) -> bool {
    // As a length, the same bytes could begin a safetensors file.
    matches!(bytes, [0x08, 1..=0x7f, 0x12 | 0x1a | 0x22 | 0x28 | 0x32 | 0x3a | 0x42, ..])
        && bytes.get(8) != Some(&b'{')
}

/// Whether a content begins like a file of `torch.save`: a zip archive, a pickle, or a tar archive.
fn is_pytorch(bytes: &[u8]) -> bool {
    // The length of a safetensors header can equal the first bytes of a pickle, but the text of the header follows it.
    let is_pickle = matches!(bytes, [0x80, 2..=5, ..]) && bytes.get(8) != Some(&b'{');
    bytes.starts_with(b"PK\x03\x04") || is_pickle || bytes.get(257..262) == Some(b"ustar")
}

/// The tensors, in the order of their bytes, and the header's text of a safetensors file. Of its content, only the header is
/// read.
fn open_safetensors(
    path: &Path,
    file: File,
    content: &[u8],
) -> Result<(Vec<StoredTensor>, HashMap<String, String>), safetensors::SafeTensorError> {
    let (header_bytes, header) = SafeTensors::read_metadata(content)?;
    let start = size_of::<u64>() + header_bytes;
    let file = Arc::new(file);
    let tensors = header.offset_keys().into_iter().filter_map(|name| {
        let info = header.info(&name)?;
        let (from, to) = info.data_offsets;
        let (offset, bytes) = ((start + from) as u64, to - from);
        let scales = || {
            let rows = *info.shape.first()?;
            let scales = header.info(&format!("{name}{SCALE}"))?;
            let (from, to) = scales.data_offsets;
            let content = content.get(start + from..start + to)?.as_chunks().0;
            let is_for_rows = scales.dtype == Dtype::F32 && scales.shape.first() == Some(&rows);
            let is_whole = is_for_rows && content.len() == rows;
            is_whole.then(|| content.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
        };
        let file = Arc::clone(&file);
        let storage = match (info.dtype == Dtype::I8).then(scales).flatten() {
            Some(scales) => Storage::Int8 { file, offset, bytes, scales },
            None => Storage::Safetensors { file, offset, bytes, dtype: info.dtype },
        };
        Some(StoredTensor { shape: info.shape.clone(), name, path: path.to_owned(), storage })
    });
    let mut tensors: Vec<StoredTensor> = tensors.collect();
    let scaled: HashSet<String> = tensors
        .iter()
        .filter(|tensor| matches!(tensor.storage, Storage::Int8 { .. }))
        .map(|tensor| format!("{}{SCALE}", tensor.name))
        .collect();
    tensors.retain(|tensor| !scaled.contains(&tensor.name));
    Ok((tensors, header.metadata().clone().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use vitrine_models::weights::{IndexTable, NamedTensor};

    use super::*;

    fn example() -> NamedTensor {
        NamedTensor { name: "a".to_owned(), shape: vec![2, 2], values: vec![0.1, -2.0, 3.5, 65_000.0] }
    }

    #[test]
    fn sixteen_bit_values_are_widened_when_read_and_too_large_ones_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        for (precision, tolerance) in [(Precision::F32, 0.0), (Precision::F16, 1e-3), (Precision::Bf16, 8e-3)]
        {
            save(&path, &[example()], &[], precision, HashMap::new()).unwrap();
            let read = open(&path).unwrap().tensors[0].read().unwrap();
            assert_eq!(read.shape, [2, 2]);
            for (a, b) in read.values.iter().zip(example().values) {
                assert!((a - b).abs() <= tolerance * b.abs(), "{precision:?}: {a} for {b}");
            }
        }
        let large = NamedTensor { values: vec![0.0, 0.0, 0.0, 1e6], ..example() };
        let error = save(&path, &[large], &[], Precision::F16, HashMap::new()).unwrap_err();
        assert!(error.to_string().contains("bf16"), "{error}");
    }

    #[test]
    fn a_torch_archive_whose_root_folder_has_21_letters_is_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch_archive");
        let file = open(&folder.join("vit_small_patch16_224.pth")).unwrap();
        let tensors: Vec<NamedTensor> = file.tensors.iter().map(|tensor| tensor.read().unwrap()).collect();
        assert_eq!((tensors[0].name.as_str(), tensors[0].shape.as_slice()), ("a", &[2, 2][..]));
        assert_eq!(tensors[0].values, [0.5, -1.0, 2.0, 3.0]);
        assert_eq!(tensors[1].values, [0.0, 1.0, 2.0]);
    }

    #[test]
    fn bytes_with_scales_are_read_as_they_were_and_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let tensor = |name: &str, shape: &[usize], values: &[f32]| NamedTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            values: values.to_vec(),
        };
        let stored = [
            // The second row is one of zeros, and the scale of the third is a half.
            tensor("a.weight", &[3, 2, 1], &[127.0, -3.0, 0.0, 0.0, -63.5, 0.5]),
            tensor("b.weight", &[2, 2], &[127.0, -3.0, 127.0, 0.3]),
            tensor("c.bias", &[2], &[127.0, -3.0]),
        ];
        save_with_bytes(&path, &stored, &[], Precision::F32, HashMap::new()).unwrap();
        let file = open(&path).unwrap();
        let read: Vec<NamedTensor> = file.tensors.iter().map(|tensor| tensor.read().unwrap()).collect();
        let is_bytes = |tensor: &StoredTensor| matches!(tensor.storage, Storage::Int8 { .. });
        for (tensor, stored) in read
            .iter()
            .map(|tensor| (tensor, stored.iter().find(|stored| stored.name == tensor.name).unwrap()))
        {
            assert_eq!((&tensor.shape, &tensor.values), (&stored.shape, &stored.values), "{}", tensor.name);
        }
        let of_bytes: Vec<&str> =
            file.tensors.iter().filter(|tensor| is_bytes(tensor)).map(|tensor| &*tensor.name).collect();
        assert_eq!((of_bytes, read.len()), (vec!["a.weight"], 3), "b is no multiple of bytes");
        for scales in [
            r#""dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"I8","shape":[],"data_offsets":[4,5]"#,
            r#""dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"I8","shape":[2,1],"data_offsets":[4,6]"#,
            r#""dtype":"F16","shape":[2],"data_offsets":[0,4]},"a":{"dtype":"I8","shape":[2,1],"data_offsets":[4,6]"#,
            r#""dtype":"F32","shape":[1,1],"data_offsets":[0,4]},"a":{"dtype":"I8","shape":[0,1],"data_offsets":[4,4]"#,
        ] {
            let header = format!(r#"{{"a_scale":{{{scales}}}}}"#);
            let end = if header.contains("[4,4]") {
                4
            } else if header.contains("[4,5]") {
                5
            } else {
                6
            };
            let content =
                [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 6][..end]].concat();
            std::fs::write(&path, content).unwrap();
            let file = open(&path).unwrap();
            let bytes = file.tensors.iter().find(|tensor| tensor.name == "a").unwrap();
            assert!(bytes.read().unwrap_err().root_cause().to_string().contains("I8"), "{header}");
        }
    }

    #[test]
    fn integers_are_refused_as_weights() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let table = IndexTable { name: "index".to_owned(), shape: vec![2], values: vec![1, 2] };
        save(&path, &[], &[table], Precision::F32, HashMap::new()).unwrap();
        let error = format!("{:#}", open(&path).unwrap().tensors[0].read().unwrap_err());
        assert!(error.contains("index") && error.contains("I64"), "{error}");
    }

    #[test]
    fn errors_name_files_that_hold_no_weights() {
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
    fn models_in_other_formats_are_named_as_such() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.bin");
        let contents: [(&[u8], &str); 4] = [
            (b"\x08\x07\x12\x07pytorch\x1a\x052.1.0:\xf4\x03", "an ONNX file"),
            (b"\x08\x0a:\x80\x01\x0a\x10", "an ONNX file"),
            (b"\x89HDF\r\n\x1a\n\0\0\0\0", "an HDF5 file"),
            (b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0", "a GGUF file"),
        ];
        for (content, format) in contents {
            std::fs::write(&path, content).unwrap();
            let error = format!("{:#}", open(&path).err().unwrap());
            let parts = ["model.bin", format, ".safetensors"];
            assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn a_header_length_that_looks_like_a_pickle_is_read_as_safetensors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        // The bytes of 640 are 80 02, which begin a pickle of protocol 2.
        let header = format!("{:640}", r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#);
        let content = [&640u64.to_le_bytes(), header.as_bytes(), &1.5f32.to_le_bytes()].concat();
        std::fs::write(&path, content).unwrap();
        assert_eq!(open(&path).unwrap().tensors[0].read().unwrap().values, [1.5]);
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
