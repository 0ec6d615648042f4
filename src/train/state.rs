//! The state of a run: the learner's tensors and the progress record, saved as one checkpoint and read back from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use serde::{Deserialize, Serialize};
use vitrine_datasets::{BadFile, ContentKey, Labels};
use vitrine_models::VisionTransformer;

use super::at_chance::ChanceWatch;
use super::flips::FlipVerdict;
use super::restarts::GivenUp;
use crate::events::EpochRow;
use crate::learner::Learner;
use crate::model_file::{self, ModelCard, Validation};
use crate::probe::Method;
use crate::recipe::{AskedLength, Recipe};
use crate::run_folder::states::{self, Position, WriteFile};
use crate::toml_text;
use crate::weights_file::Precision;

/// Name of the progress record's file within a saved state.
const PROGRESS: &str = "progress.toml";

/// The progress record of a run: everything about its position except tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Whole epochs done.
    pub epoch: usize,
    /// Batches done of the epoch that has begun.
    pub batch: usize,
    /// Optimizer updates done.
    pub updates: usize,
    /// Learning rate of the last of them.
    #[serde(default)]
    pub learning_rate: f64,
    /// Seconds of training in all sessions.
    pub seconds: f64,
    /// Images per second of the measuring that the time limit allows for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_per_second: Option<f64>,
    /// The judgment on flips, once validation has made it; only for recipes with `judge_flips`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flips: Option<FlipVerdict>,
    /// Number of validation images that are measured, if the time limit does not allow all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_images: Option<usize>,
    /// About the number of training images to which the head was fitted, if the time limit did not allow all of them: that for which
    /// the same part of each class is taken again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fitted_images: Option<usize>,
    /// How the head was fitted, in words; only for recipes with `fit_head` or `probe_first`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fitted: Option<String>,
    /// The method of that fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// The validation result of the probe with which the run began; only for recipes with `probe_first`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Validation>,
    /// Sums over the epoch that has begun.
    pub running: Running,
    /// The validation result of the best model so far.
    pub best: Option<Validation>,
    /// The highest validation score so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest: Option<f64>,
    /// Number of validation images on which that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validated_on: Option<usize>,
    /// Epochs since the highest score.
    pub stale_epochs: usize,
    /// One row per epoch.
    pub history: Vec<EpochRow>,
    /// Whether the run has ended, by reaching `length` or by early stopping.
    pub finished: bool,
    /// The length of the run, as last requested.
    pub length: AskedLength,
    /// Number of threads that compute, on which the last bits of sums depend. 0 if unknown.
    #[serde(default)]
    pub threads: usize,
    /// Checksums of the files that must not change during a run: see
    /// [`RunFolder::fixed`](crate::run_folder::RunFolder::fixed).
    #[serde(default)]
    pub fixed: BTreeMap<String, String>,
    /// The content keys of the images that could not be decoded, which may be removed.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub undecodable: BTreeSet<ContentKey>,
    /// Training results of the present attempt, from which it is judged whether the run learns.
    #[serde(default)]
    pub watch: ChanceWatch,
    /// The failed attempts before the present one.
    #[serde(default)]
    pub given_up: Vec<GivenUp>,
}

impl Progress {
    /// Updates of the present attempt.
    pub(super) fn attempt_updates(&self) -> usize {
        self.updates - self.given_up.last().map_or(0, |before| before.updates)
    }

    /// Records the number of threads that compute from now on. Returns a remark if it has changed, because sums over a
    /// batch are then added in another order.
    pub(super) fn set_threads(&mut self, threads: usize) -> Option<String> {
        let before = std::mem::replace(&mut self.threads, threads);
        (before != 0 && before != threads).then(|| {
            format!(
                "the run has used {before} threads so far and now uses {threads}: its results will differ in the last bits \
                 from those of a run that was never stopped; --threads {before} avoids this"
            )
        })
    }

