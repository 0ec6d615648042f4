//! The part of a pretrained model whose parameters stay fixed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The part of a pretrained model whose parameters stay fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Freeze {
    /// All parameters except the head's: a linear probe of fixed features.
    Backbone,
    /// The tokenizer, the positions, and this many blocks, counted from the input.
    Blocks(usize),
}

impl FromStr for Freeze {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "backbone" => Ok(Self::Backbone),
            number => number
                .parse()
                .map(Self::Blocks)
                .map_err(|_| "write backbone, or the number of blocks to freeze".to_owned()),
        }
    }
}

impl fmt::Display for Freeze {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backbone => f.write_str("everything but the head is frozen"),
            Self::Blocks(count) => write!(f, "the tokenizer and the first {count} blocks are frozen"),
        }
    }
}
