//! Files that vitrine wrote for another library: their header holds what the model was, so that it comes back unchanged.

use anyhow::{Context, Result};
use vitrine_models::weights::Reading;

use super::description::Description;
use super::{Account, Files, Imported, Options, check, class_names, recognize};
use crate::model_file::ModelCard;
use crate::weights_file::Entry;

/// The model of a file whose header describes it; a file of class names counts more.
///
/// # Errors
/// When the tensors are not those of the header's architecture; the message names them and the way out.
pub(super) fn read(
    card: ModelCard,
    files: Files,
    entries: Vec<Entry>,
    mut notes: Vec<String>,
    options: &Options,
) -> Result<Imported> {
    let layout = recognize(&entries, options.layout)?;
    notes.push(
        "written by vitrine: architecture, classes and preprocessing are those of the file's header"
            .to_owned(),
    );
    let (mut account, tensors, _) = Account::of(layout, files, entries, notes)?;
    let reading = Reading { config: card.model, has_head: true, notes: Vec::new(), guesses: Vec::new() };
    check(&tensors, &reading).context(
        "the file's header does not describe its tensors, which were changed since; state the architecture with --config",
    )?;
    let description = Description { classes: Some(card.classes), ..Description::default() };
    let classes = class_names(&reading, &description, options, &mut account.notes)?;
    let card = ModelCard::new(reading.config, classes, card.preprocessing);
    Ok(Imported { card, tensors, has_head: true, account })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;
    use std::path::Path;

    use burn::tensor::Device;
    use vitrine_datasets::{CropRounding, Interpolation, Preprocessing, ResizeRule};
    use vitrine_models::weights::{NamedTensor, to_timm};
    use vitrine_models::{ModelConfig, preset};

    use super::*;
    use crate::weights_file::{self, Precision};

    /// A model that a header describes.
    fn card() -> ModelCard {
        let model = preset::find("vit_pico_patch4_32").unwrap().with_num_classes(2);
        let preprocessing = Preprocessing {
            image_size: [32; 2],
            channels: 3,
            resize: ResizeRule::Squash,
            interpolation: Interpolation::Bilinear,
            mean: vec![0.5; 3],
            std: vec![0.25; 3],
            crop_rounding: CropRounding::HalfToEven,
        };
        let model = ModelConfig { depth: 1.into(), ..model };
        ModelCard::new(model, vec!["ash".to_owned(), "birch".to_owned()], preprocessing)
    }

    /// What is read of a file with the card's tensors after a change.
    fn read_changed(
        folder: &Path,
        options: &Options,
        change: impl FnOnce(&mut Vec<NamedTensor>),
    ) -> Result<Imported> {
        let mut tensors = to_timm(&card().model.init(&Device::default()).unwrap());
        change(&mut tensors);
        let path = folder.join("model.safetensors");
        weights_file::save(&path, &tensors, &[], Precision::F32, HashMap::new()).unwrap();
        let entries = weights_file::open(&path).unwrap().entries;
        let files = Files { weights: vec![path], config: None, preprocessor: None };
        read(card(), files, entries, Vec::new(), options)
    }

    #[test]
    fn a_model_is_what_its_header_says_but_for_classes_that_the_user_names() {
        let folder = tempfile::tempdir().unwrap();
        let imported = read_changed(folder.path(), &Options::default(), |_| {}).unwrap();
        assert_eq!(imported.card, card());
        assert!(imported.has_head && imported.account.warnings.is_empty());
        assert_eq!(imported.account.used, imported.tensors.len());
        let names = folder.path().join("names.txt");
        std::fs::write(&names, "cedar\ndogwood\n").unwrap();
        let options = Options { classes: Some(names), ..Options::default() };
        let imported = read_changed(folder.path(), &options, |_| {}).unwrap();
        assert_eq!(imported.card.classes, ["cedar", "dogwood"]);
    }

    #[test]
    fn tensors_that_were_changed_since_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let renamed = read_changed(folder.path(), &Options::default(), |tensors| {
            tensors.last_mut().unwrap().name = "head.offset".to_owned();
        });
        let error = format!("{:#}", renamed.err().unwrap());
        for part in ["--config", "head.bias", "head.offset"] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}
