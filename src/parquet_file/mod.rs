//! Parquet files, row group by row group. Cargo feature `bulk`.

#[cfg(feature = "bulk")]
mod writer;
#[cfg(feature = "bulk")]
pub(crate) use writer::ParquetFile;

#[cfg(not(feature = "bulk"))]
use anyhow::Result;

/// A column of a row group: its values, and for optional values and lists which rows have them (Dremel's levels).
#[cfg_attr(not(feature = "bulk"), allow(dead_code))]
pub(crate) struct Column<'a> {
    pub(crate) values: Values<'a>,
    pub(crate) levels: Option<&'a Levels>,
}

/// The values that are there.
#[cfg_attr(not(feature = "bulk"), allow(dead_code))]
pub(crate) enum Values<'a> {
    Text(&'a [String]),
    Integers(&'a [i32]),
    Floats(&'a [f32]),
    Doubles(&'a [f64]),
}

/// Where the values of a column belong.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Levels {
    /// For each entry, 1 if it has a value, or 0 for a row without one.
    definition: Vec<i16>,
    /// For each entry of lists, 0 if it begins a row, or 1.
    repetition: Vec<i16>,
}

impl Levels {
    /// Adds a row that has a value or not.
    pub(crate) fn add_optional(&mut self, has_value: bool) {
        self.definition.push(i16::from(has_value));
    }

    /// Adds a row with a list of so many values.
    pub(crate) fn add_list(&mut self, length: usize) {
        self.definition.push(i16::from(length > 0));
        self.repetition.push(0);
        for _ in 1..length {
            self.definition.push(1);
            self.repetition.push(1);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.definition.clear();
        self.repetition.clear();
    }
}

/// Stands for files in a program that was built without them.
#[cfg(not(feature = "bulk"))]
pub(crate) struct ParquetFile(());

#[cfg(not(feature = "bulk"))]
impl ParquetFile {
    pub(crate) fn new(_: &str) -> Result<Self> {
        crate::usage::usage!(
            "--format parquet: this binary was built without it; build it with `--features bulk`"
        )
    }

    pub(crate) fn write(&mut self, _: &[Column<'_>]) -> Result<()> {
        Ok(())
    }

    pub(crate) fn take(&mut self) -> Vec<u8> {
        Vec::new()
    }

    pub(crate) fn finish(self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_tell_which_rows_have_values() {
        let mut levels = Levels::default();
        [2, 0, 1, 3].into_iter().for_each(|length| levels.add_list(length));
        assert_eq!(levels.definition, [1, 1, 0, 1, 1, 1, 1]);
        assert_eq!(levels.repetition, [0, 1, 0, 0, 0, 1, 1]);
        levels.clear();
        [true, false].into_iter().for_each(|has_value| levels.add_optional(has_value));
        assert_eq!(levels, Levels { definition: vec![1, 0], repetition: vec![] });
    }
}
