//! The kept features of all backbones: what there is, what to delete when they take too much room, and how to clear them.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

use super::files::{ABOUT, files_in, left_behind};
use super::segment;

/// A place for kept features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureStore {
    folder: PathBuf,
    /// The room for all features in bytes.
    limit: u64,
}

/// The kept features of one backbone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptFeatures {
    folder: PathBuf,
    /// The backbone in words; `None` if nothing says what it is.
    pub about: Option<String>,
    /// Number of images, counted once for each file that holds them.
    pub images: u64,
    /// Size of the files.
    pub bytes: u64,
    /// When they were used last.
    pub used: SystemTime,
}

impl FeatureStore {
    /// The limit where none is stated: 4 GiB, the features of 0.9 million images by a ViT-S that is read at two depths.
    pub const LIMIT: u64 = 4 << 30;

    /// The features in the cache folder `cache`, of at most `limit` bytes.
    pub fn new(cache: &Path, limit: u64) -> Self {
        Self { folder: cache.join("features"), limit }
    }

    /// The folder of all features.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the backbone with this [`identity`](super::identity).
    pub(crate) fn of_backbone(&self, identity: &str) -> PathBuf {
        self.folder.join(identity)
    }

    /// The kept features, those used last first. Folders that hold none, and any other files, are left out.
    ///
    /// # Errors
    /// If a folder cannot be read.
    pub fn list(&self) -> Result<Vec<KeptFeatures>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("{}: cannot be read", self.folder.display()))?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry.with_context(|| format!("{}: cannot be read", self.folder.display()))?.path();
            if path.is_dir() {
                all.extend(KeptFeatures::of(path)?);
            }
        }
        all.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.folder.cmp(&b.folder)));
        Ok(all)
    }

    /// Deletes the features that were used the longest time ago until the rest is within the limit, but not those in the folders
    /// `used`. Returns what was deleted.
    ///
    /// # Errors
    /// If a folder cannot be read, or a file cannot be deleted.
    pub(crate) fn shrink(&self, used: &[PathBuf]) -> Result<Vec<KeptFeatures>> {
        let mut all = self.list()?;
        let mut bytes: u64 = all.iter().map(|features| features.bytes).sum();
        let mut deleted = Vec::new();
        while bytes > self.limit
            && let Some(place) = all.iter().rposition(|features| !used.contains(&features.folder))
        {
            let features = all.remove(place);
            features.delete()?;
            bytes -= features.bytes;
            deleted.push(features);
        }
        Ok(deleted)
    }
}

impl KeptFeatures {
    /// The features in a folder; `None` if it holds none.
    fn of(folder: PathBuf) -> Result<Option<Self>> {
        let (mut images, mut bytes, mut used) = (0, 0, SystemTime::UNIX_EPOCH);
        let files = files_in(&folder)?;
        for file in &files {
            // Another program may have deleted it since.
            let Ok(metadata) = fs::metadata(file) else { continue };
            images += segment::count(file).unwrap_or(0);
            bytes += metadata.len();
            used = used.max(metadata.modified().unwrap_or(used));
        }
        let about = folder.join(ABOUT);
        used = fs::metadata(&about).and_then(|of| of.modified()).map_or(used, |noted| used.max(noted));
        let about = fs::read_to_string(about).ok().map(|text| text.trim().escape_debug().to_string());
        Ok((!files.is_empty()).then_some(Self { folder, about, images, bytes, used }))
    }

    /// The backbone in words.
    pub fn described(&self) -> &str {
        self.about.as_deref().unwrap_or("a backbone of an earlier version")
    }

    /// Deletes the files of features and their folder, with what killed programs have left. Other files in it stay, and the
    /// folder with them.
    ///
    /// # Errors
    /// If a file cannot be deleted.
    pub fn delete(&self) -> Result<()> {
        let files = files_in(&self.folder)?.into_iter().chain([self.folder.join(ABOUT)]);
        for file in files.chain(left_behind(&self.folder)) {
            match fs::remove_file(&file) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("{}: cannot be deleted", file.display()));
                }
                _ => {}
            }
        }
        // It fails if someone else's files are there.
        let _ = fs::remove_dir(&self.folder);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::File;
    use std::time::Duration;

    use vitrine_datasets::ContentKey;

    use super::*;
    use crate::events::testing::Lines;
    use crate::features::FeatureCache;

    /// A store with the features of two images for each of three backbones, the first of which was used last.
    fn filled(folder: &Path, limit: u64) -> FeatureStore {
        let store = FeatureStore::new(folder, limit);
        let events = Lines::default();
        for (age, name) in ["a", "b", "c"].into_iter().enumerate() {
            let folder = store.of_backbone(name);
            let mut cache = FeatureCache::open(&folder, 4, &[], name, &events);
            for number in 1..=2 {
                let key: ContentKey = format!("{number:032x}").try_into().unwrap();
                cache.add(key, 7, &[1.0; 4]);
            }
            cache.write();
            let then = SystemTime::now() - Duration::from_secs(60 * age as u64);
            for file in files_in(&folder).unwrap().into_iter().chain([folder.join(ABOUT)]) {
                File::options().write(true).open(file).unwrap().set_modified(then).unwrap();
            }
        }
        store
    }

    fn names(kept: &[KeptFeatures]) -> Vec<&str> {
        kept.iter().map(|features| features.about.as_deref().unwrap()).collect()
    }

    #[test]
    fn what_was_used_longest_ago_is_deleted_first_and_what_is_in_use_never() {
        let folder = tempfile::tempdir().unwrap();
        let store = filled(folder.path(), u64::MAX);
        let all = store.list().unwrap();
        assert_eq!((names(&all), all[0].images), (vec!["a", "b", "c"], 2));
        let each = all[0].bytes;
        assert!(store.shrink(&[store.of_backbone("a")]).unwrap().is_empty());
        let limited = |limit| FeatureStore { limit, ..store.clone() };
        assert_eq!(names(&limited(2 * each).shrink(&[store.of_backbone("c")]).unwrap()), ["b"]);
        assert_eq!(names(&store.list().unwrap()), ["a", "c"]);
        assert_eq!(names(&limited(0).shrink(&[store.of_backbone("c")]).unwrap()), ["a"]);
        assert_eq!(names(&store.list().unwrap()), ["c"], "what is in use stays, even above the limit");
    }

    #[test]
    fn several_features_can_be_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let store = filled(folder.path(), 0);
        let used = ["b", "c"].map(|name| store.of_backbone(name));
        assert_eq!(names(&store.shrink(&used).unwrap()), ["a"]);
        assert_eq!(names(&store.list().unwrap()), ["b", "c"]);
    }

    #[test]
    fn using_features_makes_them_the_last_used() {
        let folder = tempfile::tempdir().unwrap();
        let store = filled(folder.path(), u64::MAX);
        FeatureCache::open(&store.of_backbone("c"), 4, &[], "another text", &Lines::default());
        assert_eq!(names(&store.list().unwrap()), ["c", "a", "b"]);
    }

    #[test]
    fn only_features_are_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let store = filled(folder.path(), 0);
        fs::write(store.of_backbone("b").join("mine.txt"), "mine").unwrap();
        fs::create_dir(store.folder().join("empty")).unwrap();
        store.list().unwrap().iter().for_each(|features| features.delete().unwrap());
        assert!(store.list().unwrap().is_empty());
        assert!(!store.of_backbone("a").exists() && store.of_backbone("b").join("mine.txt").is_file());
        assert!(store.folder().join("empty").is_dir());
        assert!(FeatureStore::new(&folder.path().join("nowhere"), 0).list().unwrap().is_empty());
    }
}
