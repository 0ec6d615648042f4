//! Values in JSON and TOML that serde does not write or read back by itself.

use serde::{Deserialize, Deserializer};

/// Reads a number, with `null` as NaN, since `serde_json` writes NaN as `null`.
pub(crate) fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// The same for a number that may be absent.
pub(crate) fn null_is_some_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    null_is_nan(deserializer).map(Some)
}

/// Paths as the text of [`vitrine_datasets::shown`], from which all of them can be read back.
pub(crate) mod shown_path {
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serializer};
    use vitrine_datasets::{path_of_shown, shown};

    pub(crate) fn serialize<S: Serializer>(path: impl AsRef<Path>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&shown(path.as_ref()))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        String::deserialize(deserializer).map(|text| path_of_shown(&text))
    }
}

/// A [`shown_path`] that may be absent.
pub(crate) mod shown_path_option {
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serializer};
    use vitrine_datasets::path_of_shown;

    pub(crate) fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        match path {
            Some(path) => super::shown_path::serialize(path, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.map(|text| path_of_shown(&text)))
    }
}
