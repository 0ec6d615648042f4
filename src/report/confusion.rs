//! The confusion matrix as a colored grid, and the pairs of classes that are confused most often.
//!
//! A matrix of many classes would look uniformly gray, so it then shows only the classes that are confused most often.

use std::collections::BTreeSet;

use maud::{Markup, html};

use super::classes::bar;
use super::html::{section as html_section, tenth};
use crate::evaluate::{ConfusionCell, Metrics, percent};
use crate::page::shortened;

/// Number of pairs listed next to the matrix.
const LISTED_PAIRS: usize = 10;
/// Class names next to the matrix that have more characters than this are shortened.
const NAME_WIDTH: usize = 16;
/// Class names in the list of pairs that have more characters than this are shortened.
const LISTED_NAME_WIDTH: usize = 28;
/// Class names in the title of a cell that have more characters than this are shortened.
const TITLE_NAME_WIDTH: usize = 60;
/// Up to this many classes, the matrix shows all.
const WHOLE_MATRIX: usize = 100;
/// Number of classes that the matrix shows if there are more than [`WHOLE_MATRIX`].
const SHOWN_OF_MANY: usize = 24;
/// Approximate width of a character of a class name, in units of its font size.
const CHARACTER: f64 = 0.58;

/// The classes that a matrix shows, and the sizes of its parts.
struct MatrixLayout {
    /// The classes, in class order.
    classes: Vec<usize>,
    /// Side of a cell.
    cell: f64,
    /// Font size of the class names; `None` where they would be too small to read.
    names: Option<f64>,
    /// Whether cells show their count.
    counts: bool,
    /// Width left of the cells, and height above them.
    margin: f64,
}

/// The matrix and the list.
pub(super) fn section(metrics: &Metrics) -> Markup {
    let body = html! {
        div class="side-by-side matrix-row" {
            (matrix_box(metrics, &MatrixLayout::new(metrics)))
            div class="pairs" {
                h3 { "Most confused pairs" }
                (pairs(metrics))
            }
        }
    };
    html_section("Confusion", body)
}

/// The matrix with an explanation of its colors; nothing if there is no class to show.
fn matrix_box(metrics: &Metrics, layout: &MatrixLayout) -> Markup {
    if layout.classes.is_empty() {
        return Markup::default();
    }
    let (shown, all) = (layout.classes.len(), metrics.per_class.len());
    html! {
        div class="matrix-box" {
            div class="scroll" tabindex="0" { (matrix(metrics, layout)) }
            (key())
            p class="note" {
                "Rows are the true classes, columns the predictions; color shows the share of the row."
                @if shown < all {
                    " These are the " (shown) " of " (all) " classes that are confused most often."
                }
                @if layout.names.is_none() { " Hover over a cell for its classes." }
            }
        }
    }
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
        if shown.len() + new <= SHOWN_OF_MANY {
            shown.extend([pair.truth, pair.predicted]);
        }
        if shown.len() == SHOWN_OF_MANY {
            break;
        }
    }
    shown.into_iter().collect()
}

