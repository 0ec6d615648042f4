//! Files that were found next to the images and are not used, grouped by reason, so that nothing is ignored silently.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{BadFile, Fault, folder_of};

/// How many names of a group are kept for messages.
const NAMES: usize = 3;

/// The reason why a file or folder is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// An image of a format that cannot be decoded, with the format's name.
    Unsupported(&'static str),
    /// Not an image.
    NoImage,
    /// Hidden: its name begins with a dot or is `__MACOSX`.
    Hidden,
    /// It cannot be read: a link to nothing or in a circle, a folder without permission, a file over the limit on its
    /// size.
    Unreadable(Fault),
}

impl Reason {
    /// The reason as a message about the file, which the message calls "it".
    pub fn message(&self) -> String {
        match self {
            Self::Unsupported(format) => {
                format!("{format} images are not supported: convert it to PNG or JPEG")
            }
            Self::NoImage => "it is not an image".to_owned(),
            Self::Hidden => "it is hidden".to_owned(),
            Self::Unreadable(fault) => fault.to_string(),
        }
    }
}

/// Files and folders that were found next to the images and are not used, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Images of formats that cannot be decoded, by format.
    pub unsupported: BTreeMap<&'static str, Group>,
    /// Files that are not images.
    pub no_images: Group,
    /// Hidden files and folders.
    pub hidden: Group,
    /// Files and folders that cannot be read.
    pub unreadable: Vec<BadFile>,
    /// The folders of the files that may be images.
    #[serde(skip)]
    folders_of_faults: BTreeSet<String>,
}

/// The number and the first names of some files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Number of files.
    pub count: usize,
    /// The first few names.
    pub first: Vec<String>,
}

impl Group {
    fn add(&mut self, name: String) {
        self.count += 1;
        if self.first.len() < NAMES {
            self.first.push(name);
        }
    }

    /// The first names, followed by an ellipsis if there are more.
    pub fn names(&self) -> String {
        let more = if self.count > self.first.len() { ", ..." } else { "" };
        format!("{}{more}", self.first.join(", "))
    }
}

impl LeftOut {
    /// Adds a file or folder.
    pub fn add(&mut self, name: String, reason: Reason) {
        if let Reason::Unsupported(_) | Reason::Unreadable(_) = &reason {
            self.folders_of_faults.insert(folder_of(&name).unwrap_or_default().to_owned());
        }
        match reason {
            Reason::Unsupported(format) => self.unsupported.entry(format).or_default().add(name),
            Reason::NoImage => self.no_images.add(name),
            Reason::Hidden => self.hidden.add(name),
            Reason::Unreadable(fault) => self.unreadable.push(BadFile::new(name, &fault)),
        }
    }

    /// Whether any of the files may be images: those of unsupported formats and those that cannot be read.
    pub fn has_faults(&self) -> bool {
        !self.unsupported.is_empty() || !self.unreadable.is_empty()
    }

    /// The folders of the files that may be images.
    pub(crate) fn folders_of_faults(&self) -> &BTreeSet<String> {
        &self.folders_of_faults
    }

    /// Whether any of the unreadable files is larger than the limit on the size of a file.
    pub fn has_too_large(&self) -> bool {
        self.unreadable.iter().any(|bad| bad.is_too_large)
    }

    /// Warnings for the user: one about the images of unsupported formats and one about the files that cannot be read,
    /// if there are any.
    pub fn faults(&self) -> Vec<String> {
        let formats: Vec<String> =
            self.unsupported.iter().map(|(format, group)| format!("{} {format}", group.count)).collect();
        let mut lines = Vec::new();
        if let Some(name) = self.unsupported.values().flat_map(|group| &group.first).next() {
            let formats = formats.join(", ");
            lines.push(format!(
                "not supported and left out: {formats} (the first: {name}): convert them to PNG or JPEG"
            ));
        }
        if let Some(BadFile { name, message, .. }) = self.unreadable.first() {
            let count = self.unreadable.len();
            lines.push(format!("cannot be read and left out: {count} (the first: {name}: {message})"));
        }
        lines
    }

    /// Remarks about harmless files: one about those that are not images and one about hidden ones, if there are any.
    pub fn others(&self) -> Vec<String> {
        [("not images", &self.no_images), ("hidden", &self.hidden)]
            .into_iter()
            .filter(|(_, group)| group.count > 0)
            .map(|(what, group)| format!("left out, {what}: {} ({})", group.count, group.names()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_and_named_by_reason() {
        let mut left_out = LeftOut::default();
        assert!(!left_out.has_faults() && left_out.faults().is_empty() && left_out.others().is_empty());
        for index in 0..5 {
            left_out.add(format!("{index}.txt"), Reason::NoImage);
            left_out.add(format!("{index}.heic"), Reason::Unsupported("HEIC"));
        }
        left_out.add("a.avif".to_owned(), Reason::Unsupported("AVIF"));
        left_out.add(".git".to_owned(), Reason::Hidden);
        left_out.add("circle".to_owned(), Reason::Unreadable(Fault::Other("a link in a circle".to_owned())));
        assert!(left_out.has_faults());
        let [unsupported, unreadable] = &left_out.faults()[..] else { panic!("two lines") };
        assert!(unsupported.contains("1 AVIF, 5 HEIC (the first: a.avif)"), "{unsupported}");
        assert!(unreadable.contains("1 (the first: circle: a link in a circle)"), "{unreadable}");
        assert_eq!(
            left_out.others(),
            ["left out, not images: 5 (0.txt, 1.txt, 2.txt, ...)", "left out, hidden: 1 (.git)"]
        );
    }
}
