//! Where libraries compute windows in different ways, and whether a configuration has such windows.

use super::{OpenFact, UnknownArchitecture};
use crate::weights::Layout;
use crate::{Mixer, ModelConfig};

/// Checks that the library whose layout the weights have computes windows as this crate does.
///
/// # Errors
/// If windows do not fill the grids, or are larger than a grid, and that library pads in another way than timm and this
/// crate.
pub fn check_windows(config: &ModelConfig, layout: Layout) -> Result<(), UnknownArchitecture> {
    let size = config.image_size;
    let library = layout.name();
    let error = |message| UnknownArchitecture { message, open: Some(OpenFact::ImageSize) };
    if layout != Layout::Timm && !windows_fill_grids(config) {
        return Err(error(format!(
            "windows do not divide the grids of an image of {size}, where {library} computes other than timm, and we as timm does: \
             choose another image size"
        )));
    }
    if layout.pads_small_grids() && windows_shrink(config) {
        return Err(error(format!(
            "an image of {size} has grids smaller than a window, which {library} pads, and we make the window smaller as timm does: \
             choose a larger image size"
        )));
    }
    Ok(())
}

/// Whether every stage's grid is a whole number of windows, and has an even number of rows and columns if it is merged.
/// For other grids, timm shifts tokens and then pads, and the other libraries pad and then shift.
pub fn windows_fill_grids(config: &ModelConfig) -> bool {
    let Some(Mixer::Window(window) | Mixer::ShiftedWindow(window)) = config.mixers.first() else {
        return true;
    };
    (0..config.num_stages()).all(|stage| {
        let is_last = stage + 1 == config.num_stages();
        config
            .stage_grid(stage)
            .iter()
            .all(|side| side.is_multiple_of((*window).min(*side)) && (is_last || side.is_multiple_of(2)))
    })
}

/// Whether a stage's grid is smaller than its windows. timm and this crate shrink such windows to the grid; torchvision
/// pads the grid.
pub fn windows_shrink(config: &ModelConfig) -> bool {
    let Some(Mixer::Window(window) | Mixer::ShiftedWindow(window)) = config.mixers.first() else {
        return false;
    };
    (0..config.num_stages()).any(|stage| config.stage_grid(stage).iter().any(|side| side < window))
}
