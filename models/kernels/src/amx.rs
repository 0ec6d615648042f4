//! The environment variable that forbids products on AMX.

use std::ffi::{OsStr, OsString};

/// The name of the variable, and its first name, which still works.
const NAMES: [&str; 2] = ["VITRINE_AMX", "VITRINE_MATRIX_UNIT"];

/// `VITRINE_AMX` is set to an unknown value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value:?}: set it to off to compute without AMX, or unset it")]
pub struct UnknownValue {
    name: &'static str,
    value: OsString,
}

/// Whether products may run on AMX, the matrix instructions of some CPUs: they may unless the environment variable
/// `VITRINE_AMX` is `off`. Operations take any other value of the variable for `off`, too; a program should call this
/// function first and report the error.
///
/// # Errors
///
/// If the variable is set to anything but `off`.
pub fn wanted() -> Result<bool, UnknownValue> {
    let set = NAMES.iter().find_map(|name| Some((*name, std::env::var_os(name)?)));
    set.map_or(Ok(true), |(name, value)| parse(name, &value))
}

fn parse(name: &'static str, value: &OsStr) -> Result<bool, UnknownValue> {
    if value == "off" { Ok(false) } else { Err(UnknownValue { name, value: value.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_is_off_and_other_values_are_errors() {
        assert_eq!(parse(NAMES[0], OsStr::new("off")), Ok(false));
        for value in ["", "0", "OFF", "on", "of"] {
            let error = parse(NAMES[0], OsStr::new(value)).expect_err(value);
            assert!(error.to_string().contains(&format!("VITRINE_AMX is {value:?}")), "{error}");
        }
    }
}
