//! Labeled images from folders, archives, manifests, and published data sets: found, split, decoded, augmented, and
//! batched.
//!
//! [`open`] takes a name or a path and returns a [`Dataset`], which has three splits of [`Sample`]s and their class
//! names. An image is decoded when its pixels are asked for, not before.
//!
//! ```
//! use vitrine_datasets::{OpenOptions, Split, open};
//!
//! let dataset = open("shapes", &OpenOptions::default())?;
//! let first = &dataset.split(Split::Train)[0];
//! println!("{} is a {}", first.source.name(), first.labels.names(&dataset.info.classes));
//! # Ok::<(), vitrine_datasets::DatasetError>(())
//! ```

#![forbid(unsafe_code)]

mod catalog;
mod content;
mod dataset;
mod error;
mod files;
mod images;
mod inspect;
mod labels;
mod listed;
mod loader;
mod source;
mod split;
mod transform;

pub use catalog::{OpenOptions, can_only_be_dataset, is_known_name, names, open, published_names};
pub use content::{ContentKey, Fingerprint, Inventory, KeySet, ListedImage};
pub use dataset::{ClassSizes, Dataset, DatasetInfo, Fold, SourceKind, ValidationOrigin, duplicate_name};
pub use error::DatasetError;
pub use files::{
    BadFile, Entry, Fault, FileKind, Group, LeftOut, Place, Reason, Spool, Unfinished, Walk, is_image_name,
    open_regular, path_of_shown, read_regular, remove_unfinished, shown,
};
pub use images::{DecodeLimits, Decoded, Image, ImageSource, Sample};
pub use inspect::{
    AspectRatios, CorruptImage, Duplicate, DuplicateGroup, Extent, Inspection, SizeRange, SplitCounts,
    Survey, inspect, survey,
};
pub use labels::Labels;
pub use loader::{Batch, Batches, Loader, LoaderConfig, balanced_order, epoch_order};
pub use source::DownloadProgress;
pub use source::archive::{is_archive_name, read_archive, read_archive_from};
pub use split::{Split, UnknownSplit};
pub use transform::{
    Augmentation, AutoAugment, Crop, CropRounding, Interpolation, InvalidAugmentation, InvalidPreprocessing,
    MixMode, Preprocessing, RandAugment, ResizeRule,
};
