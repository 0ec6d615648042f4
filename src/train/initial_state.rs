//! The starting point of a run: fresh parameters, pretrained parameters, or a saved state.

use anyhow::Result;
use vitrine_datasets::Loader;
use vitrine_models::VisionTransformer;
use vitrine_models::weights::{self, NamedTensor};

use super::state::{self, Progress, State};
use super::whitening::whitened;
use crate::import::head_of;
use crate::learner::{Learner, Loss};
use crate::run_folder::{RunConfig, RunFolder};
use crate::runtime::Runtime;
use crate::seed::{Stream, stream};

/// What a run starts from.
#[derive(Clone, Debug, PartialEq)]
pub enum Start {
    /// Fresh parameters.
    Fresh,
    /// Parameters with timm's names. Without those of a head, the head is fresh.
    Pretrained(Vec<NamedTensor>),
    /// The saved state of the run.
    Resumed,
}

impl Start {
    /// Whether the run is new, as opposed to resumed.
    pub(super) fn is_new(&self) -> bool {
        matches!(self, Self::Fresh | Self::Pretrained(_))
    }

    /// The state at the start of the session, of a run that trains on the images of a loader.
    pub(super) fn state(
        self,
        config: &RunConfig,
        folder: &RunFolder,
        images: &Loader,
        runtime: Runtime<'_>,
    ) -> Result<State> {
        let is_new = self.is_new();
        let fresh =
            State { learner: self.learner(config, 0, images, runtime)?, progress: Progress::default() };
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

    /// The learner of an attempt after `given_up` failed ones, which trains on the images of a loader. Fresh parameters are drawn from a
    /// different random stream in each attempt.
    pub(super) fn learner(
        self,
        config: &RunConfig,
        given_up: usize,
        images: &Loader,
        runtime: Runtime<'_>,
    ) -> Result<Learner> {
        let device = &runtime.device.device;
        device.seed(stream(config.seed, Stream::Initialization, given_up as u64));
        let model = config.model.init(&device.clone().autodiff())?;
        model.initialize();
        let is_new = self.is_new();
        let model = match self {
            Self::Pretrained(tensors) => with_parameters(model, tensors)?,
            Self::Fresh if config.recipe.whitened_stem => whitened(model, images, config, runtime.events)?,
            Self::Fresh | Self::Resumed => model,
        };
        let mut learner = Learner::new(model, &config.recipe).with_loss(Loss::of(config.multi_label));
        if let (Some(freeze), true) = (config.recipe.freeze, is_new) {
            learner.freeze(freeze);
        }
        Ok(learner)
    }
}

/// The model with these parameters; without those of a head, its own head stays.
pub(super) fn with_parameters(
    model: VisionTransformer,
    mut tensors: Vec<NamedTensor>,
) -> Result<VisionTransformer> {
    if !tensors.iter().any(|tensor| weights::is_head(&tensor.name)) {
        tensors.extend(head_of(&model));
    }
    Ok(weights::from_timm(model, tensors)?)
}
