//! A mapping of rows, with its inverse.

use std::sync::Arc;

/// For each row of an output, the row of the input that it copies. Each input row is used at most once, so that the map
/// has an inverse.
#[derive(Clone, Debug)]
pub struct RowMap {
    /// For each output row, the input row, or [`NOWHERE`] for a row of zeros.
    pub(super) sources: Arc<[u32]>,
    /// For each input row, the output row, or [`NOWHERE`] for a row that is left out.
    pub(super) targets: Arc<[u32]>,
}

/// Stands for no row.
pub(super) const NOWHERE: u32 = u32::MAX;

impl RowMap {
    /// A map of an input with `rows` rows. For each output row, `sources` holds the input row, or `None` for a row of
    /// zeros.
    ///
    /// # Panics
    ///
    /// If a source is not a row of the input, or is used twice.
    pub fn new(sources: &[Option<usize>], rows: usize) -> Self {
        let mut targets = vec![NOWHERE; rows];
        for (output, source) in sources.iter().enumerate() {
            if let Some(source) = *source {
                assert!(
                    source < rows && targets[source] == NOWHERE,
                    "row {source} of {rows} is used twice or does not exist"
                );
                targets[source] = output as u32;
            }
        }
        let sources = sources.iter().map(|source| source.map_or(NOWHERE, |source| source as u32)).collect();
        Self { sources, targets: targets.into() }
    }

    /// The number of rows of the output.
    pub fn rows(&self) -> usize {
        self.sources.len()
    }

    /// For each output row, the input row, or `None` for a row of zeros.
    pub fn sources(&self) -> impl Iterator<Item = Option<usize>> {
        self.sources.iter().map(|&source| (source != NOWHERE).then_some(source as usize))
    }

    /// The map that puts the rows back. Rows that this map leaves out become zeros.
    pub fn inverse(&self) -> Self {
        Self { sources: self.targets.clone(), targets: self.sources.clone() }
    }
}
