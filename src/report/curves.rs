//! The course of the training: loss, accuracy and learning rate by epoch.

use super::chart::{LineChart, Series, Unit};
use super::html::section as html_section;
use crate::events::EpochRow;

/// The charts; nothing before the first epoch.
pub(super) fn section(history: &[EpochRow], best_epoch: Option<usize>) -> String {
    if history.is_empty() {
        return String::new();
    }
    let epochs: Vec<usize> = history.iter().map(|row| row.epoch).collect();
    let chart = |title, unit, series: Vec<Series>| {
        let series: Vec<_> = series.into_iter().filter(|series| !series.is_empty()).collect();
        if series.is_empty() {
            return String::new();
        }
        LineChart { title, unit, epochs: &epochs, series, best: best_epoch }.render()
    };
    let values = |value: fn(&EpochRow) -> Option<f64>| history.iter().map(value).collect::<Vec<_>>();
    let charts = [
        chart(
            "Loss",
            Unit::Number,
            vec![
                Series::new("train", values(|row| Some(row.train_loss))),
                Series::new("validation", values(|row| row.val_loss)),
            ],
        ),
        chart(
            "Accuracy",
            Unit::Percent,
            vec![
                Series::new("train", values(|row| row.train_top1)),
                Series::new("validation", values(|row| row.val_top1)),
            ],
        ),
        chart("Macro F1", Unit::Percent, vec![Series::new("validation", values(|row| row.val_macro_f1))]),
        chart(
            "Learning rate",
            Unit::FromZero,
            vec![Series::new("rate", values(|row| Some(row.learning_rate)))],
        ),
    ];
    html_section(
        "Training",
        &format!(
            r#"<div class="charts">
{}</div>
"#,
            charts.concat()
        ),
    )
}
