//! A line chart over epochs, as SVG.

use maud::{Markup, html};

use super::axis::Axis;
pub(super) use super::axis::Unit;
use super::html::{number, tenth};
use crate::evaluate::percent;

/// Width and height of the whole chart, in the units of its coordinates.
const SIZE: (f64, f64) = (380.0, 264.0);
/// Left, right, top, and bottom edge of the plot inside the chart.
const PLOT: (f64, f64, f64, f64) = (64.0, 366.0, 22.0, 222.0);
/// With more epochs than this, the bands that show an epoch's values on hovering would be too narrow to hit.
const HOVER_EPOCHS: usize = 400;

/// One curve: a value per epoch.
pub(super) struct Curve {
    /// The name of the curve, which is also its style class.
    name: &'static str,
    /// The values, `None` where none was measured.
    values: Vec<Option<f64>>,
}

/// A chart of one or more curves.
pub(super) struct LineChart<'a> {
    /// Heading.
    pub(super) title: &'static str,
    /// What the values mean.
    pub(super) unit: Unit,
    /// The numbers of the epochs.
    pub(super) epochs: &'a [usize],
    /// The curves, each with as many values as there are `epochs`.
    pub(super) curves: Vec<Curve>,
    /// The epoch to mark.
    pub(super) best: Option<usize>,
}

impl Curve {
    /// A curve from its values; it is broken where a value is missing or not finite.
    pub(super) fn new(name: &'static str, values: Vec<Option<f64>>) -> Self {
        Self { name, values }
    }

    /// Whether nothing was measured at all.
    pub(super) fn is_empty(&self) -> bool {
        self.values.iter().all(Option::is_none)
    }

    /// The value at an index, if it can be drawn.
    fn finite(&self, index: usize) -> Option<f64> {
        self.values[index].filter(|value| value.is_finite() && value.abs() < 1e30)
    }
}

