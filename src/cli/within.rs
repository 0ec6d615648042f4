//! A value parser for clap that accepts only numbers within bounds.

use std::fmt;
use std::str::FromStr;

use crate::bounds::Bounds;

/// Parses a number within the bounds. The error message states them.
pub(super) fn within<T>(
    bounds: Bounds<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: PartialOrd + Copy + FromStr + fmt::Display + Send + Sync + 'static,
{
    move |text| bounds.read(text)
}
