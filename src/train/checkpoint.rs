//! What resuming needs, written so that a crash at any moment leaves the previous state or the new one.
//!
//! `last/` holds one folder per saved state and the file `current`, which names the valid one and is replaced by
//! renaming. No folder is ever written twice, and none is removed before `current` names another. What has another name than
//! this program gives is not of its making, such as a user's copy of a state, and stays.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use vitrine_datasets::BadFile;
use vitrine_models::VisionTransformer;

use super::at_chance::ChanceWatch;
use super::attempt::GivenUp;
use super::flips::FlipVerdict;
use super::history::EpochRow;
use super::learner::Learner;
use crate::files::{sync_folder, write_atomically};
use crate::model_file::{self, FILE_NAME, ModelCard, Validation};
use crate::recipe::{LengthArgs, Recipe};
use crate::weights_file::Precision;

/// The folder of the saved states inside a run folder.
pub(super) const FOLDER: &str = "last";
const CURRENT: &str = "current";
const CHECKSUMS: &str = "checksums.toml";
const PROGRESS: &str = "progress.toml";
/// The ending of a model that lies next to the state of its name until it is the run's.
const STAGED: &str = ".safetensors";

/// Where a run stands, apart from its tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Whole epochs done.
    pub epoch: usize,
    /// Batches done of the epoch that has begun.
    pub batch: usize,
    /// Optimizer updates done.
    pub updates: usize,
    /// Seconds spent, over all sessions.
    pub seconds: f64,
    /// What the validation images have shown of mirror images, where the recipe asks them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flips: Option<FlipVerdict>,
    /// Validation images that are measured, where the clock pays for no more: the first ones of a shuffled order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_images: Option<usize>,
    /// Sums over the epoch that has begun.
    pub running: Running,
    /// The validation of the model that is kept so far.
    pub best: Option<Validation>,
    /// The highest score of any validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub highest: Option<f64>,
    /// Epochs since then.
    pub stale_epochs: usize,
    /// One row per epoch.
    pub history: Vec<EpochRow>,
    /// Whether the run has come to its end, which is that of `length`.
    pub finished: bool,
    /// The length that the run was to have when this was saved.
    pub length: AskedLength,
    /// Threads that compute: the bits of sums depend on it. 0 where it is not known.
    #[serde(default)]
    pub threads: usize,
    /// What the run was begun with and keeps: see [`RunFolder::fixed`](super::RunFolder::fixed).
    #[serde(default)]
    pub fixed: BTreeMap<String, String>,
    /// What the present attempt has shown.
    #[serde(default)]
    pub watch: ChanceWatch,
    /// The attempts before.
    #[serde(default)]
    pub given_up: Vec<GivenUp>,
}

/// How long a recipe wants a run to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AskedLength {
    /// Passes over the training images.
    pub epochs: Option<usize>,
    /// Seconds.
    pub seconds: Option<f64>,
}

impl From<&Recipe> for AskedLength {
    fn from(recipe: &Recipe) -> Self {
        Self { epochs: recipe.epochs, seconds: recipe.time_seconds }
    }
}

impl From<LengthArgs> for AskedLength {
    fn from(stated: LengthArgs) -> Self {
        Self { epochs: stated.epochs, seconds: stated.seconds() }
    }
}

impl Progress {
    /// Updates of the present attempt.
    pub(super) fn attempt_updates(&self) -> usize {
        self.updates - self.given_up.last().map_or(0, |before| before.updates)
    }

    /// Takes note of the length that the run is to have now: another one than before reopens a run that had ended, and waits for
    /// a better epoch anew.
    pub(super) fn set_length(&mut self, recipe: &Recipe) {
        let length = AskedLength::from(recipe);
        if self.length != length {
            (self.finished, self.stale_epochs, self.length) = (false, 0, length);
            self.validation_images = None;
        }
    }
}

/// Sums over the batches of an epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// Loss times images.
    pub loss: f64,
    /// Images whose best class is the one that dominates the target.
    pub correct: u64,
    /// Images seen.
    pub samples: u64,
    /// Images that could not be read.
    pub bad: Vec<BadFile>,
}

/// A run: what learns, and where it stands.
pub struct State {
    /// The tensors.
    pub learner: Learner,
    /// Where the run stands.
    pub progress: Progress,
}

/// The best model since the last checkpoint, which becomes the run's model file together with the next one.
pub struct Kept {
    /// What its file says of it.
    pub card: ModelCard,
    /// The model.
    pub model: VisionTransformer,
}

impl Kept {
    /// Writes the model file.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn write(&self, path: &Path) -> Result<()> {
        model_file::save(path, &self.card, &self.model, Precision::F32)
    }
}

