//! A report about a data set: numbers of images, sizes, colors, unreadable files, and duplicates.

mod sizes;
mod survey;

use std::collections::{BTreeMap, HashMap};

use rayon::prelude::*;
use serde::Serialize;

pub use self::sizes::{AspectRatios, Extent, SizeRange};
pub use self::survey::{Survey, survey};
use crate::{
    BadFile, ContentKey, Dataset, DatasetError, DatasetInfo, DecodeLimits, Image, LeftOut, Sample, Split,
};

/// A report about every image of a data set.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// Name, classes, and origin of the data set.
    pub info: DatasetInfo,
    /// Number of samples of each split and class.
    pub splits: Vec<SplitCounts>,
    /// Size of the largest class divided by that of the smallest, in the first split that has images; 1 is balanced.
    pub imbalance: f64,
    /// Range of the sizes of all images; `None` if none could be decoded.
    pub sizes: Option<SizeRange>,
    /// Number of gray images.
    pub gray: usize,
    /// Number of color images.
    pub color: usize,
    /// Mean of each channel over the pixels of the first split that has images, from 0 to 1; one value if all its
    /// images are gray.
    pub mean: Vec<f64>,
    /// Standard deviation of each channel over the same pixels.
    pub std: Vec<f64>,
    /// Images that cannot be decoded.
    pub corrupt: Vec<CorruptImage>,
    /// Files that were found next to the images and are not used.
    pub left_out: LeftOut,
    /// Groups of images with the same pixels.
    pub duplicates: Vec<DuplicateGroup>,
}

impl Inspection {
    /// Whether any image cannot be read or decoded.
    pub fn has_faults(&self) -> bool {
        !self.corrupt.is_empty() || self.left_out.has_faults()
    }

    /// The groups of equal images with members in different splits, which make measurements too optimistic.
    pub fn leaks(&self) -> impl Iterator<Item = &DuplicateGroup> {
        self.duplicates.iter().filter(|group| group.across_splits)
    }

    /// The groups of equal images with different labels, of which all but one must be wrong.
    pub fn conflicts(&self) -> impl Iterator<Item = &DuplicateGroup> {
        self.duplicates.iter().filter(|group| group.conflicting_labels)
    }
}

/// The number of samples of a split.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SplitCounts {
    /// The split.
    pub split: Split,
    /// Number of samples.
    pub samples: usize,
    /// Number of samples of each class.
    pub classes: Vec<usize>,
}

/// An image that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CorruptImage {
    /// Its split.
    pub split: Split,
    /// Its name.
    pub image: String,
    /// Why it cannot be decoded.
    pub reason: String,
    /// Whether its file is larger than the limit on the size of a file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_too_large: bool,
}

/// A group of images with the same pixels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DuplicateGroup {
    /// Whether they are in more than one split.
    pub across_splits: bool,
    /// Whether they have more than one label.
    pub conflicting_labels: bool,
    /// The images, in the order of the splits and of their samples.
    pub images: Vec<Duplicate>,
}

/// An image in a group of equal images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Duplicate {
    /// Its split.
    pub split: Split,
    /// Its class.
    pub class: String,
    /// Its name.
    pub image: String,
    /// The key of its content, which tells a copy of a file from another file with the same pixels.
    #[serde(skip)]
    pub key: ContentKey,
}

/// Size, color, hash, and sums over the pixels of an image.
struct PixelStatistics {
    size: (u32, u32),
    is_gray: bool,
    key: u64,
    pixels: u64,
    sums: [u64; 3],
    square_sums: [u64; 3],
}

impl PixelStatistics {
    fn of(image: &Image) -> Self {
        let channels = usize::from(image.channels);
        let (mut sums, mut square_sums) = ([0; 3], [0; 3]);
        for pixel in image.pixels.chunks_exact(channels) {
            for (channel, &value) in pixel.iter().enumerate() {
                sums[channel] += u64::from(value);
                square_sums[channel] += u64::from(value).pow(2);
            }
        }
        let is_gray = channels == 1;
        if is_gray {
            (sums, square_sums) = ([sums[0]; 3], [square_sums[0]; 3]);
        }
        let pixels = u64::from(image.width) * u64::from(image.height);
        let size = (image.width, image.height);
        Self { size, is_gray, key: image.key(), pixels, sums, square_sums }
    }
}

