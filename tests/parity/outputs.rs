//! A model's answers beside logits: timm's embedding before the head, and the mean over mirrored views.

use burn::tensor::Tensor;
use vitrine::predict::{Output, Views};
use vitrine_models::weights::NamedTensor;

use crate::imported;
use crate::reference::{Arrays, arrays, assert_close, tensor, tested_device, values};

/// The embedding of a fixture's input, its parameters, and its reference values.
fn embedded(case: &str) -> (Vec<f32>, Vec<NamedTensor>, Arrays, f32) {
    let (device, tolerance) = tested_device();
    let io = arrays(case, "io.safetensors");
    let imported = imported(case, "weights.safetensors", None);
    let tensors = imported.tensors.clone();
    let model = imported.model(&device).unwrap();
    let images = tensor::<4>(&io["input"], &device);
    let embedding = Output::Embedding.compute(&model, Views::One, images);
    assert_eq!(embedding.dims(), [2, model.config().last_dim()], "{case}");
    (values(embedding), tensors, io, tolerance)
}

fn named<'a>(tensors: &'a [NamedTensor], name: &str) -> &'a NamedTensor {
    tensors.iter().find(|tensor| tensor.name == name).unwrap()
}

#[test]
fn the_embedding_of_a_class_token_is_its_feature_in_timm() {
    let (embedding, _, io, tolerance) = embedded("timm_vit");
    let features = &io["features"];
    let [images, tokens, dim] = features.shape[..] else { panic!("{:?}", features.shape) };
    assert_eq!(embedding.len(), images * dim);
    for (index, ours) in embedding.chunks_exact(dim).enumerate() {
        let first = index * tokens * dim;
        assert_close("the class token", ours, &features.values[first..first + dim], tolerance);
    }
}

#[test]
fn the_head_of_the_embedding_gives_the_logits_of_timm_for_every_pooling() {
    for case in ["timm_vit", "timm_vit_avgpool_reg_layerscale", "timm_vit_map_qknorm", "timm_swin"] {
        let (embedding, tensors, io, tolerance) = embedded(case);
        let head = |name: &str| {
            let swin = format!("head.fc.{name}");
            let plain = format!("head.{name}");
            let has_swin = tensors.iter().any(|tensor| tensor.name == swin);
            named(&tensors, if has_swin { &swin } else { &plain })
        };
        let (weight, bias) = (head("weight"), head("bias"));
        let dim = weight.shape[1];
        let logits: Vec<f32> = embedding
            .chunks_exact(dim)
            .flat_map(|vector| {
                let rows = weight.values.chunks_exact(dim).zip(&bias.values);
                rows.map(move |(row, bias)| row.iter().zip(vector).map(|(a, b)| a * b).sum::<f32>() + bias)
            })
            .collect();
        assert_close(case, &logits, &io["logits"].values, tolerance);
    }
}

#[test]
fn a_mirrored_view_answers_for_the_mirrored_input() {
    let (device, tolerance) = tested_device();
    let io = arrays("timm_vit", "io.safetensors");
    let model = imported("timm_vit", "weights.safetensors", None).model(&device).unwrap();
    let images = tensor::<4>(&io["input"], &device);
    let logits = |views: Views, images: Tensor<4>| values(Output::Logits.compute(&model, views, images));
    let expected = &io["logits"].values;
    assert_close(
        "the mirror image of the mirrored input",
        &logits(Views::MirrorImage, images.clone().flip([3])),
        expected,
        tolerance,
    );
    let other = logits(Views::MirrorImage, images.clone());
    let mean: Vec<f32> = expected.iter().zip(&other).map(|(a, b)| (a + b) / 2.0).collect();
    assert_close("both views", &logits(Views::Mirrored, images), &mean, tolerance);
}