    /// Records the requested length. If it has changed, a finished run is reopened and early stopping counts its epochs
    /// from zero.
    pub(super) fn set_length(&mut self, recipe: &Recipe) {
        let length = AskedLength::from(recipe);
        if self.length != length {
            (self.finished, self.stale_epochs, self.length) = (false, 0, length);
            // Epochs are compared with the probe, and so on the same images.
            if self.probe.is_none() {
                self.validation_images = None;
            }
        }
    }
}

/// Sums over the batches of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// Sum over images of the training loss.
    pub loss: f64,
    /// Number of images whose predicted class is the one with their largest target, or with several labels an image one
    /// of them.
    pub correct: u64,
    /// Images seen.
    pub samples: u64,
    /// Images seen that have no label.
    #[serde(default)]
    pub unlabeled: u64,
    /// Files that could not be read.
    pub bad: Vec<BadFile>,
}

impl Running {
    /// Adds a batch: its mean loss, and for each image the classes that count as right and the predicted class.
    pub(super) fn add(&mut self, mean_loss: f64, right: &[Labels], answers: &[usize]) {
        self.loss += mean_loss * right.len() as f64;
        self.correct +=
            right.iter().zip(answers).filter(|(right, answer)| right.contains(answer)).count() as u64;
        self.unlabeled += right.iter().filter(|right| right.is_empty()).count() as u64;
        self.samples += right.len() as u64;
    }

    /// Mean training loss; 0 without images.
    pub(super) fn mean_loss(&self) -> f64 {
        self.loss / self.samples.max(1) as f64
    }

    /// Share of the images with a label, from 0 to 1, whose predicted class is right.
    pub(super) fn accuracy(&self) -> f64 {
        self.correct as f64 / (self.samples - self.unlabeled).max(1) as f64
    }
}

/// The complete state of a run.
pub struct State {
    /// Model, running average, and optimizer.
    pub learner: Learner,
    /// Position and history.
    pub progress: Progress,
}

/// The best model since the last checkpoint. The next checkpoint writes it as the run's model file.
pub struct Kept {
    /// Metadata for the model file.
    pub card: ModelCard,
    /// The model with the best weights.
    pub model: VisionTransformer,
}

impl Kept {
    /// Writes the model file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        model_file::save(path, &self.card, &self.model, Precision::F32)
    }
}

