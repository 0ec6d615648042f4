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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use vitrine_models::weights::{IndexTable, NamedTensor};

    use super::*;
    use crate::weights_file::{self, Precision};

    /// What is told of windows by a file with these tables.
    fn told(indices: &[(&str, &[usize])], offsets: &[(&str, usize, Vec<f32>)]) -> Result<Windows> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let tables: Vec<IndexTable> = indices
            .iter()
            .map(|(name, shape)| IndexTable {
                name: (*name).to_owned(),
                shape: shape.to_vec(),
                values: vec![0; shape.iter().product()],
            })
            .collect();
        let tensors: Vec<NamedTensor> = offsets
            .iter()
            .map(|(name, side, values)| NamedTensor {
                name: (*name).to_owned(),
                shape: vec![1, 2 * side - 1, 2 * side - 1, 2],
                values: values.clone(),
            })
            .collect();
        weights_file::save(&path, &tensors, &tables, Precision::F32, HashMap::new()).unwrap();
        Windows::of_tables(&weights_file::open(&path).unwrap().entries)
    }

    #[test]
    fn the_shape_of_a_table_tells_the_window() {
        type Case<'a> = (&'a [(&'a str, &'a [usize])], Option<usize>, Option<usize>);
        let cases: [Case; 4] = [
            (&[("layers.0.blocks.0.attn.relative_position_index", &[16, 16])], Some(4), Some(4)),
            // torchvision's are flat.
            (&[("features.1.0.attn.relative_position_index", &[256])], Some(4), Some(4)),
            (&[("layers.0.blocks.1.attn_mask", &[4, 16, 16])], None, None),
            // A window is no larger than the last stage's grid.
            (
                &[
                    ("layers.0.blocks.0.attn.relative_position_index", &[49, 49]),
                    ("layers.1.blocks.0.attn.relative_position_index", &[16, 16]),
                ],
                Some(7),
                Some(4),
            ),
        ];
        for (indices, largest, last) in cases {
            let windows = told(indices, &[]).unwrap();
            assert_eq!((windows.largest, windows.last), (largest, last), "{indices:?}");
        }
    }

    #[test]
    fn offsets_of_windows_that_were_enlarged_are_refused_by_name() {
        let name = "layers.0.blocks.0.attn.relative_coords_table";
        let windows = told(&[], &[(name, 4, log_offsets([4; 2]))]).unwrap();
        assert_eq!((windows.largest, windows.last), (Some(4), Some(4)));
        let scaled = log_offsets([4; 2]).iter().map(|offset| offset * 1.2).collect();
        let error = told(&[], &[(name, 4, scaled)]).err().unwrap().to_string();
        assert!(error.contains(name), "{error}");
    }
}
