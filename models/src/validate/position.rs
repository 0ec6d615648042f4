//! The rules of positions.

use super::{Checked, fail, refuse};
use crate::{ModelConfig, Position, PositionPlace, RotaryCoordinates};

impl ModelConfig {
    /// Checks that the encoding of positions suits the rest.
    pub(super) fn check_position(&self) -> Checked {
        let (key, dim, unit): (_, Option<usize>, usize) = match self.position {
            Position::None
            | Position::Learned
            | Position::Rotary
            | Position::Conditional
            | Position::CoordinateMlp => ("", None, 1),
            Position::Sinusoidal => ("`embed_dim`", Some(self.embed_dim), 2),
            Position::Sinusoidal2d => ("`embed_dim`", Some(self.embed_dim), 4),
        };
        if let Some(dim) = dim.filter(|dim| !dim.is_multiple_of(unit)) {
            return fail(format!(
                "this `position` pairs sines with cosines: {key}, {dim}, must be divisible by {unit}"
            ));
        }
        self.check_rotary()?;
        let added = match self.position {
            Position::None | Position::Rotary | Position::Conditional => false,
            Position::Learned | Position::Sinusoidal | Position::Sinusoidal2d | Position::CoordinateMlp => {
                true
            }
        };
        let in_blocks = self.position_place != PositionPlace::Tokens;
        refuse(
            in_blocks && !added,
            "`position_place` is of a `position` with vectors: learned, sinusoidal, sinusoidal_2d or coordinate_mlp",
        )?;
        refuse(
            self.position_place == PositionPlace::FirstQueryKey && self.depth.sum() == 1,
            "`position_place = \"first_query_key\"` leaves out all blocks but the first, and `depth` is a single one: \
             use `query_key`",
        )?;
        let global = self.mixers.iter().all(|mixer| mixer.takes_positions());
        refuse(
            (self.rotary_options().is_some() || in_blocks) && !global,
            "rotary positions and a `position_place` within blocks need `mixers` that are all global or neighborhood",
        )
    }

    fn check_rotary(&self) -> Checked {
        let Some(options) = self.rotary_options() else { return Ok(()) };
        refuse(
            self.position == Position::None,
            "`rotary` without other positions is `position = \"rotary\"`: write that",
        )?;
        for stage in 0..self.num_stages() {
            let head = self.stage_dim(stage) / self.num_heads[stage];
            if !head.is_multiple_of(4) {
                return fail(format!(
                    "rotary positions pair sines with cosines: the width of a head (`embed_dim` by `num_heads`), {head}, must be \
                     divisible by 4"
                ));
            }
        }
        if !(options.base > 1.0 && options.base <= 1e9) {
            return fail(format!("`rotary.base` is {}: it must be above 1 and at most 1e9", options.base));
        }
        let Some(grid) = options.grid else { return Ok(()) };
        refuse(grid.contains(&0), "`rotary.grid` needs a number of rows and one of columns, both above 0")?;
        refuse(
            options.coordinates != RotaryCoordinates::Index,
            "`rotary.grid` scales rows and columns, and `rotary.coordinates = \"centered\"` suits every grid: leave one of them out",
        )
    }
}
