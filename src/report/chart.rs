//! A line chart over epochs, as SVG.

use super::html::number;
use crate::evaluate::percent;

/// Size of the whole chart.
const SIZE: (f64, f64) = (380.0, 264.0);
/// Left, right, top and bottom of the plot inside it.
const PLOT: (f64, f64, f64, f64) = (64.0, 366.0, 22.0, 222.0);
/// With more epochs than this, hovering would not find a single one.
const HOVER_EPOCHS: usize = 400;

/// What the values are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Numbers of any range.
    Number,
    /// Numbers that are read against zero.
    FromZero,
    /// Fractions, shown as percentages.
    Percent,
}

/// One line: a value per epoch, `None` where there is none.
pub(super) struct Series {
    /// Its name, which is also its style class.
    name: &'static str,
    /// The values; those that are not finite leave a gap.
    values: Vec<Option<f64>>,
}

/// A chart of one or more lines.
pub(super) struct LineChart<'a> {
    /// Heading.
    pub(super) title: &'static str,
    /// What the values are.
    pub(super) unit: Unit,
    /// The epochs' numbers.
    pub(super) epochs: &'a [usize],
    /// The lines, each as long as `epochs`.
    pub(super) series: Vec<Series>,
    /// The epoch to mark.
    pub(super) best: Option<usize>,
}

/// Values and where they lie.
struct Axis {
    low: f64,
    high: f64,
    ticks: Vec<f64>,
    step: f64,
}

impl Series {
    /// A line from its values, of which those that are not finite leave a gap.
    pub(super) fn new(name: &'static str, values: Vec<Option<f64>>) -> Self {
        Self { name, values }
    }

    /// Whether nothing was measured at all.
    pub(super) fn is_empty(&self) -> bool {
        self.values.iter().all(Option::is_none)
    }

    /// The value at a place, if it can be drawn.
    fn finite(&self, place: usize) -> Option<f64> {
        self.values[place].filter(|value| value.is_finite() && value.abs() < 1e30)
    }
}

