//! The frame of the HTML pages that the program writes, which need neither a network nor a script.

mod thumbnail;

use std::borrow::Cow;

use maud::{DOCTYPE, Markup, PreEscaped, html};

pub use thumbnail::Thumbnail;

use crate::text::printable;

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

/// Facts as name and value, in a line.
pub(crate) fn facts_line(facts: &[(&str, String)]) -> Markup {
    html! {
        @for (place, (name, value)) in facts.iter().enumerate() {
            @if place > 0 { " · " }
            (name) " " (printable(value))
        }
    }
}

/// The page with the replacement character in place of every control character that HTML does not allow.
fn without_control_characters(page: &str) -> String {
    let is_refused = |character: char| character.is_control() && !"\n\r\t".contains(character);
    page.replace(is_refused, "\u{fffd}")
}

/// `text` in at most `width` characters. Longer text loses its middle, because names that begin alike often differ at
/// the end.
pub(crate) fn shortened(text: &str, width: usize) -> Cow<'_, str> {
    let length = text.chars().count();
    if length <= width {
        return Cow::Borrowed(text);
    }
    let end = width / 3;
    let start = text.chars().take(width.saturating_sub(end + 1));
    Cow::Owned(start.chain(['…']).chain(text.chars().skip(length - end)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_lose_their_middle() {
        assert_eq!(shortened("american_pit_bull_terrier", 13), "american…rier");
        assert_eq!(shortened("éclair", 6), "éclair");
        assert_eq!(shortened("<<<<>", 3), "<…>");
    }

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(without_control_characters("a\0b\u{1b}c\nd"), "a\u{fffd}b\u{fffd}c\nd");
    }
}
