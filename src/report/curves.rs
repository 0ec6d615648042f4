//! The course of the training: loss, accuracy, macro F1, and learning rate by epoch.

use maud::{Markup, html};

use super::chart::{Curve, LineChart, Unit};
use super::html::section as html_section;
use crate::events::EpochRow;

/// The charts; nothing before the first epoch.
pub(super) fn section(history: &[EpochRow], best_epoch: Option<usize>) -> Markup {
    if history.is_empty() {
        return Markup::default();
    }
    let epochs: Vec<usize> = history.iter().map(|row| row.epoch).collect();
    let curve = |name, value: fn(&EpochRow) -> Option<f64>| {
        Curve::new(name, history.iter().map(value).collect::<Vec<_>>())
    };
    let charts = [
        (
            "Loss",
            Unit::Number,
            vec![curve("train", |row| Some(row.train_loss)), curve("validation", |row| row.val_loss)],
        ),
        (
            "Accuracy",
            Unit::Percent,
            vec![curve("train", |row| row.train_top1), curve("validation", |row| row.val_top1)],
        ),
        (
            "Mean average precision",
            Unit::Percent,
            vec![curve("validation", |row| row.val_mean_average_precision)],
        ),
        ("Macro F1", Unit::Percent, vec![curve("validation", |row| row.val_macro_f1)]),
        ("Learning rate", Unit::FromZero, vec![curve("rate", |row| Some(row.learning_rate))]),
    ];
    let charts = charts.into_iter().map(|(title, unit, mut curves)| {
        curves.retain(|curve| !curve.is_empty());
        LineChart { title, unit, epochs: &epochs, curves, best: best_epoch }
    });
    let body = html! {
        div class="charts" {
            @for chart in charts.filter(|chart| !chart.curves.is_empty()) { (chart.render()) }
        }
    };
    html_section("Training", body)
}
