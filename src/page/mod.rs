//! The frame of the HTML pages that the program writes, which need neither a network nor a script.

use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The style of all pages: colors, in light and dark, and text.
pub(crate) const BASE_STYLE: &str = include_str!("base.css");

/// A page of `sections`, with a style of its own after [`BASE_STYLE`].
pub(crate) fn page(title: &str, style: &str, sections: Markup) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(BASE_STYLE)) (PreEscaped(style)) }
            }
            body {
                main { (sections) }
                footer { "Written by vitrine " (env!("CARGO_PKG_VERSION")) }
            }
        }
    };
    without_control_characters(&page.into_string())
}

/// The page with the replacement character in place of every control character that HTML does not allow.
fn without_control_characters(page: &str) -> String {
    let is_refused = |character: char| character.is_control() && !"\n\r\t".contains(character);
    page.replace(is_refused, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(without_control_characters("a\0b\u{1b}c\nd"), "a\u{fffd}b\u{fffd}c\nd");
    }
}
