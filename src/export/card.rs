//! The header of an exported file: the model card, from which `vitrine import` restores class names, preprocessing,
//! architecture, and the images, by hashes of their content, that the model has learned from.

use std::collections::HashMap;

use anyhow::Result;
use vitrine_models::Position;

use super::{Family, Job, Library};
use crate::model_file::{EXPORTED_KEY, ModelCard};

/// The header's entries. The card describes the model as the file stores it, which may differ in positions and biases.
pub(super) fn metadata(job: &Job<'_>) -> Result<HashMap<String, String>> {
    let mut model = job.card.model.clone();
    if matches!(model.position, Position::Sinusoidal | Position::Sinusoidal2d) {
        model.position = Position::Learned;
        model.prefix_position = model.num_prefix_tokens() == 0;
    }
    // torchvision always has a bias, which is zero for a model without one.
    if job.library == Library::Torchvision
        && matches!(job.family, Family::Vit | Family::Swin | Family::SwinV2)
    {
        model.qkv_bias = true;
    }
    let card = ModelCard {
        program: job.card.program.clone(),
        mirror_views: job.card.mirror_views,
        shifted_views: job.card.shifted_views,
        trained_on: job.card.trained_on.clone(),
        resampling: job.card.resampling,
        ..ModelCard::new(model, job.card.classes.clone(), job.card.preprocessing.clone())
            .with_multi_label(job.card.multi_label)
    };
    Ok(HashMap::from([(EXPORTED_KEY.to_owned(), serde_json::to_string(&card)?)]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;
    use std::path::Path;

    use vitrine_datasets::{ContentKey, DecodeLimits, ImageSource};
    use vitrine_models::position::Resampling;
    use vitrine_models::{ModelConfig, Pool, preset};

    use super::*;
    use crate::export::testing::{card, job, swin, swin_v2, vit};
    use crate::model_file::TrainedOn;

    /// The card in the header of a file for the library.
    fn written(card: &ModelCard, library: Library) -> ModelCard {
        let header = metadata(&job(card, library, Path::new("model.safetensors"))).unwrap();
        serde_json::from_str(&header[EXPORTED_KEY]).unwrap()
    }

    #[test]
    fn fixed_positions_are_stored_as_learned_positions_of_the_patches() {
        let pico = preset::find("vit_pico_patch4_32").unwrap();
        let with_class = ModelConfig { class_token: true, pool: Pool::ClassToken, ..pico.clone() };
        let cases = [
            (vit(), vit()),
            (pico.clone(), ModelConfig { position: Position::Learned, ..pico }),
            (
                ModelConfig { position: Position::Sinusoidal, ..with_class.clone() },
                ModelConfig { position: Position::Learned, prefix_position: false, ..with_class },
            ),
        ];
        for (model, expected) in cases {
            assert_eq!(written(&card(model), Library::Timm).model, expected);
        }
    }

    #[test]
    fn the_card_of_a_torchvision_file_states_a_bias() {
        for model in [vit(), swin(), swin_v2()] {
            let model = ModelConfig { qkv_bias: false, ..model };
            for (library, qkv_bias) in
                [(Library::Timm, false), (Library::HuggingFace, false), (Library::Torchvision, true)]
            {
                let expected = ModelConfig { qkv_bias, ..model.clone() };
                assert_eq!(written(&card(model.clone()), library).model, expected, "{library:?}");
            }
        }
    }

    #[test]
    fn of_training_the_card_says_only_which_images_were_learned_from() {
        let plain = ModelCard {
            program: "vitrine 0.0.1".to_owned(),
            mirror_views: true,
            resampling: Resampling::Plain,
            ..card(vit())
        };
        let image = ImageSource::Drawn { class: 0, seed: 7 };
        let keys = [ContentKey::of(&image, &DecodeLimits::default())].into_iter().collect();
        let trained_on = Some(TrainedOn::new(BTreeMap::new(), &keys, None));
        let trained = ModelCard {
            pretrained: Some("weights.pth".to_owned()),
            data: Some("birds/".to_owned()),
            recipe: Some(crate::recipe::Recipe::default()),
            trained_on: trained_on.clone(),
            ..plain.clone()
        };
        assert_eq!(written(&trained, Library::Timm), ModelCard { trained_on, ..plain });
    }
}
