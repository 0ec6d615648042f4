//! The argument that names a model, for commands that ask one about images, and the options of its forward pass.

use std::path::{Path, PathBuf};

use anyhow::Result;
use burn::tensor::Device;
use clap::Args;
use vitrine_datasets::DecodeLimits;
use vitrine_models::{ModelConfig, preset};

use super::console::Log;
use super::file_size::FileSizeArgs;
use super::{DeviceArgs, ThreadArgs};
use crate::bounds;
use crate::cli::aliases;
use crate::cli::output::note;
use crate::cli::within::within;
use crate::device::FoundDevice;
use crate::events::EventSink;
use crate::explain::Explainer;
use crate::hub;
use crate::named_model::{self, NamedModel};
use crate::predict::Classifier;
use crate::usage::usage;

/// The preset of this name, unless there is a file or folder of the same name: that comes first, which a warning says.
pub(super) fn named_preset(name: &str) -> Option<ModelConfig> {
    let preset = preset::find(name)?;
    if !Path::new(name).exists() {
        return Some(preset);
    }
    note!(
        "warning: {name} means ./{name} here: `vitrine presets --show {name}` prints the preset of this name"
    );
    None
}

/// The model that a command asks.
#[derive(Args)]
pub(super) struct ModelArgs {
    /// Model file or run folder; also another library's weights (a file or folder), hf:OWNER/NAME[@REVISION] on Hugging Face, or
    /// the name of a published backbone (`vitrine presets`).
    #[arg(value_name = "MODEL")]
    pub(super) model: PathBuf,
    /// Use only what is already in the Hugging Face cache; never the network.
    #[arg(long)]
    offline: bool,
}

impl ModelArgs {
    /// Refuses an option that has no effect.
    pub(super) fn check(&self) -> Result<()> {
        if self.offline && !self.model.to_str().is_some_and(hub::is_repository) {
            usage!(
                "--offline has no effect for {}, which is not downloaded: leave it out",
                self.model.display()
            );
        }
        Ok(())
    }

    /// Loads the model, and says what was assumed about another library's weights.
    pub(super) fn load(&self, device: &FoundDevice, events: &dyn EventSink) -> Result<NamedModel> {
        named_model::load(&self.model, self.offline, &device.device, ModelConfig::clone, events)
    }

    /// [`Self::load`] without a choice of the device, for commands that compute nothing.
    pub(super) fn load_anywhere(&self, events: &dyn EventSink) -> Result<NamedModel> {
        named_model::load(&self.model, self.offline, &Device::default(), ModelConfig::clone, events)
    }

    /// [`Self::load`] of a model with a classifier, and the files that it was read from.
    pub(super) fn classifier(
        &self,
        device: &FoundDevice,
        events: &dyn EventSink,
    ) -> Result<(Classifier, Vec<PathBuf>)> {
        let named = self.load(device, events)?;
        named.warn_of_head(events);
        let NamedModel { card, model, files, .. } = named;
        card.require_classifier(self.model.display())?;
        Ok((Classifier::new(card, model, device), files))
    }

    /// The explainer of a model with a classifier: its parameters are on the device with autodiff, and it has no dropout.
    pub(super) fn explainer(&self, device: &FoundDevice, events: &dyn EventSink) -> Result<Explainer> {
        let with_autodiff = device.device.clone().autodiff();
        let change = ModelConfig::deterministic;
        let named = named_model::load(&self.model, self.offline, &with_autodiff, change, events)?;
        named.warn_of_head(events);
        let NamedModel { card, model, .. } = named;
        card.require_classifier(self.model.display())?;
        Ok(Explainer::new(card, model, device))
    }
}

/// How images are read and pass through a model.
#[derive(Args)]
pub(super) struct ForwardArgs {
    /// Images per forward pass.
    #[arg(long, value_name = "N", default_value_t = 16, allow_negative_numbers = true, value_parser = within(bounds::BATCH_SIZE), aliases = aliases::BATCH_SIZE)]
    pub(super) batch_size: usize,
    #[command(flatten)]
    file_size: FileSizeArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

impl ForwardArgs {
    /// Sets up the threads and finds the device. Messages go to the log.
    pub(super) fn begin(&self) -> Result<(Log, FoundDevice)> {
        self.threads.apply()?;
        let log = Log::text();
        let device = self.device.select(&log)?;
        Ok((log, device))
    }

    /// The size of image files in bytes above which they are not read, if it is stated.
    pub(super) fn max_file_size(&self) -> Option<u64> {
        self.file_size.max_file_size
    }

    /// The limits for decoding images.
    pub(super) fn limits(&self) -> DecodeLimits {
        self.file_size.limits()
    }
}
