//! The table of the metrics of each class, worst first.

use maud::{Markup, html};

use super::html::section as html_section;
use crate::evaluate::{ClassMetrics, Metrics};
use crate::page::shortened;

/// Class names that have more characters than this are shortened.
const NAME_WIDTH: usize = 40;
/// Up to this many classes fit into the table without scrolling.
const UNSCROLLED: usize = 14;

/// The table of the metrics of every class; classes without a sample come last.
pub(super) fn section(metrics: &Metrics) -> Markup {
    let mut classes: Vec<&ClassMetrics> = metrics.per_class.iter().collect();
    classes.sort_by(|a, b| (a.support == 0).cmp(&(b.support == 0)).then(a.f1.total_cmp(&b.f1)));
    let has_precisions = metrics.multi_label.is_some();
    let body = html! {
        p class="note" {
            "Lowest F1 first"
            @if classes.len() > UNSCROLLED { "; scroll for the others" }
            ". Macro F1 is the mean over the classes that have samples or were predicted."
        }
        div class="scroll tall" tabindex="0" {
            table {
                thead {
                    tr {
                        th scope="col" { "Class" }
                        th scope="col" class="wide" { "F1" }
                        th scope="col" class="n" { "Precision" }
                        th scope="col" class="n" { "Recall" }
                        @if has_precisions { th scope="col" class="n" { "Average precision" } }
                        th scope="col" class="n" { "Samples" }
                    }
                }
                tbody {
                    @for class in classes { (row(class)) }
                }
            }
        }
    };
    html_section("Classes", body)
}

/// The row of one class, with a bar for its F1.
fn row(class: &ClassMetrics) -> Markup {
    let ClassMetrics { label, precision, recall, f1, support, average_precision } = class;
    let average =
        average_precision.map(|value| if *support == 0 { "–".to_owned() } else { format!("{value:.3}") });
    html! {
        tr {
            th scope="row" title=(label) { (shortened(label, NAME_WIDTH)) }
            @if *support == 0 {
                td class="muted" { "no samples" }
                td class="n" { "–" }
                td class="n" { "–" }
            } @else {
                td { (bar(*f1, &format!("{f1:.3}"))) }
                td class="n" { (format!("{precision:.3}")) }
                td class="n" { (format!("{recall:.3}")) }
            }
            @if let Some(average) = average { td class="n" { (average) } }
            td class="n" { (support) }
        }
    }
}

/// A fraction as a bar with its text next to it.
pub(super) fn bar(fraction: f64, text: &str) -> Markup {
    let width = 100.0 * fraction.clamp(0.0, 1.0);
    html! {
        span class="bar" {
            span class="track" { span class="fill" style=(format!("width:{width:.1}%")) {} }
            span class="value" { (text) }
        }
    }
}
