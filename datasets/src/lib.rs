//! Labeled images, wherever they are: found, split, decoded, augmented and batched.
//!
//! [`open`] takes a name or a path and gives a [`Dataset`]: three splits of [`Sample`]s and what is known
//! about them. No image is decoded until it is asked for.
//!
//! ```
//! use vitrine_datasets::{OpenOptions, Split, open};
//!
//! let dataset = open("shapes", &OpenOptions::default())?;
//! let first = &dataset.split(Split::Train)[0];
//! println!("{} is a {}", first.source.name(), dataset.info.classes[first.label]);
//! # Ok::<(), vitrine_datasets::DatasetError>(())
//! ```

#![forbid(unsafe_code)]

mod catalog;
mod class_sizes;
mod content;
mod dataset;
mod decode;
mod download;
mod drawing;
mod error;
mod files;
mod folds;
mod held_out;
mod inspect;
mod inventory;
mod jpeg;
mod key_set;
mod limits;
mod loader;
mod memory;
mod pixels;
mod sample;
mod sampler;
mod source;
mod split;
mod survey;
mod training;
mod transform;

pub use catalog::{OpenOptions, names, open, published_names};
pub use class_sizes::ClassSizes;
pub use content::ContentKey;
pub use dataset::{Dataset, DatasetInfo, SourceKind, ValidationOrigin, duplicate_name};
pub use decode::Decoded;
pub use download::DownloadProgress;
pub use error::DatasetError;
pub use files::{
    BadFile, Entry, FileKind, Group, LeftOut, Place, Reason, Spool, Walk, is_image_name, open_regular,
    read_regular, shown,
};
pub use folds::Fold;
pub use inspect::{CorruptImage, Duplicate, DuplicateGroup, Inspection, SplitCounts, inspect};
pub use inventory::{Fingerprint, Inventory, ListedImage};
pub use key_set::KeySet;
pub use limits::DecodeLimits;
pub use loader::{Batch, Batches, Loader, LoaderConfig};
pub use pixels::Image;
pub use sample::{ImageSource, Sample};
pub use sampler::{balanced_order, epoch_order};
pub use split::{Split, UnknownSplit};
pub use survey::{AspectRatios, Extent, SizeRange, Survey, survey};
pub use transform::{
    Augmentation, AutoAugment, Crop, CropRounding, Interpolation, InvalidAugmentation, InvalidPreprocessing,
    MixMode, Preprocessing, RandAugment, ResizeRule,
};
