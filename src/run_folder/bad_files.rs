//! The limit on unreadable images in each split of a run, the warning about those within the limit, and the notes by which a resumed run
//! does without them.

use std::collections::{BTreeSet, HashSet};

use anyhow::{Result, bail};
use vitrine_datasets::{BadFile, ContentKey, DecodeLimits, Inventory, Sample, Split};

use crate::events::{Event, EventSink, adjective};
use crate::flags::described;

/// Number of unreadable images that is tolerated in any split, even if their share exceeds the limit. Two bounds
/// remain: they are at most a tenth of the split, and a limit of 0 tolerates none.
const ALWAYS_TOLERATED: usize = 5;

/// The unreadable images of a run, as far as it has met them.
#[derive(Clone, Debug, Default)]
pub struct BadFiles {
    /// Their number in each split that was already reported to the user, so that no warning is repeated.
    reported: [usize; Split::ALL.len()],
    /// The names of those that were noted.
    noted: HashSet<String>,
    /// The content keys of those among them that cannot be decoded.
    undecodable: BTreeSet<ContentKey>,
}

impl BadFiles {
    /// Compares the unreadable images of a split of `total` images with `limit`, the tolerated share from 0 to 1, and
    /// emits an event if more are unreadable than were reported before. A limit of 0 tolerates none.
    ///
    /// # Errors
    /// If more images are unreadable than `limit` allows; the message names the first.
    pub fn judge(
        &mut self,
        limit: f64,
        split: Split,
        (bad, total): (&[BadFile], usize),
        events: &dyn EventSink,
    ) -> Result<()> {
        if let Some(event) = self.verdict(limit, split, (bad, total))? {
            events.emit(event);
        }
        Ok(())
    }

    /// As [`Self::judge`], but returns the event.
    ///
    /// # Errors
    /// As for [`Self::judge`].
    pub(super) fn verdict(
        &mut self,
        limit: f64,
        split: Split,
        (bad, total): (&[BadFile], usize),
    ) -> Result<Option<Event>> {
        let Some(first) = bad.first() else { return Ok(None) };
        if bad.len() > allowed(total, limit) {
            let stated = match limit > 0.0 {
                true => format!(
                    "{} are tolerated ({}% of a split, or up to 5 where that is less than a tenth)",
                    allowed(total, limit),
                    100.0 * limit
                ),
                false => "--bad-file-limit 0 tolerates none".to_owned(),
            };
            bail!(
                "{} of {total} {} images cannot be read, the first one being {}\n{stated}: repair or remove them \
                 (`vitrine inspect` lists all) for a new run, or raise --bad-file-limit (also with --resume)",
                bad.len(),
                adjective(split),
                described(first)
            );
        }
        let reported = &mut self.reported[split as usize];
        if bad.len() <= *reported {
            return Ok(None);
        }
        *reported = bad.len();
        let (unreadable, first) = (bad.len(), first.clone());
        Ok(Some(Event::UnreadableImages { split, unreadable, images: total, first }))
    }

    /// Notes the content of the unreadable images `bad` of `samples`, if they can never be decoded: a resumed run needs none of their
    /// files.
    pub fn note(&mut self, samples: &[Sample], bad: &[BadFile], limits: &DecodeLimits) {
        let names = bad.iter().map(|bad| bad.name.as_str());
        let new: HashSet<&str> = names.filter(|name| !self.noted.contains(*name)).collect();
        if new.is_empty() {
            return;
        }
        // One that a network drive did not give at that moment is no such image.
        let lost = samples.iter().filter(|sample| {
            new.contains(sample.source.name().as_str()) && sample.source.decode(limits).is_err()
        });
        self.undecodable.extend(lost.map(|sample| ContentKey::of(&sample.source, limits)));
        self.noted.extend(new.into_iter().map(str::to_owned));
    }

    /// The content keys of the images that were [noted](Self::note) since the last call.
    pub fn take_noted(&mut self) -> BTreeSet<ContentKey> {
        std::mem::take(&mut self.undecodable)
    }
}

/// The unreadable images of a split before training, as far as the first bytes of a file show that it is unreadable, and
/// the number of all its images. Files that the data set could not assign to any split count as training images.
pub(super) fn unreadable(images: &Inventory, split: Split) -> (Vec<BadFile>, usize) {
    let lost: &[BadFile] = if split == Split::Train { &images.left_out.unreadable } else { &[] };
    let listed = images.of_split(split).filter_map(|image| image.bad.as_ref());
    (listed.chain(lost).cloned().collect(), images.of_split(split).count() + lost.len())
}

/// The largest tolerated number of unreadable images in a split of `total`.
fn allowed(total: usize, limit: f64) -> usize {
    let few = if limit > 0.0 { ALWAYS_TOLERATED.min(total / 10) } else { 0 };
    ((total as f64 * limit) as usize).max(few)
}

#[cfg(test)]
mod tests {
    use vitrine_datasets::{Fault, ImageSource};

    use super::*;
    use crate::events::Quiet;
    use crate::run_folder::testing::drawn;

    #[test]
    fn a_few_are_tolerated_in_a_small_split_and_a_share_in_a_large_one() {
        assert_eq!([5, 20, 142, 500].map(|total| allowed(total, 0.01)), [0, 2, 5, 5]);
        assert_eq!([1000, 100_000].map(|total| allowed(total, 0.01)), [10, 1000]);
        assert_eq!([20, 142, 100_000].map(|total| allowed(total, 0.0)), [0; 3]);
        assert_eq!(allowed(4, 1.0), 4);
    }

    #[test]
    fn too_many_unreadable_images_are_an_error_that_names_the_first() {
        let bad = |count: usize| -> Vec<BadFile> {
            (0..count)
                .map(|i| BadFile::new(format!("{i}.png"), &Fault::Other("cut short".to_owned())))
                .collect()
        };
        let mut files = BadFiles::default();
        let mut judge = |split, bad: &[BadFile], total| files.judge(0.01, split, (bad, total), &Quiet);
        judge(Split::Val, &bad(0), 16).unwrap();
        judge(Split::Val, &bad(3), 142).unwrap();
        let message = judge(Split::Test, &bad(12), 16).unwrap_err().to_string();
        assert_eq!(files.reported, [0, 3, 0]);
        for part in ["12 of 16 test images", "0.png: cut short", "--bad-file-limit"] {
            assert!(message.contains(part), "{message} lacks {part}");
        }
    }

    #[test]
    fn the_content_of_what_cannot_be_decoded_is_noted_once() {
        let limits = DecodeLimits::default();
        let mut samples = drawn([2, 0, 0]).train;
        let bytes = b"\x89PNG\r\n\x1a\n".as_slice().into();
        let source = ImageSource::Encoded { name: "cut.png".to_owned(), bytes };
        let key = ContentKey::of(&source, &limits);
        samples.push(Sample { labels: 0.into(), source });
        let fault = Fault::Other("not at that moment".to_owned());
        let bad: Vec<BadFile> =
            samples.iter().map(|sample| BadFile::new(sample.source.name(), &fault)).collect();
        let mut files = BadFiles::default();
        files.note(&samples, &bad, &limits);
        assert_eq!(files.take_noted(), BTreeSet::from([key]));
        files.note(&samples, &bad, &limits);
        assert!(files.take_noted().is_empty());
    }
}
