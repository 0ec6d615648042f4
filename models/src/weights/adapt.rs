//! Adaptation of weights to another model with the same blocks: other classes, another image size or patch size, gray instead of
//! color.

use super::{NamedTensor, is_head, patch_size};
use crate::position::{Resampling, resample};
use crate::{Mixer, ModelConfig, Position, RelativePosition};

/// Adapted weights, and a list of the changes.
#[derive(Clone, Debug, PartialEq)]
pub struct Adaptation {
    /// The tensors under timm's names; without a head if the classes differ.
    pub tensors: Vec<NamedTensor>,
    /// The changes, one line each.
    pub changes: Vec<String>,
    /// Whether the head was left out, so that it must be trained.
    pub new_head: bool,
}

/// Adapts the weights of a model `from` to a model `to`, which may differ in classes, image size, patch size and channels.
///
/// Patch embeddings are resized by a pseudo-inverse, so that tokens stay nearly the same (Beyer et al. 2023, FlexiViT, section 3.4).
/// Positions are resampled by `resampling`. Tables of relative positions are resampled by the same
/// filter, which is one of timm's two; timm's default for them is a geometric one. Channels are averaged or repeated,
/// so that a gray image gives the same tokens.
///
/// # Examples
///
/// ```
/// use burn::tensor::Device;
/// use vitrine_models::{ImageSize, ModelConfig, position::Resampling, preset, weights};
///
/// let device = Device::default();
/// let from = ModelConfig { depth: 1.into(), ..preset::find("vit_tiny_patch4_32").expect("listed") };
/// let to = ModelConfig { image_size: ImageSize::square(48), ..from.clone() }.with_num_classes(3);
/// let adapted = weights::adapt(weights::to_timm(&from.init(&device)?), [&from, &to], false, Resampling::Antialiased);
/// assert_eq!(adapted.changes, ["positions resampled from [8, 8] to [12, 12] patches"]);
/// // Only the head of the new classes is missing.
/// let error = weights::check(&to.init(&device)?, &adapted.tensors).expect_err("the head is left out");
/// assert_eq!(error.missing, ["head.weight", "head.bias"]);
/// assert!(adapted.new_head && error.unexpected.is_empty() && error.mismatched.is_empty());
/// # Ok::<(), vitrine_models::ConfigError>(())
/// ```
pub fn adapt(
    tensors: Vec<NamedTensor>,
    [from, to]: [&ModelConfig; 2],
    keep_head: bool,
    resampling: Resampling,
) -> Adaptation {
    let mut changes = Vec::new();
    if from.channels != to.channels {
        changes.push(format!("{} input channels for {}", to.channels, from.channels));
    }
    if from.patch_size != to.patch_size {
        changes.push(format!("patch embedding resized from {} to {} pixels", from.patch_size, to.patch_size));
    }
    if from.grid() != to.grid() && from.position == Position::Learned {
        changes.push(format!("positions resampled from {:?} to {:?} patches", from.grid(), to.grid()));
    }
    let tables = (0..to.num_stages()).any(|stage| windows(from, stage) != windows(to, stage));
    if tables && tensors.iter().any(|tensor| tensor.name.ends_with(TABLE)) {
        changes.push("tables of relative positions resampled".to_owned());
    }
    let tensors = tensors
        .into_iter()
        .filter(|tensor| keep_head || !is_head(&tensor.name))
        .map(|tensor| match tensor.name.as_str() {
            "patch_embed.proj.weight" => patch_size::resized(channels(tensor, to.channels), to.patch_size),
            "pos_embed" => positions(tensor, from, to, resampling),
            name if name.ends_with(TABLE) => relative_positions(tensor, from, to),
            _ => tensor,
        })
        .collect();
    Adaptation { tensors, changes, new_head: !keep_head }
}

const TABLE: &str = ".attn.relative_position_bias_table";

/// The rows and columns of the patches whose relative positions are in a table: those of the windows of a stage, which are no larger than
/// its grid, or of the whole grid. `None` without a table.
fn windows(config: &ModelConfig, stage: usize) -> Option<[usize; 2]> {
    let grid = config.stage_grid(stage);
    match *config.mixers.first()? {
        Mixer::Window(side) | Mixer::ShiftedWindow(side) => Some(grid.map(|grid| grid.min(side))),
        mixer => (config.relative_position(mixer) == RelativePosition::Table).then_some(grid),
    }
}

/// A patch embedding `[dim, channels, side, side]` for another number of channels. It gives the same tokens for an
/// image with equal channels.
fn channels(tensor: NamedTensor, wanted: usize) -> NamedTensor {
    let [dim, channels, rows, columns] = tensor.shape[..] else { return tensor };
    if channels == wanted || channels == 0 {
        return tensor;
    }
    let area = rows * columns;
    let mut values = Vec::with_capacity(dim * wanted * area);
    for filter in tensor.values.chunks_exact(channels * area) {
        let sum: Vec<f32> =
            (0..area).map(|place| filter.iter().skip(place).step_by(area).sum::<f32>()).collect();
        for _ in 0..wanted {
            values.extend(sum.iter().map(|value| value / wanted as f32));
        }
    }
    NamedTensor { shape: vec![dim, wanted, rows, columns], values, ..tensor }
}

fn positions(
    tensor: NamedTensor,
    from: &ModelConfig,
    to: &ModelConfig,
    resampling: Resampling,
) -> NamedTensor {
    let (old, new) = (from.grid(), to.grid());
    let dim = from.embed_dim;
    let patches = (old[0] * old[1] * dim).min(tensor.values.len());
    if old == new || patches == 0 {
        return tensor;
    }
    let (prefix, grid) = tensor.values.split_at(tensor.values.len() - patches);
    let values = [prefix.to_vec(), resampling.resample(grid, old, new)].concat();
    NamedTensor { shape: vec![1, values.len() / dim, dim], values, ..tensor }
}

