//! Names of classes that look alike: one may be a misspelling of the other.

/// What alone differs between two names, if they are equal but for case or for the encoding of accents; `None` for names that differ in
/// more, or not at all.
///
/// There is no table of letters here: a character beyond ASCII is taken for equal to several characters that make up one, a letter and its
/// marks (`é` and `e` with U+0301), and which letter that is does not count.
pub(super) fn difference(name: &str, other: &str) -> Option<&'static str> {
    if name == other {
        return None;
    }
    if name.is_ascii() && other.is_ascii() {
        return name.eq_ignore_ascii_case(other).then_some("case");
    }
    if name.to_lowercase() == other.to_lowercase() {
        return Some("case");
    }
    let (letters, others) = (letters(name), letters(other));
    let are_alike = letters.len() == others.len()
        && letters
            .iter()
            .zip(&others)
            .all(|(letter, other)| letter == other || is_encoded_twice(letter, other));
    are_alike.then_some("how its accents are encoded (Unicode normalization)")
}

/// The characters of a name, each with the marks that follow it.
fn letters(name: &str) -> Vec<String> {
    let mut letters: Vec<String> = Vec::new();
    for character in name.chars() {
        match letters.last_mut() {
            Some(letter) if is_mark(character) => letter.push(character),
            _ => letters.push(character.into()),
        }
    }
    letters
}

/// Whether a character belongs to the letter before it: accents, the marks of Japanese kana, and the vowels and final consonants of
/// Korean syllables.
fn is_mark(character: char) -> bool {
    matches!(character, '\u{300}'..='\u{36f}' | '\u{3099}' | '\u{309a}' | '\u{1160}'..='\u{11ff}')
}

/// Whether one of two letters has fewer characters and does not begin the other, the first of them beyond ASCII, which then may stand
/// for several.
fn is_encoded_twice(letter: &str, other: &str) -> bool {
    let is_shorter = letter.chars().count() < other.chars().count();
    let (short, long) = if is_shorter { (letter, other) } else { (other, letter) };
    short.chars().count() < long.chars().count()
        && !long.starts_with(short)
        && !short.starts_with(|first: char| first.is_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCENTS: Option<&str> = Some("how its accents are encoded (Unicode normalization)");

    #[test]
    fn names_that_look_alike_differ_in_case_or_in_how_accents_are_encoded() {
        for (name, other, expected) in [
            ("Cat", "cat", Some("case")),
            ("ÄPFEL", "äpfel", Some("case")),
            ("caf\u{e9}", "cafe\u{301}", ACCENTS),
            // One mark is in the letter, and the other follows it.
            ("ph\u{ea}\u{323}", "phe\u{323}\u{302}", ACCENTS),
            ("\u{304c}", "\u{304b}\u{3099}", ACCENTS),
            ("\u{d55c}\u{ae00}", "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}", ACCENTS),
            ("cat", "cat", None),
            ("cat", "cats", None),
            ("caf\u{e9}", "cafe", None),
            ("cafe\u{301}", "cafe", None),
            ("\u{304b}\u{3099}", "\u{304b}", None),
            ("caf\u{e9}", "caf\u{e8}", None),
            ("\u{732b}", "\u{72ac}", None),
        ] {
            assert_eq!(difference(name, other), expected, "{name} {other}");
            assert_eq!(difference(other, name), expected, "{other} {name}");
        }
    }
}
