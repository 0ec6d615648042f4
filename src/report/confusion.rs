//! The confusion matrix as a colored grid, and the pairs that are confused most.
//!
//! With many classes the whole grid would be a gray square: then it holds those classes that are confused most.

use std::collections::BTreeSet;

use super::classes::bar;
use super::html::{escape, escape_short, section as html_section};
use crate::evaluate::{ConfusionCell, Metrics, percent};

/// Number of pairs listed next to the matrix.
const LISTED_PAIRS: usize = 10;
/// Longer class names are cut next to the matrix.
const NAME_WIDTH: usize = 16;
/// Longer class names are cut in the list of pairs.
const LISTED_NAME_WIDTH: usize = 28;
/// Up to this many classes, the matrix holds all.
const WHOLE_MATRIX: usize = 100;
/// Beyond that, so many of those that are confused most.
const BLOCK: usize = 24;
/// Width of a character of a class name, about, in units of its font size.
const CHARACTER: f64 = 0.58;

/// Which classes a matrix shows, and how much of them there is room for.
struct Layout {
    /// The classes, in class order.
    classes: Vec<usize>,
    /// Side of a cell.
    cell: f64,
    /// Font size of the class names; `None` where they would not be readable.
    names: Option<f64>,
    /// Whether cells hold their count.
    counts: bool,
    /// Width left of the cells, and height above them.
    margin: f64,
}

/// The matrix and the list.
pub(super) fn section(metrics: &Metrics) -> String {
    let body = format!(
        r#"<div class="side-by-side matrix-row">
{}<div class="pairs">
<h3>Most confused pairs</h3>
{}</div>
</div>
"#,
        matrix_box(metrics, &Layout::new(metrics)),
        pairs(metrics),
    );
    html_section("Confusion", &body)
}

/// The matrix with what its colors mean; nothing if it has no class to show.
fn matrix_box(metrics: &Metrics, layout: &Layout) -> String {
    if layout.classes.is_empty() {
        return String::new();
    }
    let (shown, all) = (layout.classes.len(), metrics.per_class.len());
    let part = if shown < all {
        format!(" These are the {shown} of {all} classes that are confused most often.")
    } else {
        String::new()
    };
    let hint = if layout.names.is_some() { "" } else { " Hover over a cell for its classes." };
    format!(
        r#"<div class="matrix-box">
<div class="scroll" tabindex="0">{}</div>
{}<p class="note">Rows are the true classes, columns the predictions;
color shows the share of the row.{part}{hint}</p>
</div>
"#,
        matrix(metrics, layout),
        key(),
    )
}

/// The classes that the matrix shows: all, or those of the most frequent confusions.
fn shown_classes(metrics: &Metrics) -> Vec<usize> {
    let all = metrics.per_class.len();
    if all <= WHOLE_MATRIX {
        return (0..all).collect();
    }
    let mut shown = BTreeSet::new();
    for pair in metrics.most_confused(usize::MAX) {
        let new = [pair.truth, pair.predicted].iter().filter(|class| !shown.contains(*class)).count();
        if shown.len() + new <= BLOCK {
            shown.extend([pair.truth, pair.predicted]);
        }
        if shown.len() == BLOCK {
            break;
        }
    }
    shown.into_iter().collect()
}

impl Layout {
    fn new(metrics: &Metrics) -> Self {
        let classes = shown_classes(metrics);
        let length = |class: &usize| metrics.per_class[*class].label.chars().count();
        let longest = classes.iter().map(length).max().unwrap_or(0);
        let (cell, names, counts) = match classes.len() {
            0..=5 => (56.0, Some(12.0), true),
            6..=12 => (37.0, Some(12.0), true),
            13..=24 => (30.0, Some(11.0), true),
            25..=60 => (13.0, Some(9.5), false),
            count => (640.0 / count as f64, None, false),
        };
        let width = longest.clamp(4, NAME_WIDTH) as f64;
        let margin = names.map_or(2.0, |size| 12.0 + size * CHARACTER * width);
        Self { classes, cell, names, counts, margin }
    }

    /// Where the cells of a row or column begin.
    fn at(&self, index: usize) -> f64 {
        self.margin + self.cell * index as f64
    }
}