impl MatrixLayout {
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

/// The grid with its class names; cells whose count is zero are left out.
fn matrix(metrics: &Metrics, layout: &MatrixLayout) -> Markup {
    let (side, margin) = (layout.cell * layout.classes.len() as f64, layout.margin);
    let size = margin + side + 2.0;
    // A matrix with names shrinks only as far as they stay readable, and then scrolls.
    let style = layout.names.map(|_| format!("width:{size:.0}px;min-width:{:.0}px", 0.74 * size));
    let classes = || layout.classes.iter().copied().enumerate();
    html! {
        svg class="matrix" style=[style] viewBox=(format!("0 0 {size:.0} {size:.0}")) role="img"
            aria-label="Confusion matrix" {
            rect class="ground" x=(tenth(margin)) y=(tenth(margin)) width=(tenth(side)) height=(tenth(side)) {}
            @if let Some(font) = layout.names {
                @for (index, class) in classes() {
                    (name(layout, index, &metrics.per_class[class].label, font))
                }
            }
            @for (row, truth) in classes() {
                @for (column, predicted) in classes() {
                    @let count = metrics.confusion.count(truth, predicted);
                    @if count > 0 {
                        (cell(metrics, layout, [row, column], ConfusionCell { truth, predicted, count }))
                    }
                }
            }
        }
    }
}

/// A class's name next to its row and above its column.
fn name(layout: &MatrixLayout, index: usize, label: &str, font: f64) -> Markup {
    let short = shortened(label, NAME_WIDTH);
    let edge = tenth(layout.margin - 6.0);
    let baseline = tenth(layout.at(index) + layout.cell / 2.0 + 0.35 * font);
    let upward = format!("translate({baseline} {edge}) rotate(-90)");
    html! {
        text class="label" font-size=(font) x=(edge) y=(baseline) text-anchor="end" {
            title { (label) }
            (short)
        }
        text class="label" font-size=(font) transform=(upward) {
            title { (label) }
            (short)
        }
    }
}

/// One cell with its color, its count where that fits, and a title that names its classes.
fn cell(metrics: &Metrics, layout: &MatrixLayout, [row, column]: [usize; 2], pair: ConfusionCell) -> Markup {
    let ConfusionCell { truth, predicted, count } = pair;
    let (from, to) = (&metrics.per_class[truth], &metrics.per_class[predicted]);
    let share = count as f64 / from.support.max(1) as f64;
    let opacity = opacity(share);
    let kind = if truth == predicted { "hit" } else { "miss" };
    let (x, y) = (layout.at(column), layout.at(row));
    let gap = if layout.cell >= 10.0 { 1.0 } else { 0.0 };
    let side = layout.cell - gap;
    let font = (1.5 * side / count.to_string().len() as f64).clamp(6.0, 12.0);
    html! {
        g {
            title {
                (shortened(&from.label, TITLE_NAME_WIDTH)) " → " (shortened(&to.label, TITLE_NAME_WIDTH))
                ": " (count) " of " (from.support) " (" (percent(share)) ")"
            }
            rect class=(kind) x=(tenth(x)) y=(tenth(y)) width=(tenth(side)) height=(tenth(side))
                fill-opacity=(format!("{opacity:.2}")) {}
            @if layout.counts {
                text class={ "count" @if opacity > 0.8 { " strong" } } font-size=(tenth(font))
                    x=(tenth(x + side / 2.0)) y=(tenth(y + side / 2.0 + 4.0)) { (count) }
            }
        }
    }
}

/// Opacity of a cell: the square root of its share of the row, so that a few percent of errors are visible.
fn opacity(share: f64) -> f64 {
    0.06 + 0.94 * share.clamp(0.0, 1.0).sqrt()
}

/// The key to the colors.
fn key() -> Markup {
    let swatches = |kind: &str| {
        html! {
            @for share in [0.01, 0.1, 0.25, 0.5, 1.0] {
                span class={ "swatch " (kind) } style=(format!("--strength:{:.0}%", 100.0 * opacity(share))) {}
            }
        }
    };
    html! {
        p class="key" {
            span { "right " (swatches("hit")) }
            " "
            span { "wrong " (swatches("miss")) }
            " "
            span class="muted" { "1, 10, 25, 50, 100% of the row" }
        }
    }
}

/// The most frequent confusions as a table.
fn pairs(metrics: &Metrics) -> Markup {
    let pairs = metrics.most_confused(LISTED_PAIRS);
    if pairs.is_empty() {
        return html! { p { "None: no class was mistaken for another." } };
    }
    html! {
        div class="scroll" tabindex="0" {
            table {
                thead {
                    tr {
                        th scope="col" { "True → predicted" }
                        th scope="col" class="n" { "Count" }
                        th scope="col" class="wide" { "Share of the class" }
                    }
                }
                tbody {
                    @for pair in &pairs { (pair_row(metrics, pair)) }
                }
            }
        }
    }
}

/// The row of one pair in the table of confusions.
fn pair_row(metrics: &Metrics, pair: &ConfusionCell) -> Markup {
    let (from, to) = (&metrics.per_class[pair.truth], &metrics.per_class[pair.predicted]);
    let share = pair.count as f64 / from.support.max(1) as f64;
    html! {
        tr {
            th scope="row" {
                (shortened(&from.label, LISTED_NAME_WIDTH)) " "
                span class="to" { span class="muted" { "→" } " " (shortened(&to.label, LISTED_NAME_WIDTH)) }
            }
            td class="n" { (pair.count) " of " (from.support) }
            td { (bar(share, &percent(share))) }
        }
    }
}
