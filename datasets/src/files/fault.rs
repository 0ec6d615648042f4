//! The reason why a file or an image cannot be read. Callers can tell a file over the size limit from other reasons.

/// Why a file or an image cannot be read. The message does not name the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The file is larger than the caller's limit.
    #[error("it has {bytes} bytes, more than the limit of {limit} bytes")]
    TooLarge {
        /// Size of the file.
        bytes: u64,
        /// The limit that the caller set.
        limit: u64,
    },
    /// Anything else, as a message.
    #[error("{0}")]
    Other(String),
}

impl From<String> for Fault {
    fn from(message: String) -> Self {
        Self::Other(message)
    }
}
