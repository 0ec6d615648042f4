//! The option `--max-file-size`, and the parser for sizes such as `300M` or `2G`.

use clap::Args;
use vitrine_datasets::DecodeLimits;

/// The largest value of the option, in bytes.
const LARGEST: u64 = 1 << 40;

/// The size above which image files are not read.
#[derive(Args, Clone)]
pub(super) struct FileSizeArgs {
    /// Largest image file to read, such as 300M or 2G; larger files count as unreadable [default: 256M].
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(super) max_file_size: Option<u64>,
}

impl FileSizeArgs {
    /// The limits for decoding, with the size of the option if it is given.
    pub(super) fn limits(&self) -> DecodeLimits {
        DecodeLimits::default().with_max_file_bytes(self.max_file_size)
    }
}

/// A value parser for a number of bytes, with K, M, or G for powers of 1024.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let units = [("G", 30), ("M", 20), ("K", 10), ("", 0)];
    let upper = text.to_ascii_uppercase();
    let number = upper.trim_end_matches('B').trim_end_matches('I');
    let (digits, shift) = units
        .iter()
        .find_map(|(unit, shift)| Some((number.strip_suffix(unit)?.trim_end(), *shift)))
        .unwrap_or((number, 0));
    let bytes = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(1 << shift));
    bytes
        .filter(|bytes| (1..=LARGEST).contains(bytes))
        .ok_or_else(|| "it must be a size from 1 byte to 1024G, such as 300M or 2G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, expected) in
            [("1", 1), ("2k", 2048), ("300M", 300 << 20), ("2GiB", 2 << 30), ("5 MB", 5 << 20), ("7B", 7)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "0", "-1", "M", "1T", "1.5G", "99999999999999G", "many"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
