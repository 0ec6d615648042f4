//! Where a run begins.

use anyhow::Result;
use burn::tensor::Device;
use vitrine_models::VisionTransformer;
use vitrine_models::weights::{self, NamedTensor};

use super::state::{self, Progress, State};
use crate::import::head_of;
use crate::learner::Learner;
use crate::run_folder::{RunConfig, RunFolder};
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
        let is_new = self.is_new();
        let fresh = State { learner: self.learner(config, 0, device)?, progress: Progress::default() };
        let mut state = if is_new { fresh } else { state::load(folder.path(), fresh)? };
        state.progress.set_length(&config.recipe);
        if is_new {
            state.progress.fixed = folder.fixed()?;
        }
        if let (Some(freeze), false) = (config.recipe.freeze, is_new) {
            state.learner.freeze(freeze);
        }
        Ok(state)
    }

    /// What learns, in an attempt after so many others: fresh parameters are drawn anew in each.
    pub(super) fn learner(self, config: &RunConfig, given_up: usize, device: &Device) -> Result<Learner> {
        device.seed(stream(config.seed, Stream::Initialization, given_up as u64));
        let model = config.model.init(&device.clone().autodiff())?;
        model.initialize();
        let is_new = self.is_new();
        let model = match self {
            Self::Pretrained(tensors) => filled(model, tensors)?,
            Self::Fresh | Self::Resumed => model,
        };
        let mut learner = Learner::new(model, &config.recipe);
        if let (Some(freeze), true) = (config.recipe.freeze, is_new) {
            learner.freeze(freeze);
        }
        Ok(learner)
    }
}

fn filled(model: VisionTransformer, mut tensors: Vec<NamedTensor>) -> Result<VisionTransformer> {
    if !tensors.iter().any(|tensor| weights::is_head(&tensor.name)) {
        tensors.extend(head_of(&model));
    }
    Ok(weights::from_timm(model, tensors)?)
}
