//! Where a run begins.

use anyhow::Result;
use burn::tensor::Device;
use vitrine_models::VisionTransformer;
use vitrine_models::weights::{self, NamedTensor};

use super::checkpoint::{self, Progress, State};
use super::learner::Learner;
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
        device.seed(stream(config.seed, Stream::Initialization, 0));
        let model = config.model.init(&device.clone().autodiff())?;
        model.initialize();
        let is_new = self.is_new();
        let model = match self {
            Self::Pretrained(tensors) => filled(model, tensors)?,
            Self::Fresh | Self::Resumed => model,
        };
        let fresh = State { learner: Learner::new(model, &config.recipe), progress: Progress::default() };
        let mut state = if is_new { fresh } else { checkpoint::load(folder.path(), fresh)? };
        state.progress.set_length(&config.recipe);
        if is_new {
            state.progress.fixed = folder.fixed()?;
        }
        if let Some(freeze) = config.recipe.freeze {
            state.learner.freeze(freeze);
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
