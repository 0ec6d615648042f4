//! The account of an import: which keys of the weights were used, which were not and why, and what was assumed.

use std::path::PathBuf;

use anyhow::Result;
use rayon::prelude::*;
use vitrine_models::Pool;
use vitrine_models::weights::{self, Layout, NamedTensor, Reading};

use super::files::SourceFiles;
use crate::weights_file::StoredTensor;

/// What became of every key, and where the rest of the model's description comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// The library whose tensor names the file has.
    pub layout: Layout,
    /// The files of weights.
    pub files: Vec<PathBuf>,
    /// Number of keys that became parameters of the model.
    pub used: usize,
    /// Keys that no forward pass uses, each with the reason.
    pub unused: Vec<(String, &'static str)>,
    /// Sources of the facts that are not in the weights, such as a configuration file, one per line.
    pub notes: Vec<String>,
    /// Assumptions that may change the logits, one per line, each with the option that replaces the assumption.
    pub warnings: Vec<String>,
}

/// Number of keys that are listed for each reason.
const KEYS_PER_REASON: usize = 3;

impl Account {
    /// Reads all tensors that a model computes with. Returns the account, these tensors under timm's names, and the
    /// stored tensors that were not read because no model needs them.
    ///
    /// # Errors
    /// If a tensor cannot be read.
    pub(super) fn open(
        layout: Layout,
        files: SourceFiles,
        stored: Vec<StoredTensor>,
        notes: Vec<String>,
    ) -> Result<(Self, Vec<NamedTensor>, Vec<StoredTensor>)> {
        let (unneeded, needed): (Vec<_>, Vec<_>) =
            stored.into_iter().partition(|tensor| weights::unused(&tensor.name).is_some());
        let tensors = needed.par_iter().map(StoredTensor::read).collect::<Result<Vec<_>>>()?;
        let unused = unneeded
            .iter()
            .filter_map(|tensor| Some((tensor.name.clone(), weights::unused(&tensor.name)?)))
            .collect();
        let files = files.weights;
        let account = Self { layout, files, used: tensors.len(), unused, notes, warnings: Vec::new() };
        Ok((account, layout.to_timm(tensors), unneeded))
    }

    /// Removes the tensors that a model of this reading does not compute with, and counts them as unused: those of a
    /// head if it has none, and those of attention pooling if its head reads something else.
    pub(super) fn set_aside(&mut self, tensors: Vec<NamedTensor>, reading: &Reading) -> Vec<NamedTensor> {
        let reason = |name: &str| {
            if !reading.has_head && weights::is_head(name) {
                Some("a head that cannot be used here")
            } else if reading.config.pool != Pool::Attention && name.starts_with("attn_pool.") {
                Some("a pooling that the classifier does not read")
            } else {
                None
            }
        };
        let (aside, rest): (Vec<_>, Vec<_>) =
            tensors.into_iter().partition(|tensor| reason(&tensor.name).is_some());
        self.used -= aside.len().min(self.used);
        let named = |tensor: NamedTensor| Some((reason(&tensor.name)?, tensor.name));
        self.unused.extend(aside.into_iter().filter_map(named).map(|(reason, name)| (name, reason)));
        rest
    }

    /// The account as lines of text for the user.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("layout: {}", self.layout.name())];
        lines.extend(self.notes.iter().cloned());
        lines.extend(self.warnings.iter().map(|warning| format!("warning: {warning}")));
        lines.push(format!("tensors: {} used, {} not needed", self.used, self.unused.len()));
        let mut reasons: Vec<&str> = self.unused.iter().map(|(_, reason)| *reason).collect();
        reasons.sort_unstable();
        reasons.dedup();
        for reason in reasons {
            let keys: Vec<&str> =
                self.unused.iter().filter(|(_, why)| *why == reason).map(|(key, _)| key.as_str()).collect();
            let shown = keys.iter().take(KEYS_PER_REASON).copied().collect::<Vec<_>>().join(", ");
            let more = match keys.len().saturating_sub(KEYS_PER_REASON) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            lines.push(format!("not needed ({reason}): {shown}{more}"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_keys_are_grouped_by_reason() {
        let unused = ["a", "b", "c", "d"].map(|key| (key.to_owned(), "a table"));
        let account = Account {
            layout: Layout::Timm,
            files: Vec::new(),
            used: 7,
            unused: [unused.to_vec(), vec![("e".to_owned(), "a count")]].concat(),
            notes: vec!["heads: 3".to_owned()],
            warnings: vec!["a guess".to_owned()],
        };
        assert_eq!(
            account.lines(),
            [
                "layout: timm",
                "heads: 3",
                "warning: a guess",
                "tensors: 7 used, 5 not needed",
                "not needed (a count): e",
                "not needed (a table): a, b, c and 1 more",
            ]
        );
    }
}
