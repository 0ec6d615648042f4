//! The reliability diagram: accuracy by confidence (Guo et al. 2017, figure 1).

use maud::{Markup, html};

use super::html::{section as html_section, tenth};
use crate::evaluate::{ReliabilityBin, expected_calibration_error, percent};

/// Side of the square plot, in the diagram's units.
const SIDE: f64 = 260.0;
/// Space for the vertical axis.
const LEFT: f64 = 64.0;
/// Space above the plot.
const TOP: f64 = 10.0;

/// The diagram; nothing if no sample has a confidence.
pub(super) fn section(bins: &[ReliabilityBin]) -> Markup {
    let samples: usize = bins.iter().map(|bin| bin.count).sum();
    if samples == 0 {
        return Markup::default();
    }
    let error = expected_calibration_error(bins);
    let gap: f64 = bins.iter().map(|bin| bin.count as f64 * (bin.confidence - bin.accuracy)).sum();
    let points = percent(gap.abs() / samples as f64).replace('%', " points");
    let tendency = if gap > 0.0 { "above" } else { "below" };
    let body = html! {
        div class="side-by-side" {
            div class="plot" { (diagram(bins, samples)) }
            div {
                p class="figure-number" { (format!("{error:.3}")) }
                p { "expected calibration error, over " (bins.len()) " bins" }
                p class="note" {
                    "Where a bar reaches the diagonal, the confidence matches the accuracy. "
                    "On average, this model's confidence is " (points) " " (tendency) " its accuracy. "
                    "Paler bars have fewer samples."
                }
            }
        }
    };
    html_section("Calibration", body)
}

/// Horizontal place of a confidence.
fn x(confidence: f64) -> f64 {
    LEFT + SIDE * confidence
}

/// Vertical place of an accuracy.
fn y(accuracy: f64) -> f64 {
    TOP + SIDE * (1.0 - accuracy)
}

/// Accuracy by confidence, against the diagonal.
fn diagram(bins: &[ReliabilityBin], samples: usize) -> Markup {
    let size = format!("0 0 {} {}", LEFT + SIDE + 18.0, TOP + SIDE + 42.0);
    let sideways = format!("translate(14 {}) rotate(-90)", y(0.5));
    html! {
        svg viewBox=(size) role="img" aria-label="Reliability diagram" {
            @for step in 0..=5 { (grid_lines(20 * step)) }
            @for bin in bins.iter().filter(|bin| bin.count > 0) { (bar(bin, samples)) }
            line class="diagonal" x1=(x(0.0)) y1=(y(0.0)) x2=(x(1.0)) y2=(y(1.0)) {}
            text class="axis" x=(x(0.5)) y=(TOP + SIDE + 36.0) text-anchor="middle" { "confidence" }
            text class="axis" transform=(sideways) text-anchor="middle" { "accuracy" }
        }
    }
}

/// The line of an accuracy, and the labels of this percentage on both axes.
fn grid_lines(percentage: u8) -> Markup {
    let fraction = f64::from(percentage) / 100.0;
    let height = y(fraction);
    html! {
        line class="grid" x1=(LEFT) x2=(x(1.0)) y1=(height) y2=(height) {}
        text class="tick" x=(LEFT - 6.0) y=(height + 4.0) text-anchor="end" { (percentage) "%" }
        text class="tick" x=(x(fraction)) y=(y(0.0) + 17.0) text-anchor="middle" { (percentage) "%" }
    }
}

/// One bin: its height is the accuracy, and its opacity grows with its share of the samples.
fn bar(bin: &ReliabilityBin, samples: usize) -> Markup {
    let ReliabilityBin { lower, upper, count, confidence, accuracy } = bin;
    let opacity = 0.25 + 0.75 * (*count as f64 / samples as f64).sqrt();
    let height = (SIDE * accuracy).max(1.0);
    let title = format!(
        "{count} samples with confidence {:.0}–{:.0}%: mean confidence {}, accuracy {}",
        100.0 * lower,
        100.0 * upper,
        percent(*confidence),
        percent(*accuracy)
    );
    html! {
        rect class="column" x=(tenth(x(*lower) + 1.0)) y=(tenth(TOP + SIDE - height))
            width=(tenth(SIDE * (upper - lower) - 2.0)) height=(tenth(height))
            rx="2" fill-opacity=(format!("{opacity:.2}")) { title { (title) } }
    }
}
