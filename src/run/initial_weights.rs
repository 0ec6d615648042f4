//! The initial parameters of a run: fresh, or pretrained weights adapted to its model.

use anyhow::{Result, bail};
use vitrine_models::weights::NamedTensor;

use crate::events::{Event, EventSink, Quiet};
use crate::pretrained::{self, Pretrained};
use crate::run_folder::RunConfig;
use crate::text::count;
use crate::train::Start;
use crate::weights_file;

/// Reads the initial parameters of a run again, without events, for a run that starts over because it did not learn.
pub(super) fn reread_start(config: &RunConfig) -> Result<Start> {
    let Some(source) = config.pretrained_now() else { return Ok(Start::Fresh) };
    // The weights were downloaded when the run began, so the network is needed only if they were deleted since.
    let weights =
        pretrained::open(&source, true, &Quiet).or_else(|_| pretrained::open(&source, false, &Quiet))?;
    let adaptation = weights.adapted(&config.model, &config.classes)?;
    check_weights(config, &source, &adaptation.tensors)?;
    Ok(Start::Pretrained(adaptation.tensors))
}

/// Refuses pretrained weights whose checksum differs from the one in the configuration. Earlier versions recorded none.
pub(super) fn check_weights(config: &RunConfig, source: &str, tensors: &[NamedTensor]) -> Result<()> {
    if config.origin.weights.as_ref().is_some_and(|checksum| *checksum != weights_file::checksum(tensors)) {
        bail!(
            "{source}: these are not the weights any more that the run began with; put them back as they were"
        );
    }
    Ok(())
}

/// The initial parameters of a run from pretrained weights, adapted to its model and classes. Each adaptation emits a
/// notice.
pub(super) fn adapted_start(
    weights: Pretrained,
    config: &RunConfig,
    events: &dyn EventSink,
) -> Result<Start> {
    if let Some(account) = &weights.account {
        for line in account.lines() {
            events.emit(Event::notice(line));
        }
    }
    let adaptation = weights.adapted(&config.model, &config.classes)?;
    for change in &adaptation.changes {
        events.emit(Event::notice(change));
    }
    if adaptation.new_head {
        events.emit(Event::notice(format!("a new head for {}", count(config.classes.len(), "class"))));
    }
    Ok(Start::Pretrained(adaptation.tensors))
}
