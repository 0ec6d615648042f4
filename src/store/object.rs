//! An object: a file of an object store.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow, ensure};
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
    WriteMultipart,
};
use vitrine_datasets::{DatasetError, Fault};

use super::Unavailable;
use super::failure::in_one_line;
use super::fetch::Fetch;
use super::stores::{self, Place};

/// The size from which an object is uploaded in parts of this size.
const PART: usize = 8 << 20;
/// How often an object is read anew if its bytes end before their time.
const ATTEMPTS: usize = 3;

/// The error for an object that is not there.
const NOT_THERE: &str = "no such object";

/// A file of an object store, or the beginning of the names of several.
#[derive(Clone)]
pub(crate) struct Object {
    pub(super) store: Arc<dyn ObjectStore>,
    /// The beginning of the URLs of the store.
    pub(super) root: String,
    pub(super) path: Path,
    url: String,
}

/// The object that a URL names.
///
/// # Errors
/// If it can name none, or the environment does not say how to reach its store.
pub(crate) fn object(url: &str) -> Result<Object> {
    let Place { store, root, path } = stores::place(url)?;
    Ok(Object { store, root, path, url: url.to_owned() })
}

impl Object {
    /// The URL, as it was given.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Whether the URL names a bucket and nothing in it.
    pub(crate) fn is_root(&self) -> bool {
        self.path.as_ref().is_empty()
    }

    /// An object in this folder.
    pub(crate) fn join(&self, name: &str) -> Self {
        let url = format!("{}/{name}", self.url.trim_end_matches('/'));
        Self {
            store: Arc::clone(&self.store),
            root: self.root.clone(),
            path: self.path.clone().join(name),
            url,
        }
    }

    /// Whether a part of its name below `folder` begins with a dot.
    pub(crate) fn is_hidden(&self, folder: &Self) -> bool {
        let parts = self.path.prefix_match(&folder.path);
        parts.is_some_and(|mut parts| parts.any(|part| part.as_ref().starts_with('.')))
    }

    /// Whether this is a folder: its URL ends like one, or there are objects in it. Web servers do not tell.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub(crate) fn is_folder(&self) -> Result<bool> {
        let is_folder = self.url.ends_with('/') || self.is_root();
        if self.root.starts_with("http") {
            ensure!(!is_folder, "web servers do not list their files: name one, or give a list (-)");
            return Ok(false);
        }
        if is_folder {
            return Ok(true);
        }
        Ok(self.list().next().transpose()?.is_some())
    }

    /// Whether the object is there.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub(crate) fn exists(&self) -> Result<bool> {
        match stores::handle()?.block_on(self.store.head(&self.path)) {
            Ok(_) => Ok(true),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Begins to read the object, which may have so many bytes.
    pub(crate) fn fetch(&self, limit: u64) -> Fetch {
        let object = self.clone();
        Fetch::begin(async move { object.bytes(&GetOptions::default(), limit).await?.context(NOT_THERE) })
    }

    /// The bytes of an object that may have so many; `None` if it is not there.
    ///
    /// # Errors
    /// If it has more, or cannot be read.
    pub(crate) fn read(&self, limit: u64) -> Result<Option<Vec<u8>>> {
        stores::handle()?.block_on(self.bytes(&GetOptions::default(), limit))
    }

    /// The bytes of a range of the object of which an entity tag is known.
    pub(super) fn fetch_range(&self, range: Range<u64>, tag: Option<String>) -> Fetch {
        let object = self.clone();
        let options = GetOptions { range: Some(range.into()), if_match: tag, ..GetOptions::default() };
        Fetch::begin(async move { object.bytes(&options, u64::MAX).await?.context(NOT_THERE) })
    }

    async fn bytes(&self, options: &GetOptions, limit: u64) -> Result<Option<Vec<u8>>> {
        let mut attempt = 1;
        loop {
            let result = match self.store.get_opts(&self.path, options.clone()).await {
                Ok(result) => result,
                Err(StoreError::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(self.failed(&error)),
            };
            match self.body(result, limit).await? {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) if attempt == ATTEMPTS => return Err(self.failed(&error)),
                Err(_) => attempt += 1,
            }
        }
    }

    /// The bytes of an answer, or why they do not come.
    async fn body(&self, result: GetResult, limit: u64) -> Result<Result<Vec<u8>, StoreError>> {
        let size = result.range.end - result.range.start;
        if size > limit {
            let fault = Fault::TooLarge { bytes: size, limit };
            return Err(DatasetError::Image { image: self.url.clone(), fault }.into());
        }
        let mut bytes = Vec::with_capacity(size as usize);
        let mut stream = result.into_stream();
        while let Some(part) = stream.next().await {
            match part {
                Ok(part) => bytes.extend_from_slice(&part),
                Err(error) => return Ok(Err(error)),
            }
        }
        if bytes.len() as u64 != size {
            let source = format!("{} of {size} bytes came", bytes.len()).into();
            return Ok(Err(StoreError::Generic { store: "download", source }));
        }
        Ok(Ok(bytes))
    }

    /// All objects of this folder and its subfolders, in the order of the store. Ends with the first error.
    pub(crate) fn list(&self) -> impl Iterator<Item = Result<Self>> + use<> {
        let folder = self.clone();
        let mut objects = Some(self.store.list(Some(&self.path)));
        let found = std::iter::from_fn(move || {
            let stream = objects.as_mut()?;
            let found = stores::handle().map(|handle| handle.block_on(stream.next()));
            let found = match found {
                Ok(found) => found?.map_err(|error| folder.failed(&error)),
                Err(error) => Err(error),
            };
            if found.is_err() {
                objects = None;
            }
            Some(found.map(|meta| folder.of_path(meta.location)))
        });
        // The folder itself is an object of some tools.
        let folder = self.path.clone();
        found.filter(move |object| object.as_ref().map_or(true, |object| object.path != folder))
    }

    /// Another object of the same store.
    fn of_path(&self, path: Path) -> Self {
        let url = format!("{}/{path}", self.root);
        Self { store: Arc::clone(&self.store), root: self.root.clone(), path, url }
    }

    /// Writes the object if it is not there. Returns whether it was not.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn create(&self, bytes: &[u8]) -> Result<bool> {
        let payload = PutPayload::from(bytes.to_vec());
        let put = self.store.put_opts(&self.path, payload, PutMode::Create.into());
        match stores::handle()?.block_on(put) {
            Ok(_) => Ok(true),
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => Ok(false),
            Err(error) => Err(self.not_written(&error)),
        }
    }

    /// Writes the object with the contents of a file, whole or not at all.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn upload(&self, file: &std::path::Path) -> Result<()> {
        let mut file = File::open(file).context("the results cannot be read again")?;
        let handle = stores::handle()?;
        let first = part(&mut file)?;
        if first.len() < PART {
            let put = handle.block_on(self.store.put(&self.path, PutPayload::from(first)));
            return put.map(|_| ()).map_err(|error| self.not_written(&error));
        }
        let begun = handle.block_on(self.store.put_multipart(&self.path));
        let mut upload =
            WriteMultipart::new_with_chunk_size(begun.map_err(|error| self.not_written(&error))?, PART);
        let mut bytes = first;
        while !bytes.is_empty() {
            let waited = handle.block_on(async {
                let waited = upload.wait_for_capacity(1).await;
                upload.put(bytes.into());
                waited
            });
            if let Err(error) = waited {
                // Nothing of it is kept; that it cannot be undone adds nothing to why.
                let _ = handle.block_on(upload.abort());
                return Err(self.not_written(&error));
            }
            bytes = part(&mut file)?;
        }
        handle.block_on(upload.finish()).map(|_| ()).map_err(|error| self.not_written(&error))
    }

    /// An error of the store, in words that name the object where it is shown.
    pub(super) fn failed(&self, error: &StoreError) -> Error {
        match error {
            StoreError::NotFound { .. } => anyhow!(NOT_THERE),
            error => Unavailable(in_one_line(error)).into(),
        }
    }

    fn not_written(&self, error: &StoreError) -> Error {
        anyhow!("{}: cannot be written: {}", self.url, in_one_line(error))
    }
}