/// The grid with its names; cells that are zero are left empty.
fn matrix(metrics: &Metrics, layout: &Layout) -> String {
    let side = layout.cell * layout.classes.len() as f64;
    let size = layout.margin + side + 2.0;
    // A grid with text shrinks only as far as the text stays readable, and then scrolls.
    let width = if layout.names.is_some() {
        format!(r#" style="width:{size:.0}px;min-width:{:.0}px""#, 0.74 * size)
    } else {
        String::new()
    };
    let classes = || layout.classes.iter().enumerate();
    let names: String = layout.names.map_or_else(String::new, |font| {
        classes().map(|(place, &class)| name(layout, place, &metrics.per_class[class].label, font)).collect()
    });
    let pair = |truth, predicted| {
        let count = metrics.confusion.count(truth, predicted);
        ConfusionCell { truth, predicted, count }
    };
    let cells: String = classes()
        .flat_map(|(row, &truth)| {
            classes().map(move |(column, &predicted)| ([row, column], pair(truth, predicted)))
        })
        .filter(|(_, pair)| pair.count > 0)
        .map(|(place, pair)| cell(metrics, layout, place, pair))
        .collect();
    format!(
        r#"<svg class="matrix"{width} viewBox="0 0 {size:.0} {size:.0}" role="img"
aria-label="Confusion matrix">
<rect class="ground" x="{margin:.1}" y="{margin:.1}" width="{side:.1}" height="{side:.1}" />
{names}{cells}</svg>"#,
        margin = layout.margin,
    )
}

/// A class's name next to its row and above its column.
fn name(layout: &Layout, place: usize, label: &str, font: f64) -> String {
    let (full, short) = (escape(label), escape_short(label, NAME_WIDTH));
    let middle = layout.at(place) + layout.cell / 2.0;
    let edge = layout.margin - 6.0;
    let baseline = middle + 0.35 * font;
    format!(
        r#"<text class="label" font-size="{font}" x="{edge:.1}" y="{baseline:.1}" text-anchor="end">
<title>{full}</title>{short}</text>
<text class="label" font-size="{font}" transform="translate({baseline:.1} {edge:.1}) rotate(-90)">
<title>{full}</title>{short}</text>
"#
    )
}

/// One cell with its color, its count where there is room, and its meaning on hovering.
fn cell(metrics: &Metrics, layout: &Layout, [row, column]: [usize; 2], pair: ConfusionCell) -> String {
    let ConfusionCell { truth, predicted, count } = pair;
    let (from, to) = (&metrics.per_class[truth], &metrics.per_class[predicted]);
    let share = count as f64 / from.support.max(1) as f64;
    let opacity = opacity(share);
    let kind = if truth == predicted { "hit" } else { "miss" };
    let (x, y) = (layout.at(column), layout.at(row));
    let gap = if layout.cell >= 10.0 { 1.0 } else { 0.0 };
    let side = layout.cell - gap;
    let text = if layout.counts {
        let strong = if opacity > 0.8 { "count strong" } else { "count" };
        let (x, y) = (x + side / 2.0, y + side / 2.0 + 4.0);
        let font = (1.5 * side / count.to_string().len() as f64).clamp(6.0, 12.0);
        format!(r#"<text class="{strong}" font-size="{font:.1}" x="{x:.1}" y="{y:.1}">{count}</text>"#)
    } else {
        String::new()
    };
    let title = format!(
        "{} → {}: {count} of {} ({})",
        escape_short(&from.label, 60),
        escape_short(&to.label, 60),
        from.support,
        percent(share)
    );
    format!(
        r#"<g><title>{title}</title><rect class="{kind}" x="{x:.1}" y="{y:.1}" width="{side:.1}"
height="{side:.1}" fill-opacity="{opacity:.2}" />{text}</g>
"#
    )
}

/// Color strength of a share: its square root, so that a few per cent of errors can be seen.
fn opacity(share: f64) -> f64 {
    0.06 + 0.94 * share.clamp(0.0, 1.0).sqrt()
}

/// The meaning of the colors.
fn key() -> String {
    let swatches = |kind: &str| -> String {
        [0.01, 0.1, 0.25, 0.5, 1.0]
            .iter()
            .map(|&share| {
                let strength = 100.0 * opacity(share);
                format!(r#"<span class="swatch {kind}" style="--strength:{strength:.0}%"></span>"#)
            })
            .collect()
    };
    format!(
        r#"<p class="key"><span>right {}</span> <span>wrong {}</span> 
<span class="muted">1, 10, 25, 50, 100% of the row</span></p>
"#,
        swatches("hit"),
        swatches("miss")
    )
}

/// The most frequent confusions as a table.
fn pairs(metrics: &Metrics) -> String {
    let pairs = metrics.most_confused(LISTED_PAIRS);
    if pairs.is_empty() {
        return "<p>None: no class was mistaken for another.</p>\n".to_owned();
    }
    let row = |pair: &ConfusionCell| {
        let (from, to) = (&metrics.per_class[pair.truth], &metrics.per_class[pair.predicted]);
        let share = pair.count as f64 / from.support.max(1) as f64;
        format!(
            r#"<tr><th scope="row">{} <span class="to"><span class="muted">→</span> {}</span></th>
<td class="n">{} of {}</td><td>{}</td></tr>
"#,
            escape_short(&from.label, LISTED_NAME_WIDTH),
            escape_short(&to.label, LISTED_NAME_WIDTH),
            pair.count,
            from.support,
            bar(share, &percent(share)),
        )
    };
    let rows: String = pairs.iter().map(row).collect();
    format!(
        r#"<div class="scroll" tabindex="0"><table>
<thead><tr><th scope="col">True → predicted</th><th scope="col" class="n">Count</th>
<th scope="col" class="wide">Share of the class</th></tr></thead>
<tbody>
{rows}</tbody>
</table></div>
"#
    )
}
