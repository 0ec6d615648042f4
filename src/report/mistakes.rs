//! The worst mistakes of a run as the gallery shows them: their images, and maps of what counted for the class that the
//! model chose.

use std::path::PathBuf;

use anyhow::{Context, Result};
use vitrine_datasets::{ImageSource, Sample};

use super::{Mistake, Overlay, Thumbnail};
use crate::device::FoundDevice;
use crate::evaluate::{ConfidentMistake, Predicted};
use crate::explain::{Asked, Explainer, Explanation, Method};
use crate::run_folder::RunConfig;
use crate::runtime::Runtime;

/// Number of mistakes that the report shows as images.
const MISTAKES: usize = 24;
/// The most pixels per side of such an image.
const THUMBNAIL: u32 = 128;
/// The method of the maps, which suits every architecture.
const METHOD: Method = Method::GradCam;
/// The most images that are explained at once.
const BATCH_SIZE: usize = 8;

/// The maps that a report may have.
pub(super) struct Maps {
    /// The model file.
    pub(super) model: PathBuf,
    /// The most maps, the worst mistakes first.
    pub(super) most: usize,
}

/// The wrong predictions with the highest confidence, as images, and with a map if there is one. An image that cannot be
/// decoded again is left out. Why there are no maps is a warning.
pub(super) fn mistakes(
    (predicted, samples): (&Predicted, &[Sample]),
    config: &RunConfig,
    maps: &Maps,
    runtime: Runtime<'_>,
) -> Vec<Mistake> {
    let (classes, limits) = (&config.classes, &config.limits());
    let worst = predicted.predictions.confident_mistakes(MISTAKES);
    let source = |mistake: &ConfidentMistake| &samples[predicted.indices[mistake.sample]].source;
    let asked: Vec<(&ImageSource, usize)> =
        worst.iter().take(maps.most).map(|mistake| (source(mistake), mistake.class)).collect();
    let overlays = overlays(&asked, config, maps, runtime.device).unwrap_or_else(|error| {
        let message = format!("the report has no maps of what counted for mistakes: {error:#}");
        runtime.events.emit_warning(Some(message));
        Vec::new()
    });
    let overlays = overlays.into_iter().chain(std::iter::repeat(None));
    let shown = |(mistake, overlay): (&ConfidentMistake, Option<Overlay>)| {
        let source = source(mistake);
        let image = source.decode_for_use(limits).ok()?.fit(THUMBNAIL);
        Some(Mistake {
            name: source.name(),
            truth: mistake.truth.names(classes),
            class: classes[mistake.class].clone(),
            is_missed: mistake.is_missed,
            confidence: mistake.confidence,
            image: Thumbnail::new(image.width, image.height, usize::from(image.channels), image.pixels),
            overlay,
        })
    };
    worst.iter().zip(overlays).filter_map(shown).collect()
}

/// The overlay of each image and the class that the model chose for it. An image has none if it cannot be read, or if the
/// model's answer is a tie that is decided differently by another way to compute it.
///
/// # Errors
/// If the model cannot be read again, or the memory does not suffice for a single image.
fn overlays(
    images: &[(&ImageSource, usize)],
    config: &RunConfig,
    maps: &Maps,
    device: &FoundDevice,
) -> Result<Vec<Option<Overlay>>> {
    if images.is_empty() {
        return Ok(Vec::new());
    }
    let explainer = Explainer::load(&maps.model, device)?.with_limits(config.limits());
    if METHOD.check(explainer.model()).is_err() {
        return Ok(Vec::new());
    }
    let wanted = BATCH_SIZE.min(config.recipe.batch_size);
    let batch_size = explainer.largest_batch(wanted).context(
        "the memory does not suffice for the backward pass of an image; `vitrine explain` makes them where there is more",
    )?;
    // With several labels an image, the class of a mistake need not be the one with the largest logit.
    let batch_size = if config.multi_label { 1 } else { batch_size };
    let of_batch = |batch: &[(&ImageSource, usize)]| -> Vec<Option<Overlay>> {
        let sources: Vec<ImageSource> = batch.iter().map(|(source, _)| (*source).clone()).collect();
        let class = batch.first().filter(|_| config.multi_label).map(|(_, class)| *class);
        let asked = Asked { methods: vec![METHOD], class, block: 0, heads: false };
        let explained = explainer.explain(&sources, &asked).into_iter().zip(batch);
        explained.map(|(explanation, &(_, class))| overlay(&explanation.ok()?, class)).collect()
    };
    Ok(images.chunks(batch_size).flat_map(of_batch).collect())
}

/// The overlay of an explanation, if it is about `class`.
fn overlay(explanation: &Explanation, class: usize) -> Option<Overlay> {
    let map = explanation.maps.first().filter(|_| explanation.class.index == class)?;
    let image = explanation.overlay(map, THUMBNAIL);
    let image = Thumbnail::new(image.width, image.height, usize::from(image.channels), image.pixels);
    Some(Overlay { image, is_empty: map.is_empty() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::device;
    use crate::evaluate::Predictions;
    use crate::events::testing::Lines;
    use crate::model_file::{self, ModelCard};
    use crate::predict::Classifier;
    use crate::run_folder::testing::{config, drawn};
    use crate::weights_file::Precision;

    #[test]
    fn the_worst_mistakes_have_maps_and_without_the_model_or_time_they_are_shown_without() {
        let place = tempfile::tempdir().unwrap();
        let model = place.path().join("model.safetensors");
        let config = config(&["circle", "ring"]);
        let device = device::select(Some("cpu")).unwrap().0;
        let card = ModelCard::new(config.model.clone(), config.classes.clone(), config.preprocessing.clone());
        let random = config.model.init(&device.device).unwrap();
        model_file::save(&model, &card, &random, Precision::F32).unwrap();
        let samples = drawn([0, 0, 11]).test;
        let sources: Vec<ImageSource> = samples.iter().map(|sample| sample.source.clone()).collect();
        let answers = Classifier::load_on(&model, &device).unwrap().classify(&sources);
        // Every answer is a mistake.
        let mut predictions = Predictions::new(2);
        for logits in answers {
            let logits = logits.unwrap();
            predictions.push(&[usize::from(logits[0] >= logits[1])], &logits);
        }
        let indices = (0..samples.len()).collect();
        let predicted = Predicted { predictions, indices, pixel_keys: Vec::new(), bad: Vec::new() };
        let missing = place.path().join("missing.safetensors");
        for (model, most, expected, warnings) in [(&model, 9, 9, 0), (&model, 0, 0, 0), (&missing, 9, 0, 1)] {
            let events = Lines::default();
            let maps = Maps { model: model.clone(), most };
            let runtime =
                Runtime { device: &device, threads: 1, events: &events, cache: None, workers: None };
            let mistakes = mistakes((&predicted, &samples), &config, &maps, runtime);
            assert_eq!(mistakes.len(), 11);
            let has_map: Vec<bool> = mistakes.iter().map(|mistake| mistake.overlay.is_some()).collect();
            assert_eq!(has_map.iter().filter(|has| **has).count(), expected);
            assert!(has_map.is_sorted_by(|before, after| before >= after), "the worst have one: {has_map:?}");
            let events = events.0.into_inner().unwrap();
            assert_eq!(events.len(), warnings, "{events:?}");
            assert!(events.iter().all(|text| text.contains("missing.safetensors")), "{events:?}");
        }
    }
}
