//! Images and results in object stores, by URL: Amazon's S3 and what speaks its protocol (`s3://BUCKET/KEY`), Google Cloud
//! Storage (`gs://BUCKET/KEY`), Azure (`az://CONTAINER/KEY`), and, for reading, web servers (`https://HOST/PATH`). Cargo feature
//! `bulk`.

#[cfg(not(feature = "bulk"))]
mod elsewhere;
#[cfg(feature = "bulk")]
mod failure;
#[cfg(feature = "bulk")]
mod fetch;
#[cfg(feature = "bulk")]
mod object;
#[cfg(feature = "bulk")]
mod reader;
#[cfg(feature = "bulk")]
mod stores;

use std::path::Path;

#[cfg(not(feature = "bulk"))]
pub(crate) use elsewhere::{Fetch, Object, object};
#[cfg(feature = "bulk")]
pub(crate) use fetch::Fetch;
#[cfg(feature = "bulk")]
pub(crate) use object::{Object, object};

/// A store does not answer, or not as it should, although it was asked several times: another time, or with other settings, it may.
#[derive(Clone, Debug, thiserror::Error)]
#[error("it cannot be read: {0}")]
pub(crate) struct Unavailable(pub(crate) String);

/// The schemes of URLs of object stores.
const SCHEMES: [&str; 8] = ["s3", "s3a", "gs", "az", "abfs", "abfss", "http", "https"];

/// The URL that a path is, if it is one of an object store.
pub(crate) fn url(path: &Path) -> Option<&str> {
    let url = path.to_str()?;
    let (scheme, _) = url.split_once("://")?;
    SCHEMES.contains(&scheme).then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_object_stores_are_recognized() {
        for text in [
            "s3://bucket",
            "gs://bucket/a/b.jpg",
            "abfss://c@account.dfs.core.windows.net/x/",
            "https://host/x.tar",
        ] {
            assert_eq!(url(Path::new(text)), Some(text));
        }
        for text in ["photos", "s3:/bucket", "file:///tmp", "C://photos", "hf:owner/name", "-", ""] {
            assert_eq!(url(Path::new(text)), None, "{text}");
        }
    }
}
