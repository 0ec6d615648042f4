//! Secrets that a server and its clients share.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use subtle::ConstantTimeEq;

/// A secret that whoever asks must show.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// The longest secret in bytes.
    pub const LONGEST: usize = 4096;

    /// The token that a file or variable holds; white space around it does not count.
    ///
    /// # Errors
    /// If it is empty or too long, or holds characters that a header cannot have.
    pub fn new(text: &str) -> Result<Self> {
        let token = text.trim();
        ensure!(!token.is_empty(), "the token is empty");
        let (length, longest) = (token.len(), Self::LONGEST);
        ensure!(length <= longest, "the token has {length} bytes: give one of {longest} at most");
        ensure!(
            token.bytes().all(|byte| byte.is_ascii_graphic()),
            "the token holds characters other than letters, digits, and signs of ASCII"
        );
        Ok(Self(token.to_owned()))
    }

    /// The token in the file that `--token-file` names.
    ///
    /// # Errors
    /// If the file cannot be read, or holds no token.
    pub fn read(path: &Path) -> Result<Self> {
        let named = || format!("--token-file {}", path.display());
        let text = std::fs::read_to_string(path).with_context(named)?;
        Self::new(&text).with_context(named)
    }

    /// Whether it is what somebody has shown, in a time that does not tell how much of it is right.
    pub fn is(&self, shown: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(shown).into()
    }

    /// The secret itself.
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(...)")
    }
}
