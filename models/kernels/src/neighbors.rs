//! The patches around each patch of a grid.

use std::ops::Range;

/// The tokens that each patch of a grid attends to (Hassani et al., arXiv:2204.07143, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighborhood {
    /// Rows and columns of the patches.
    pub grid: [usize; 2],
    /// The number of tokens before the patches, which every patch attends to.
    pub prefix: usize,
    /// The patches at most this many rows and columns away belong to the neighborhood.
    pub radius: usize,
    /// What happens at the border of the grid.
    pub border: Border,
}

/// A neighborhood at the border of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    /// The part outside of the grid is missing.
    Cut,
    /// The neighborhood is moved into the grid, so that it has as many patches as any other, `2 * radius + 1` rows and
    /// columns, or all of a smaller grid.
    Moved,
}

impl Neighborhood {
    /// The rows (`axis` 0) or columns (1) that a patch in row or column `index` attends to.
    ///
    /// # Examples
    ///
    /// ```
    /// use vitrine_kernels::{Border, Neighborhood};
    ///
    /// let cut = Neighborhood { grid: [1, 6], prefix: 0, radius: 1, border: Border::Cut };
    /// assert_eq!((cut.span(1, 0), cut.span(1, 3)), (0..2, 2..5));
    /// let moved = Neighborhood { border: Border::Moved, ..cut };
    /// assert_eq!((moved.span(1, 0), moved.span(1, 5)), (0..3, 3..6));
    /// ```
    pub fn span(&self, axis: usize, index: usize) -> Range<usize> {
        let (side, radius) = (self.grid[axis], self.radius);
        match self.border {
            Border::Cut => index.saturating_sub(radius)..(index + radius + 1).min(side),
            Border::Moved => {
                let length = (2 * radius + 1).min(side);
                let start = index.saturating_sub(radius).min(side - length);
                start..start + length
            }
        }
    }

    /// The number of pairs of a token and one that it attends to. Prefix tokens attend to all tokens.
    pub fn pairs(&self) -> usize {
        let [rows, columns] =
            [0, 1].map(|axis| (0..self.grid[axis]).map(|i| self.span(axis, i).len()).sum::<usize>());
        rows * columns + self.prefix * (self.patches() + self.tokens())
    }

    /// The number of tokens: the prefix and the patches.
    pub fn tokens(&self) -> usize {
        self.prefix + self.patches()
    }

    /// The number of patches.
    pub fn patches(&self) -> usize {
        self.grid[0] * self.grid[1]
    }

    /// The smallest and the largest distance along an axis from a patch to one that it attends to.
    pub(crate) fn reach(&self, axis: usize) -> [isize; 2] {
        let distances = (0..self.grid[axis]).map(|index| {
            let Range { start, end } = self.span(axis, index);
            [start as isize - index as isize, end as isize - 1 - index as isize]
        });
        distances.fold([0, 0], |[low, high], [first, last]| [low.min(first), high.max(last)])
    }
}
