//! Checkpoints of training programs, which hold weights under further names.

use std::collections::BTreeSet;

use super::Entry;

/// Where training programs keep the weights in their checkpoints, averaged ones first.
const WRAPPERS: [&str; 8] =
    ["state_dict_ema", "model_ema", "ema", "state_dict", "model_state_dict", "model", "teacher", "student"];

/// What stands before all names of a model that was wrapped for training.
const COVERS: [&str; 5] = ["module.", "_orig_mod.", "backbone.", "model.", "net."];

/// What stands before all names of a model that is a part of another, and before a few in models that are none.
const WHOLE_COVERS: [&str; 6] = ["timm_model.", "encoder.", "vit.", "visual.", "trunk.", "vision_model."];

/// Leaves of a training program's checkpoint the weights, under their own names; says what was taken and left.
pub(super) fn unwrap(entries: &mut Vec<Entry>) -> Option<String> {
    // A model may have a part of that name: only a wrapper holds whole models.
    let wrapper = WRAPPERS.into_iter().find(|name| inside(entries, &format!("{name}.")) > 4);
    let part = wrapper.map(|wrapper| take(entries, wrapper));
    while let Some(cover) = COVERS.into_iter().find(|cover| {
        let count = inside(entries, cover);
        count > 4 && count * 10 > entries.len() * 9
    }) {
        strip(entries, cover);
    }
    while let Some(cover) =
        WHOLE_COVERS.into_iter().find(|cover| entries.len() > 4 && inside(entries, cover) == entries.len())
    {
        strip(entries, cover);
    }
    part
}

/// Keeps the entries of one wrapper.
fn take(entries: &mut Vec<Entry>, wrapper: &str) -> String {
    let prefix = format!("{wrapper}.");
    let (kept, others): (Vec<Entry>, Vec<Entry>) =
        entries.drain(..).partition(|entry| entry.name.starts_with(&prefix));
    *entries = kept;
    strip(entries, &prefix);
    let others: BTreeSet<&str> =
        others.iter().map(|entry| entry.name.split('.').next().unwrap_or_default()).collect();
    let others: Vec<&str> = others.into_iter().collect();
    match others.is_empty() {
        true => format!("a checkpoint: its `{wrapper}` is used"),
        false => format!("a checkpoint: its `{wrapper}` is used, but not {}", others.join(", ")),
    }
}

fn inside(entries: &[Entry], prefix: &str) -> usize {
    entries.iter().filter(|entry| entry.name.starts_with(prefix)).count()
}

fn strip(entries: &mut [Entry], prefix: &str) {
    for entry in entries {
        if let Some(rest) = entry.name.strip_prefix(prefix) {
            entry.name = rest.to_owned();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Precision, open, save};
    use std::collections::HashMap;
    use vitrine_models::weights::NamedTensor;

    /// The names that are left of a file with these, and what was said.
    fn unwrapped(names: &[String]) -> (Vec<String>, Option<String>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let tensors: Vec<NamedTensor> = names
            .iter()
            .map(|name| NamedTensor { name: name.clone(), shape: vec![1], values: vec![0.0] })
            .collect();
        save(&path, &tensors, &[], Precision::F32, HashMap::new()).unwrap();
        let file = open(&path).unwrap();
        let mut names: Vec<String> = file.entries.into_iter().map(|entry| entry.name).collect();
        names.sort();
        (names, file.part)
    }

    #[test]
    fn models_are_taken_out_of_what_training_programs_put_around_them() {
        let plain: Vec<String> = (0..6).map(|block| format!("blocks.{block}.norm1.bias")).collect();
        let under = |prefix: &str| plain.iter().map(|name| format!("{prefix}{name}")).collect::<Vec<_>>();
        assert_eq!(unwrapped(&plain), (plain.clone(), None));
        for prefix in ["module.", "_orig_mod.module.", "timm_model.", "encoder.", "module.vit."] {
            assert_eq!(unwrapped(&under(prefix)), (plain.clone(), None), "{prefix}");
        }
        let lightning = unwrapped(&under("state_dict.model."));
        assert_eq!(lightning, (plain.clone(), Some("a checkpoint: its `state_dict` is used".to_owned())));
        let both = [under("model."), under("model_ema."), vec!["optimizer.x".to_owned()]].concat();
        let (names, part) = unwrapped(&both);
        assert_eq!(names, plain);
        assert_eq!(part.unwrap(), "a checkpoint: its `model_ema` is used, but not model, optimizer");
    }
}
