//! What vitrine's own importer finds in a file for another library: class names, preprocessing and architecture, in the header.

use std::collections::HashMap;

use anyhow::Result;
use vitrine_models::Position;
use vitrine_models::weights::Layout;

use super::{Family, Job};
use crate::model_file::{EXPORTED_KEY, ModelCard};

/// The header's entry, for the model as the file holds it.
pub(super) fn metadata(job: &Job<'_>) -> Result<HashMap<String, String>> {
    let mut model = job.card.model.clone();
    if matches!(model.position, Position::Sinusoidal | Position::Sinusoidal2d) {
        model.position = Position::Learned;
        model.prefix_position = model.num_prefix_tokens() == 0;
    }
    // torchvision has a bias everywhere, which is zero then.
    if job.layout == Layout::Torchvision && matches!(job.family, Family::Vit | Family::Swin | Family::SwinV2)
    {
        model.qkv_bias = true;
    }
    let card = ModelCard {
        format: job.card.format,
        program: job.card.program.clone(),
        ..ModelCard::new(model, job.card.classes.clone(), job.card.preprocessing.clone())
    };
    Ok(HashMap::from([(EXPORTED_KEY.to_owned(), serde_json::to_string(&card)?)]))
}
