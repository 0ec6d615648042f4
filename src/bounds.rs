//! The ranges of numbers that users give, in options and in recipe files.

use std::fmt;
use std::str::FromStr;

/// A range of numbers. Each end is either inside or outside of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds<T> {
    low: T,
    high: T,
    low_is_in: bool,
    high_is_in: bool,
}

/// A share of anything, with 0 and 1.
pub const SHARE: Bounds<f64> = Bounds::closed(0.0, 1.0);
/// A share below 1.
pub const SHARE_BELOW_ONE: Bounds<f64> = Bounds { high_is_in: false, ..SHARE };
/// A share above 0 and below 1, such as that of the validation images.
pub const PART: Bounds<f64> = Bounds { low_is_in: false, ..SHARE_BELOW_ONE };
/// A factor above 0 that does not increase anything.
pub const FACTOR: Bounds<f64> = Bounds { low_is_in: false, ..SHARE };
/// The highest learning rate.
pub const LEARNING_RATE: Bounds<f64> = FACTOR;
/// Weight decay, and the norm that gradients are clipped to.
pub const NOT_NEGATIVE: Bounds<f64> = Bounds::closed(0.0, 1e6);
/// Seconds, up to a hundred years.
pub const SECONDS: Bounds<f64> = Bounds { low_is_in: false, ..Bounds::closed(0.0, 3.2e9) };
/// Epochs, and timed steps of a benchmark.
pub const EPOCHS: Bounds<usize> = Bounds::closed(1, 1_000_000);
/// Epochs without a better result before a run stops; 0 turns this off.
pub const PATIENCE: Bounds<usize> = Bounds::closed(0, 1_000_000);
/// Images per step, and batches per update.
pub const BATCH_SIZE: Bounds<usize> = Bounds::closed(1, 65_536);
/// The mean of a channel.
pub const CHANNEL_MEAN: Bounds<f32> = Bounds::closed(0.0, 1.0);
/// The standard deviation of a channel.
pub const CHANNEL_DEVIATION: Bounds<f32> = Bounds { low_is_in: false, ..CHANNEL_MEAN };
/// Number of compute threads.
pub const THREADS: Bounds<usize> = Bounds::closed(1, 1024);
/// Height or width of an image in pixels.
pub const IMAGE_SIZE: Bounds<usize> = Bounds::closed(1, 16_384);
/// Number of runs in a series.
pub const RUNS: Bounds<usize> = Bounds::closed(2, 1000);
/// Number of classes to print for each image.
pub const TOP: Bounds<usize> = Bounds::closed(1, 1_000_000);

impl<T> Bounds<T> {
    const fn closed(low: T, high: T) -> Self {
        Self { low, high, low_is_in: true, high_is_in: true }
    }
}

impl<T: PartialOrd + Copy + FromStr + fmt::Display> Bounds<T> {
    /// Whether a value lies in the range. NaN lies in no range.
    pub fn contain(&self, value: T) -> bool {
        (value > self.low || (self.low_is_in && value == self.low))
            && (value < self.high || (self.high_is_in && value == self.high))
    }

    /// Parses the value of an option.
    ///
    /// # Errors
    /// When the text is not a number of this range; the message states the range.
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
        let low = if self.low_is_in { "at least" } else { "above" };
        let high = if self.high_is_in { "at most" } else { "below" };
        write!(f, "{low} {} and {high} {}", self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_range_are_inside_or_outside() {
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