/// The next bytes of a file, [`PART`] of them unless it ends.
fn part(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(PART as u64).read_to_end(&mut bytes).context("the results cannot be read again")?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    fn in_memory(store: &Arc<InMemory>, key: &str) -> Object {
        Object {
            store: Arc::clone(store) as Arc<dyn ObjectStore>,
            root: "s3://bucket".to_owned(),
            path: Path::from(key),
            url: format!("s3://bucket/{key}"),
        }
    }

    #[test]
    fn a_file_is_uploaded_whole_in_one_request_or_in_parts() {
        let store = Arc::new(InMemory::new());
        for length in [0, 1, PART - 1, PART, 2 * PART + 7, 5 * PART] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8).collect();
            std::io::Write::write_all(&mut file, &bytes).unwrap();
            let object = in_memory(&store, &format!("results/{length}"));
            object.upload(file.path()).unwrap();
            let mut read = Vec::new();
            let (end, failure) = object.with_reader(|reader| reader.read_to_end(&mut read)).unwrap();
            assert!(end.is_ok() && failure.is_none());
            assert!(read == bytes && object.fetch(u64::MAX).wait().unwrap() == bytes, "{length}");
        }
        assert_eq!(in_memory(&store, "results").list().count(), 6);
    }

    #[test]
    fn an_object_is_created_once_and_read_up_to_a_limit() {
        let store = Arc::new(InMemory::new());
        let folder = in_memory(&store, "a");
        let object = folder.join("b.json");
        assert_eq!((object.url(), object.read(9).unwrap()), ("s3://bucket/a/b.json", None));
        assert!(object.create(b"12345").unwrap() && !object.create(b"other").unwrap());
        assert_eq!(object.read(5).unwrap(), Some(b"12345".to_vec()));
        let error = object.read(4).unwrap_err().to_string();
        assert!(error.contains("it has 5 bytes, more than the limit of 4"), "{error}");
        let error = folder.join("c").fetch(9).wait().unwrap_err().to_string();
        assert_eq!(error, "no such object");
        assert!(folder.is_folder().unwrap() && !object.is_folder().unwrap());
        assert!(in_memory(&store, "a/.git/x").is_hidden(&folder) && !object.is_hidden(&folder));
        assert!(
            !in_memory(&store, ".a/x").is_hidden(&in_memory(&store, ".a")),
            "the folder itself was asked for"
        );
    }
}
