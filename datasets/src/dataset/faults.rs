//! The splits to which the files belong that may be images and cannot be used.

use std::collections::{BTreeSet, HashMap};
use std::iter;

use crate::files::folder_of;
use crate::{Dataset, Split};

impl Dataset {
    /// Whether some of the files that are left out and may be images ([`LeftOut::has_faults`](crate::LeftOut::has_faults)) belong to
    /// `split`. A file belongs to the splits of the images below its folder, or else below the nearest folder around it that has any;
    /// without any, to all.
    pub fn has_faults_in(&self, split: Split) -> bool {
        let folders = self.left_out.folders_of_faults();
        if folders.is_empty() {
            return false;
        }
        let splits = self.splits_below_folders();
        folders.iter().any(|folder| {
            let nearest = iter::once(folder.as_str()).chain(around(folder)).find_map(|near| splits.get(near));
            nearest.is_none_or(|splits| splits.contains(&split))
        })
    }

    /// For each folder, the splits of the images in it and in the folders inside it.
    fn splits_below_folders(&self) -> HashMap<String, BTreeSet<Split>> {
        let mut below: HashMap<String, BTreeSet<Split>> = HashMap::new();
        for split in Split::ALL {
            for sample in self.split(split) {
                for folder in around(&sample.source.name()) {
                    if !below.entry(folder.to_owned()).or_default().insert(split) {
                        // The folders around it have the split, too.
                        break;
                    }
                }
            }
        }
        below
    }
}

/// The folders around a file or a folder, from the innermost.
fn around(name: &str) -> impl Iterator<Item = &str> {
    iter::successors(folder_of(name), |&folder| folder_of(folder))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DatasetInfo, Fault, ImageSource, LeftOut, Reason, Sample, SourceKind, ValidationOrigin};

    /// The splits to which a file belongs that is left out of a data set of these training and test images.
    fn splits_of(name: &str, reason: Reason, [train, test]: [&[&str]; 2]) -> Vec<Split> {
        let samples = |names: &[&str]| -> Vec<Sample> {
            let sample =
                |name: &&str| Sample { labels: 0_usize.into(), source: ImageSource::File(name.into()) };
            names.iter().map(sample).collect()
        };
        let info = DatasetInfo {
            name: "pets".to_owned(),
            classes: vec!["cat".to_owned()],
            multi_label: false,
            source: SourceKind::Folder,
            validation: ValidationOrigin::Given,
            flip_safe: true,
        };
        let mut left_out = LeftOut::default();
        left_out.add(name.to_owned(), reason);
        let (train, val, test) = (samples(train), Vec::new(), samples(test));
        let dataset = Dataset { info, train, val, test, left_out, warnings: Vec::new() };
        Split::ALL.into_iter().filter(|&split| dataset.has_faults_in(split)).collect()
    }

    #[test]
    fn files_that_are_left_out_belong_to_the_split_of_their_folder() {
        let images: [&[&str]; 2] = [
            &["pets/train/cat/1.png", "pets/train/cat/old/2.png", "pets/train/dog/1.png"],
            &["pets/test/cat/1.png", "pets/test/dog/1.png"],
        ];
        let unsupported = || Reason::Unsupported("HEIC");
        for (name, expected) in [
            ("pets/train/cat/3.heic", &[Split::Train][..]),
            ("pets/train/cat/new/4.heic", &[Split::Train]),
            ("pets/test/5.heic", &[Split::Test]),
            ("pets/6.heic", &[Split::Train, Split::Test]),
            ("elsewhere.heic", &Split::ALL[..]),
        ] {
            assert_eq!(splits_of(name, unsupported(), images), expected, "{name}");
        }
        let unreadable = Reason::Unreadable(Fault::Other("without permission".to_owned()));
        assert_eq!(splits_of("pets/test/cat", unreadable, images), [Split::Test]);
        assert!(splits_of("pets/train/notes.txt", Reason::NoImage, images).is_empty());
        let unsplit: [&[&str]; 2] = [&["cat/1.png"], &[]];
        assert_eq!(splits_of("cat/2.heic", unsupported(), unsplit), [Split::Train]);
    }
}
