//! Counts, and the proportions of them with their intervals.

/// The counts of one class: images that have it, images for which it was predicted, and images with both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ClassCounts {
    pub(super) support: usize,
    pub(super) predicted: usize,
    pub(super) hits: usize,
}

impl ClassCounts {
    /// F1: twice the hits over the sum of both other counts; 0 if that is 0.
    pub(super) fn f1(self) -> f64 {
        ratio(2 * self.hits, self.predicted + self.support)
    }
}

/// `part / whole`, and 0 if the whole is 0.
pub(super) fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// The 95% score interval of a proportion (Wilson 1927); `[0, 1]` without samples.
///
/// Unlike the normal approximation, it stays inside `[0, 1]` and keeps its coverage for proportions near 0 and 1.
pub(crate) fn wilson_interval(hits: usize, samples: usize) -> [f64; 2] {
    const Z: f64 = 1.959_963_984_540_054;
    if samples == 0 {
        return [0.0, 1.0];
    }
    let n = samples as f64;
    let p = hits as f64 / n;
    let scale = 1.0 + Z * Z / n;
    let center = (p + Z * Z / (2.0 * n)) / scale;
    let half_width = Z / scale * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    [(center - half_width).max(0.0), (center + half_width).min(1.0)]
}
