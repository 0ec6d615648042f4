//! The reliability diagram: Guo et al. 2017, figure 1.

use super::html::section as html_section;
use crate::evaluate::{ReliabilityBin, expected_calibration_error, percent};

/// Side of the square plot.
const SIDE: f64 = 260.0;
/// Room for the vertical axis.
const LEFT: f64 = 64.0;
/// Room above the plot.
const TOP: f64 = 10.0;

/// The diagram; nothing if no sample has a confidence.
pub(super) fn section(bins: &[ReliabilityBin]) -> String {
    let samples: usize = bins.iter().map(|bin| bin.count).sum();
    if samples == 0 {
        return String::new();
    }
    let error = expected_calibration_error(bins);
    let gap: f64 = bins.iter().map(|bin| bin.count as f64 * (bin.confidence - bin.accuracy)).sum();
    let tendency = if gap > 0.0 { "above" } else { "below" };
    let body = format!(
        r#"<div class="side-by-side">
<div class="plot">{}</div>
<div>
<p class="figure-number">{error:.3}</p>
<p>expected calibration error, over {} bins</p>
<p class="note">Where a bar reaches the diagonal, the confidence matches the accuracy.
On average, this model's confidence is {} {tendency} its accuracy.
Paler bars have fewer samples.</p>
</div>
</div>
"#,
        diagram(bins, samples),
        bins.len(),
        percent(gap.abs() / samples as f64).replace('%', " points"),
    );
    html_section("Calibration", &body)
}

/// Accuracy by confidence, against the diagonal.
fn diagram(bins: &[ReliabilityBin], samples: usize) -> String {
    let x = |fraction: f64| LEFT + SIDE * fraction;
    let y = |fraction: f64| TOP + SIDE * (1.0 - fraction);
    let grid: String = (0..=5)
        .map(|step| {
            let value = f64::from(step) / 5.0;
            let (label, h, v) = (20 * step, y(value), x(value));
            let (right, bottom) = (x(1.0), y(0.0));
            format!(
                r#"<line class="grid" x1="{LEFT}" x2="{right}" y1="{h}" y2="{h}" />
<text class="tick" x="{}" y="{}" text-anchor="end">{label}%</text>
<text class="tick" x="{v}" y="{}" text-anchor="middle">{label}%</text>
"#,
                LEFT - 6.0,
                h + 4.0,
                bottom + 17.0,
            )
        })
        .collect();
    let bars: String = bins.iter().filter(|bin| bin.count > 0).map(|bin| bar(bin, samples)).collect();
    format!(
        r#"<svg viewBox="0 0 {width} {height}" role="img" aria-label="Reliability diagram">
{grid}{bars}<line class="diagonal" x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" />
<text class="axis" x="{middle}" y="{caption}" text-anchor="middle">confidence</text>
<text class="axis" transform="translate(14 {center}) rotate(-90)" text-anchor="middle">accuracy</text>
</svg>"#,
        width = LEFT + SIDE + 18.0,
        height = TOP + SIDE + 42.0,
        x0 = x(0.0),
        y0 = y(0.0),
        x1 = x(1.0),
        y1 = y(1.0),
        middle = x(0.5),
        center = y(0.5),
        caption = TOP + SIDE + 36.0,
    )
}

/// One bin: its accuracy as height, its share of the samples as opacity.
fn bar(bin: &ReliabilityBin, samples: usize) -> String {
    let ReliabilityBin { lower, upper, count, confidence, accuracy } = bin;
    let opacity = 0.25 + 0.75 * (*count as f64 / samples as f64).sqrt();
    let left = LEFT + SIDE * lower + 1.0;
    let width = SIDE * (upper - lower) - 2.0;
    let height = (SIDE * accuracy).max(1.0);
    let title = format!(
        "{count} samples with confidence {:.0}–{:.0}%: mean confidence {}, accuracy {}",
        100.0 * lower,
        100.0 * upper,
        percent(*confidence),
        percent(*accuracy)
    );
    format!(
        r#"<rect class="column" x="{left:.1}" y="{:.1}" width="{width:.1}" height="{height:.1}"
rx="2" fill-opacity="{opacity:.2}"><title>{title}</title></rect>
"#,
        TOP + SIDE - height
    )
}