/// Decodes every image of a data set, on all threads, and reports on them. The number of threads does not change the
/// result.
pub fn inspect(dataset: &Dataset, limits: &DecodeLimits) -> Inspection {
    let all: Vec<(Split, &Sample)> = Split::ALL
        .into_iter()
        .flat_map(|split| dataset.split(split).iter().map(move |sample| (split, sample)))
        .collect();
    let decoded: Vec<Result<PixelStatistics, DatasetError>> = all
        .par_iter()
        .map(|(_, sample)| Ok(PixelStatistics::of(&*sample.source.decode_for_use(limits)?)))
        .collect();
    let (mut facts, mut corrupt) = (Vec::new(), Vec::new());
    for (&(split, sample), result) in all.iter().zip(decoded) {
        match result {
            Ok(fact) => facts.push((split, sample, fact)),
            Err(error) => {
                let BadFile { name, message, is_too_large } = sample.source.as_bad_file(&error);
                corrupt.push(CorruptImage { split, image: name, reason: message, is_too_large });
            }
        }
    }
    let splits = Split::ALL.map(|split| count(dataset, split)).to_vec();
    let first = splits.iter().find(|counts| counts.samples > 0).unwrap_or(&splits[0]);
    let (mean, std) =
        channel_statistics(facts.iter().filter(|(split, ..)| *split == first.split).map(|(.., fact)| fact));
    Inspection {
        info: dataset.info.clone(),
        imbalance: imbalance(&first.classes),
        splits,
        sizes: SizeRange::of(facts.iter().map(|(.., fact)| fact.size)),
        gray: facts.iter().filter(|(.., fact)| fact.is_gray).count(),
        color: facts.iter().filter(|(.., fact)| !fact.is_gray).count(),
        mean,
        std,
        corrupt,
        left_out: dataset.left_out.clone(),
        duplicates: duplicates(&dataset.info.classes, &facts, limits),
    }
}

/// Counts the samples of a split, in all and by class.
fn count(dataset: &Dataset, split: Split) -> SplitCounts {
    let mut classes = vec![0; dataset.info.classes.len()];
    let samples = dataset.split(split);
    for class in samples.iter().flat_map(|sample| sample.labels.iter()) {
        classes[*class] += 1;
    }
    SplitCounts { split, samples: samples.len(), classes }
}

/// The largest count divided by the smallest that is not 0; 1 if all are 0.
fn imbalance(counts: &[usize]) -> f64 {
    let present = || counts.iter().copied().filter(|&count| count > 0);
    match (present().max(), present().min()) {
        (Some(largest), Some(smallest)) => largest as f64 / smallest as f64,
        _ => 1.0,
    }
}

/// Mean and standard deviation of each channel over the pixels of all images.
fn channel_statistics<'a>(facts: impl Iterator<Item = &'a PixelStatistics>) -> (Vec<f64>, Vec<f64>) {
    let (mut pixels, mut sums, mut square_sums, mut is_gray) = (0u64, [0u64; 3], [0u64; 3], true);
    for fact in facts {
        pixels += fact.pixels;
        is_gray &= fact.is_gray;
        for channel in 0..3 {
            sums[channel] += fact.sums[channel];
            square_sums[channel] += fact.square_sums[channel];
        }
    }
    if pixels == 0 {
        return (Vec::new(), Vec::new());
    }
    let channels = if is_gray { 1 } else { 3 };
    let mean = |channel: usize| sums[channel] as f64 / pixels as f64;
    let std = |channel: usize| {
        (square_sums[channel] as f64 / pixels as f64 - mean(channel).powi(2)).max(0.0).sqrt()
    };
    (
        (0..channels).map(|channel| mean(channel) / 255.0).collect(),
        (0..channels).map(|channel| std(channel) / 255.0).collect(),
    )
}

