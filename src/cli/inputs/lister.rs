//! Finding the images that paths and URLs stand for, one after the other.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;

use anyhow::{Error, anyhow};
use vitrine_datasets::{
    DatasetError, FileKind, ImageSource, LeftOut, Reason, is_archive_name, read_archive, read_archive_from,
    shown,
};

use super::held::{Held, Taken};
use super::hidden::NamedHidden;
use super::pattern::Matches;
use super::{Input, Shard, batches, folder};
use crate::cli::output::note;
use crate::predict::Asked;
use crate::store::{self, Fetch, Object, Unavailable};

/// Images are missing of which not even the names are known, because a store did not answer.
#[derive(Debug, thiserror::Error)]
#[error("images are missing: {0}")]
pub(crate) struct Incomplete(Unavailable);

/// An image on its way, or why there is none.
pub(super) struct Listed {
    name: Input,
    content: Content,
}

enum Content {
    /// What is read when its turn comes.
    Source(ImageSource),
    /// What was read from an archive.
    Held(ImageSource),
    /// What is being read from an object store.
    Fetched(Fetch),
    Missing(Error),
}

impl Listed {
    /// The image in memory, or on the disk.
    pub(super) fn asked(self, taken: &Taken) -> Asked<Input, ImageSource> {
        let Self { name, content } = self;
        let is_held = matches!(content, Content::Held(_) | Content::Fetched(_));
        let value = match content {
            Content::Source(source) | Content::Held(source) => Ok(source),
            Content::Fetched(fetch) => {
                fetch.wait().map(|bytes| ImageSource::Encoded { name: name.clone(), bytes: bytes.into() })
            }
            Content::Missing(error) => Err(error),
        };
        if is_held {
            taken.one();
        }
        Asked { tag: name, value }
    }
}

/// What finds images and passes them on. All methods break off if nobody wants more.
pub(super) struct Lister {
    pub(super) shard: Option<Shard>,
    /// The byte between the paths of a list.
    pub(super) separator: u8,
    pub(super) max_file_bytes: u64,
    pub(super) held: Held,
    pub(super) to: SyncSender<Listed>,
}

impl Lister {
    /// Passes on the images that an argument stands for.
    pub(super) fn stated(&mut self, path: PathBuf) -> ControlFlow<()> {
        if path == Path::new("-") {
            let listed = batches::listed(io::stdin().lock(), self.separator);
            for path in listed {
                match path {
                    Ok(path) => self.named(path)?,
                    Err(problem) => self.missing(Path::new("-"), anyhow!(problem))?,
                }
            }
            return ControlFlow::Continue(());
        }
        if let Some(url) = store::url(&path) {
            return self.stated_url(&path, url);
        }
        if path.is_dir() {
            return self.folder(&path);
        }
        if path.exists() { self.named(path) } else { self.pattern(&path) }
    }

    /// Passes on an image, or those of an archive, that a list or a pattern names.
    fn named(&mut self, path: PathBuf) -> ControlFlow<()> {
        if let Some(url) = store::url(&path) {
            return match store::object(url) {
                Ok(object) => self.object(&object),
                Err(error) => self.missing(&path, error),
            };
        }
        if !is_archive(&path) {
            return self.image(path);
        }
        if !self.takes(&path) {
            return ControlFlow::Continue(());
        }
        let mut flow = ControlFlow::Continue(());
        let read = read_archive(&path, self.max_file_bytes, |image| {
            flow = self.archived(image);
            flow
        });
        flow?;
        self.end_of_archive(&path, read)
    }

    fn folder(&mut self, root: &Path) -> ControlFlow<()> {
        self.images_of(folder::Folder::new(root))?;
        ControlFlow::Continue(())
    }

    /// Passes on the images of a folder. Returns whether there is anything.
    fn images_of(&mut self, folder: folder::Folder) -> ControlFlow<(), bool> {
        let mut has_any = false;
        for image in folder {
            has_any = true;
            match image {
                Ok(path) => self.image(path)?,
                Err((path, problem)) => self.missing(&path, anyhow!(problem))?,
            }
        }
        ControlFlow::Continue(has_any)
    }

