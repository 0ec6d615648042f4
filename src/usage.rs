//! The error for wrong usage, whose exit status differs from that of other errors, and suggestions for mistyped names.

use std::fmt;

/// An option or argument that has an invalid value or no effect. The program ends with exit status 2.
///
/// Commands return this error for usage that clap cannot check, because checking needs the data or a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError(String);

impl UsageError {
    /// An error with a message, which should name the option, its value, and what to do instead.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Whether an error, or one of its causes, is a `UsageError`.
    pub fn is_cause_of(error: &anyhow::Error) -> bool {
        error.chain().any(|cause| cause.is::<Self>())
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// Returns a [`UsageError`] from the function, as `bail!` returns any other.
macro_rules! usage {
    ($($message:tt)*) => {
        return Err($crate::usage::UsageError::new(format!($($message)*)).into())
    };
}
pub(crate) use usage;

/// The text `; did you mean NAME?` if one of `names` is similar to `typed`, or else an empty text.
pub fn did_you_mean<'a>(typed: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    /// Jaro-Winkler similarity above which a name is suggested. clap uses 0.7 for options; names here are longer.
    const CLOSE: f64 = 0.8;
    let typed = typed.to_ascii_lowercase();
    let best = names
        .into_iter()
        .map(|name| (strsim::jaro_winkler(&typed, &name.to_ascii_lowercase()), name))
        .filter(|(similarity, _)| *similarity > CLOSE)
        .min_by(|a, b| b.0.total_cmp(&a.0));
    best.map_or_else(String::new, |(_, name)| format!("; did you mean {name}?"))
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, Result};

    use super::*;

    #[test]
    fn wrong_usage_is_recognized_below_added_context() {
        let wrong = || -> Result<()> { usage!("--epochs {}: too few", 0) };
        let error = wrong().context("the plan").unwrap_err();
        assert!(UsageError::is_cause_of(&error));
        assert_eq!(format!("{error:#}"), "the plan: --epochs 0: too few");
        assert!(!UsageError::is_cause_of(&anyhow::anyhow!("the disk is full")));
    }

    #[test]
    fn the_most_similar_name_is_suggested() {
        let names = ["vit_tiny_patch16_224", "vit_small_patch16_224", "swin_tiny_patch4_window7_224"];
        for (typed, name) in [
            ("vit_tiny_patch16", "vit_tiny_patch16_224"),
            ("ViT_small_patch16_244", "vit_small_patch16_224"),
            ("swin_tiny", "swin_tiny_patch4_window7_224"),
        ] {
            assert_eq!(did_you_mean(typed, names), format!("; did you mean {name}?"));
        }
        assert_eq!(did_you_mean("resnet50", names), "");
    }
}
