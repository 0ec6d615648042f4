//! Window sizes from tables of relative positions, which some libraries store next to the weights.
//!
//! The tables follow from the window sizes, so the model does not need them, but their shapes tell the sizes.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use vitrine_models::PerStage;
use vitrine_models::attention::log_offsets;
use vitrine_models::weights::Facts;

use crate::weights_file::StoredTensor;

/// The sides of the windows that stored tables are for, in tokens; `None` without tables.
#[derive(Default)]
pub(super) struct StoredWindows {
    /// The largest over all stages.
    largest: Option<usize>,
    /// The last stage's, which may be smaller because its grid is.
    last: Option<usize>,
    /// Of each stage with a table of offsets, the side of the windows and the side before they were enlarged.
    offsets: BTreeMap<usize, [usize; 2]>,
}

impl StoredWindows {
    /// Reads the window sizes off a file's tables; other tensors are ignored.
    ///
    /// # Errors
    /// If a table holds other values than those of square windows, or those of a stage were enlarged from different ones.
    pub(super) fn of_tables(tables: &[StoredTensor]) -> Result<Self> {
        let mut sides: Vec<(usize, usize)> = Vec::new();
        let mut offsets: BTreeMap<usize, [usize; 2]> = BTreeMap::new();
        for table in tables {
            let Some(side) = window_side(table) else { continue };
            let stage = table.name.split('.').find_map(|part| part.parse().ok()).unwrap_or(0);
            sides.push((stage, side));
            if table.name.ends_with("relative_coords_table") {
                let of_table = [side, pretrained_side(table, side)?];
                if offsets.insert(stage, of_table).is_some_and(|other| other != of_table) {
                    bail!("`{}` is for other windows than that of another block", table.name);
                }
            }
        }
        let last = sides.iter().max_by_key(|(stage, _)| *stage).map(|(_, side)| *side);
        let largest = sides.iter().map(|(_, side)| *side).max();
        Ok(Self { largest, last, offsets })
    }

    /// The sides before the windows were enlarged, per stage, as facts state them: zeros if they were not. `None` without tables of
    /// offsets.
    fn pretrained(&self) -> Option<PerStage> {
        let is_enlarged = self.known().any(|(_, [side, before])| side != before);
        let of_stage = |[_, before]: &[usize; 2]| if is_enlarged { *before } else { 0 };
        (!self.offsets.is_empty()).then(|| PerStage(self.offsets.values().map(of_stage).collect()))
    }

    /// The stages whose tables tell the side: that of a window of one token is the same for any.
    fn known(&self) -> impl Iterator<Item = (usize, [usize; 2])> {
        self.offsets.iter().map(|(stage, sides)| (*stage, *sides)).filter(|(_, [side, _])| *side > 1)
    }

    /// Whether the sides that a configuration states agree with the tables.
    fn agree(&self, stated: &PerStage) -> bool {
        let is_enlarged = stated.0.iter().any(|side| *side > 0);
        self.known().all(|(stage, [side, before])| {
            stated
                .0
                .get(stage)
                .is_some_and(|stated| if is_enlarged { *stated == before } else { side == before })
        })
    }

    /// Adds the window sizes to `stated` where it has none.
    ///
    /// # Errors
    /// If the stated windows are smaller than a table's, or were enlarged from others.
    pub(super) fn complete(&self, stated: &Facts) -> Result<Facts> {
        if let (Some(stated), Some(table)) = (stated.window, self.largest)
            && stated < table
        {
            bail!(
                "the configuration states windows of {stated}, but the stored tables are for windows of {table}"
            );
        }
        if let Some(stated) = stated.pretrained_windows.as_ref().filter(|stated| !self.agree(stated)) {
            bail!(
                "the configuration states windows of {stated} before they were enlarged (0: they were not), but the stored tables of \
                 offsets are for {}",
                self.pretrained().unwrap_or_else(|| stated.clone())
            );
        }
        Ok(Facts {
            window: stated.window.or(self.largest),
            last_window: self.last,
            pretrained_windows: stated.pretrained_windows.clone().or_else(|| self.pretrained()),
            ..stated.clone()
        })
    }
}

/// The side of the windows by which the offsets of a Swin v2 are scaled: those before they were enlarged. The largest offset tells
/// it, and the others must agree.
fn pretrained_side(table: &StoredTensor, side: usize) -> Result<usize> {
    let stored = table.read()?.values;
    let largest = stored.iter().copied().fold(0.0, f32::max);
    let scaled = (3.0 * f64::from(largest)).exp2() - 1.0;
    // In a window of a single token, any side gives the same table.
    let learned_in = if scaled > 0.0 {
        (8.0 * (side as f64 - 1.0) / scaled + 1.0).round().clamp(2.0, 1024.0)
    } else {
        2.0
    };
    let learned_in = learned_in as usize;
    let expected = log_offsets([side; 2], [learned_in; 2]);
    let are_equal =
        stored.len() == expected.len() && stored.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-3);
    if !are_equal {
        bail!("`{}` does not hold the offsets of windows of {side}", table.name);
    }
    Ok(learned_in)
}

