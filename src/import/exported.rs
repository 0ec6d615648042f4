//! Files that `vitrine export` wrote: their header holds the model card, so the model is restored unchanged, but for what the user
//! states about it.

use anyhow::{Context, Result};
use vitrine_models::weights::{self, Facts, Reading};

use super::config::ModelMetadata;
use super::files::SourceFiles;
use super::image_size::Asked;
use super::{Account, Imported, Options, check_keys, class_names, collect, preprocessing_for, recognize};
use crate::model_file::ModelCard;
use crate::weights_file::StoredTensor;

/// What states the metadata, for messages.
const HEADER: &str = "the file's header";

/// Imports a file by the card in its header. The user may have other class names, and another image size or patch size, for which
/// the weights are resampled; what else options state must be what the header says.
///
/// # Errors
/// If an option contradicts the header, or the tensors do not fit the card's architecture. The message names these, and the
/// option that describes the architecture instead.
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
    let mut metadata = stated_by(&card);
    collect::add_options(options, &mut metadata, HEADER)?;
    let mut preprocessing = card.preprocessing;
    collect::add_crop(options, &metadata, &mut preprocessing, HEADER)?;
    let (mut account, tensors, _) = Account::open(layout, files, stored, notes)?;
    let reading = Reading { config: card.model, has_head: true, notes: Vec::new(), guesses: Vec::new() };
    check_keys(&tensors, &reading).context(
        "the file's header does not describe its tensors, which were changed since; state the architecture with --config",
    )?;
    let classes = class_names(&reading, &metadata, options, &mut account.notes)?;
    let ModelCard { mirror_views, shifted_views, resampling, multi_label, trained_on, .. } = card;
    let model = Asked::of(options).applied_to(&reading.config)?;
    let adapted = weights::adapt(tensors, [&reading.config, &model], true, resampling);
    account.notes.extend(adapted.changes);
    let preprocessing = preprocessing_for(&preprocessing, &model);
    let card = ModelCard::new(model, classes, preprocessing).with_multi_label(multi_label);
    let card = ModelCard { mirror_views, shifted_views, resampling, trained_on, ..card };
    Ok(Imported { card, tensors: adapted.tensors, has_head: true, account })
}

/// What a card says of that which options may state, too.
fn stated_by(card: &ModelCard) -> ModelMetadata {
    let ModelCard { model, classes, preprocessing, .. } = card;
    ModelMetadata {
        facts: Facts { num_heads: Some(model.num_heads.clone()), ..Facts::default() },
        classes: Some(classes.clone()),
        resize: Some(preprocessing.resize),
        mean: Some(preprocessing.mean.clone()),
        std: Some(preprocessing.std.clone()),
        ..ModelMetadata::default()
    }
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
    use vitrine_models::{ImageSize, ModelConfig, Position, preset};

    use super::*;
    use crate::usage::UsageError;
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
        let model = ModelConfig { depth: 1.into(), position: Position::Learned, ..model };
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
    fn another_size_resamples_the_weights_and_leaves_the_rest_as_the_header_says() {
        let folder = tempfile::tempdir().unwrap();
        // What the header says, too, may be stated.
        let options = Options {
            image_size: Some([48, 64]),
            patch_size: Some(8),
            heads: Some(vec![3]),
            mean: Some(vec![0.5; 3]),
            std: Some(vec![0.25; 3]),
            crop: Some(1.0),
            ..Options::default()
        };
        let mut before = Vec::new();
        let imported = read_changed(folder.path(), &options, |tensors| before.clone_from(tensors)).unwrap();
        let from = card();
        let image_size = ImageSize { height: 48, width: 64 };
        let model = ModelConfig { image_size, patch_size: 8, ..from.model.clone() };
        let preprocessing = Preprocessing { image_size: [48, 64], ..from.preprocessing.clone() };
        assert_eq!(imported.card, ModelCard { model: model.clone(), preprocessing, ..card() });
        assert!(imported.account.warnings.is_empty(), "{:?}", imported.account.warnings);
        let adapted = weights::adapt(before, [&from.model, &model], true, from.resampling);
        assert_eq!(adapted.changes.len(), 2);
        assert!(imported.account.notes.ends_with(&adapted.changes), "{:?}", imported.account.notes);
        let sorted = |mut tensors: Vec<NamedTensor>| {
            tensors.sort_by(|a, b| a.name.cmp(&b.name));
            tensors
        };
        assert!(sorted(imported.tensors.clone()) == sorted(adapted.tensors));
        imported.model(&Device::default()).unwrap();
    }

    #[test]
    fn options_that_contradict_the_header_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let none = Options::default;
        for (options, expected) in [
            (Options { heads: Some(vec![2]), ..none() }, "--heads 2: the file's header states 3"),
            (
                Options { mean: Some(vec![0.25; 3]), ..none() },
                "--mean [0.25, 0.25, 0.25]: the file's header states [0.5, 0.5, 0.5]",
            ),
            (
                Options { std: Some(vec![0.5; 3]), ..none() },
                "--std [0.5, 0.5, 0.5]: the file's header states [0.25, 0.25, 0.25]",
            ),
            (Options { crop: Some(0.9), ..none() }, "--crop 0.9: the file's header states 1"),
            (Options { patch_size: Some(4), ..none() }, "--patch-size 4: the weights have this size already"),
            (Options { image_size: Some([42; 2]), ..none() }, "--image-size 42x42: "),
        ] {
            let error = read_changed(folder.path(), &options, |_| {}).err().unwrap();
            assert!(
                UsageError::is_cause_of(&error) && error.to_string().contains(expected),
                "{expected} is not in: {error:#}"
            );
        }
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
