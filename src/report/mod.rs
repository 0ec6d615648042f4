//! The report of a training run: one HTML file that needs neither a network nor a script.

mod axis;
mod calibration;
mod caveat;
mod chart;
mod classes;
mod confusion;
mod curves;
mod embedded;
mod gallery;
mod html;
mod mistakes;
mod of_run;
mod views;

#[cfg(test)]
mod tests;

pub use caveat::Caveat;
pub use gallery::{Mistake, Overlay};
pub use of_run::{RunReport, of_run};

pub use crate::page::Thumbnail;

use maud::{Markup, html};

use crate::embed::Map;
use crate::evaluate::{Metrics, MultiLabelMetrics, ReliabilityBin, interval, percent};
use crate::events::EpochRow;
use crate::page::page;
use html::{number, section};

/// What a report shows; every part that is empty or `None` is left out.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// Heading of the page, such as the run's name.
    pub title: &'a str,
    /// Facts of the run as name and value: data, model, parameters, device, time, ...
    pub summary: Vec<(String, String)>,
    /// The epochs in order.
    pub history: &'a [EpochRow],
    /// The [`EpochRow::epoch`] of the best model, which is marked in the curves.
    pub best_epoch: Option<usize>,
    /// The evaluation of the best model.
    pub metrics: Option<&'a Metrics>,
    /// The images that `metrics` were measured on, such as `the test split`.
    pub split: &'a str,
    /// Reasons not to trust the result, or not to stop at it.
    pub caveats: &'a [Caveat],
    /// The bins of [`reliability`](crate::evaluate::reliability) that belong to `metrics`.
    pub reliability: &'a [ReliabilityBin],
    /// The map of validation images.
    pub map: Option<&'a Map>,
    /// Wrongly classified samples, in the order in which the page shows them.
    pub mistakes: &'a [Mistake],
    /// The resolved configuration.
    pub config_toml: &'a str,
}

/// Renders the page.
///
/// The same report gives the same bytes. Text from names and configuration is escaped.
pub fn render(report: &Report) -> String {
    let sections = html! {
        (header(report))
        (summary(&report.summary))
        (curves::section(report.history, report.best_epoch))
        @if let Some(metrics) = report.metrics {
            @if metrics.multi_label.is_none() { (confusion::section(metrics)) }
            (classes::section(metrics))
        }
        (calibration::section(report.reliability))
        (gallery::section(report.mistakes))
        @if let Some(map) = report.map { (section("Map of validation images", map.render())) }
        (configuration(report.config_toml))
    };
    let of_map = report.map.map(Map::style).unwrap_or_default();
    page(report.title, &format!("{}{of_map}", include_str!("style.css")), sections)
}

/// The title and the result in large type.
fn header(report: &Report) -> Markup {
    html! {
        header {
            p class="kicker" { "Training report" }
            h1 { (report.title) }
            @if let Some(metrics) = report.metrics { (key_result(metrics, report)) }
        }
    }
}

/// The headline number, the others as tiles, and the caveats.
fn key_result(metrics: &Metrics, report: &Report) -> Markup {
    match &metrics.multi_label {
        Some(of_labels) => multi_label_result(metrics, of_labels, report),
        None => single_label_result(metrics, report),
    }
}

/// Mean average precision next to that of chance, the other headline numbers, and the caveats.
fn multi_label_result(metrics: &Metrics, of_labels: &MultiLabelMetrics, report: &Report) -> Markup {
    let tiles = [
        ("Micro F1", number(of_labels.micro_f1)),
        ("Macro F1", number(metrics.macro_f1)),
        ("Exact match", percent(of_labels.exact_match)),
        ("Loss", number(metrics.loss)),
        ("Calibration error", number(metrics.ece)),
        ("Samples", metrics.samples.to_string()),
    ];
    html! {
        div class="result" {
            p class="hero" { (percent(of_labels.mean_average_precision)) }
            p class="hero-note" {
                strong { "mean average precision" } " on " (report.split) br;
                span class="muted" { "(chance: " (percent(of_labels.chance_average_precision)) ")" }
            }
        }
        (tiles_and_caveats(&tiles, report))
    }
}

/// Top-1 accuracy with its interval, the other headline numbers, and the caveats.
fn single_label_result(metrics: &Metrics, report: &Report) -> Markup {
    let tiles = [
        ("Top-5 accuracy", percent(metrics.top5)),
        ("Macro F1", number(metrics.macro_f1)),
        ("Loss", number(metrics.loss)),
        ("Calibration error", number(metrics.ece)),
        ("Samples", metrics.samples.to_string()),
    ];
    // With at most five classes, top-5 accuracy is always 100%.
    let tiles = if metrics.per_class.len() > 5 { &tiles[..] } else { &tiles[1..] };
    html! {
        div class="result" {
            p class="hero" { (percent(metrics.top1)) }
            p class="hero-note" {
                strong { "top-1 accuracy" } " on " (report.split) br;
                "95% interval " (interval(metrics.top1_interval)) " "
                span class="muted" { "(Wilson, for " (metrics.samples) " samples)" }
            }
        }
        (tiles_and_caveats(tiles, report))
    }
}

/// The headline numbers next to the main one, and the caveats.
fn tiles_and_caveats(tiles: &[(&str, String)], report: &Report) -> Markup {
    html! {
        dl class="tiles" {
            @for (name, value) in tiles { (fact(name, value)) }
        }
        @for caveat in report.caveats { p class="warning" { (caveat.to_string()) "." } }
    }
}

/// A name and its value in a list.
fn fact(name: &str, value: &str) -> Markup {
    html! { div { dt { (name) } dd { (value) } } }
}

/// The facts of the run.
fn summary(facts: &[(String, String)]) -> Markup {
    if facts.is_empty() {
        return Markup::default();
    }
    let body = html! {
        dl class="facts" {
            @for (name, value) in facts { (fact(name, value)) }
        }
    };
    section("Run", body)
}

/// The configuration, folded.
fn configuration(toml: &str) -> Markup {
    if toml.trim().is_empty() {
        return Markup::default();
    }
    let body = html! {
        details {
            summary { "config.toml" }
            pre { (toml) }
        }
    };
    section("Configuration", body)
}
