//! TOML that users write: what is wrong with it in one line, with the number of the line and the key.

use anyhow::{Error, Result};
use serde::de::DeserializeOwned;

/// Parses a TOML text.
///
/// # Errors
/// If it is not TOML, or has a key or a value that `T` cannot have; the message is that of [`in_one_line`].
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| in_one_line(text, &error))
}

/// An error of the parser in one line, without the frame of code around it: the number of the line of `text`, the key, and
/// what is wrong.
pub(crate) fn in_one_line(text: &str, error: &toml::de::Error) -> Error {
    let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
        // Of a table that was not parsed from a text; the key is in another line.
        return Error::msg(error.to_string().trim_end().replace('\n', " "));
    };
    let (number, message) = (1 + before.matches('\n').count(), in_plain_words(error.message()));
    match key_of_value(before) {
        // The message names the key that is unknown.
        Some(key) if !message.starts_with("unknown field") => {
            Error::msg(format!("line {number}: `{key}`: {message}"))
        }
        Some(_) | None => Error::msg(format!("line {number}: {message}")),
    }
}

/// The key of the value that follows the text `before`, if it is in the same line.
fn key_of_value(before: &str) -> Option<&str> {
    let line = before.rsplit('\n').next()?;
    let (keys, _) = line.rsplit_once('=')?;
    keys.rsplit(['{', ',']).next().map(str::trim)
}

/// A message of the parser with words in place of the types of the program.
fn in_plain_words(message: &str) -> String {
    const WHOLE: &str = "a whole number of at least 0";
    let types = [("usize", WHOLE), ("u64", WHOLE), ("u32", WHOLE), ("f64", "a number"), ("f32", "a number")];
    let one_line = message.trim_end().replace('\n', " ");
    types.into_iter().fold(one_line, |message, (name, words)| {
        message.replace(&format!("expected {name}"), &format!("expected {words}"))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use vitrine_models::ModelConfig;

    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn an_error_is_one_line_with_its_number_and_the_key() {
        for (text, expected) in [
            (
                "warmup = 0.1\nepochs = \"many\"",
                "line 2: `epochs`: invalid type: string \"many\", expected a whole number",
            ),
            ("epochs = -1", "line 1: `epochs`: invalid value: integer `-1`, expected a whole number"),
            ("warmup = true", "line 1: `warmup`: invalid type: boolean `true`, expected a number"),
            (
                "\noptimizer = \"sgd\"",
                "line 2: `optimizer`: unknown variant `sgd`, expected `adamw` or `muon`",
            ),
            ("betas = [0.9, \"x\"]", "line 1: `betas`: invalid type: string \"x\""),
            ("progressive_learning = { until = \"x\" }", "line 1: `until`: invalid type: string \"x\""),
            ("progressive_learning = { until = 0.5, scal = 1.0 }", "line 1: unknown field `scal`"),
            ("warmup = 0.1\nepoch = 3", "line 2: unknown field `epoch`, expected one of `epochs`"),
            ("epochs =", "line 1: `epochs`: "),
            ("epochs", "line 1: "),
        ] {
            let error = parse::<Recipe>(text).unwrap_err().to_string();
            assert!(error.starts_with(expected) && !error.contains('\n'), "{text}: {error}");
        }
        let table: toml::Table = toml::from_str("image_size = 8\ndepth = \"x\"").unwrap();
        let error = table.try_into::<ModelConfig>().unwrap_err();
        let error = in_one_line("", &error).to_string();
        assert!(!error.contains('\n') && error.contains("`depth`"), "{error}");
    }
}