/// The side of the windows that a table of relative positions is for; `None` for other tensors.
fn window_side(tensor: &StoredTensor) -> Option<usize> {
    let side = match (tensor.name.rsplit('.').next()?, tensor.shape.as_slice()) {
        ("relative_coords_table", &[1, side, _, 2]) => side.div_ceil(2),
        ("relative_position_index", &[area, _]) => area.isqrt(),
        ("relative_position_index", &[area_squared]) => area_squared.isqrt().isqrt(),
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

    /// The windows of a file with tables of indices (name and shape) and of offsets (name, window side, values).
    fn windows_of(
        indices: &[(&str, &[usize])],
        offsets: &[(&str, usize, Vec<f32>)],
    ) -> Result<StoredWindows> {
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
        StoredWindows::of_tables(&weights_file::open(&path).unwrap().tensors)
    }

    #[test]
    fn a_tables_shape_tells_the_window_size() {
        for (indices, largest, last) in [
            (&[("layers.0.blocks.0.attn.relative_position_index", &[16, 16][..])][..], Some(4), Some(4)),
            // torchvision flattens its tables.
            (&[("features.1.0.attn.relative_position_index", &[256])], Some(4), Some(4)),
            (&[("layers.0.blocks.1.attn_mask", &[4, 16, 16])], None, None),
            // The last stage's windows are limited by its grid.
            (
                &[
                    ("layers.0.blocks.0.attn.relative_position_index", &[49, 49]),
                    ("layers.1.blocks.0.attn.relative_position_index", &[16, 16]),
                ],
                Some(7),
                Some(4),
            ),
        ] {
            let windows = windows_of(indices, &[]).unwrap();
            assert_eq!((windows.largest, windows.last), (largest, last), "{indices:?}");
        }
    }

    #[test]
    fn scaled_offsets_tell_the_windows_before_they_were_enlarged() {
        let name = "layers.0.blocks.0.attn.relative_coords_table";
        for (side, before, found) in [(4, 4, 0), (16, 12, 12), (24, 12, 12), (8, 6, 6), (6, 8, 8)] {
            let windows = windows_of(&[], &[(name, side, log_offsets([side; 2], [before; 2]))]).unwrap();
            assert_eq!((windows.largest, windows.last), (Some(side), Some(side)));
            let facts = windows.complete(&Facts::default()).unwrap();
            assert_eq!(facts.pretrained_windows, Some(found.into()), "{side}");
            let stated = |sides: usize| Facts { pretrained_windows: Some(sides.into()), ..Facts::default() };
            assert!(windows.complete(&stated(before)).is_ok(), "{side}");
            let error = windows.complete(&stated(7)).unwrap_err().to_string();
            assert!(error.contains('7') && error.contains(&found.to_string()), "{error}");
            assert_eq!(windows.complete(&stated(0)).is_ok(), side == before, "{side}");
        }
        // A window of one token does not tell.
        let last = "layers.1.blocks.0.attn.relative_coords_table";
        let two = |side, before: usize| {
            windows_of(&[], &[(name, side, log_offsets([side; 2], [before; 2])), (last, 1, vec![0.0; 2])])
                .unwrap()
        };
        assert_eq!(two(4, 4).pretrained(), Some([0, 0].into()));
        assert!(two(8, 4).agree(&[4, 9].into()) && !two(8, 4).agree(&[8, 9].into()));
        let scaled = log_offsets([4; 2], [4; 2]).iter().map(|offset| offset * 1.2).collect();
        let error = windows_of(&[], &[(name, 4, scaled)]).err().unwrap().to_string();
        assert!(error.contains(name), "{error}");
        let second = "layers.0.blocks.1.attn.relative_coords_table";
        let two = [(name, 4, log_offsets([4; 2], [4; 2])), (second, 4, log_offsets([4; 2], [3; 2]))];
        assert!(windows_of(&[], &two).err().unwrap().to_string().contains(second));
    }

    #[test]
    fn tables_complete_the_stated_windows_and_refuse_smaller_ones() {
        let tables = StoredWindows { largest: Some(7), last: Some(4), ..StoredWindows::default() };
        for (stated, window) in [(None, Some(7)), (Some(7), Some(7)), (Some(8), Some(8)), (Some(4), None)] {
            let facts = tables.complete(&Facts { window: stated, ..Facts::default() });
            match window {
                Some(_) => {
                    let facts = facts.unwrap();
                    assert_eq!((facts.window, facts.last_window), (window, Some(4)));
                }
                None => {
                    let error = facts.unwrap_err().to_string();
                    assert!(error.contains('4') && error.contains('7'), "{error}");
                }
            }
        }
        let without_tables = StoredWindows::default();
        let facts = without_tables.complete(&Facts { window: Some(7), ..Facts::default() }).unwrap();
        assert_eq!((facts.window, facts.last_window), (Some(7), None));
    }
}
