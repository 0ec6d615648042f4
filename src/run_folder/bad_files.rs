//! How many unreadable images a run tolerates, in each of its splits.

use anyhow::{Result, bail};
use vitrine_datasets::{BadFile, Split};

use crate::events::{Event, EventSink, adjective};
use crate::flags::described;

/// As many unreadable images of a split pass whatever their share, though never more than a tenth of it.
const FEW: usize = 5;

/// How many unreadable images of each split the user was told of.
#[derive(Clone, Debug, Default)]
pub struct BadFiles {
    told: [usize; Split::ALL.len()],
}

impl BadFiles {
    /// Judges the unreadable images of a split of `total`, and tells the user of them once. `limit` is the share that is
    /// tolerated; 0 lets nothing pass.
    ///
    /// # Errors
    /// When they are more than the limit allows; the message names the first.
    pub fn judge(
        &mut self,
        limit: f64,
        split: Split,
        (bad, total): (&[BadFile], usize),
        events: &dyn EventSink,
    ) -> Result<()> {
        let Some(first) = bad.first() else { return Ok(()) };
        if bad.len() > allowed(total, limit) {
            bail!(
                "{} of {total} {} images cannot be read, the first one being {}\nmore than the limit of {:.1}% plus the few always tolerated: repair or remove them \
                 (`vitrine inspect` lists all), or raise --bad-file-limit",
                bad.len(),
                adjective(split),
                described(first),
                100.0 * limit
            );
        }
        let told = &mut self.told[split as usize];
        if bad.len() > *told {
            *told = bad.len();
            events.emit(Event::UnreadableImages {
                split,
                unreadable: bad.len(),
                images: total,
                first: first.clone(),
            });
        }
        Ok(())
    }
}

/// How many of `total` may be unreadable.
fn allowed(total: usize, limit: f64) -> usize {
    let few = if limit > 0.0 { FEW.min(total / 10) } else { 0 };
    ((total as f64 * limit) as usize).max(few)
}

#[cfg(test)]
mod tests {
    use vitrine_datasets::Fault;

    use super::*;
    use crate::events::Quiet;

    #[test]
    fn a_few_pass_in_a_small_set_and_a_share_in_a_large_one() {
        assert_eq!([5, 20, 142, 500].map(|total| allowed(total, 0.01)), [0, 2, 5, 5]);
        assert_eq!([1000, 100_000].map(|total| allowed(total, 0.01)), [10, 1000]);
        assert_eq!([20, 142, 100_000].map(|total| allowed(total, 0.0)), [0; 3]);
        assert_eq!(allowed(4, 1.0), 4);
    }

    #[test]
    fn what_exceeds_the_limit_is_an_error_that_names_the_first() {
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
        assert_eq!(files.told, [0, 3, 0]);
        for part in ["12 of 16 test images", "0.png: cut short", "--bad-file-limit"] {
            assert!(message.contains(part), "{message} lacks {part}");
        }
    }
}
