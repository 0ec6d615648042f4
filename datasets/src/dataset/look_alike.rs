//! Names of classes that look alike: one may be a misspelling of the other.

use unicode_normalization::UnicodeNormalization;

/// What alone differs between two names, if they are equal but for case, the encoding of accents, or both: `é` is one character, or `e` and
/// an accent, as in archives that were made on macOS. `None` for names that differ in more, or not at all.
pub(super) fn difference(name: &str, other: &str) -> Option<&'static str> {
    if name == other {
        return None;
    }
    let [composed, other_composed] = [name, other].map(|name| name.nfc().collect::<String>());
    if composed == other_composed {
        Some("how its accents are encoded (Unicode normalization)")
    } else if name.to_lowercase() == other.to_lowercase() {
        Some("case")
    } else {
        (composed.to_lowercase() == other_composed.to_lowercase())
            .then_some("case and in how its accents are encoded (Unicode normalization)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCENTS: Option<&str> = Some("how its accents are encoded (Unicode normalization)");
    const BOTH: Option<&str> = Some("case and in how its accents are encoded (Unicode normalization)");

    #[test]
    fn names_that_look_alike_differ_in_case_or_in_how_accents_are_encoded_or_in_both() {
        for (name, other, expected) in [
            ("Cat", "cat", Some("case")),
            ("ÄPFEL", "äpfel", Some("case")),
            ("Cafe\u{301}", "cafe\u{301}", Some("case")),
            ("Café", "cafe\u{301}", BOTH),
            ("CAFÉ", "cafe\u{301}", BOTH),
            ("café", "cafe\u{301}", ACCENTS),
            // One mark is in the letter, and the other follows it.
            ("ph\u{ea}\u{323}", "phe\u{323}\u{302}", ACCENTS),
            ("\u{304c}", "\u{304b}\u{3099}", ACCENTS),
            ("\u{d55c}\u{ae00}", "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af}", ACCENTS),
            ("cat", "cat", None),
            ("cat", "cats", None),
            ("café", "cafe", None),
            ("café", "cafe\u{300}", None),
            ("Café", "cafe\u{300}", None),
            ("\u{732b}", "\u{72ac}", None),
        ] {
            assert_eq!(difference(name, other), expected, "{name} {other}");
            assert_eq!(difference(other, name), expected, "{other} {name}");
        }
    }
}
