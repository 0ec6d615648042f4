//! The allowed ranges of numbers in options and in recipe files.

use std::fmt;
use std::str::FromStr;

/// A range of numbers, which includes or excludes each of its ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds<T> {
    low: T,
    high: T,
    includes_low: bool,
    includes_high: bool,
}

/// A share from 0 to 1.
pub const SHARE: Bounds<f64> = Bounds::closed(0.0, 1.0);
/// A share of at least 0 and below 1.
pub const SHARE_BELOW_ONE: Bounds<f64> = Bounds { includes_high: false, ..SHARE };
/// A share above 0 and below 1, such as the share of images that is kept for validation.
pub const PART: Bounds<f64> = Bounds { includes_low: false, ..SHARE_BELOW_ONE };
/// A factor above 0 and at most 1.
pub const FACTOR: Bounds<f64> = Bounds { includes_low: false, ..SHARE };
/// The peak of the learning rate.
pub const LEARNING_RATE: Bounds<f64> = FACTOR;
/// Weight decay, and the norm to which gradients are clipped.
pub const NOT_NEGATIVE: Bounds<f64> = Bounds::closed(0.0, 1e6);
/// Seconds, up to a hundred years.
pub const SECONDS: Bounds<f64> = Bounds { includes_low: false, ..Bounds::closed(0.0, 3.2e9) };
/// Number of epochs, and of timed steps of a benchmark.
pub const EPOCHS: Bounds<usize> = Bounds::closed(1, 1_000_000);
/// Number of epochs without a better validation result after which a run stops; 0 never stops a run early.
pub const PATIENCE: Bounds<usize> = Bounds::closed(0, 1_000_000);
/// Number of images per batch, and of batches per update.
pub const BATCH_SIZE: Bounds<usize> = Bounds::closed(1, 65_536);
/// Number of images that may wait for a server's answer.
pub const QUEUE: Bounds<usize> = Bounds::closed(1, 1_000_000);
/// The mean of a channel.
pub const CHANNEL_MEAN: Bounds<f32> = Bounds::closed(0.0, 1.0);
/// The standard deviation of a channel.
pub const CHANNEL_DEVIATION: Bounds<f32> = Bounds { includes_low: false, ..CHANNEL_MEAN };
/// Number of compute threads.
pub const THREADS: Bounds<usize> = Bounds::closed(1, 1024);
/// Height or width of an image in pixels.
pub const IMAGE_SIZE: Bounds<usize> = Bounds::closed(1, 16_384);
/// The seed of a run, which TOML can hold.
pub const SEED: Bounds<u64> = Bounds::closed(0, i64::MAX as u64);
/// Number of runs in a series.
pub const RUNS: Bounds<usize> = Bounds::closed(2, 1000);
/// Number of classes to print, or of similar images to find, for each image.
pub const TOP: Bounds<usize> = Bounds::closed(1, 1_000_000);

impl<T> Bounds<T> {
    const fn closed(low: T, high: T) -> Self {
        Self { low, high, includes_low: true, includes_high: true }
    }
}

impl<T: PartialOrd + Copy + FromStr + fmt::Display> Bounds<T> {
    /// Whether a value lies in the range. NaN lies in no range.
    pub fn contain(&self, value: T) -> bool {
        (value > self.low || (self.includes_low && value == self.low))
            && (value < self.high || (self.includes_high && value == self.high))
    }

    /// Parses the value of an option.
    ///
    /// # Errors
    /// If the text is not a number in this range; the message states the range.
    pub fn read(&self, text: &str) -> Result<T, String> {
        text.trim()
            .parse()
            .ok()
            .filter(|value| self.contain(*value))
            .ok_or_else(|| format!("it must be a number that is {self}"))
    }
}

impl<T: PartialOrd + Copy + FromStr + fmt::Display> fmt::Display for Bounds<T> {
    /// For example `above 0 and at most 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let low = if self.includes_low { "at least" } else { "above" };
        let high = if self.includes_high { "at most" } else { "below" };
        write!(f, "{low} {} and {high} {}", self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_include_or_exclude_their_ends() {
        assert!(SHARE.contain(0.0) && SHARE.contain(1.0) && !SHARE.contain(1.1) && !SHARE.contain(f64::NAN));
        assert!(!PART.contain(0.0) && PART.contain(0.5) && !PART.contain(1.0));
        assert!(!LEARNING_RATE.contain(0.0) && LEARNING_RATE.contain(1.0) && !LEARNING_RATE.contain(-1.0));
        assert!(NOT_NEGATIVE.contain(1e6) && !NOT_NEGATIVE.contain(1e300));
        assert!(EPOCHS.contain(1) && !EPOCHS.contain(0) && !EPOCHS.contain(usize::MAX));
    }

    #[test]
    fn messages_state_the_range() {
        assert_eq!(
            LEARNING_RATE.read("-1"),
            Err("it must be a number that is above 0 and at most 1".to_owned())
        );
        assert_eq!(
            NOT_NEGATIVE.read("x"),
            Err("it must be a number that is at least 0 and at most 1000000".to_owned())
        );
        assert_eq!(
            BATCH_SIZE.read("0"),
            Err("it must be a number that is at least 1 and at most 65536".to_owned())
        );
        assert_eq!(BATCH_SIZE.read(" 8 "), Ok(8));
        assert_eq!(EPOCHS.read("-1").unwrap_err(), EPOCHS.read("1.5").unwrap_err());
    }
}
