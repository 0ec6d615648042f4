//! The memory that fits of regressions need.

use super::{lbfgs, logistic};

/// Regressions of more parameters should be fitted one after the other: each keeps dozens of vectors of that length, and one alone
/// occupies all threads.
pub const MANY_PARAMETERS: usize = 200_000;

/// The parameters of a regression.
pub fn parameters(width: usize, classes: usize) -> usize {
    (width + 1) * classes
}

/// Bytes that fits to the features of `images` images take, besides those features: of `at_once` regressions at the same time, or of
/// one after the other if they have more than [`MANY_PARAMETERS`].
pub fn fit_bytes(images: usize, width: usize, classes: usize, at_once: usize) -> u64 {
    let parameters = parameters(width, classes) as u64;
    let running = if parameters > MANY_PARAMETERS as u64 { 1 } else { at_once as u64 };
    let of_block = (logistic::BLOCK.min(images) * (width + 1 + classes)) as u64;
    // Each fold leaves its solution for the next strength, and each strength one for the fit to all images; the covariance and two factors of it are `[width, width]`.
    let values = running * (lbfgs::VECTORS as u64 * parameters + of_block)
        + 2 * at_once as u64 * parameters
        + 3 * (width * width) as u64;
    8 * values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regressions_of_many_classes_need_much_more_than_the_features() {
        let few = fit_bytes(2_000, 384, 10, 5);
        assert!((1 << 23..1 << 27).contains(&few), "{few}");
        // 2304 features of 1000 classes: 18 MB for a vector.
        let many = fit_bytes(20_000, 2_304, 1_000, 5);
        assert!((8 << 27..1 << 31).contains(&many), "{many}");
        assert!(fit_bytes(20_000, 2_304, 10_000, 5) > 8 * many);
    }
}
