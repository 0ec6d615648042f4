//! The check that a classifier can be trained on a data set.

use std::path::Path;

use crate::{Dataset, DatasetError, Split};

/// Whether each split has images of a class, indexed as [`Split::ALL`].
type Presence = [bool; 3];

impl Dataset {
    /// Checks that a classifier can be trained on the data set. `data` is the name or path of it for error messages.
    ///
    /// # Errors
    ///
    /// If there are no training images, fewer than two classes (with several labels an image none at all), or a class that has images but none for training, or
    /// images in only one of several splits.
    pub fn check_for_training(&self, data: &str) -> Result<(), DatasetError> {
        let layout = |problem: String| Err(DatasetError::layout(Path::new(data), problem));
        if self.train.is_empty() {
            return layout("has no training images: a data set needs a train split to train on".to_owned());
        }
        let classes = self.presence();
        let given: Vec<Split> =
            Split::ALL.into_iter().filter(|&split| !self.split(split).is_empty()).collect();
        for (class, is_in) in &classes {
            let (present, missing): (Vec<Split>, Vec<Split>) =
                given.iter().partition(|&&split| is_in[split as usize]);
            if missing.contains(&Split::Train) || (present.len() == 1 && !missing.is_empty()) {
                return Err(DatasetError::OneSidedClass {
                    path: data.into(),
                    class: (*class).to_owned(),
                    present: present[0],
                    missing: missing[0],
                });
            }
        }
        match &classes[..] {
            [(class, _)] if !self.info.multi_label => {
                layout(format!("has only one class, '{class}': a classifier needs two or more"))
            }
            _ => Ok(()),
        }
    }

    /// The names of the classes that have images, each with the splits in which it has some.
    fn presence(&self) -> Vec<(&str, Presence)> {
        let mut presence: Vec<Presence> = vec![[false; 3]; self.info.classes.len()];
        for split in Split::ALL {
            for class in self.split(split).iter().flat_map(|sample| sample.labels.iter()) {
                presence[*class][split as usize] = true;
            }
        }
        let classes = self.info.classes.iter().map(String::as_str).zip(presence);
        classes.filter(|(_, is_in)| is_in.contains(&true)).collect()
    }
}
