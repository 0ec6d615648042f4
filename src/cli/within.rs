//! A parser for clap that accepts the values within given bounds.

use std::fmt;
use std::str::FromStr;

use crate::bounds::Bounds;

/// Parses a value within the bounds. The message of an error states them.
pub(super) fn within<T>(
    bounds: Bounds<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: PartialOrd + Copy + FromStr + fmt::Display + Send + Sync + 'static,
{
    move |text| bounds.read(text)
}
