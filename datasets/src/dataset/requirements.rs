//! The check that a classifier can be trained on a data set.

use std::path::Path;

use super::look_alike::difference;
use crate::{Dataset, DatasetError, SourceKind, Split};

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
        self.training_problems(data).into_iter().next().map_or(Ok(()), Err)
    }

    /// Every reason why no classifier can be trained on the data set, of which [`Self::check_for_training`] returns the
    /// first. Of a data set without training images, that is the only one.
    pub fn training_problems(&self, data: &str) -> Vec<DatasetError> {
        let layout = |problem: String| DatasetError::layout(Path::new(data), problem);
        if self.train.is_empty() {
            let mut problem = "has no training images: a data set needs a train split to train on".to_owned();
            if matches!(self.info.source, SourceKind::Folder | SourceKind::Archive) {
                problem += " (folders such as val, dev, and test-images count as other splits: rename one that is none)";
            }
            return vec![layout(problem)];
        }
        let classes = self.presence();
        let given: Vec<Split> =
            Split::ALL.into_iter().filter(|&split| !self.split(split).is_empty()).collect();
        let mut problems: Vec<DatasetError> =
            classes.iter().filter_map(|&class| one_sided(data, class, &classes, &given)).collect();
        if let [(class, _)] = &classes[..]
            && !self.info.multi_label
        {
            problems.push(layout(format!("has only one class, '{class}': a classifier needs two or more")));
        }
        if classes.is_empty() {
            problems.push(layout(
                "has images, but none of them has a label: a classifier learns from labels".to_owned(),
            ));
        }
        problems
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

/// The error about a class that is not in the training split, or in only one of several splits. `classes` are all that have
/// images, and `given` the splits that have some.
fn one_sided(
    data: &str,
    (class, is_in): (&str, Presence),
    classes: &[(&str, Presence)],
    given: &[Split],
) -> Option<DatasetError> {
    let (present, missing): (Vec<Split>, Vec<Split>) =
        given.iter().partition(|&&split| is_in[split as usize]);
    let is_one_sided = missing.contains(&Split::Train) || (present.len() == 1 && !missing.is_empty());
    is_one_sided.then(|| DatasetError::OneSidedClass {
        path: data.into(),
        class: class.to_owned(),
        present: present[0],
        missing: missing[0],
        look_alike: look_alike(class, missing[0], classes),
    })
}

/// A remark about a class of `split` whose name looks like that of `class`, which the split lacks, if there is one.
fn look_alike(class: &str, split: Split, classes: &[(&str, Presence)]) -> Option<String> {
    let mut there = classes.iter().filter(|(_, is_in)| is_in[split as usize]);
    there.find_map(|(other, _)| {
        let difference = difference(class, other)?;
        Some(format!(" (it differs from '{other}' of {split} only in {difference})"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DatasetInfo, ImageSource, Labels, LeftOut, Sample, SourceKind, ValidationOrigin};

    /// A data set of drawn images with these labels in its splits.
    fn labeled(splits: [&[usize]; 3]) -> Dataset {
        named(["cat", "dog", "fox"], splits)
    }

    /// As [`labeled`], with these classes.
    fn named(classes: [&str; 3], [train, val, test]: [&[usize]; 3]) -> Dataset {
        let samples = |labels: &[usize]| -> Vec<Sample> {
            let source = ImageSource::Drawn { class: 0, seed: 0 };
            labels.iter().map(|&label| Sample { labels: label.into(), source: source.clone() }).collect()
        };
        Dataset {
            info: DatasetInfo {
                name: "drawn".to_owned(),
                classes: classes.map(str::to_owned).to_vec(),
                multi_label: false,
                source: SourceKind::Shapes,
                validation: ValidationOrigin::Absent,
                flip_safe: true,
            },
            train: samples(train),
            val: samples(val),
            test: samples(test),
            left_out: LeftOut::default(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn every_problem_is_named_and_the_first_is_that_of_the_check() {
        let cases: [([&[usize]; 3], &[&str]); 6] = [
            ([&[0, 1, 2], &[0, 1, 2], &[]], &[]),
            ([&[0, 1], &[], &[]], &[]),
            ([&[], &[], &[0, 1]], &["no training images"]),
            ([&[0, 0], &[], &[]], &["only one class, 'cat'"]),
            (
                [&[0, 1], &[0, 2], &[]],
                &["'dog' is in train but not in val", "'fox' is in val but not in train"],
            ),
            // A class that is in two of three splits can be trained on and measured.
            ([&[0, 1, 2], &[0, 1], &[0, 2]], &[]),
        ];
        for (splits, expected) in cases {
            let dataset = labeled(splits);
            let problems: Vec<String> =
                dataset.training_problems("pets").iter().map(ToString::to_string).collect();
            assert_eq!(problems.len(), expected.len(), "{splits:?}: {problems:?}");
            for (problem, part) in problems.iter().zip(expected) {
                assert!(problem.starts_with("pets: ") && problem.contains(part), "{splits:?}: {problem}");
            }
            let first = dataset.check_for_training("pets").err().map(|error| error.to_string());
            assert_eq!(first.as_ref(), problems.first(), "{splits:?}");
        }
    }

    #[test]
    fn images_without_any_label_are_a_problem() {
        let mut dataset = labeled([&[0, 1], &[], &[]]);
        dataset.info.multi_label = true;
        dataset.info.classes.clear();
        dataset.train.iter_mut().for_each(|sample| sample.labels = Labels::new(Vec::new()));
        let problems = dataset.training_problems("pets");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].to_string().contains("none of them has a label"), "{problems:?}");
    }

    #[test]
    fn a_class_that_looks_like_one_of_the_other_split_is_named_with_the_difference() {
        let messages = |classes: [&str; 3]| -> Vec<String> {
            let problems = named(classes, [&[0, 1], &[], &[0, 2]]).training_problems("pets");
            problems.iter().map(ToString::to_string).collect()
        };
        let way_out = "add images of it there, or remove the class, or correct its name";
        assert_eq!(
            messages(["dog", "Cat", "cat"]),
            [
                format!(
                    "pets: the class 'Cat' is in train but not in test (it differs from 'cat' of test only in case): {way_out}"
                ),
                format!(
                    "pets: the class 'cat' is in test but not in train (it differs from 'Cat' of train only in case): {way_out}"
                ),
            ]
        );
        let accents = messages(["th\u{e9}", "café", "cafe\u{301}"]);
        let remark = "of train only in how its accents are encoded (Unicode normalization))";
        assert!(
            accents[1].contains("'cafe\u{301}' is in test") && accents[1].contains(remark),
            "{accents:?}"
        );
        assert!(messages(["dog", "cat", "fox"]).iter().all(|message| !message.contains("differs")));
    }
}
