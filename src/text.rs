//! Helpers for text in messages: escaping names that come from files, and shortening long lists.

use std::borrow::Cow;
use std::fmt::{Display, Write};

/// Text in which characters that a terminal would interpret instead of displaying are replaced by escapes, such as `\n`
/// or `\u001b`.
///
/// These are control characters, including line breaks, with which a file name could forge a line of output, and
/// characters that change the direction of the text after them.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_interpreted) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            _ if is_interpreted(character) => {
                let _ = write!(shown, "\\u{:04x}", u32::from(character));
            }
            _ => shown.push(character),
        }
    }
    Cow::Owned(shown)
}

/// Text escaped as by [`printable`], except for line breaks.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Whether a terminal interprets this character instead of displaying it. The characters that change the direction of
/// text are those of Unicode Annex 9.
fn is_interpreted(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The number of names of a list that a message shows.
const SHOWN: usize = 3;

/// The first three names, [printable], and the number of others: `a, b, c and 4 more`.
pub(crate) fn first_few<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let mut names = names.into_iter();
    let shown: Vec<String> =
        names.by_ref().take(SHOWN).map(|name| printable(name.as_ref()).into_owned()).collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A path or a name as a word of a command that a message shows: quoted for a POSIX shell where it must be, so that the command can be
/// pasted.
pub(crate) fn shell_word(word: impl Display) -> String {
    let word = word.to_string();
    shlex::try_quote(&word).map_or_else(|_| word.clone(), Cow::into_owned)
}

/// A number with what it counts: `1 image`, `2 images`. The plural is that of the last word.
pub fn count(number: usize, of: &str) -> String {
    let plural = match of {
        _ if number == 1 => return format!("1 {of}"),
        _ if of.ends_with("class") || of.ends_with("batch") => "es",
        _ => "s",
    };
    format!("{number} {of}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_shortened() {
        assert_eq!(first_few(["a"]), "a");
        assert_eq!(first_few(["a", "b", "c"]), "a, b, c");
        assert_eq!(first_few(["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
    }

    #[test]
    fn words_of_a_command_are_quoted_where_they_must_be() {
        for word in ["runs/photos-hybrid_nano_patch16_128-1", "/tmp/.a+b", "hf:owner/name@0a1b"] {
            assert_eq!(shell_word(word), word);
        }
        for word in ["k/sp ace's", "a b", "$HOME", "~", "a\"b'c!", "Füchse", "a\nb", "*", "C:\\runs", ""] {
            let quoted = shell_word(word);
            assert_ne!(quoted, word);
            assert_eq!(shlex::split(&quoted), Some(vec![word.to_owned()]), "{quoted}");
        }
    }

    #[test]
    fn characters_that_a_terminal_interprets_are_escaped() {
        let cases = [
            ("cat", "cat"),
            ("Füchse und 猫", "Füchse und 猫"),
            ("\u{1b}[31mred\u{1b}]0;title\u{7}", "\\u001b[31mred\\u001b]0;title\\u0007"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\u{9b}2J\u{7f}", "\\u009b2J\\u007f"),
            ("gpj.\u{202e}cat", "gpj.\\u202ecat"),
        ];
        for (text, shown) in cases {
            assert_eq!(printable(text), shown);
        }
        assert!(matches!(printable("cat"), Cow::Borrowed(_)));
        assert_eq!(printable_lines("a\u{7}\n\nb\n"), "a\\u0007\n\nb\n");
    }
}
