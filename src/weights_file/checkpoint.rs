//! Extraction of the model from a training checkpoint, where its tensors have prefixes and optimizer state lies next to
//! them.

use std::collections::BTreeSet;

use super::StoredTensor;

/// The keys under which training programs store a whole model, preferred ones first: averaged weights before the last
/// ones.
const MODEL_KEYS: [&str; 8] =
    ["state_dict_ema", "model_ema", "ema", "state_dict", "model_state_dict", "model", "teacher", "student"];

/// Prefixes of models that were wrapped for training. Nine tenths of the names with such a prefix are enough to strip
/// it.
const WRAPPER_PREFIXES: [&str; 5] = ["module.", "_orig_mod.", "backbone.", "model.", "net."];

/// Prefixes of models that are a part of another. Other models have a few names with such a prefix, so all names must
/// have it.
const PART_PREFIXES: [&str; 6] = ["timm_model.", "encoder.", "vit.", "visual.", "trunk.", "vision_model."];

/// Reduces a checkpoint's tensors to those of the model and strips their prefixes. Returns a note that names the part
/// that was taken and those that were left out, if the checkpoint has parts.
pub(super) fn unwrap(tensors: &mut Vec<StoredTensor>) -> Option<String> {
    // A model may have a layer of such a name, which has only a few tensors.
    let model_key = MODEL_KEYS.into_iter().find(|key| count(tensors, &format!("{key}.")) > 4);
    let note = model_key.map(|key| keep_model(tensors, key));
    while let Some(prefix) = WRAPPER_PREFIXES.into_iter().find(|prefix| {
        let count = count(tensors, prefix);
        count > 4 && count * 10 > tensors.len() * 9
    }) {
        strip(tensors, prefix);
    }
    while let Some(prefix) =
        PART_PREFIXES.into_iter().find(|prefix| tensors.len() > 4 && count(tensors, prefix) == tensors.len())
    {
        strip(tensors, prefix);
    }
    note
}

/// Keeps the tensors under one key of the checkpoint, and says so in a note.
fn keep_model(tensors: &mut Vec<StoredTensor>, key: &str) -> String {
    let prefix = format!("{key}.");
    let (kept, others): (Vec<StoredTensor>, Vec<StoredTensor>) =
        tensors.drain(..).partition(|tensor| tensor.name.starts_with(&prefix));
    *tensors = kept;
    strip(tensors, &prefix);
    let others: BTreeSet<&str> =
        others.iter().map(|tensor| tensor.name.split('.').next().unwrap_or_default()).collect();
    let others: Vec<&str> = others.into_iter().collect();
    match others.is_empty() {
        true => format!("a checkpoint: its `{key}` is used"),
        false => format!("a checkpoint: its `{key}` is used, but not {}", others.join(", ")),
    }
}

/// The number of names with a prefix.
fn count(tensors: &[StoredTensor], prefix: &str) -> usize {
    tensors.iter().filter(|tensor| tensor.name.starts_with(prefix)).count()
}

fn strip(tensors: &mut [StoredTensor], prefix: &str) {
    for tensor in tensors {
        if let Some(rest) = tensor.name.strip_prefix(prefix) {
            tensor.name = rest.to_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Precision, open, save};
    use std::collections::HashMap;
    use vitrine_models::weights::NamedTensor;

    /// The names that remain of a file with these names, sorted, and the note.
    fn unwrapped(names: &[String]) -> (Vec<String>, Option<String>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let tensors: Vec<NamedTensor> = names
            .iter()
            .map(|name| NamedTensor { name: name.clone(), shape: vec![1], values: vec![0.0] })
            .collect();
        save(&path, &tensors, &[], Precision::F32, HashMap::new()).unwrap();
        let file = open(&path).unwrap();
        let mut names: Vec<String> = file.tensors.into_iter().map(|tensor| tensor.name).collect();
        names.sort();
        (names, file.checkpoint_note)
    }

    #[test]
    fn prefixes_and_checkpoint_keys_are_stripped_and_noted() {
        let plain: Vec<String> = (0..6).map(|block| format!("blocks.{block}.norm1.bias")).collect();
        let under = |prefix: &str| plain.iter().map(|name| format!("{prefix}{name}")).collect::<Vec<_>>();
        assert_eq!(unwrapped(&plain), (plain.clone(), None));
        for prefix in ["module.", "_orig_mod.module.", "timm_model.", "encoder.", "module.vit."] {
            assert_eq!(unwrapped(&under(prefix)), (plain.clone(), None), "{prefix}");
        }
        let lightning = unwrapped(&under("state_dict.model."));
        assert_eq!(lightning, (plain.clone(), Some("a checkpoint: its `state_dict` is used".to_owned())));
        let both = [under("model."), under("model_ema."), vec!["optimizer.x".to_owned()]].concat();
        let (names, note) = unwrapped(&both);
        assert_eq!(names, plain);
        assert_eq!(note.unwrap(), "a checkpoint: its `model_ema` is used, but not model, optimizer");
    }
}
