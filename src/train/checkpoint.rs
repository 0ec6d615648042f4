//! What resuming needs, written so that a crash at any moment leaves the previous state or the new one.
//!
//! `last/` holds one folder a saved state and the file `current`, which names the valid one and is replaced by
//! renaming.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::module::Module;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use serde::{Deserialize, Serialize};
use vitrine_datasets::BadFile;
use vitrine_models::VisionTransformer;

use crate::files::write_atomically;
use crate::model_file::Validation;
use crate::report::EpochRow;

const FOLDER: &str = "last";
const CURRENT: &str = "current";

/// Where a run stands, apart from its tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Whole epochs done.
    pub epoch: usize,
    /// Batches done of the epoch that has begun.
    pub batch: usize,
    /// Optimiser updates done.
    pub updates: usize,
    /// Seconds spent, over all sittings.
    pub seconds: f64,
    /// Sums over the epoch that has begun.
    pub running: Running,
    /// The best validation so far.
    pub best: Option<Validation>,
    /// Epochs since then.
    pub stale_epochs: usize,
    /// One row an epoch.
    pub history: Vec<EpochRow>,
    /// Whether the run has come to its end.
    pub finished: bool,
}

/// Sums over the batches of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// Loss times pictures.
    pub loss: f64,
    /// Pictures whose best class is the one that dominates the target.
    pub correct: u64,
    /// Pictures seen.
    pub samples: u64,
    /// Pictures that could not be read.
    pub bad: Vec<BadFile>,
}

/// The tensors of a run and where it stands.
pub struct State {
    /// The model that is trained.
    pub model: VisionTransformer,
    /// The running average of its weights.
    pub average: Option<VisionTransformer>,
    /// Its moments.
    pub optimiser: ModuleOptimizer,
    /// Where the run stands.
    pub progress: Progress,
}

/// Writes `state` under `run/last`, then makes it the valid one, then removes the one before.
///
/// # Errors
/// When the disk refuses; the state saved before then stays valid.
pub fn save(run: &Path, state: &State) -> Result<()> {
    let root = run.join(FOLDER);
    let name = format!("{:09}-{:06}", state.progress.updates, state.progress.epoch);
    let folder = root.join(&name);
    let write = || -> Result<()> {
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        state.model.clone().into_record().save(folder.join("model.bpk"))?;
        if let Some(average) = &state.average {
            average.clone().into_record().save(folder.join("average.bpk"))?;
        }
        state.optimiser.save(folder.join("optimiser.bpk"))?;
        fs::write(folder.join("progress.json"), serde_json::to_vec(&state.progress)?)?;
        for entry in fs::read_dir(&folder)? {
            File::open(entry?.path())?.sync_all()?;
        }
        Ok(())
    };
    write().with_context(|| format!("{}: the checkpoint cannot be written", folder.display()))?;
    write_atomically(&root.join(CURRENT), name.as_bytes())?;
    for entry in fs::read_dir(&root)?.flatten() {
        if entry.path().is_dir() && entry.file_name() != name.as_str() {
            // What stays behind here is only space: `current` no longer names it.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// The folder of the valid state of a run.
///
/// # Errors
/// When `run` is no run folder or nothing was saved yet.
pub fn locate(run: &Path) -> Result<PathBuf> {
    let root = run.join(FOLDER);
    let Ok(name) = fs::read_to_string(root.join(CURRENT)) else {
        bail!(
            "--resume {}: no run to resume: a run folder holds {FOLDER}/{CURRENT}, written by `vitrine train`",
            run.display()
        );
    };
    let folder = root.join(name.trim());
    if !folder.is_dir() {
        bail!("--resume {}: {FOLDER}/{CURRENT} names `{}`, which is not there", run.display(), name.trim());
    }
    Ok(folder)
}

/// Fills a freshly built state with the one saved in `run`.
///
/// # Errors
/// When nothing valid was saved, or what was saved does not fit.
pub fn load(run: &Path, fresh: State) -> Result<State> {
    let folder = locate(run)?;
    let read = || -> Result<State> {
        let module = |name: &str, module: VisionTransformer| -> Result<VisionTransformer> {
            Ok(module.try_load_record(ModuleRecord::load(folder.join(name))?)?)
        };
        Ok(State {
            model: module("model.bpk", fresh.model)?,
            average: fresh.average.map(|average| module("average.bpk", average)).transpose()?,
            optimiser: fresh.optimiser.load_record(OptimizerRecord::load(folder.join("optimiser.bpk"))?),
            progress: serde_json::from_slice(&fs::read(folder.join("progress.json"))?)?,
        })
    };
    read().with_context(|| format!("{}: the checkpoint cannot be read", folder.display()))
}
