//! Where a run begins.

use anyhow::Result;
use burn::module::Module;
use burn::tensor::Device;
use vitrine_models::VisionTransformer;
use vitrine_models::weights::{self, NamedTensor};

use super::checkpoint::{self, Progress, State};
use super::layers::Layers;
use super::optimiser;
use super::run_folder::{RunConfig, RunFolder};
use crate::import::head_of;
use crate::seed::{Stream, stream};

/// Where a run begins.
#[derive(Clone, Debug, PartialEq)]
pub enum Start {
    /// With fresh parameters.
    Fresh,
    /// With parameters under timm's names; a head that they lack is fresh.
    Pretrained(Vec<NamedTensor>),
    /// From the state that was saved.
    Resumed,
}

impl Start {
    /// Whether nothing was saved before.
    pub(super) fn is_new(&self) -> bool {
        matches!(self, Self::Fresh | Self::Pretrained(_))
    }

    /// The state that the run begins with.
    pub(super) fn state(self, config: &RunConfig, folder: &RunFolder, device: &Device) -> Result<State> {
        device.seed(stream(config.seed, Stream::Initialisation, 0));
        let model = config.model.init(&device.clone().autodiff())?;
        model.materialise();
        let is_new = self.is_new();
        let model = match self {
            Self::Pretrained(tensors) => filled(model, tensors)?,
            Self::Fresh | Self::Resumed => model,
        };
        let average = (config.recipe.ema_decay > 0.0).then(|| model.valid());
        let optimiser = optimiser::adamw(&config.recipe);
        let fresh = State { average, model, optimiser, progress: Progress::default() };
        let mut state = if is_new { fresh } else { checkpoint::load(folder.path(), fresh)? };
        state.progress.set_length(&config.recipe);
        if is_new {
            state.progress.fixed = folder.fixed()?;
        }
        if let Some(freeze) = config.recipe.freeze {
            state.model = Layers::new(&state.model).freeze(state.model, freeze);
        }
        Ok(state)
    }
}

fn filled(model: VisionTransformer, mut tensors: Vec<NamedTensor>) -> Result<VisionTransformer> {
    if !tensors.iter().any(|tensor| weights::is_head(&tensor.name)) {
        tensors.extend(head_of(&model));
    }
    Ok(weights::from_timm(model, tensors)?)
}
