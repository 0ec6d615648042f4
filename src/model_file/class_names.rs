//! Validation of class names: every class has a name, and no two classes share one.

use anyhow::{Result, bail};
use vitrine_datasets::duplicate_name;

/// Checks that each class has a name of its own.
///
/// # Errors
/// If a name is blank or two classes share one. The message has the number of the first nameless class, or the shared
/// name.
pub fn check_unique(names: &[String]) -> Result<()> {
    if let Some(number) = names.iter().position(|name| name.trim().is_empty()) {
        bail!("class number {number} has no name: results could not refer to it");
    }
    match duplicate_name(names) {
        Some(name) => bail!("two classes are called `{name}`: results would not say which one is meant"),
        None => Ok(()),
    }
}

/// Makes names unique by appending the class number, as in `crane (0)`, to each name that several classes share. The
/// second value says whether any name was changed.
pub fn numbered(names: &[String]) -> (Vec<String>, bool) {
    let is_shared = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
    if duplicate_name(names).is_none() {
        return (names.to_vec(), false);
    }
    let number = |(index, name): (usize, &String)| match is_shared(name) {
        true => format!("{name} ({index})"),
        false => name.clone(),
    };
    (names.iter().enumerate().map(number).collect(), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_names_are_refused_or_numbered() {
        let names = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(check_unique(&names("cat dog")).is_ok());
        let message = check_unique(&names("cat dog cat")).unwrap_err().to_string();
        assert!(message.contains("`cat`"), "{message}");
        let message = check_unique(&["cat".to_owned(), " ".to_owned()]).unwrap_err().to_string();
        assert!(message.contains("number 1"), "{message}");
        assert_eq!(numbered(&names("cat dog")), (names("cat dog"), false));
        let (numbered, is_changed) = numbered(&names("crane dog crane"));
        assert_eq!((numbered.join(","), is_changed), ("crane (0),dog,crane (2)".to_owned(), true));
    }
}
