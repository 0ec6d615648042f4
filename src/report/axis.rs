//! An axis of a chart: its ends, and round ticks with labels that differ.

/// What values mean, which decides how they are labeled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Numbers of any range.
    Number,
    /// Numbers whose axis includes zero.
    FromZero,
    /// Fractions, shown as percentages.
    Percent,
}

/// A range of values with its ticks.
pub(super) struct Axis {
    /// The value at the beginning of the axis.
    pub(super) low: f64,
    /// The value at its end.
    pub(super) high: f64,
    /// The values of the ticks, ascending.
    pub(super) ticks: Vec<f64>,
    /// The distance between two ticks.
    step: f64,
}

impl Axis {
    /// An axis with about `count` round ticks that covers the values from `low` to `high`.
    ///
    /// It is never so narrow that labels would need more than five digits to differ.
    pub(super) fn covering(low: f64, high: f64, count: f64, least_step: f64) -> Self {
        let size = low.abs().max(high.abs());
        let span = if high > low { (high - low).max(1e-3 * size) } else { (0.1 * size).max(1e-6) };
        let power = 10f64.powf((span / count).log10().floor());
        let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power * count >= span);
        let step = (factor.unwrap_or(10.0) * power).max(least_step);
        let first = (low / step).floor();
        let last = (high / step).ceil().max(first + 1.0);
        let ticks = (0..=12).map(|index| first + f64::from(index)).take_while(|&index| index <= last);
        Self { low: first * step, high: last * step, ticks: ticks.map(|index| index * step).collect(), step }
    }

    /// The axis, moved down by whole steps if it ends above `most`.
    pub(super) fn up_to(self, most: f64) -> Self {
        let Self { low, high, ticks, step } = self;
        let down = step * ((high - most) / step - 1e-6).ceil().max(0.0);
        let ticks = ticks.into_iter().map(|tick| tick - down).collect();
        Self { low: low - down, high: high - down, ticks, step }
    }

    /// Where a value lies between the ends of the axis, from 0 to 1.
    pub(super) fn fraction(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// The label of a tick, with as many digits as distinguish it from its neighbors.
    pub(super) fn label(&self, value: f64, unit: Unit) -> String {
        let exponent = |value: f64| (value.abs().log10() + 1e-9).floor();
        let scale = if unit == Unit::Percent { 100.0 } else { 1.0 };
        let decimals = (-exponent(scale * self.step)).max(0.0);
        let size = self.low.abs().max(self.high.abs());
        match unit {
            Unit::Percent => format!("{:.*}%", decimals as usize, 100.0 * value),
            // The first tick may be off zero by a rounding error.
            _ if value.abs() < 1e-6 * self.step => "0".to_owned(),
            _ if !(1e-2..1e5).contains(&size) => {
                format!("{value:.*e}", (exponent(value) - exponent(self.step)).max(0.0) as usize)
            }
            _ => format!("{value:.*}", decimals as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        let axis = Axis::covering(0.13, 2.2, 5.0, 0.0);
        assert_eq!((axis.low, axis.high, axis.step), (0.0, 2.5, 0.5));
        let labels: Vec<_> = axis.ticks.iter().map(|&tick| axis.label(tick, Unit::Number)).collect();
        assert_eq!(labels, ["0", "0.5", "1.0", "1.5", "2.0", "2.5"]);
    }

    #[test]
    fn labels_have_the_digits_they_need() {
        let rate = Axis::covering(0.0, 3e-5, 5.0, 0.0);
        assert_eq!(rate.label(2e-5, Unit::FromZero), "2e-5");
        let accuracy = Axis::covering(0.981, 0.9833, 5.0, 0.0);
        assert_eq!(accuracy.label(0.982, Unit::Percent), "98.20%");
        let loss = Axis::covering(1e6, 5e6, 5.0, 0.0);
        assert_eq!(loss.label(2e6, Unit::Number), "2e6");
    }

    #[test]
    fn no_two_ticks_have_the_same_label() {
        let flat = [
            (1.0, 1.0),
            (1.0, 1.000_04),
            (0.713_1, 0.713_2),
            (123_456.0, 123_461.0),
            (1e-3, 1.01e-3),
            (9.999, 10.001),
        ];
        for (low, high) in flat {
            for unit in [Unit::Number, Unit::FromZero, Unit::Percent] {
                let axis = Axis::covering(low, high, 5.0, 0.0);
                let mut labels: Vec<_> = axis.ticks.iter().map(|&tick| axis.label(tick, unit)).collect();
                assert!(unit == Unit::Percent || labels.iter().all(|label| label.len() <= 8), "{labels:?}");
                let count = labels.len();
                labels.dedup();
                assert_eq!(labels.len(), count, "{low}..{high}: {labels:?}");
            }
        }
    }

    #[test]
    fn an_axis_that_ends_above_the_most_is_moved_down() {
        for (low, high, ends) in
            [(1.0, 1.0, [0.98, 1.0]), (0.52, 0.99, [0.5, 1.0]), (0.26, 0.49, [0.25, 0.5])]
        {
            let axis = Axis::covering(low, high, 5.0, 0.0).up_to(1.0);
            let found = [axis.low, axis.high];
            assert!(found.iter().zip(ends).all(|(a, b)| (a - b).abs() < 1e-9), "{low}..{high}: {found:?}");
            assert!((axis.ticks[0] - axis.low).abs() < 1e-9, "{:?}", axis.ticks);
        }
    }

    #[test]
    fn an_axis_never_collapses() {
        for (low, high) in
            [(0.0, 0.0), (1.0, 1.0), (-3.0, -3.0), (1e29, 1e29), (-1e29, 1e29), (1.0, 1.0 + 1e-15)]
        {
            let axis = Axis::covering(low, high, 5.0, 0.0);
            assert!(axis.high > axis.low, "{low}..{high}");
            assert!((2..=13).contains(&axis.ticks.len()), "{low}..{high}");
            assert!((0.0..=1.0).contains(&axis.fraction(low)), "{low}..{high}");
        }
    }
}