impl Axis {
    /// An axis with about `count` round ticks that covers the values; it is never so narrow that the ticks' labels
    /// would need more than five digits to differ.
    fn covering(low: f64, high: f64, count: f64, least_step: f64) -> Self {
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

    /// Where a value lies between the ends of the axis, from 0 to 1.
    fn fraction(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// A tick's text, with as many digits as tell it from its neighbors.
    fn label(&self, value: f64, unit: Unit) -> String {
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

impl LineChart<'_> {
    /// The chart as a `figure`.
    pub(super) fn render(&self) -> String {
        let caption = format!("<figcaption><h3>{}</h3>{}</figcaption>\n", self.title, self.legend());
        let Some(y_axis) = self.y_axis() else {
            return format!(
                r#"<figure class="chart">
{caption}<p class="note">All values are NaN or infinite.</p>
</figure>
"#
            );
        };
        let x_axis = self.x_axis();
        let place = |index: usize| x(x_axis.fraction(self.epochs[index] as f64));
        let lines: String = self.series.iter().map(|series| line(series, &y_axis, &place)).collect();
        let (width, height) = SIZE;
        format!(
            r#"<figure class="chart">
{caption}<svg viewBox="0 0 {width} {height}" role="img"
aria-label="{title} by epoch">
{grid}{best}{lines}{bands}</svg>
</figure>
"#,
            title = self.title,
            grid = self.grid(&x_axis, &y_axis),
            best = self.best_mark(&y_axis, &place),
            bands = self.hover_bands(&place),
        )
    }

    /// The names of the lines, where there is more than one.
    fn legend(&self) -> String {
        if self.series.len() < 2 {
            return String::new();
        }
        let item = |series: &Series| format!(r#"<span class="item {0}">{0}</span>"#, series.name);
        format!(r#"<span class="legend">{}</span>"#, self.series.iter().map(item).collect::<String>())
    }

    /// An axis around all values that can be drawn, if there are any.
    fn y_axis(&self) -> Option<Axis> {
        let places = 0..self.epochs.len();
        let values =
            self.series.iter().flat_map(|series| places.clone().filter_map(|place| series.finite(place)));
        let (low, high) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let low = if self.unit == Unit::FromZero { low.min(0.0) } else { low };
        (low <= high).then(|| Axis::covering(low, high, 5.0, 0.0))
    }

    /// An axis from the first epoch to the last, with ticks at whole numbers.
    fn x_axis(&self) -> Axis {
        let first = self.epochs.iter().copied().min().unwrap_or(0) as f64;
        let last = self.epochs.iter().copied().max().unwrap_or(0) as f64;
        let mut axis = Axis::covering(first, last, 6.0, 1.0);
        (axis.low, axis.high) = if last > first { (first, last) } else { (first - 1.0, first + 1.0) };
        axis.ticks.retain(|tick| (first..=last).contains(tick));
        axis
    }

    /// Grid lines, ticks and the horizontal axis.
    fn grid(&self, x_axis: &Axis, y_axis: &Axis) -> String {
        let (left, right, _, bottom) = PLOT;
        let horizontal = |&tick: &f64| {
            let y = y(y_axis.fraction(tick));
            let label = y_axis.label(tick, self.unit);
            format!(
                r#"<line class="grid" x1="{left}" x2="{right}" y1="{y:.1}" y2="{y:.1}" />
<text class="tick" x="{}" y="{:.1}" text-anchor="end">{label}</text>
"#,
                left - 7.0,
                y + 4.0
            )
        };
        let vertical = |&tick: &f64| {
            let x = x(x_axis.fraction(tick));
            format!(
                r#"<line class="base" x1="{x:.1}" x2="{x:.1}" y1="{bottom}" y2="{}" />
<text class="tick" x="{x:.1}" y="{}" text-anchor="middle">{tick}</text>
"#,
                bottom + 4.0,
                bottom + 18.0
            )
        };
        let ticks: String =
            y_axis.ticks.iter().map(horizontal).chain(x_axis.ticks.iter().map(vertical)).collect();
        format!(
            r#"{ticks}<line class="base" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}" />
<text class="axis" x="{}" y="{}" text-anchor="middle">epoch</text>
"#,
            (left + right) / 2.0,
            bottom + 36.0
        )
    }

    /// A vertical line at the best epoch, with a dot on each line of the chart.
    fn best_mark(&self, y_axis: &Axis, place: &impl Fn(usize) -> f64) -> String {
        let Some(index) = self.best.and_then(|best| self.epochs.iter().position(|&epoch| epoch == best))
        else {
            return String::new();
        };
        let (left, right, top, bottom) = PLOT;
        let x = place(index);
        let anchor = match (x - left) / (right - left) {
            ..0.15 => "start",
            0.85.. => "end",
            _ => "middle",
        };
        let dots: String = self
            .series
            .iter()
            .filter_map(|series| Some((series.name, series.finite(index)?)))
            .map(|(name, value)| {
                let y = y(y_axis.fraction(value));
                format!(r#"<circle class="dot {name}" cx="{x:.1}" cy="{y:.1}" r="4.5" />"#)
            })
            .collect();
        format!(
            r#"<line class="best" x1="{x:.1}" x2="{x:.1}" y1="{top}" y2="{bottom}" />
<text class="best-label" x="{x:.1}" y="{}" text-anchor="{anchor}">best: epoch {}</text>
{dots}
"#,
            top - 7.0,
            self.epochs[index]
        )
    }

    /// Invisible bands that tell an epoch's values on hovering.
    fn hover_bands(&self, place: &impl Fn(usize) -> f64) -> String {
        let count = self.epochs.len();
        if count > HOVER_EPOCHS {
            return String::new();
        }
        let (left, right, top, bottom) = PLOT;
        let middle = |index: usize| (place(index) + place(index + 1)) / 2.0;
        let band = |index: usize| {
            let start = if index == 0 { left } else { middle(index - 1) };
            let end = if index + 1 == count { right } else { middle(index) };
            let values: Vec<_> =
                self.series.iter().filter_map(|series| self.value_text(series, index)).collect();
            format!(
                r#"<rect class="band" x="{start:.1}" y="{top}" width="{:.1}" height="{}">
<title>epoch {}: {}</title></rect>
"#,
                (end - start).max(0.0),
                bottom - top,
                self.epochs[index],
                values.join(", ")
            )
        };
        (0..count).map(band).collect()
    }

    /// A line's name and value at a place, if one was measured there.
    fn value_text(&self, series: &Series, index: usize) -> Option<String> {
        let value = series.values[index]?;
        let text = if self.unit == Unit::Percent { percent(value) } else { number(value) };
        Some(format!("{} {text}", series.name))
    }
}

/// Horizontal place of a fraction of the axis.
fn x(fraction: f64) -> f64 {
    PLOT.0 + (PLOT.1 - PLOT.0) * fraction
}

/// Vertical place of a fraction of the axis.
fn y(fraction: f64) -> f64 {
    PLOT.3 - (PLOT.3 - PLOT.2) * fraction
}

/// One line, broken where a value is missing; a value between two gaps is a dot.
fn line(series: &Series, y_axis: &Axis, place: &impl Fn(usize) -> f64) -> String {
    let name = series.name;
    let points: Vec<Option<String>> = (0..series.values.len())
        .map(|index| {
            let value = series.finite(index)?;
            Some(format!("{:.1},{:.1}", place(index), y(y_axis.fraction(value))))
        })
        .collect();
    points
        .split(Option::is_none)
        .map(|run| run.iter().flatten().map(String::as_str).collect::<Vec<_>>())
        .map(|run| match run[..] {
            [] => String::new(),
            [point] => {
                let (x, y) = point.split_once(',').unwrap_or_default();
                format!(
                    r#"<circle class="dot {name}" cx="{x}" cy="{y}" r="4" />
"#
                )
            }
            _ => format!(
                r#"<polyline class="line {name}" points="{}" />
"#,
                run.join(" ")
            ),
        })
        .collect()
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

    #[test]
    fn gaps_break_the_line() {
        let series =
            Series::new("train", vec![Some(1.0), Some(2.0), Some(f64::NAN), Some(1.5), None, Some(1.0)]);
        let axis = Axis::covering(1.0, 2.0, 5.0, 0.0);
        let svg = line(&series, &axis, &|index| index as f64);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (1, 2));
    }

    #[test]
    fn nothing_finite_is_said() {
        let chart = LineChart {
            title: "Loss",
            unit: Unit::Number,
            epochs: &[1],
            series: vec![Series::new("train", vec![Some(f64::NAN)])],
            best: Some(1),
        };
        assert!(chart.render().contains("All values are NaN or infinite."));
    }
}
