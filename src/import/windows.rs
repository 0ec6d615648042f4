//! Tables of relative positions that some libraries store: they follow from the windows, and tell their sizes.

use anyhow::{Result, bail};
use vitrine_models::attention::log_offsets;

use crate::weights_file::Entry;

/// What stored tables of relative positions tell of windows.
#[derive(Default)]
pub(super) struct Windows {
    /// Of any stage.
    pub(super) largest: Option<usize>,
    /// Of the last stage.
    pub(super) last: Option<usize>,
}

impl Windows {
    /// Reads the tables of a file.
    ///
    /// # Errors
    /// When windows were enlarged after pre-training.
    pub(super) fn of_tables(tables: &[Entry]) -> Result<Self> {
        let mut sides: Vec<(usize, usize)> = Vec::new();
        for table in tables {
            let Some(side) = window_of_table(table) else { continue };
            if table.name.ends_with("relative_coords_table") {
                check_offsets(table, side)?;
            }
            let stage = table.name.split('.').find_map(|part| part.parse().ok()).unwrap_or(0);
            sides.push((stage, side));
        }
        let last = sides.iter().max_by_key(|(stage, _)| *stage).map(|(_, side)| *side);
        Ok(Self { largest: sides.into_iter().map(|(_, side)| side).max(), last })
    }
}

/// Swin v2 whose windows were enlarged after pre-training scales its offsets by the windows of then.
fn check_offsets(table: &Entry, side: usize) -> Result<()> {
    let stored = table.read()?.values;
    let usual = log_offsets([side; 2]);
    let same = stored.len() == usual.len() && stored.iter().zip(&usual).all(|(a, b)| (a - b).abs() < 1e-3);
    if !same {
        bail!(
            "`{}` is not for windows of {side}: windows that were enlarged after pre-training are not supported",
            table.name
        );
    }
    Ok(())
}

/// The side of the windows that a table of relative positions in the file is for.
fn window_of_table(entry: &Entry) -> Option<usize> {
    let side = match (entry.name.rsplit('.').next()?, entry.shape.as_slice()) {
        ("relative_coords_table", &[1, side, _, 2]) => side.div_ceil(2),
        ("relative_position_index", &[area, _]) => area.isqrt(),
        ("relative_position_index", &[square]) => square.isqrt().isqrt(),
        _ => return None,
    };
    (1..=1024).contains(&side).then_some(side)
}
