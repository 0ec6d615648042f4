//! Writing Parquet with the crate of the same name.

use std::sync::Arc;

use anyhow::{Context, Result};
use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, FloatType, Int32Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use super::{Column, Levels, Values};

/// A file that is written in parts.
pub(crate) struct ParquetFile(SerializedFileWriter<Vec<u8>>);

/// The error for what the crate refuses, which only a wrong schema causes.
const NOT_FORMATTED: &str = "the results cannot be written as Parquet";

impl ParquetFile {
    /// A file with columns as a Parquet message describes them, compressed by Snappy.
    ///
    /// # Errors
    /// If the message is not valid.
    pub(crate) fn new(message: &str) -> Result<Self> {
        let schema = Arc::new(parse_message_type(message).context(NOT_FORMATTED)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            // Readers expect this form.
            .set_created_by(concat!("vitrine version ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).context(NOT_FORMATTED).map(Self)
    }

    /// Writes a row group, with all columns in the order of the message.
    ///
    /// # Errors
    /// If they do not fit the message.
    pub(crate) fn write(&mut self, columns: &[Column<'_>]) -> Result<()> {
        let mut group = self.0.next_row_group().context(NOT_FORMATTED)?;
        for column in columns {
            let mut writer = group.next_column().context(NOT_FORMATTED)?.context(NOT_FORMATTED)?;
            column.write(&mut writer).context(NOT_FORMATTED)?;
            writer.close().context(NOT_FORMATTED)?;
        }
        group.close().context(NOT_FORMATTED)?;
        Ok(())
    }

    /// The bytes since the last call.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(self.0.inner_mut())
    }

    /// The last bytes.
    ///
    /// # Errors
    /// If the crate refuses.
    pub(crate) fn finish(self) -> Result<Vec<u8>> {
        self.0.into_inner().context(NOT_FORMATTED)
    }
}

impl Column<'_> {
    fn write(&self, writer: &mut SerializedColumnWriter<'_>) -> parquet::errors::Result<usize> {
        let levels = |levels: fn(&Levels) -> &Vec<i16>| {
            self.levels.map(levels).filter(|levels| !levels.is_empty()).map(Vec::as_slice)
        };
        let (definition, repetition) =
            (levels(|levels| &levels.definition), levels(|levels| &levels.repetition));
        match &self.values {
            Values::Text(values) => {
                let values: Vec<ByteArray> = values.iter().map(|text| text.as_str().into()).collect();
                writer.typed::<ByteArrayType>().write_batch(&values, definition, repetition)
            }
            Values::Integers(values) => {
                writer.typed::<Int32Type>().write_batch(values, definition, repetition)
            }
            Values::Floats(values) => writer.typed::<FloatType>().write_batch(values, definition, repetition),
            Values::Doubles(values) => {
                writer.typed::<DoubleType>().write_batch(values, definition, repetition)
            }
        }
    }
}
