//! What became of another library's weights.

use std::path::PathBuf;

use vitrine_models::weights::Layout;

/// What became of every key, and what was found where.
#[derive(Clone, Debug, PartialEq)]
pub struct Account {
    /// Whose names the keys are.
    pub layout: Layout,
    /// The files of weights.
    pub files: Vec<PathBuf>,
    /// Keys that the model is made of.
    pub used: usize,
    /// Keys that no model computes with, and why.
    pub unused: Vec<(String, &'static str)>,
    /// Where facts come from that are not in the weights, one per line.
    pub notes: Vec<String>,
    /// Guesses that change the logits, one per line, with the way to state what was guessed.
    pub warnings: Vec<String>,
}

/// Keys that are shown for a reason.
const SHOWN: usize = 3;

impl Account {
    /// What a user is told, line by line.
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
            let shown = keys.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
            let more = match keys.len().saturating_sub(SHOWN) {
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
    fn keys_that_are_not_needed_are_told_by_their_reason() {
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