/// Writes `state` and the model that is kept with it under `run/last`, then makes the state the valid one, then moves the model to its
/// place, then removes the state before.
///
/// The model file is thus never of a later epoch than the state that a run goes on from; where it is of an earlier one, because the
/// program was killed in between, [`load`] moves it.
///
/// # Errors
/// When the disk refuses; the state saved before then stays valid.
pub fn save(run: &Path, state: &State, kept: Option<&Kept>) -> Result<()> {
    let root = run.join(FOLDER);
    let (name, folder) = new_folder(&root, &state.progress)
        .with_context(|| format!("{}: no checkpoint can be written there", root.display()))?;
    if let Some(kept) = kept {
        kept.write(&staged(&root, &name))?;
    }
    write(&folder, state)
        .with_context(|| format!("{}: the checkpoint cannot be written", folder.display()))?;
    sync_folder(&root)?;
    write_atomically(&root.join(CURRENT), name.as_bytes())?;
    move_model(run, &name)?;
    // What stays behind here is only space: `current` no longer names it.
    let _ = remove_states(&root, Some(&name));
    Ok(())
}

/// Where the model that is kept with a state waits until the state is the valid one.
fn staged(root: &Path, name: &str) -> PathBuf {
    root.join(format!("{name}{STAGED}"))
}

/// Moves the model that was kept with the valid state `name`, if it is not in its place yet.
fn move_model(run: &Path, name: &str) -> Result<()> {
    let (from, to) = (staged(&run.join(FOLDER), name), run.join(FILE_NAME));
    match fs::rename(&from, &to) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        moved => moved.and_then(|()| sync_folder(run)),
    }
    .with_context(|| format!("{}: cannot be written", to.display()))
}

/// Removes the states in `root` except one, and the staged models of the states removed; what this program did not name stays.
///
/// # Errors
/// When the folder cannot be read or something cannot be removed; the rest is removed all the same.
pub(super) fn remove_states(root: &Path, kept: Option<&str>) -> io::Result<()> {
    let mut result = Ok(());
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let state = name.strip_suffix(STAGED).unwrap_or(name);
        if !is_state(state) || kept == Some(state) {
            continue;
        }
        // A folder has no ending, and a file has one: others are something else.
        let removed = match (entry.file_type()?.is_dir(), state == name) {
            (true, true) => fs::remove_dir_all(entry.path()),
            (false, false) => fs::remove_file(entry.path()),
            (true, false) | (false, true) => Ok(()),
        };
        result = result.and(removed);
    }
    result
}

/// Whether a state is called so: three numbers, the first two of at least nine and six digits.
fn is_state(name: &str) -> bool {
    let parts: Vec<&str> = name.split('-').collect();
    let is_number =
        |part: &str, digits: usize| part.len() >= digits && part.bytes().all(|byte| byte.is_ascii_digit());
    matches!(parts[..], [updates, epoch, number] if is_number(updates, 9) && is_number(epoch, 6) && is_number(number, 1))
}

