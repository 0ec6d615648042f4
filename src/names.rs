//! Lists of names, shortened for messages.

/// Number of names that a message shows.
const SHOWN: usize = 3;

/// The first three names and the number of the others: `a, b, c and 4 more`.
pub(crate) fn first_few<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> String {
    let mut names = names.into_iter();
    let shown: Vec<S> = names.by_ref().take(SHOWN).collect();
    let shown: Vec<&str> = shown.iter().map(S::as_ref).collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_end_with_a_number() {
        assert_eq!(first_few(["a"]), "a");
        assert_eq!(first_few(["a", "b", "c"]), "a, b, c");
        assert_eq!(first_few(["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
    }
}
