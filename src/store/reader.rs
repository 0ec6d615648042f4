//! Reading an object from its start to its end, however long that takes.

use std::io::{self, Read};

use anyhow::{Error, Result};
use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;

use super::failure::in_one_line;
use super::fetch::Fetch;
use super::{Object, Unavailable, stores};

/// The bytes that are read with one request. Each has retries of its own.
const RANGE: u64 = 8 << 20;

/// Reads the parts of an object one after the other.
struct Reader {
    parts: Parts,
    part: Bytes,
    failure: Option<Unavailable>,
}

enum Parts {
    /// The answer to one request.
    Stream(BoxStream<'static, Result<Bytes, Unavailable>>),
    /// A request for each part, of which the next is read ahead.
    Ranges { object: Object, size: u64, tag: Option<String>, start: u64, next: Option<Fetch> },
}

impl Reader {
    fn of_stream(stream: BoxStream<'static, Result<Bytes, Unavailable>>) -> Self {
        Self { parts: Parts::Stream(stream), part: Bytes::new(), failure: None }
    }

    /// A reader of an object of so many bytes. With an entity tag, it fails if another one takes its place meanwhile.
    fn of_ranges(object: Object, size: u64, tag: Option<String>) -> Self {
        let mut parts = Parts::Ranges { object, size, tag, start: 0, next: None };
        parts.read_ahead();
        Self { parts, part: Bytes::new(), failure: None }
    }

    /// Why the object could not be read to its end.
    fn into_failure(self) -> Option<Unavailable> {
        self.failure
    }
}

impl Object {
    /// Passes a reader of the whole object to `read`. Returns what that returns, and why the object could not be read to its end, if
    /// that is because of the store.
    ///
    /// # Errors
    /// If the object is not there, or cannot be read at all.
    pub(crate) fn with_reader<T>(
        &self,
        read: impl FnOnce(&mut dyn Read) -> T,
    ) -> Result<(T, Option<Unavailable>)> {
        let mut reader = if self.root.starts_with("http") {
            // Not all web servers know ranges.
            let get = stores::handle()?.block_on(self.store.get(&self.path));
            let stream = get.map_err(|error| self.failed(&error))?.into_stream();
            Reader::of_stream(stream.map_err(|error| Unavailable(in_one_line(&error))).boxed())
        } else {
            let head = stores::handle()?.block_on(self.store.head(&self.path));
            let head = head.map_err(|error| self.failed(&error))?;
            Reader::of_ranges(self.clone(), head.size, head.e_tag)
        };
        let result = read(&mut reader);
        Ok((result, reader.into_failure()))
    }
}

impl Parts {
    /// The next part; `None` at the end.
    fn next(&mut self) -> Result<Option<Bytes>> {
        match self {
            Self::Stream(stream) => Ok(stores::handle()?.block_on(stream.next()).transpose()?),
            Self::Ranges { next, .. } => {
                let Some(fetch) = next.take() else { return Ok(None) };
                let part = fetch.wait()?;
                self.read_ahead();
                Ok(Some(part.into()))
            }
        }
    }

    /// Begins to read the next range.
    fn read_ahead(&mut self) {
        if let Self::Ranges { object, size, tag, start, next } = self
            && *start < *size
        {
            let end = (*start + RANGE).min(*size);
            *next = Some(object.fetch_range(*start..end, tag.clone()));
            *start = end;
        }
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            match self.parts.next() {
                Ok(Some(part)) => self.part = part,
                Ok(None) => return Ok(0),
                Err(error) => {
                    self.failure.get_or_insert_with(|| unavailable(&error));
                    return Err(io::Error::other(format!("{error:#}")));
                }
            }
        }
        let length = buffer.len().min(self.part.len());
        buffer[..length].copy_from_slice(&self.part.split_to(length));
        Ok(length)
    }
}

/// The failure of a part. That an object is gone, or replaced by another one, is one, too.
fn unavailable(error: &Error) -> Unavailable {
    error.downcast_ref().cloned().unwrap_or_else(|| Unavailable(format!("{error:#}")))
}