/// Makes a folder that is not there yet, so that neither the valid state nor what a crash left behind is written to.
fn new_folder(root: &Path, progress: &Progress) -> Result<(String, PathBuf)> {
    fs::create_dir_all(root)?;
    for number in 0.. {
        let name = format!("{:09}-{:06}-{number}", progress.updates, progress.epoch);
        let folder = root.join(&name);
        match fs::create_dir(&folder) {
            Ok(()) => return Ok((name, folder)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("every name is taken")
}

fn write(folder: &Path, state: &State) -> Result<()> {
    state.learner.model.clone().into_record().save(folder.join("model.bpk"))?;
    if let Some(average) = &state.learner.average {
        average.clone().into_record().save(folder.join("average.bpk"))?;
    }
    state.learner.optimizer.save(folder.join("optimizer.bpk"))?;
    // TOML gives floats back to the last bit.
    fs::write(folder.join(PROGRESS), toml::to_string(&state.progress)?)?;
    fs::write(folder.join(CHECKSUMS), toml::to_string(&checksums(folder)?)?)?;
    for entry in fs::read_dir(folder)? {
        File::open(entry?.path())?.sync_all()?;
    }
    Ok(sync_folder(folder)?)
}

/// The SHA-256 of each file of a state, by name.
fn checksums(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut checksums = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() != CHECKSUMS {
            let checksum = checksum(&fs::read(entry.path())?);
            checksums.insert(entry.file_name().to_string_lossy().into_owned(), checksum);
        }
    }
    Ok(checksums)
}

/// The SHA-256 of a file's content, in hexadecimal.
pub(super) fn checksum(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Checks that every file of a state is as it was written: what is damaged must not train on.
fn verify(folder: &Path) -> Result<()> {
    let written: BTreeMap<String, String> = toml::from_str(&fs::read_to_string(folder.join(CHECKSUMS))?)?;
    let found = checksums(folder)?;
    for (name, checksum) in &written {
        match found.get(name) {
            Some(other) if other == checksum => {}
            Some(_) => bail!("{name} was damaged or changed since it was written"),
            None => bail!("{name} is missing"),
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
            "--resume {run}: nothing was saved there yet ({FOLDER}/{CURRENT} does not exist): start the run again with --output {run}",
            run = run.display()
        );
    };
    let folder = root.join(name.trim());
    if name.trim().is_empty() || !folder.is_dir() {
        bail!(
            "--resume {run}: {FOLDER}/{CURRENT} names the state `{name}`, which does not exist; write the name of a folder in {FOLDER} into it, \
             or start a new run with --pretrained {run} to keep what its best model has learned",
            run = run.display(),
            name = name.trim()
        );
    }
    Ok(folder)
}

/// Whether a state of the run was saved.
pub fn is_saved(run: &Path) -> bool {
    run.join(FOLDER).join(CURRENT).is_file()
}

/// Where the run stands that is saved in `run`, without its tensors.
///
/// # Errors
/// When nothing valid was saved.
pub fn progress(run: &Path) -> Result<Progress> {
    let file = locate(run)?.join(PROGRESS);
    let read = || -> Result<Progress> { Ok(toml::from_str(&fs::read_to_string(&file)?)?) };
    read().with_context(|| format!("{}: the checkpoint cannot be read", file.display()))
}

/// Fills a freshly built state with the one saved in `run`.
///
/// # Errors
/// When nothing valid was saved, or what was saved does not fit.
pub fn load(run: &Path, fresh: State) -> Result<State> {
    let folder = locate(run)?;
    // Records of files are read when a tensor is used, which may be after the folder is gone: the whole of it is read now.
    let bytes = |name: &str| -> Result<Bytes> { Ok(Bytes::from_bytes_vec(fs::read(folder.join(name))?)) };
    let read = || -> Result<State> {
        verify(&folder)?;
        move_model(run, &folder.file_name().unwrap_or_default().to_string_lossy())?;
        let module = |name: &str, module: VisionTransformer| -> Result<VisionTransformer> {
            Ok(module.try_load_record(ModuleRecord::from_bytes(bytes(name)?)?)?)
        };
        let Learner { model, average, optimizer, .. } = fresh.learner;
        let model = module("model.bpk", model)?;
        let average = average.map(|average| module("average.bpk", average)).transpose()?;
        let optimizer = optimizer.load_record(OptimizerRecord::from_bytes(bytes("optimizer.bpk")?)?);
        Ok(State { learner: Learner::restored(model, average, optimizer), progress: progress(run)? })
    };
    read().with_context(|| {
        format!(
            "{}: the checkpoint cannot be read; start a new run with --pretrained {} to keep what its best model has learned",
            folder.display(),
            run.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use vitrine_datasets::Fault;

    use super::*;

    #[test]
    fn where_a_run_stands_is_read_back_to_the_last_bit() {
        let run = tempfile::tempdir().unwrap();
        let folder = run.path().join(FOLDER).join("a");
        fs::create_dir_all(&folder).unwrap();
        fs::write(run.path().join(FOLDER).join(CURRENT), "a").unwrap();
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
        };
        let history = (0..1000).map(|epoch| row(epoch, float(), float())).collect();
        let bad = vec![BadFile::new("a\"b", &Fault::Other("c\nd".to_owned()))];
        let running = Running { loss: float(), correct: 3, samples: 4, bad };
        let length = AskedLength { epochs: None, seconds: Some(float()) };
        let progress = Progress { seconds: float(), history, running, length, ..Progress::default() };
        fs::write(folder.join(PROGRESS), toml::to_string(&progress).unwrap()).unwrap();
        assert_eq!(super::progress(run.path()).unwrap(), progress);
    }

    #[test]
    fn no_folder_of_a_state_is_written_twice() {
        let root = tempfile::tempdir().unwrap();
        let progress = Progress { updates: 7, epoch: 1, ..Progress::default() };
        let (first, _) = new_folder(root.path(), &progress).unwrap();
        let (second, folder) = new_folder(root.path(), &progress).unwrap();
        assert_ne!(first, second);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    }

    #[test]
    fn old_states_go_and_what_the_program_did_not_name_stays() {
        let root = tempfile::tempdir().unwrap();
        let progress = |updates| Progress { updates, epoch: 1, ..Progress::default() };
        let (old, _) = new_folder(root.path(), &progress(7)).unwrap();
        let (new, _) = new_folder(root.path(), &progress(1_234_567_890)).unwrap();
        let copies =
            ["000000007-000001-0 copy", "backup", "000-0", "000000007-000001-x", "000000007-000001-0-0"];
        for copy in copies {
            fs::create_dir(root.path().join(copy)).unwrap();
        }
        let others =
            ["current", "lock", "notes.safetensors", "000000009-000001-0", &format!("{new}.safetensors")];
        for file in others.into_iter().chain(["000000007-000001-0.safetensors"]) {
            fs::write(root.path().join(file), "").unwrap();
        }
        remove_states(root.path(), Some(&new)).unwrap();
        for stays in copies.into_iter().chain(others).chain([new.as_str()]) {
            assert!(root.path().join(stays).exists(), "{stays}");
        }
        for gone in [&old, "000000007-000001-0.safetensors"] {
            assert!(!root.path().join(gone).exists(), "{gone}");
        }
        remove_states(root.path(), None).unwrap();
        assert!(!root.path().join(&new).exists() && root.path().join("backup").is_dir());
    }

    #[test]
    fn another_length_reopens_a_run_and_the_same_does_not() {
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