/// The groups of images with equal hashes, in the order of their first images.
fn duplicates(
    classes: &[String],
    facts: &[(Split, &Sample, PixelStatistics)],
    limits: &DecodeLimits,
) -> Vec<DuplicateGroup> {
    let mut by_key: HashMap<u64, Vec<usize>> = HashMap::new();
    for (position, (.., fact)) in facts.iter().enumerate() {
        by_key.entry(fact.key).or_default().push(position);
    }
    let groups: BTreeMap<usize, Vec<usize>> =
        by_key.into_values().filter(|group| group.len() > 1).map(|group| (group[0], group)).collect();
    let group = |positions: Vec<usize>| {
        let (first_split, first, _) = &facts[positions[0]];
        DuplicateGroup {
            across_splits: positions.iter().any(|&position| facts[position].0 != *first_split),
            conflicting_labels: positions.iter().any(|&position| facts[position].1.labels != first.labels),
            images: positions
                .iter()
                .map(|&position| {
                    let (split, sample, _) = &facts[position];
                    Duplicate {
                        split: *split,
                        class: sample.labels.names(classes),
                        image: sample.source.name(),
                        key: ContentKey::of(&sample.source, limits),
                    }
                })
                .collect(),
        }
    };
    let groups: Vec<Vec<usize>> = groups.into_values().collect();
    groups.into_par_iter().map(group).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use image::{Rgb, RgbImage};
    use tempfile::TempDir;

    use super::*;
    use crate::{Extent, OpenOptions, open};

    fn save(root: &Path, path: &str, size: (u32, u32), color: [u8; 3]) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        RgbImage::from_pixel(size.0, size.1, Rgb(color)).save(path).unwrap();
    }

    fn open_path(root: &Path) -> Dataset {
        open(&root.to_string_lossy(), &OpenOptions::default()).unwrap()
    }

    /// A data set of two classes with a corrupt file, an image that is twice in a class, one that is in both splits,
    /// and one that is in both classes.
    fn troubled() -> TempDir {
        let root = TempDir::new().unwrap();
        save(root.path(), "train/a/1.png", (4, 2), [255, 0, 0]);
        save(root.path(), "train/a/2.png", (4, 2), [255, 0, 0]);
        save(root.path(), "train/a/3.png", (6, 9), [0, 0, 1]);
        save(root.path(), "train/a/4.png", (5, 5), [0, 0, 2]);
        save(root.path(), "train/b/1.png", (5, 5), [0, 0, 2]);
        save(root.path(), "val/a/1.png", (2, 1), [0, 0, 4]);
        save(root.path(), "val/b/1.bmp", (6, 9), [0, 0, 1]);
        fs::write(root.path().join("train/b/broken.png"), "no image").unwrap();
        root
    }

    #[test]
    fn counts_sizes_and_colors_are_reported() {
        let root = troubled();
        let inspection = inspect(&open_path(root.path()), &DecodeLimits::default());
        let train = SplitCounts { split: Split::Train, samples: 6, classes: vec![4, 2] };
        assert_eq!((&inspection.splits[0], inspection.splits[1].samples), (&train, 2));
        assert_eq!((inspection.imbalance, inspection.gray, inspection.color), (2.0, 0, 7));
        let sizes = inspection.sizes.unwrap();
        assert_eq!(sizes.width, Extent { min: 2, median: 5, max: 6 });
        assert_eq!(sizes.height, Extent { min: 1, median: 5, max: 9 });
        let json = serde_json::to_value(&inspection).unwrap();
        assert_eq!(json["splits"][0]["split"], "train");
    }

    #[test]
    fn a_corrupt_file_is_listed() {
        let root = troubled();
        let inspection = inspect(&open_path(root.path()), &DecodeLimits::default());
        let [corrupt] = &inspection.corrupt[..] else {
            panic!("one file is corrupt: {:?}", inspection.corrupt)
        };
        assert!(
            corrupt.split == Split::Train
                && corrupt.image.ends_with("broken.png")
                && !corrupt.reason.is_empty()
        );
    }

    #[test]
    fn equal_images_are_found_within_and_between_splits_and_labels() {
        let root = troubled();
        let inspection = inspect(&open_path(root.path()), &DecodeLimits::default());
        let kinds: Vec<_> = inspection
            .duplicates
            .iter()
            .map(|group| (group.across_splits, group.conflicting_labels, group.images.len()))
            .collect();
        assert_eq!(kinds, [(false, false, 2), (true, true, 2), (false, true, 2)]);
        let leak = inspection.leaks().next().unwrap();
        assert!(leak.images[1].split == Split::Val && leak.images[1].class == "b");
        assert!(leak.images[1].image.ends_with("1.bmp"), "{leak:?}");
        assert_eq!((inspection.leaks().count(), inspection.conflicts().count()), (1, 2));
    }

    #[test]
    fn mean_and_deviation_are_those_of_the_training_pixels() {
        let root = TempDir::new().unwrap();
        save(root.path(), "train/a/1.png", (1, 3), [255, 51, 0]);
        save(root.path(), "train/b/1.png", (1, 1), [0, 51, 255]);
        save(root.path(), "val/a/1.png", (9, 9), [9, 9, 9]);
        save(root.path(), "val/b/1.png", (9, 9), [8, 8, 8]);
        let inspection = inspect(&open_path(root.path()), &DecodeLimits::default());
        let close = |found: &[f64], expected: [f64; 3]| {
            found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-9)
        };
        assert!(close(&inspection.mean, [0.75, 0.2, 0.25]), "{:?}", inspection.mean);
        let deviation = 0.1875f64.sqrt();
        assert!(close(&inspection.std, [deviation, 0.0, deviation]), "{:?}", inspection.std);
    }
}
