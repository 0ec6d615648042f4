//! Validation of class names: every class has a name, and no two classes share one.

use std::collections::HashMap;

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

/// Gives each class a name of its own: blank names become the class number, which is appended to each name that several
/// classes share, as in `crane (0)`. The second value says whether any name was changed.
pub fn numbered(names: &[String]) -> (Vec<String>, bool) {
    let named = |(index, name): (usize, &String)| match name.trim().is_empty() {
        true => index.to_string(),
        false => name.clone(),
    };
    let mut unique: Vec<String> = names.iter().enumerate().map(named).collect();
    // A number may make a name that another class has.
    while duplicate_name(&unique).is_some() {
        let mut classes: HashMap<String, usize> = HashMap::new();
        unique.iter().for_each(|name| *classes.entry(name.clone()).or_default() += 1);
        let shared = unique.iter_mut().enumerate().filter(|(_, name)| classes[*name] > 1);
        shared.for_each(|(index, name)| *name = format!("{name} ({index})"));
    }
    let is_changed = unique != names;
    (unique, is_changed)
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
        let given = ["crane", "", "crane", "crane (0)", " ", "4"].map(str::to_owned);
        let (numbered, is_changed) = super::numbered(&given);
        assert_eq!(numbered.join(","), "crane (0) (0),1,crane (2),crane (0) (3),4 (4),4 (5)");
        assert!(is_changed && check_unique(&numbered).is_ok());
    }
}
