//! The classes of an image: exactly one, or with several labels an image any number.

use std::ops::Deref;
use std::sync::Arc;

/// What separates the names of several classes.
const SEPARATOR: &str = " | ";

/// The classes of an image, as distinct indices in ascending order. Exactly one, unless the data set has
/// [several labels an image](crate::DatasetInfo::multi_label).
///
/// # Examples
///
/// ```
/// use vitrine_datasets::Labels;
///
/// assert_eq!(Labels::new(vec![4, 1, 4])[..], [1, 4]);
/// assert_eq!(Labels::from(3).only(), Some(3));
/// assert!(Labels::new(Vec::new()).is_empty());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels(Set);

/// Most data sets have one label an image, which needs no allocation.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Set {
    One([usize; 1]),
    Other(Arc<[usize]>),
}

impl Labels {
    /// The set of these classes.
    pub fn new(mut classes: Vec<usize>) -> Self {
        classes.sort_unstable();
        classes.dedup();
        match classes[..] {
            [class] => class.into(),
            _ => Self(Set::Other(classes.into())),
        }
    }

    /// The class of an image that has exactly one.
    pub fn only(&self) -> Option<usize> {
        match self[..] {
            [class] => Some(class),
            _ => None,
        }
    }

    /// The same set after class `index` has become class `map[index]`.
    ///
    /// # Panics
    ///
    /// If `map` lacks a class.
    #[must_use]
    pub fn renumbered(&self, map: &[usize]) -> Self {
        Self::new(self.iter().map(|&class| map[class]).collect())
    }

    /// The names of the classes, separated by ` | `; empty without classes.
    ///
    /// # Panics
    ///
    /// If `names` lacks a class.
    pub fn names(&self, names: &[String]) -> String {
        self.iter().map(|&class| names[class].as_str()).collect::<Vec<_>>().join(SEPARATOR)
    }

    /// The classes that [`names`](Self::names) has written as `text`; `None` if `names` lacks one.
    pub fn of_names(text: &str, names: &[String]) -> Option<Self> {
        let position = |name: &str| names.iter().position(|known| known == name);
        match position(text) {
            Some(class) => Some(class.into()),
            None if text.is_empty() => Some(Self::new(Vec::new())),
            None => text.split(SEPARATOR).map(position).collect::<Option<Vec<usize>>>().map(Self::new),
        }
    }
}

impl From<usize> for Labels {
    fn from(class: usize) -> Self {
        Self(Set::One([class]))
    }
}

impl Deref for Labels {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        match &self.0 {
            Set::One(class) => class,
            Set::Other(classes) => classes,
        }
    }
}

impl std::fmt::Debug for Labels {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self[..].fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_are_equal_however_they_were_made() {
        assert_eq!(Labels::new(vec![2, 2]), Labels::from(2));
        assert_eq!(Labels::new(vec![3, 1]), Labels::new(vec![1, 3]));
        assert_ne!(Labels::new(vec![]), Labels::from(0));
        assert_eq!(Labels::new(vec![0, 1]).renumbered(&[5, 2]), Labels::new(vec![2, 5]));
        let names = ["a".to_owned(), "b".to_owned()];
        assert_eq!(Labels::new(vec![1, 0]).names(&names), "a | b");
        assert_eq!(Labels::new(vec![]).names(&names), "");
    }

    #[test]
    fn names_are_read_back() {
        let names = ["a".to_owned(), "b".to_owned(), "c | a".to_owned()];
        for labels in [vec![], vec![1], vec![0, 1], vec![2]].map(Labels::new) {
            assert_eq!(Labels::of_names(&labels.names(&names), &names), Some(labels));
        }
        assert_eq!(Labels::of_names("a | d", &names), None);
    }
}
