//! Names of repositories, and checks that names from outside are safe in URLs and paths.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;

use crate::usage::UsageError;

/// A repository at a revision, written `hf:OWNER/NAME[@revision]` by users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// The user or organization that owns the repository.
    pub(super) owner: String,
    /// The name of the repository, without its owner.
    pub(super) name: String,
    /// A branch, tag, or commit, or a reference such as `refs/pr/1`.
    pub(super) revision: String,
}

impl Repository {
    /// The name of the repository, without its owner.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same repository at a commit.
    pub(super) fn at(&self, commit: &str) -> Self {
        Self { revision: commit.to_owned(), ..self.clone() }
    }
}

impl FromStr for Repository {
    type Err = anyhow::Error;

    /// Parses `hf:OWNER/NAME[@revision]`; the `hf:` may be missing.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |problem: &str| {
            UsageError::new(format!(
                "'{}' is not a repository: {problem}; write hf:OWNER/NAME or hf:OWNER/NAME@revision",
                text.escape_debug()
            ))
        };
        let path = text.strip_prefix("hf:").unwrap_or(text);
        let (path, revision) = path.split_once('@').unwrap_or((path, "main"));
        let (owner, name) = path.split_once('/').ok_or_else(|| wrong("the owner is missing"))?;
        // The cache's folder names have `--` between owner and name.
        if [owner, name].into_iter().any(|part| !is_plain(part) || part.contains("--")) {
            return Err(wrong(
                "an owner or a name has only letters, digits, '.', '_' and '-', and no '..' or '--'",
            )
            .into());
        }
        if !revision.split('/').all(is_plain) {
            return Err(wrong("the revision is not a branch, tag, or commit").into());
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

/// Whether a name from outside is safe as a file name: a single path component, not hidden, of letters, digits, `.`,
/// `_`, and `-`.
pub(super) fn is_plain(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=200).contains(&name.len())
        && name.bytes().all(allowed)
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
}

/// Whether a text consists of exactly `digits` hexadecimal digits.
pub(super) fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
