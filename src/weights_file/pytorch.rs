//! Files of `torch.save`: a pickle that describes the tensors, followed by their values. The pickle is parsed, never
//! executed.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use pytorch_reader::{PickleValue, PytorchReader};

use super::zip_end::copy_without_zip64;
use super::{Storage, StoredTensor};

/// Opens the PyTorch file at `path`, whose content is `bytes`.
///
/// # Errors
/// If the file is damaged, holds objects other than weights and settings, or describes tensors larger than itself.
pub(super) fn open(path: &Path, bytes: &[u8]) -> Result<Vec<StoredTensor>> {
    let damaged = |error: &dyn std::fmt::Display| {
        anyhow!("{}: not a PyTorch file, or damaged ({error})", path.display())
    };
    let copy = copy_without_zip64(path, bytes)?.map(Arc::new);
    let readable = copy.as_ref().map_or(path, |copy| copy.path());
    let content = PytorchReader::read_pickle_data(readable, None).map_err(|error| damaged(&error))?;
    refuse_foreign_objects(&content).with_context(|| path.display().to_string())?;
    let reader = PytorchReader::new(readable).map_err(|error| damaged(&error))?;
    let length = bytes.len();
    let mut tensors: Vec<(String, pytorch_reader::Tensor)> = reader.into_tensors().into_iter().collect();
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    let claimed = tensors.iter().map(|(_, tensor)| tensor.byte_len()).fold(0, usize::saturating_add);
    // Shared weights are stored once but listed for each layer, so the sum may exceed the file a few times.
    if claimed > length.saturating_mul(4) {
        bail!(
            "{}: its tensors claim {claimed} bytes, but the whole file has {length}: damaged, or made to exhaust memory",
            path.display()
        );
    }
    Ok(tensors
        .into_iter()
        .map(|(name, tensor)| StoredTensor {
            name,
            shape: tensor.shape().to_vec(),
            path: path.to_owned(),
            storage: Storage::Pickled { tensor, _copy: copy.clone() },
        })
        .collect())
}

/// Refuses tensors whose values are stored with the opposite sign, which their metadata marks as `{"neg": True}`
/// (PyTorch's negative bit). The reader of pickles ignores this mark, so it is searched for in the bytes. In every kind
/// of file, the pickle comes before the values.
pub(super) fn refuse_negative_bits(bytes: &[u8]) -> Result<()> {
    const MAX_PICKLE_BYTES: usize = 16 << 20;
    const KEY: &[u8] = b"X\x03\0\0\0neg";
    const TRUE: u8 = 0x88;
    let bytes = &bytes[..bytes.len().min(MAX_PICKLE_BYTES)];
    let is_set = |rest: &[u8]| match rest {
        // An instruction of two or five bytes, which stores the key in the pickle's memo, may come before the value.
        [TRUE, ..] | [b'q', _, TRUE, ..] | [b'r', _, _, _, _, TRUE, ..] => true,
        _ => false,
    };
    if (0..bytes.len()).any(|at| bytes[at] == KEY[0] && bytes[at..].strip_prefix(KEY).is_some_and(is_set)) {
        bail!("tensors have their negative bit set: save them after `tensor.resolve_neg()`");
    }
    Ok(())
}

/// The Python modules of objects that are usual in checkpoints: PyTorch's own, and types for settings.
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

/// Refuses a pickle whose result contains objects of other modules, as one does that was made to run code in Python.
/// Calls whose results the pickle discards are not found, and are harmless, because nothing is executed here.
fn refuse_foreign_objects(value: &PickleValue) -> Result<()> {
    match value {
        PickleValue::List(values) => values.iter().try_for_each(refuse_foreign_objects),
        PickleValue::Dict(values) => values.values().try_for_each(refuse_foreign_objects),
        PickleValue::Unsupported(name) => {
            let module = name.split('.').next().unwrap_or_default();
            let is_plain =
                !name.contains('.') || ["builtins.set", "builtins.complex"].contains(&name.as_str());
            if is_plain || KNOWN_MODULES.contains(&module) {
                return Ok(());
            }
            bail!(
                "the pickle asks for `{name}`, which weights do not need: the file may be made to run code when it is \
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
