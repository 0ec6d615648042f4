//! Whether the environment lets products run on the matrix unit of the CPU.

use std::ffi::{OsStr, OsString};

/// `VITRINE_MATRIX_UNIT` has a value without a meaning.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("VITRINE_MATRIX_UNIT is {0:?}: set it to off to compute without the matrix unit, or unset it")]
pub struct UnknownValue(OsString);

/// Whether `VITRINE_MATRIX_UNIT` allows the matrix unit of the CPU (AMX), where there is one: not if it is `off`. Operations take an unknown
/// value for `off`; programs should ask here first and say what is wrong.
///
/// # Errors
///
/// If the variable is set to something else.
pub fn wanted() -> Result<bool, UnknownValue> {
    parse(std::env::var_os("VITRINE_MATRIX_UNIT").as_deref())
}

fn parse(value: Option<&OsStr>) -> Result<bool, UnknownValue> {
    match value {
        None => Ok(true),
        Some(value) if value == "off" => Ok(false),
        Some(value) => Err(UnknownValue(value.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_taken_unless_the_variable_says_off_and_other_values_are_errors() {
        assert_eq!(parse(None), Ok(true));
        assert_eq!(parse(Some(OsStr::new("off"))), Ok(false));
        for value in ["", "0", "OFF", "on", "of"] {
            let error = parse(Some(OsStr::new(value))).expect_err(value);
            assert!(error.to_string().contains(&format!("VITRINE_MATRIX_UNIT is {value:?}")), "{error}");
        }
    }
}