fn relative_positions(tensor: NamedTensor, from: &ModelConfig, to: &ModelConfig) -> NamedTensor {
    let stage = tensor.name.strip_prefix("layers.").and_then(|rest| rest.split('.').next()?.parse().ok());
    let stage = stage.unwrap_or(0).min(to.num_stages() - 1);
    let sides = |config: &ModelConfig| windows(config, stage).map(|window| window.map(|side| 2 * side - 1));
    let (Some(old), Some(new), &[rows, heads]) = (sides(from), sides(to), &*tensor.shape) else {
        return tensor;
    };
    // Behind the rows of pairs of patches are those of the class token.
    let Some(further) = rows.checked_sub(old[0] * old[1]).filter(|_| old != new) else { return tensor };
    let (patches, prefix) = tensor.values.split_at(old[0] * old[1] * heads);
    let values = [resample(patches, old, new), prefix.to_vec()].concat();
    NamedTensor { shape: vec![new[0] * new[1] + further, heads], values, ..tensor }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::weights::{check, from_timm, to_timm};
    use crate::{ImageSize, Pool, preset};
    use burn::tensor::{Device, Tensor};

    fn plain() -> ModelConfig {
        ModelConfig {
            image_size: ImageSize::square(32),
            patch_size: 8,
            embed_dim: 32,
            num_heads: 2.into(),
            depth: 1.into(),
            ..preset::find("vit_tiny_patch16_224").unwrap()
        }
    }

    fn adapted(from: &ModelConfig, to: &ModelConfig, keep_head: bool) -> Adaptation {
        let device = Device::default();
        let adaptation =
            adapt(to_timm(&from.init(&device).unwrap()), [from, to], keep_head, Resampling::Antialiased);
        if keep_head {
            from_timm(to.init(&device).unwrap(), adaptation.tensors.clone()).unwrap();
        }
        adaptation
    }

    #[test]
    fn sizes_and_channels_are_changed_to_fit() {
        let from = plain();
        let larger =
            ModelConfig { image_size: ImageSize { height: 48, width: 64 }, channels: 1, ..from.clone() };
        assert_eq!(adapted(&from, &larger, true).changes.len(), 2);
        let swin =
            ModelConfig { depth: [1, 2].into(), ..preset::find("swin_pico_patch2_window4_32").unwrap() };
        let swin = ModelConfig { num_heads: [2, 4].into(), embed_dim: 16, ..swin };
        // The windows of the last stage shrink with its grid.
        let smaller = ModelConfig { image_size: ImageSize::square(12), ..swin.clone() };
        assert_eq!(adapted(&swin, &smaller, true).changes, ["tables of relative positions resampled"]);
        // Those of a plain model grow with its grid, and what they say of its class token stays.
        let relative_position = Some(RelativePosition::Table);
        let attention = crate::AttentionOptions { relative_position, ..from.attention };
        let beit = ModelConfig { attention, position: Position::None, ..from.clone() };
        let grown = ModelConfig { image_size: larger.image_size, ..beit.clone() };
        let adaptation = adapted(&beit, &grown, true);
        assert_eq!(adaptation.changes, ["tables of relative positions resampled"]);
        let table = adaptation.tensors.iter().find(|tensor| tensor.name.ends_with(TABLE)).unwrap();
        assert_eq!(table.shape, [11 * 15 + 3, 2]);
        let before = to_timm(&beit.init(&Device::default()).unwrap());
        let before = before.into_iter().find(|tensor| tensor.name.ends_with(TABLE)).unwrap();
        let adaptation = adapt(vec![before.clone()], [&beit, &grown], true, Resampling::Antialiased);
        let [.., a, b, c, d, e, f] = adaptation.tensors[0].values[..] else { panic!() };
        assert_eq!([a, b, c, d, e, f], before.values[before.values.len() - 6..]);
        assert!(adapted(&from, &from, true).changes.is_empty());
        let without = adapted(&from, &from.clone().with_num_classes(3), false);
        assert!(without.new_head && without.tensors.iter().all(|tensor| !tensor.name.starts_with("head.")));
        // A query per class goes with the head; the decoder around it stays.
        let queries = ModelConfig { pool: Pool::ClassQueries { depth: 1 }, ..from };
        let to = queries.clone().with_num_classes(3);
        let without = adapted(&queries, &to, false);
        let error = check(&to.init(&Device::default()).unwrap(), &without.tensors).unwrap_err();
        assert_eq!(error.missing, ["head.queries", "head.weight", "head.bias"]);
        assert!(error.unexpected.is_empty() && error.mismatched.is_empty(), "{error}");
    }

    #[test]
    fn a_gray_image_gives_the_same_logits_in_one_channel_as_in_three() {
        let device = Device::default();
        let from = plain();
        let model = from.init(&device).unwrap();
        let to = ModelConfig { channels: 1, ..from.clone() };
        let gray = Tensor::<4>::random([2, 1, 32, 32], burn::tensor::Distribution::Default, &device);
        let tensors = adapt(to_timm(&model), [&from, &to], true, Resampling::Antialiased).tensors;
        let small = from_timm(to.init(&device).unwrap(), tensors).unwrap();
        let expected = model.forward(gray.clone().repeat_dim(1, 3)).into_data();
        small.forward(gray).into_data().assert_approx_eq::<f32>(&expected, Default::default());
    }
}
