//! The images that the arguments of a command stand for: files, folders, glob patterns, and a list on standard input.

mod batches;
mod folder;
mod shard;

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::Args;
use vitrine_datasets::{ImageSource, can_only_be_dataset, shown};

use self::batches::Batches;
pub(super) use self::shard::{Shard, ShardArg};
use crate::files::same_file;
use crate::predict::Asked;
use crate::usage::usage;

/// The arguments that name images.
#[derive(Args)]
pub(super) struct InputArgs {
    /// Images, folders (searched recursively), glob patterns, or - for a list of paths on standard input.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Paths on standard input are separated by zero bytes, as `find -print0` writes them.
    #[arg(short = '0', long)]
    null: bool,
}

impl InputArgs {
    /// The images that one path stands for.
    pub(super) fn of(path: PathBuf) -> Self {
        Self { paths: vec![path], null: false }
    }

    /// Checks the paths that the arguments name.
    ///
    /// # Errors
    /// If standard input is read twice, or `-0` has no effect.
    pub(super) fn check(&self) -> Result<()> {
        let lists = self.paths.iter().filter(|path| *path == Path::new("-")).count();
        if self.null && lists == 0 {
            usage!("-0 says how the list on standard input is separated: it only works with the path -");
        }
        if lists > 1 {
            usage!("- is standard input: give it only once");
        }
        Ok(())
    }

    /// The only argument, if it can only mean a data set. Among other arguments, such as those of a shell's glob pattern, it is a file
    /// that is no image.
    pub(super) fn dataset(&self) -> Option<&str> {
        let [path] = &self.paths[..] else { return None };
        path.to_str().filter(|text| can_only_be_dataset(text))
    }

    /// Whether one of the arguments is this file.
    pub(super) fn name(&self, file: &Path) -> bool {
        self.paths.iter().any(|path| same_file(path, file))
    }

    /// The paths and patterns, as they were given.
    pub(super) fn stated(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Batches of the images that the arguments stand for, which a thread of its own lists.
    pub(super) fn batches(
        &self,
        size: usize,
    ) -> Result<impl Iterator<Item = Vec<Asked<Input, ImageSource>>> + Send + use<>> {
        self.batches_of(None, size)
    }

    /// [`Self::batches`] of one shard of the images, or of all.
    pub(super) fn batches_of(
        &self,
        shard: Option<Shard>,
        size: usize,
    ) -> Result<impl Iterator<Item = Vec<Asked<Input, ImageSource>>> + Send + use<>> {
        let (paths, separator) = (self.paths.clone(), if self.null { 0 } else { b'\n' });
        let asked = |input| match input {
            Ok(path) => Asked { tag: shown(&path), value: Ok(ImageSource::File(path)) },
            Err(Unreadable { path, message }) => Asked { tag: path, value: Err(anyhow!(message)) },
        };
        let is_taken = move |input: &Result<PathBuf, Unreadable>| {
            let path = match input {
                Ok(path) => path,
                Err(unreadable) => Path::new(&unreadable.path),
            };
            shard.is_none_or(|shard| shard.takes(path))
        };
        let batches = Batches::of(size, move || inputs(paths, separator).filter(is_taken))?;
        Ok(batches.map(move |batch| batch.into_iter().map(asked).collect()))
    }
}

/// The name of an input, as messages and results show it.
pub(super) type Input = String;

/// The images that the arguments stand for: files, the images of folders, the matches of patterns, and the paths of a
/// list on standard input.
fn inputs(paths: Vec<PathBuf>, separator: u8) -> impl Iterator<Item = Result<PathBuf, Unreadable>> {
    paths.into_iter().flat_map(move |path| -> Box<dyn Iterator<Item = _>> {
        if path == Path::new("-") {
            let listed = batches::listed(io::stdin().lock(), separator);
            Box::new(listed.map(|path| path.map_err(|error| Unreadable::new(Path::new("-"), error))))
        } else if path.is_dir() {
            Box::new(folder(&path))
        } else if path.exists() {
            Box::new(std::iter::once(Ok(path)))
        } else {
            pattern(&path)
        }
    })
}

/// An input that cannot be classified, with the reason.
struct Unreadable {
    path: String,
    message: String,
}

impl Unreadable {
    fn new(path: &Path, message: impl Into<String>) -> Self {
        Self { path: shown(path), message: message.into() }
    }
}

fn folder(root: &Path) -> impl Iterator<Item = Result<PathBuf, Unreadable>> + use<> {
    folder::Folder::new(root).map(|image| image.map_err(|(path, message)| Unreadable::new(&path, message)))
}

fn pattern(path: &Path) -> Box<dyn Iterator<Item = Result<PathBuf, Unreadable>>> {
    let missing = |message: &str| -> Box<dyn Iterator<Item = _>> {
        Box::new(std::iter::once(Err(Unreadable::new(path, message))))
    };
    let Some(text) = path.to_str().filter(|text| text.contains(['*', '?', '['])) else {
        return missing("no such file or folder");
    };
    match glob::glob(text) {
        Err(error) => missing(&format!("not a valid pattern: {error}")),
        Ok(matches) => {
            let mut matches = matches
                .filter(|path| path.as_ref().map_or(true, |path| path.is_file()))
                .map(|path| path.map_err(|error| Unreadable::new(error.path(), error.error().to_string())))
                .peekable();
            if matches.peek().is_none() { missing("no file matches the pattern") } else { Box::new(matches) }
        }
    }
}
