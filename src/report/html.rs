//! Text and numbers as HTML.

/// Text that is safe between tags and inside a quoted attribute.
///
/// Control characters that HTML does not allow become the replacement character.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(character),
            _ if character.is_control() => escaped.push('\u{fffd}'),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// Escaped text of at most `width` characters; what is too much is cut from the middle, because names that
/// share a beginning often differ in their end.
pub(super) fn escape_short(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return escape(text);
    }
    let end = width / 3;
    let start = text.chars().take(width.saturating_sub(end + 1));
    escape(&start.chain(['…']).chain(text.chars().skip(length - end)).collect::<String>())
}

/// A section of the page with its heading.
pub(super) fn section(title: &str, body: &str) -> String {
    format!("<section>\n<h2>{title}</h2>\n{body}</section>\n")
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
    fn escapes_what_html_would_read() {
        assert_eq!(escape(r#"<b a="1">&'"#), "&lt;b a=&quot;1&quot;&gt;&amp;&#39;");
        assert_eq!(escape("a\0b\u{1b}c\nd"), "a\u{fffd}b\u{fffd}c\nd");
    }

    #[test]
    fn shortens_by_characters_and_before_escaping() {
        assert_eq!(escape_short("<<<<>", 3), "&lt;…&gt;");
        assert_eq!(escape_short("american_pit_bull_terrier", 13), "american…rier");
        assert_eq!(escape_short("éclair", 6), "éclair");
    }

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