impl LineChart<'_> {
    /// The chart as a `figure`.
    pub(super) fn render(&self) -> Markup {
        html! {
            figure class="chart" {
                figcaption {
                    h3 { (self.title) }
                    @if self.curves.len() > 1 { (self.legend()) }
                }
                @match self.y_axis() {
                    Some(y_axis) => { (self.plot(&y_axis)) }
                    None => { p class="note" { "All values are NaN or infinite." } }
                }
            }
        }
    }

    /// The names of the curves.
    fn legend(&self) -> Markup {
        html! {
            span class="legend" {
                @for curve in &self.curves { span class={ "item " (curve.name) } { (curve.name) } }
            }
        }
    }

    /// The axes, the curves, and what shows their values.
    fn plot(&self, y_axis: &Axis) -> Markup {
        let x_axis = self.x_axis();
        let place = |index: usize| x(x_axis.fraction(self.epochs[index] as f64));
        let (width, height) = SIZE;
        html! {
            svg viewBox=(format!("0 0 {width} {height}")) role="img" aria-label={ (self.title) " by epoch" } {
                (self.grid(&x_axis, y_axis))
                (self.best_mark(y_axis, place))
                @for curve in &self.curves { (line(curve, y_axis, place)) }
                (self.hover_bands(place))
            }
        }
    }

    /// An axis around all values that can be drawn, if there are any.
    fn y_axis(&self) -> Option<Axis> {
        let indices = 0..self.epochs.len();
        let values =
            self.curves.iter().flat_map(|curve| indices.clone().filter_map(|index| curve.finite(index)));
        let (low, high) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)));
        let low = if self.unit == Unit::FromZero { low.min(0.0) } else { low };
        let axis = (low <= high).then(|| Axis::covering(low, high, 5.0, 0.0))?;
        // If all values are equal, an axis goes up from them, and there is nothing above 100%.
        Some(if self.unit == Unit::Percent && high <= 1.0 { axis.up_to(1.0) } else { axis })
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

    /// Grid lines, ticks, and the horizontal axis.
    fn grid(&self, x_axis: &Axis, y_axis: &Axis) -> Markup {
        let (left, right, _, bottom) = PLOT;
        html! {
            @for &tick in &y_axis.ticks {
                @let y = y(y_axis.fraction(tick));
                line class="grid" x1=(left) x2=(right) y1=(tenth(y)) y2=(tenth(y)) {}
                text class="tick" x=(left - 7.0) y=(tenth(y + 4.0)) text-anchor="end" {
                    (y_axis.label(tick, self.unit))
                }
            }
            @for &tick in &x_axis.ticks {
                @let x = tenth(x(x_axis.fraction(tick)));
                line class="base" x1=(x) x2=(x) y1=(bottom) y2=(bottom + 4.0) {}
                text class="tick" x=(x) y=(bottom + 18.0) text-anchor="middle" { (tick) }
            }
            line class="base" x1=(left) x2=(right) y1=(bottom) y2=(bottom) {}
            text class="axis" x=((left + right) / 2.0) y=(bottom + 36.0) text-anchor="middle" { "epoch" }
        }
    }

    /// A vertical line at the best epoch, with a dot on each curve.
    fn best_mark(&self, y_axis: &Axis, place: impl Fn(usize) -> f64) -> Markup {
        let Some(index) = self.best.and_then(|best| self.epochs.iter().position(|&epoch| epoch == best))
        else {
            return Markup::default();
        };
        let (left, right, top, bottom) = PLOT;
        let x = place(index);
        let anchor = match (x - left) / (right - left) {
            ..0.15 => "start",
            0.85.. => "end",
            _ => "middle",
        };
        let x = tenth(x);
        html! {
            line class="best" x1=(x) x2=(x) y1=(top) y2=(bottom) {}
            text class="best-label" x=(x) y=(top - 7.0) text-anchor=(anchor) {
                @match self.epochs[index] {
                    0 => "best: the probe",
                    epoch => { "best: epoch " (epoch) }
                }
            }
            @for curve in &self.curves {
                @if let Some(value) = curve.finite(index) {
                    circle class={ "dot " (curve.name) } cx=(x) cy=(tenth(y(y_axis.fraction(value)))) r="4.5" {}
                }
            }
        }
    }

    /// Invisible bands that show an epoch's values on hovering.
    fn hover_bands(&self, place: impl Fn(usize) -> f64) -> Markup {
        let count = self.epochs.len();
        if count > HOVER_EPOCHS {
            return Markup::default();
        }
        let (left, right, top, bottom) = PLOT;
        let middle = |index: usize| (place(index) + place(index + 1)) / 2.0;
        html! {
            @for index in 0..count {
                @let start = if index == 0 { left } else { middle(index - 1) };
                @let end = if index + 1 == count { right } else { middle(index) };
                rect class="band" x=(tenth(start)) y=(top) width=(tenth((end - start).max(0.0)))
                    height=(bottom - top) {
                    title { "epoch " (self.epochs[index]) ": " (self.values_text(index)) }
                }
            }
        }
    }

    /// The names and values of the curves at an index, where one was measured.
    fn values_text(&self, index: usize) -> String {
        let text = |curve: &Curve| {
            let value = curve.values[index]?;
            let value = if self.unit == Unit::Percent { percent(value) } else { number(value) };
            Some(format!("{} {value}", curve.name))
        };
        self.curves.iter().filter_map(text).collect::<Vec<_>>().join(", ")
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

/// One curve, broken where a value is missing; a value between two gaps is a dot.
fn line(curve: &Curve, y_axis: &Axis, place: impl Fn(usize) -> f64) -> Markup {
    let points: Vec<Option<[String; 2]>> = (0..curve.values.len())
        .map(|index| Some([tenth(place(index)), tenth(y(y_axis.fraction(curve.finite(index)?)))]))
        .collect();
    html! {
        @for piece in points.split(Option::is_none) {
            @match piece {
                [] => {}
                [Some([x, y])] => { circle class={ "dot " (curve.name) } cx=(x) cy=(y) r="4" {} }
                _ => {
                    @let points = piece.iter().flatten().map(|point| point.join(",")).collect::<Vec<_>>();
                    polyline class={ "line " (curve.name) } points=(points.join(" ")) {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_break_the_line() {
        let curve =
            Curve::new("train", vec![Some(1.0), Some(2.0), Some(f64::NAN), Some(1.5), None, Some(1.0)]);
        let axis = Axis::covering(1.0, 2.0, 5.0, 0.0);
        let svg = line(&curve, &axis, |index| index as f64).into_string();
        assert_eq!((svg.matches("<polyline").count(), svg.matches("<circle").count()), (1, 2));
    }

    #[test]
    fn percentages_end_at_100() {
        let chart = LineChart {
            title: "Accuracy",
            unit: Unit::Percent,
            epochs: &[1, 2],
            curves: vec![Curve::new("validation", vec![Some(1.0); 2])],
            best: None,
        };
        let svg = chart.render().into_string();
        assert!(svg.contains(">98%<") && svg.contains(">100%<") && !svg.contains("102%"), "{svg}");
    }

    #[test]
    fn a_chart_without_finite_values_says_so() {
        let chart = LineChart {
            title: "Loss",
            unit: Unit::Number,
            epochs: &[1],
            curves: vec![Curve::new("train", vec![Some(f64::NAN)])],
            best: Some(1),
        };
        assert!(chart.render().into_string().contains("All values are NaN or infinite."));
    }
}
