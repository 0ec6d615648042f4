//! The report of a training run: one HTML file that needs nothing else, neither a network nor a script.

mod calibration;
mod chart;
mod classes;
mod confusion;
mod curves;
mod gallery;
mod html;
mod of_run;
mod thumbnail;
mod verdict;

#[cfg(test)]
mod tests;

pub use gallery::Mistake;
pub use of_run::{RunReport, of_run};
pub use thumbnail::Thumbnail;
pub use verdict::Verdict;

use crate::evaluate::{Metrics, ReliabilityBin, interval, percent};
use crate::events::EpochRow;
use html::{escape, number};

/// What a report shows; every part that is empty or `None` is left out.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// Heading of the page, such as the run's name.
    pub title: &'a str,
    /// Facts of the run as name and value: data, model, parameters, device, time, ...
    pub summary: Vec<(String, String)>,
    /// The epochs in order.
    pub history: &'a [EpochRow],
    /// The [`EpochRow::epoch`] of the model that was kept, marked in the curves.
    pub best_epoch: Option<usize>,
    /// The evaluation of that model.
    pub metrics: Option<&'a Metrics>,
    /// What `metrics` were measured on, such as `validation`.
    pub split: &'a str,
    /// What is to be said about the result and the training before they are believed.
    pub verdicts: &'a [Verdict],
    /// The bins of [`reliability`](crate::evaluate::reliability) that belong to `metrics`.
    pub reliability: &'a [ReliabilityBin],
    /// Wrongly classified samples, in the order in which they are to be shown.
    pub mistakes: &'a [Mistake],
    /// The resolved configuration.
    pub config_toml: &'a str,
}

/// Renders the page.
///
/// The same report gives the same bytes. Text from names and configuration is escaped.
pub fn render(report: &Report) -> String {
    let title = escape(report.title);
    let sections = [
        header(report),
        summary(&report.summary),
        curves::section(report.history, report.best_epoch),
        report.metrics.map(confusion::section).unwrap_or_default(),
        report.metrics.map(classes::section).unwrap_or_default(),
        calibration::section(report.reliability),
        gallery::section(report.mistakes),
        configuration(report.config_toml),
    ]
    .concat();
    format!(
        r#"<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8" />
<meta name="viewport" content="width=device-width, initial-scale=1" />
<meta name="color-scheme" content="light dark" />
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
{sections}</main>
<footer>Written by vitrine {version}</footer>
</body>
</html>
"#,
        style = include_str!("style.css"),
        version = env!("CARGO_PKG_VERSION"),
    )
}

/// The title and the result in large type.
fn header(report: &Report) -> String {
    let title = escape(report.title);
    let result = report.metrics.map_or_else(String::new, |metrics| key_result(metrics, report));
    format!(
        r#"<header>
<p class="kicker">Training report</p>
<h1>{title}</h1>
{result}</header>
"#
    )
}

/// Top-1 accuracy with its interval, the other headline numbers, and what is to be said about them.
fn key_result(metrics: &Metrics, report: &Report) -> String {
    let tile = |name: &str, value: String| format!("<div><dt>{name}</dt><dd>{value}</dd></div>\n");
    let tiles = [
        tile("Top-5 accuracy", percent(metrics.top5)),
        tile("Macro F1", number(metrics.macro_f1)),
        tile("Loss", number(metrics.loss)),
        tile("Calibration error", number(metrics.ece)),
        tile("Samples", metrics.samples.to_string()),
    ];
    // Five of at most five classes are always right.
    let shown = if metrics.per_class.len() > 5 { &tiles[..] } else { &tiles[1..] };
    let warning = |verdict: &Verdict| format!("<p class=\"warning\">{}.</p>\n", escape(&verdict.to_string()));
    format!(
        r#"<div class="result">
<p class="hero">{top1}</p>
<p class="hero-note"><strong>top-1 accuracy</strong> on {split}<br />
95% interval {interval} <span class="muted">(Wilson, for {samples} samples)</span></p>
</div>
<dl class="tiles">
{tiles}</dl>
{warnings}"#,
        top1 = percent(metrics.top1),
        split = escape(report.split),
        interval = interval(metrics.top1_interval),
        samples = metrics.samples,
        tiles = shown.concat(),
        warnings = report.verdicts.iter().map(warning).collect::<String>(),
    )
}

/// The facts of the run.
fn summary(facts: &[(String, String)]) -> String {
    if facts.is_empty() {
        return String::new();
    }
    let fact = |(name, value): &(String, String)| {
        format!("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(name), escape(value))
    };
    let facts: String = facts.iter().map(fact).collect();
    let body = format!(
        r#"<dl class="facts">
{facts}</dl>
"#
    );
    html::section("Run", &body)
}

/// The configuration, folded.
fn configuration(toml: &str) -> String {
    if toml.trim().is_empty() {
        return String::new();
    }
    let body =
        format!("<details>\n<summary>config.toml</summary>\n<pre>{}</pre>\n</details>\n", escape(toml));
    html::section("Configuration", &body)
}
