//! Files that `vitrine export` wrote: their header holds the model card, so the model is restored unchanged.

use anyhow::{Context, Result};
use vitrine_models::weights::Reading;

use super::config::ModelMetadata;
use super::files::SourceFiles;
use super::{Account, Imported, Options, check_keys, class_names, recognize};
use crate::model_file::ModelCard;
use crate::weights_file::StoredTensor;

/// Imports a file by the card in its header. Only the class names may be replaced, by a file of the user's.
///
/// # Errors
/// If the tensors do not fit the card's architecture. The message names them, and the option that describes the
/// architecture instead.
pub(super) fn read(
    card: ModelCard,
    files: SourceFiles,
    stored: Vec<StoredTensor>,
    mut notes: Vec<String>,
    options: &Options,
) -> Result<Imported> {
    let layout = recognize(&stored, options.layout)?;
    notes.push(
        "written by vitrine: architecture, classes and preprocessing are those of the file's header"
            .to_owned(),
    );
    let (mut account, tensors, _) = Account::open(layout, files, stored, notes)?;
    let reading = Reading { config: card.model, has_head: true, notes: Vec::new(), guesses: Vec::new() };
    check_keys(&tensors, &reading).context(
        "the file's header does not describe its tensors, which were changed since; state the architecture with --config",
    )?;
    let metadata = ModelMetadata { classes: Some(card.classes), ..ModelMetadata::default() };
    let classes = class_names(&reading, &metadata, options, &mut account.notes)?;
    let ModelCard { mirror_views, resampling, preprocessing, multi_label, trained_on, .. } = card;
    let card = ModelCard::new(reading.config, classes, preprocessing).with_multi_label(multi_label);
    let card = ModelCard { mirror_views, resampling, trained_on, ..card };
    Ok(Imported { card, tensors, has_head: true, account, about_head: None })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;
    use std::path::Path;

    use burn::tensor::Device;
    use vitrine_datasets::{CropRounding, Interpolation, Preprocessing, ResizeRule};
    use vitrine_models::position::Resampling;
    use vitrine_models::weights::{NamedTensor, to_timm};
    use vitrine_models::{ModelConfig, preset};

    use super::*;
    use crate::weights_file::{self, Precision};

    /// The card of a header.
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
        let card = ModelCard::new(model, vec!["ash".to_owned(), "birch".to_owned()], preprocessing);
        ModelCard { mirror_views: true, resampling: Resampling::Plain, ..card }
    }

    /// Imports a file with the card's tensors after a change.
    fn read_changed(
        folder: &Path,
        options: &Options,
        change: impl FnOnce(&mut Vec<NamedTensor>),
    ) -> Result<Imported> {
        let mut tensors = to_timm(&card().model.init(&Device::default()).unwrap());
        change(&mut tensors);
        let path = folder.join("model.safetensors");
        weights_file::save(&path, &tensors, &[], Precision::F32, HashMap::new()).unwrap();
        let stored = weights_file::open(&path).unwrap().tensors;
        let files = SourceFiles { weights: vec![path], config: None, preprocessor: None };
        read(card(), files, stored, Vec::new(), options)
    }

    #[test]
    fn the_header_describes_the_model_except_for_class_names_of_the_user() {
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
    fn errors_name_tensors_that_differ_from_the_header() {
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
