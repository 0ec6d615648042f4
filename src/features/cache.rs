//! Features on disk. The folder of a backbone holds files that are written once, each with a checksum, so that programs
//! which use it at the same time add files of their own and never see a part of one.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use vitrine_datasets::ContentKey;

use super::files::{EXTENSION, files_in, note_use};
use super::segment::{self, Key, Row};
use crate::events::{Event, EventSink};
use crate::files::write_atomically;

/// The kept features of some images, and those that are still to be written.
pub struct FeatureCache<'a> {
    /// The folder; `None` once it turns out that it cannot be written.
    folder: Option<PathBuf>,
    width: usize,
    known: HashMap<Key, (u64, Vec<f32>)>,
    new: Vec<Row>,
    /// The backbone in words.
    about: String,
    events: &'a dyn EventSink,
}

impl<'a> FeatureCache<'a> {
    /// Opens the folder of a backbone, which need not exist, and reads the features of the images `keys`, of `width` values
    /// each. A file that is damaged is removed, and one that cannot be read is left alone; a warning says so, and its features are
    /// computed again. `about` is the backbone in words, which is noted in a new folder.
    pub fn open(
        folder: &Path,
        width: usize,
        keys: &[ContentKey],
        about: &str,
        events: &'a dyn EventSink,
    ) -> Self {
        let wanted: HashSet<Key> = keys.iter().map(|key| key.to_le_bytes()).collect();
        let mut cache = Self {
            folder: Some(folder.to_owned()),
            width,
            known: HashMap::new(),
            new: Vec::new(),
            about: about.to_owned(),
            events,
        };
        note_use(folder, about);
        let files = files_in(folder).unwrap_or_else(|error| {
            events.emit(Event::warning(format!("{error:#}; all features are computed again")));
            Vec::new()
        });
        for file in files {
            let found =
                segment::read(&file).map(|bytes| segment::decode(&bytes, width, &|key| wanted.contains(key)));
            match found {
                Ok(Ok(rows)) => cache.add_known(rows),
                Ok(Err(error)) => events.emit(Event::warning(discarded(&file, &error))),
                Err(_) if !file.exists() => {}
                Err(error) => {
                    let file = file.display();
                    events
                        .emit(Event::warning(format!("{file}: {error:#}; its features are computed again")));
                }
            }
        }
        cache
    }

    fn add_known(&mut self, rows: Vec<Row>) {
        let rows = rows.into_iter().filter(|row| row.features.iter().all(|value| value.is_finite()));
        self.known.extend(rows.map(|Row { key, pixel_key, features }| (key, (pixel_key, features))));
    }

    /// The hash of the pixels and the features of an image, if they were kept.
    pub fn get(&self, key: ContentKey) -> Option<(u64, &[f32])> {
        let (pixel_key, features) = self.known.get(&key.to_le_bytes())?;
        Some((*pixel_key, features))
    }

    /// Adds the features of an image. [`write`](Self::write) writes them.
    ///
    /// # Panics
    /// If their number is not the cache's.
    pub fn add(&mut self, key: ContentKey, pixel_key: u64, features: &[f32]) {
        assert_eq!(features.len(), self.width, "features of one width");
        let (key, features) = (key.to_le_bytes(), features.to_vec());
        self.new.push(Row { key, pixel_key, features });
    }

    /// Number of bytes that are still to be written.
    pub fn unwritten(&self) -> usize {
        self.new.len() * Row::bytes(self.width)
    }

    /// Writes the added features into a new file. If that fails, a warning says so, once, and nothing more is written.
    pub fn write(&mut self) {
        let rows = std::mem::take(&mut self.new);
        let folder = self.folder.as_deref().filter(|_| !rows.is_empty());
        let written = folder.map(|folder| {
            // Another program may have deleted the folder between two steps of the first attempt.
            write_rows(folder, self.width, &rows).or_else(|_| write_rows(folder, self.width, &rows))?;
            note_use(folder, &self.about);
            Ok(())
        });
        if let Some(Err::<(), anyhow::Error>(error)) = written {
            let message = format!(
                "{error:#}; the features are not kept, and the next run computes them again (--cache DIR names another folder)"
            );
            self.events.emit(Event::warning(message));
            self.folder = None;
        }
        self.add_known(rows);
    }
}

