//! What `torch.save` writes: a pickle that says where the numbers are, and the numbers.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use pytorch_reader::{PickleValue, PytorchReader};

use super::zip_end::plain_copy;
use super::{Entry, Values};

/// The tensors of the PyTorch file at `path`, whose bytes are `bytes`.
pub(super) fn open(path: &Path, bytes: &[u8]) -> Result<Vec<Entry>> {
    let damaged = |error: &dyn std::fmt::Display| {
        anyhow!("{}: not a PyTorch file, or damaged ({error})", path.display())
    };
    let copy = plain_copy(path, bytes)?.map(Arc::new);
    let readable = copy.as_ref().map_or(path, |copy| copy.as_ref());
    let content = PytorchReader::read_pickle_data(readable, None).map_err(|error| damaged(&error))?;
    refuse_foreign_objects(&content).with_context(|| path.display().to_string())?;
    let reader = PytorchReader::new(readable).map_err(|error| damaged(&error))?;
    let length = bytes.len();
    let mut tensors: Vec<(String, pytorch_reader::Tensor)> = reader.into_tensors().into_iter().collect();
    tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
    let claimed = tensors.iter().map(|(_, tensor)| tensor.byte_len()).fold(0, usize::saturating_add);
    // Weights that layers share are stored once and listed for each.
    if claimed > length.saturating_mul(4) {
        bail!(
            "{}: its tensors claim {claimed} bytes, but the whole file has {length}: damaged, or made to exhaust memory",
            path.display()
        );
    }
    Ok(tensors
        .into_iter()
        .map(|(name, tensor)| Entry {
            name,
            shape: tensor.shape().to_vec(),
            path: path.to_owned(),
            values: Values::Pickled { tensor, _copy: copy.clone() },
        })
        .collect())
}

/// Refuses tensors that are stored without their sign, which their metadata says (`{"neg": True}`, PyTorch's negative bit) and the
/// reader does not. The pickle is before the numbers, in files of every kind.
pub(super) fn refuse_negated(bytes: &[u8]) -> Result<()> {
    const PICKLE: usize = 16 << 20;
    const KEY: &[u8] = b"X\x03\0\0\0neg";
    const TRUE: u8 = 0x88;
    let bytes = &bytes[..bytes.len().min(PICKLE)];
    let is_set = |rest: &[u8]| match rest {
        // The key may be memorized under a number of one byte or four.
        [TRUE, ..] | [b'q', _, TRUE, ..] | [b'r', _, _, _, _, TRUE, ..] => true,
        _ => false,
    };
    if (0..bytes.len()).any(|at| bytes[at] == KEY[0] && bytes[at..].strip_prefix(KEY).is_some_and(is_set)) {
        bail!("tensors have their negative bit set: save them after `tensor.resolve_neg()`");
    }
    Ok(())
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

/// Refuses a pickle whose result has objects that weights have no use for. Nothing of a pickle is run here; what it calls and throws
/// away again leaves no trace, and does no harm.
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
