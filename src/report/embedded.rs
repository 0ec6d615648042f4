//! The map of validation images in the report: their embeddings by the model of the run.

use std::sync::Arc;

use anyhow::Result;
use vitrine_datasets::Sample;

use crate::embed::{Embeddings, ImageClasses, Map};
use crate::predict::{Output, Predictor};
use crate::run_folder::RunConfig;

/// The images of a map.
pub(super) struct MapImages {
    pub(super) samples: Arc<[Sample]>,
    /// Images per forward pass.
    pub(super) batch_size: usize,
}

/// The map of images, colored by class unless an image may have several; `None` if fewer than two can be read.
///
/// # Errors
/// If the threads that decode them cannot be started.
pub(super) fn map_of(images: MapImages, predictor: &Predictor, config: &RunConfig) -> Result<Option<Map>> {
    let MapImages { samples, batch_size } = images;
    let mut embeddings = Embeddings::new(predictor.model().config().embedding_dim());
    let (mut of_images, mut sources) = (Vec::new(), Vec::new());
    let loader = predictor.loader(Arc::clone(&samples), batch_size, rayon::current_num_threads())?;
    for answers in predictor.ask_labeled(Output::Embedding, &loader) {
        let answers = answers?;
        let rows = answers.values.chunks_exact(embeddings.dim);
        for ((row, index), labels) in rows.zip(answers.indices).zip(answers.labels) {
            if row.iter().all(|value| value.is_finite()) {
                embeddings.push(samples[index].source.name(), row);
                of_images.push(labels.only().unwrap_or_default());
                sources.push(&samples[index].source);
            }
        }
    }
    if embeddings.len() < 2 {
        return Ok(None);
    }
    let classes = (!config.multi_label).then(|| ImageClasses { names: config.classes.clone(), of_images });
    let limits = config.limits();
    let image = |row: usize| Some(sources[row].decode_for_use(&limits).ok()?.into_image());
    Ok(Some(Map::new(&embeddings, classes.as_ref(), image)))
}