/// Writes rows into a new file of the folder.
fn write_rows(folder: &Path, width: usize, rows: &[Row]) -> Result<()> {
    let bytes = segment::encode(width, rows);
    let name: String = Sha256::digest(&bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    fs::create_dir_all(folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    write_atomically(&folder.join(format!("{name}.{EXTENSION}")), &bytes)
}

/// Removes a file that cannot be used, and returns the warning about it.
fn discarded(file: &Path, error: &anyhow::Error) -> String {
    let outcome = match fs::remove_file(file) {
        Ok(()) => "it was removed, and its features are computed again",
        Err(_) => "its features are computed again",
    };
    format!("{}: {error:#}: {outcome}", file.display())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::events::testing::Lines;

    fn key(number: u8) -> ContentKey {
        format!("{number:032x}").try_into().unwrap()
    }

    /// A folder with a file of the features of two images, and one of a third.
    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let events = Lines::default();
        let mut cache = FeatureCache::open(&folder.path().join("a"), 2, &[], "a", &events);
        cache.add(key(1), 11, &[1.0, 1.5]);
        cache.add(key(2), 12, &[2.0, 2.5]);
        assert_eq!(cache.unwritten(), 2 * 32);
        cache.write();
        cache.add(key(3), 13, &[3.0, 3.5]);
        cache.write();
        cache.write();
        assert_eq!(cache.get(key(3)), Some((13, &[3.0, 3.5][..])));
        assert_eq!(files_in(&folder.path().join("a")).unwrap().len(), 2);
        assert!(events.0.into_inner().unwrap().is_empty());
        folder
    }

    #[test]
    fn only_wanted_features_are_read() {
        let (folder, events) = (folder(), Lines::default());
        let cache = FeatureCache::open(&folder.path().join("a"), 2, &[key(2), key(3), key(4)], "a", &events);
        let found = [1, 2, 3, 4].map(|number| cache.get(key(number)).map(|(pixels, _)| pixels));
        assert_eq!(found, [None, Some(12), Some(13), None]);
        assert!(events.0.into_inner().unwrap().is_empty());
    }

    #[test]
    fn a_damaged_file_is_removed_with_a_warning_and_the_others_are_used() {
        let (folder, events) = (folder(), Lines::default());
        let path = folder.path().join("a");
        let files = files_in(&path).unwrap();
        let damaged = files.iter().max_by_key(|file| fs::metadata(file).unwrap().len()).unwrap();
        let bytes = fs::read(damaged).unwrap();
        fs::write(damaged, &bytes[..bytes.len() - 7]).unwrap();
        fs::write(path.join("notes.txt"), "mine").unwrap();
        let cache = FeatureCache::open(&path, 2, &[key(1), key(2), key(3)], "a", &events);
        assert!(cache.get(key(1)).is_none() && cache.get(key(3)).is_some());
        let messages = events.0.into_inner().unwrap();
        assert!(
            messages.len() == 1 && messages[0].contains("cut short") && messages[0].contains("removed"),
            "{messages:?}"
        );
        assert!(!damaged.exists() && path.join("notes.txt").is_file());
    }

    #[test]
    fn a_folder_that_cannot_be_used_gives_one_warning_and_no_error() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "").unwrap();
        let events = Lines::default();
        let mut cache = FeatureCache::open(&file.join("a"), 2, &[key(1)], "a", &events);
        for number in [1, 2] {
            cache.add(key(number), 1, &[1.0, 2.0]);
            cache.write();
        }
        assert!(cache.get(key(2)).is_some(), "what was computed stays in memory");
        let messages = events.0.into_inner().unwrap();
        assert!(messages.iter().filter(|message| message.contains("--cache")).count() == 1, "{messages:?}");
    }
}
