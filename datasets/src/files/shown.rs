//! Names of files and folders as text, such that different names give different texts.
//!
//! On Unix and in archives, a name is a sequence of bytes that need not be UTF-8. Replacing invalid bytes by a
//! replacement character would make different names equal, and so merge classes or files. Here, each byte that is not
//! part of a valid character becomes an escape, and in a name that already contains such an escape, the backslash is
//! escaped:
//!
//! | name | text |
//! |---|---|
//! | `käse.png` | `käse.png` |
//! | `k`, byte E4, `se.png` | `k\xE4se.png` |
//! | `k\xE4se.png` | `k\x5CxE4se.png` |

use std::ffi::OsStr;
#[cfg(unix)]
use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;

/// A path or name as text. Different paths give different texts. Valid UTF-8 is unchanged, except for text that looks
/// like an escape.
///
/// On systems other than Unix, where names are UTF-16, unpaired surrogates become replacement characters.
///
/// ```
/// assert_eq!(vitrine_datasets::shown("photos/käse.png"), "photos/käse.png");
/// assert_eq!(vitrine_datasets::shown(r"k\xE4se.png"), r"k\x5CxE4se.png");
/// ```
#[cfg(unix)]
pub fn shown(path: impl AsRef<OsStr>) -> String {
    use std::os::unix::ffi::OsStrExt;
    shown_bytes(path.as_ref().as_bytes())
}

/// A path or name as text; unpaired surrogates become replacement characters.
#[cfg(not(unix))]
pub fn shown(path: impl AsRef<OsStr>) -> String {
    path.as_ref().to_string_lossy().into_owned()
}

/// The path of which [`shown`] gives this text.
///
/// ```
/// use std::path::Path;
/// assert_eq!(vitrine_datasets::path_of_shown(r"k\x5CxE4se.png"), Path::new(r"k\xE4se.png"));
/// ```
#[cfg(unix)]
pub fn path_of_shown(text: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let text = text.as_bytes();
    let mut name = Vec::with_capacity(text.len());
    let mut place = 0;
    while place < text.len() {
        let digit = |byte: u8| char::from(byte).to_digit(16).map_or(0, |digit| digit as u8);
        if is_escape(&text[place..]) {
            name.push(16 * digit(text[place + 2]) + digit(text[place + 3]));
            place += 4;
        } else {
            name.push(text[place]);
            place += 1;
        }
    }
    OsString::from_vec(name).into()
}

/// The path of which [`shown`] gives this text.
#[cfg(not(unix))]
pub fn path_of_shown(text: &str) -> PathBuf {
    text.into()
}

/// A name from an archive as text. Such a name is a sequence of bytes on every system.
pub(crate) fn shown_bytes(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        let valid = chunk.valid();
        for (place, character) in valid.char_indices() {
            if is_escape(&valid.as_bytes()[place..]) {
                push_escape(&mut text, b'\\');
            } else {
                text.push(character);
            }
        }
        chunk.invalid().iter().for_each(|&byte| push_escape(&mut text, byte));
    }
    text
}

fn push_escape(text: &mut String, byte: u8) {
    // Writing to a `String` cannot fail.
    let _ = write!(text, "\\x{byte:02X}");
}

/// Whether text begins with `\xHH`, where `HH` are hexadecimal digits.
fn is_escape(text: &[u8]) -> bool {
    matches!(text, [b'\\', b'x', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

/// The folder of a file, by the name that messages use; `None` if the name has no folder.
pub(crate) fn folder_of(name: &str) -> Option<&str> {
    name.rfind(std::path::is_separator).map(|end| &name[..end])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn valid_utf8_is_unchanged_and_other_bytes_are_escaped() {
        for name in ["", "a.png", "Füchse/猫 1.png", r"back\slash", r"\x", r"\xE", r"\\", r"\xé9", "\u{fffd}"]
        {
            assert_eq!(shown_bytes(name.as_bytes()), name);
        }
        assert_eq!(shown_bytes(b"cl\xe9/1.png"), r"cl\xE9/1.png");
        assert_eq!(shown_bytes(b"\xe4\xf6\x0a"), "\\xE4\\xF6\n");
        assert_eq!(shown_bytes(br"cl\xe9 \x5C"), r"cl\x5Cxe9 \x5Cx5C");
        // The first three bytes of a four-byte character.
        assert_eq!(shown_bytes(b"\xf0\x9f\x98x"), r"\xF0\x9F\x98x");
    }

    #[test]
    fn no_two_names_have_the_same_text() {
        // All names of up to five bytes of this alphabet: the characters of an escape, and bytes that need one.
        let alphabet = [b'\\', b'x', b'5', b'C', b'E', 0xe9, 0xc3, 0xa9];
        let mut names: Vec<Vec<u8>> = vec![Vec::new()];
        let mut texts = BTreeSet::new();
        for _ in 0..5 {
            names =
                names.iter().flat_map(|name| alphabet.map(|byte| [&name[..], &[byte]].concat())).collect();
            for name in &names {
                let text = shown_bytes(name);
                #[cfg(unix)]
                assert_eq!(path_of_shown(&text).into_os_string().into_encoded_bytes(), *name);
                assert!(texts.insert(text), "{name:?}");
            }
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_text_of_a_path_is_that_of_its_components() {
        use std::os::unix::ffi::OsStrExt;
        let path = std::path::Path::new(OsStr::from_bytes(b"cl\xe9/\xe4.png"));
        let parts: Vec<String> = path.iter().map(shown).collect();
        assert_eq!(shown(path), parts.join("/"));
    }
}
