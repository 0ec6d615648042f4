//! What all parts of the page use: sections, and numbers in few digits.
//!
//! Text is escaped by its type: `maud` writes a string as text and only [`Markup`] as elements.

use maud::{Markup, html};

/// A section of the page with its heading.
pub(super) fn section(title: &str, body: Markup) -> Markup {
    html! {
        section {
            h2 { (title) }
            (body)
        }
    }
}

/// A coordinate or a length in an image, to a tenth of a unit.
pub(super) fn tenth(value: f64) -> String {
    format!("{value:.1}")
}

/// A number in a few digits.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "not a number".to_owned()
    } else if size != 0.0 && !(1e-3..1e5).contains(&size) {
        format!("{value:.2e}")
    } else if size >= 100.0 {
        format!("{value:.1}")
    } else if size >= 10.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_short() {
        let cases =
            [(0.0, "0.000"), (0.12345, "0.123"), (12.345, "12.35"), (1234.5, "1234.5"), (3e-4, "3.00e-4")];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!(number(f64::NAN), "not a number");
    }
}