/// Saves `state`, and with it the run's model file if `kept` has a new best model.
///
/// # Errors
/// When a file cannot be written; the previously saved state then stays valid.
pub fn save(run: &Path, state: &State, kept: Option<&Kept>) -> Result<()> {
    let Progress { updates, epoch, .. } = state.progress;
    let write_model = kept.map(|kept| |path: &Path| kept.write(path));
    let write_model = write_model.as_ref().map(|write| write as WriteFile<'_>);
    states::save(run, Position { updates, epoch }, |folder| write(folder, state), write_model)
}

/// Saves the progress record of a run that has no state of an optimizer, and with it the run's model file if there is one.
///
/// # Errors
/// When a file cannot be written; the previously saved state then stays valid.
pub(super) fn save_progress(run: &Path, progress: &Progress, kept: Option<&Kept>) -> Result<()> {
    let position = Position { updates: progress.updates, epoch: progress.epoch };
    let write_model = kept.map(|kept| |path: &Path| kept.write(path));
    let write_model = write_model.as_ref().map(|write| write as WriteFile<'_>);
    states::save(run, position, |folder| write_progress(folder, progress), write_model)
}

fn write(folder: &Path, state: &State) -> Result<()> {
    state.learner.model.clone().into_record().save(folder.join("model.bpk"))?;
    if let Some(average) = &state.learner.average {
        average.clone().into_record().save(folder.join("average.bpk"))?;
    }
    state.learner.optimizer.save(folder.join("optimizer.bpk"))?;
    write_progress(folder, &state.progress)
}

fn write_progress(folder: &Path, progress: &Progress) -> Result<()> {
    // TOML keeps all bits of floats.
    Ok(fs::write(folder.join(PROGRESS), toml::to_string(progress)?)?)
}

/// Adds the content keys of images that cannot be decoded to the saved state of a run.
///
/// # Errors
/// When `run` has no valid state, or a file cannot be written; the state then stays as it was.
pub(crate) fn add_undecodable(run: &Path, mut keys: BTreeSet<ContentKey>) -> Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    let mut progress = progress(run)?;
    if keys.is_subset(&progress.undecodable) {
        return Ok(());
    }
    progress.undecodable.append(&mut keys);
    let position = Position { updates: progress.updates, epoch: progress.epoch };
    states::save_again(run, position, (PROGRESS, &toml::to_string(&progress)?))
}

/// Reads the progress record of the saved state in `run`, without its tensors.
///
/// # Errors
/// When `run` has no valid state.
pub fn progress(run: &Path) -> Result<Progress> {
    let file = states::locate(run)?.join(PROGRESS);
    let read = || -> Result<Progress> { toml_text::parse(&fs::read_to_string(&file)?) };
    read().with_context(|| states::unreadable(run, &file))
}

/// Loads the state saved in `run` into a freshly built one.
///
/// # Errors
/// When `run` has no valid state, or one that does not fit the configuration.
pub fn load(run: &Path, fresh: State) -> Result<State> {
    let folder = states::open(run)?;
    // Files are read into memory at once: burn's records of files read each tensor on first use, when the folder may
    // have been deleted.
    let bytes = |name: &str| -> Result<Bytes> { Ok(Bytes::from_bytes_vec(fs::read(folder.join(name))?)) };
    let read = || -> Result<State> {
        let module = |name: &str, module: VisionTransformer| -> Result<VisionTransformer> {
            Ok(module.try_load_record(ModuleRecord::from_bytes(bytes(name)?)?)?)
        };
        let Learner { model, average, optimizer, loss, .. } = fresh.learner;
        let model = module("model.bpk", model)?;
        let average = average.map(|average| module("average.bpk", average)).transpose()?;
        let optimizer = optimizer.load_record(OptimizerRecord::from_bytes(bytes("optimizer.bpk")?)?);
        let learner = Learner::restored(model, average, optimizer).with_loss(loss);
        Ok(State { learner, progress: progress(run)? })
    };
    read().with_context(|| states::unreadable(run, &folder))
}

#[cfg(test)]
mod tests {
    use vitrine_datasets::Fault;

    use super::*;

    #[test]
    fn the_progress_record_keeps_every_bit() {
        let mut bits = 0x3fd5_5555_5555_5555u64;
        let mut float = || {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f64::from_bits(bits >> 12 | 0x3ff0_0000_0000_0000) - 1.0
        };
        let row = |epoch, a: f64, b: f64| EpochRow {
            epoch,
            step: epoch,
            seconds: a,
            learning_rate: b,
            train_loss: a * b,
            train_top1: None,
            val_loss: Some(a + b),
            val_top1: Some(a / 3.0),
            images_per_second: b / 7.0,
            val_macro_f1: Some(a / 9.0),
            val_balanced_accuracy: None,
            kept: epoch % 2 == 0,
            val_mean_average_precision: Some(b / 9.0),
        };
        let history = (0..1000).map(|epoch| row(epoch, float(), float())).collect();
        let bad = vec![BadFile::new("a\"b", &Fault::Other("c\nd".to_owned()))];
        let running = Running { loss: float(), correct: 3, samples: 4, unlabeled: 0, bad };
        let length = AskedLength { epochs: None, seconds: Some(float()) };
        let progress = Progress { seconds: float(), history, running, length, ..Progress::default() };
        let read: Progress = toml::from_str(&toml::to_string(&progress).unwrap()).unwrap();
        assert_eq!(read, progress);
    }

    #[test]
    fn only_a_different_length_reopens_a_finished_run() {
        let recipe = |epochs| Recipe { epochs: Some(epochs), ..Recipe::default() };
        let mut progress = Progress::default();
        progress.set_length(&recipe(3));
        (progress.finished, progress.stale_epochs) = (true, 2);
        progress.set_length(&recipe(3));
        assert_eq!((progress.finished, progress.stale_epochs), (true, 2));
        progress.set_length(&recipe(4));
        assert_eq!((progress.finished, progress.stale_epochs), (false, 0));
    }
}
