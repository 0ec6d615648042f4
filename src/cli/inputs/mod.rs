//! The images that the arguments of a command stand for: files, folders, archives, glob patterns, a list on standard input, and
//! all of these but patterns in object stores.

mod batches;
mod folder;
mod held;
mod hidden;
mod lister;
mod pattern;
mod shard;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use vitrine_datasets::{DecodeLimits, Entry, ImageSource, Walk, can_only_be_dataset, shown};

use self::batches::Batches;
pub(super) use self::lister::Incomplete;
use self::lister::Lister;
pub(super) use self::shard::{Shard, ShardArg};
use crate::files::{is_inside, same_file};
use crate::predict::Asked;
use crate::store;
use crate::usage::usage;

/// The arguments that name images.
#[derive(Args)]
pub(super) struct InputArgs {
    /// Images, folders (searched recursively), archives of images (.tar, .tar.gz, .zip), glob patterns, or - for a list of paths
    /// on standard input. In a vitrine built with `--features bulk`, also URLs: s3://, gs://, az://, and https://.
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
    /// If standard input is read twice, `-0` has no effect, or a URL cannot be read.
    pub(super) fn check(&self) -> Result<()> {
        for url in self.paths.iter().filter_map(|path| store::url(path)) {
            store::object(url)?;
        }
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

    /// The first argument that stands for images in this folder: a folder around it, or a pattern.
    pub(super) fn around(&self, folder: &Path) -> Option<&Path> {
        let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::default() };
        let image = folder.join("image.png");
        let is_around = |path: &Path| match path.to_str().map(glob::Pattern::new) {
            _ if path.is_dir() => is_inside(folder, path),
            Some(Ok(pattern)) => image.ancestors().any(|part| pattern.matches_path_with(part, options)),
            _ => false,
        };
        self.paths.iter().map(PathBuf::as_path).find(|path| is_around(path))
    }

    /// The paths and patterns, as they were given.
    pub(super) fn stated(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The names of the images in the folders among the arguments, which are known before any is read.
    pub(super) fn in_folders(&self) -> impl Iterator<Item = Input> {
        let folders = self.paths.iter().filter(|path| path.is_dir());
        folders.flat_map(|folder| Walk::new(folder)).filter_map(|entry| match entry {
            Entry::Image(path) => Some(shown(path)),
            Entry::Folder(_) | Entry::LeftOut(..) => None,
        })
    }

    /// Batches of the images that the arguments stand for, or of one shard of them, which a thread of its own lists.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn batches(
        &self,
        shard: Option<Shard>,
        size: usize,
        limits: DecodeLimits,
    ) -> Result<impl Iterator<Item = Vec<Asked<Input, ImageSource>>> + Send + use<>> {
        let (paths, separator) = (self.paths.clone(), if self.null { 0 } else { b'\n' });
        let (taken, held) = held::limit(2 * size);
        let list = move |to| {
            let mut lister = Lister { shard, separator, max_file_bytes: limits.max_file_bytes, held, to };
            // It breaks off if nobody wants more, because the program is ending.
            let _ = paths.into_iter().try_for_each(|path| lister.stated(path));
        };
        let batches = Batches::of(size, list)?;
        Ok(batches.map(move |batch| batch.into_iter().map(|input| input.asked(&taken)).collect()))
    }
}

/// The name of an input, as messages and results show it.
pub(super) type Input = String;
