//! The name of a repository, and which names are safe to use in addresses and paths.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, anyhow};

/// A repository at a revision, written `hf:OWNER/NAME[@revision]` by users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// The user or organization that it belongs to.
    pub(super) owner: String,
    /// Its name there.
    pub(super) name: String,
    /// A branch, tag, commit, or a reference such as `refs/pr/1`.
    pub(super) revision: String,
}

impl Repository {
    /// Its name, without the owner.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for Repository {
    type Err = anyhow::Error;

    /// Reads `hf:OWNER/NAME[@revision]`; the `hf:` may be missing.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |problem: &str| {
            anyhow!(
                "'{}' is not a repository: {problem}; write hf:OWNER/NAME or hf:OWNER/NAME@revision",
                text.escape_debug()
            )
        };
        let path = text.strip_prefix("hf:").unwrap_or(text);
        let (path, revision) = path.split_once('@').unwrap_or((path, "main"));
        let (owner, name) = path.split_once('/').ok_or_else(|| wrong("the owner is missing"))?;
        // Two hyphens stand between owner and name in the cache.
        if [owner, name].into_iter().any(|part| !is_plain(part) || part.contains("--")) {
            return Err(wrong(
                "an owner or a name has only letters, digits, '.', '_' and '-', and no '..' or '--'",
            ));
        }
        if !revision.split('/').all(is_plain) {
            return Err(wrong("the revision is not a branch, tag, or commit"));
        }
        Ok(Self { owner: owner.to_owned(), name: name.to_owned(), revision: revision.to_owned() })
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}/{}", self.owner, self.name)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        Ok(())
    }
}

/// Whether a foreign name can be a file of ours: one part, visible, that leads nowhere else.
pub(super) fn is_plain(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=200).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
}

/// Whether it has that many hexadecimal digits, and nothing else.
pub(super) fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