    fn pattern(&mut self, path: &Path) -> ControlFlow<()> {
        if !path.to_string_lossy().contains(['*', '?', '[']) {
            return self.missing(path, anyhow!("no such file or folder"));
        }
        let Some(text) = path.to_str() else {
            return self.missing(path, anyhow!("no such file or folder, and a pattern must be UTF-8"));
        };
        let matches = match Matches::of(text) {
            Ok(matches) => matches,
            Err(error) => return self.missing(path, anyhow!("not a valid pattern: {error}")),
        };
        // `**` finds what is in the folders by itself.
        let (named, finds_all) = (NamedHidden::of(text), text.contains("**"));
        let is_wanted = |path: &PathBuf| path.is_file() || (path.is_dir() && !finds_all);
        let is_found = |found: &Result<PathBuf, (PathBuf, io::Error)>| match found {
            Ok(path) => named.finds(path) && is_wanted(path),
            Err((path, _)) => named.finds(path),
        };
        let mut is_empty = true;
        for found in matches.filter(is_found) {
            let is_folder = found.as_ref().is_ok_and(|path| path.is_dir());
            is_empty &= is_folder;
            match found {
                Ok(path) if is_folder => is_empty &= !self.images_of(folder::Folder::within(&path))?,
                Ok(path) => self.named(path)?,
                Err((path, error)) => self.missing(&path, error.into())?,
            }
        }
        if is_empty {
            self.missing(path, anyhow!("no image matches the pattern"))
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Passes on what an argument names in an object store: a folder, an archive, or an image.
    fn stated_url(&mut self, path: &Path, url: &str) -> ControlFlow<()> {
        let found = store::object(url).and_then(|object| {
            let is_file = FileKind::by_name(url) == FileKind::Image || is_archive(path);
            Ok((is_file || !object.is_folder()?, object))
        });
        match found {
            Ok((true, object)) => self.object(&object),
            Ok((false, folder)) => self.objects(&folder),
            Err(error) => self.incomplete(path, error),
        }
    }

    /// Passes on all images below a folder of an object store, as for a folder of the disk.
    fn objects(&mut self, folder: &Object) -> ControlFlow<()> {
        let (mut others, mut is_empty) = (LeftOut::default(), true);
        for object in folder.list() {
            let object = match object {
                Ok(object) => object,
                Err(error) => return self.incomplete(Path::new(folder.url()), error),
            };
            let url = object.url();
            match FileKind::by_name(url) {
                _ if object.is_hidden(folder) => others.add(url.to_owned(), Reason::Hidden),
                FileKind::Other => others.add(url.to_owned(), Reason::NoImage),
                FileKind::Image => {
                    is_empty = false;
                    self.object(&object)?;
                }
                FileKind::Unsupported(format) => {
                    is_empty = false;
                    self.missing(Path::new(url), anyhow!(Reason::Unsupported(format).message()))?;
                }
            }
        }
        others.others().iter().for_each(|line| note!("{}: {line}", folder.url()));
        if is_empty {
            return self.missing(Path::new(folder.url()), anyhow!("the folder holds no images"));
        }
        ControlFlow::Continue(())
    }

    /// Passes on an image, or those of an archive, of an object store.
    fn object(&mut self, object: &Object) -> ControlFlow<()> {
        let path = Path::new(object.url());
        if !self.takes(path) {
            return ControlFlow::Continue(());
        }
        if !is_archive(path) {
            self.held.one()?;
            return self.pass(shown(path), Content::Fetched(object.fetch(self.max_file_bytes)));
        }
        if object.url().to_ascii_lowercase().ends_with(".zip") {
            return self
                .missing(path, anyhow!("a zip archive can only be read from the disk: use .tar or .tar.gz"));
        }
        let limit = self.max_file_bytes;
        let read = object.with_reader(|reader| {
            let mut flow = ControlFlow::Continue(());
            let read = read_archive_from(path, reader, limit, |image| {
                flow = self.archived(image);
                flow
            });
            (flow, read)
        });
        match read {
            Ok(((flow, _), Some(failure))) => {
                flow?;
                self.incomplete(path, failure.into())
            }
            Ok(((flow, read), None)) => {
                flow?;
                self.end_of_archive(path, read)
            }
            Err(error) => self.incomplete(path, error),
        }
    }

    /// Passes on why an archive could not be read to its end, or says which of its files were no images.
    fn end_of_archive(&mut self, path: &Path, read: Result<LeftOut, DatasetError>) -> ControlFlow<()> {
        match read {
            Ok(others) => {
                others.others().iter().for_each(|line| note!("{}: {line}", shown(path)));
                ControlFlow::Continue(())
            }
            Err(error) => self.pass(shown(path), Content::Missing(error.into())),
        }
    }

    /// Passes on an image of an archive.
    fn archived(&mut self, image: Result<ImageSource, (String, String)>) -> ControlFlow<()> {
        match image {
            Ok(source) => {
                self.held.one()?;
                self.pass(source.name(), Content::Held(source))
            }
            Err((name, problem)) => self.pass(name, Content::Missing(anyhow!(problem))),
        }
    }

    /// Passes on a file.
    fn image(&mut self, path: PathBuf) -> ControlFlow<()> {
        if !self.takes(&path) {
            return ControlFlow::Continue(());
        }
        self.pass(shown(&path), Content::Source(ImageSource::File(path)))
    }

    /// Passes on why there is no image.
    fn missing(&mut self, path: &Path, error: Error) -> ControlFlow<()> {
        if !self.takes(path) {
            return ControlFlow::Continue(());
        }
        self.pass(shown(path), Content::Missing(error))
    }

    /// Passes on why nobody knows all images, in every shard. What is certainly not there is no more than an image that is missing.
    fn incomplete(&mut self, path: &Path, error: Error) -> ControlFlow<()> {
        match error.downcast() {
            Ok(unavailable) => self.pass(shown(path), Content::Missing(Incomplete(unavailable).into())),
            Err(error) => self.missing(path, error),
        }
    }

    fn takes(&self, path: &Path) -> bool {
        self.shard.is_none_or(|shard| shard.takes(path))
    }

    fn pass(&mut self, name: Input, content: Content) -> ControlFlow<()> {
        let sent = self.to.send(Listed { name, content });
        sent.map_or(ControlFlow::Break(()), |()| ControlFlow::Continue(()))
    }
}

fn is_archive(path: &Path) -> bool {
    path.file_name().is_some_and(|name| is_archive_name(&name.to_string_lossy()))
}
