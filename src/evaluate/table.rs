//! The metrics of an evaluation as a text table for the terminal.

use super::metrics::{ClassMetrics, Metrics};
use super::multi_label::MultiLabelMetrics;
use crate::text::printable;

/// The largest number of classes that are all listed.
const LISTED_CLASSES: usize = 50;
/// The number of classes that are listed if more than [`LISTED_CLASSES`] have samples: those with the lowest F1.
const WORST_CLASSES: usize = 20;
/// The number of confused pairs that are listed.
const LISTED_PAIRS: usize = 5;
/// The largest width of a class name, in characters. Longer names are cut.
const NAME_WIDTH: usize = 32;

/// Renders the per-class table, the most confused pairs, and a summary. The last line ends in `\n` as well.
///
/// With more than 50 classes, the table holds those that have samples, or if these are more than 50, too, the 20 with the lowest F1, and says
/// so.
pub fn table(metrics: &Metrics) -> String {
    [class_table(metrics), confused_pairs(metrics), summary(metrics)].concat()
}

/// The classes that the table lists, and a title if these are not all. Of many classes, those without samples say nothing: their F1 is 0,
/// so that they alone would be listed if a model of 1000 classes was measured on ten of them.
fn listed(metrics: &Metrics) -> (String, Vec<&ClassMetrics>) {
    let mut classes: Vec<&ClassMetrics> = metrics.per_class.iter().collect();
    let all = classes.len();
    if all <= LISTED_CLASSES {
        return (String::new(), classes);
    }
    classes.retain(|class| class.support > 0);
    let with_samples = classes.len();
    if with_samples <= LISTED_CLASSES {
        return (format!("The {with_samples} of {all} classes that have samples:\n"), classes);
    }
    classes.sort_by(|a, b| a.f1.total_cmp(&b.f1));
    classes.truncate(WORST_CLASSES);
    let of_those = if with_samples < all { ", of those that have samples" } else { "" };
    (format!("The {WORST_CLASSES} of {all} classes with the lowest F1{of_those}:\n"), classes)
}

/// One aligned line per class; empty if none of many has samples.
fn class_table(metrics: &Metrics) -> String {
    let (title, classes) = listed(metrics);
    if classes.is_empty() {
        return String::new();
    }
    let names: Vec<_> = classes.iter().map(|class| column_name(&class.label)).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max("class".len());
    let has_precisions = metrics.multi_label.is_some();
    let title_of_last = if has_precisions { "  avg precision" } else { "" };
    let header = format!("{:width$}  precision  recall     F1  support{title_of_last}\n", "class");
    let rows = classes.iter().zip(&names).map(|(class, name)| {
        let ClassMetrics { precision, recall, f1, support, average_precision, .. } = class;
        let last = average_precision.map_or_else(String::new, |precision| match precision.is_nan() {
            true => format!("  {:>13}", "n/a"),
            false => format!("  {precision:13.3}"),
        });
        format!("{name:width$}  {precision:9.3}  {recall:6.3}  {f1:5.3}  {support:7}{last}\n")
    });
    title + &header + &rows.collect::<String>() + "\n"
}

/// The most frequent confusions; empty if there are none.
fn confused_pairs(metrics: &Metrics) -> String {
    let pairs = metrics.most_confused(LISTED_PAIRS);
    if pairs.is_empty() {
        return String::new();
    }
    let name = |class: usize| column_name(&metrics.per_class[class].label);
    let width = pairs.iter().map(|pair| name(pair.truth).chars().count()).max().unwrap_or(0);
    let lines = pairs.iter().map(|pair| {
        let support = metrics.per_class[pair.truth].support;
        format!(
            "  {:width$} mistaken for {}: {} of {support}\n",
            name(pair.truth),
            name(pair.predicted),
            pair.count
        )
    });
    format!("Most confused:\n{}\n", lines.collect::<String>())
}

/// The metrics over all classes, and a warning about logits that are not finite.
fn summary(metrics: &Metrics) -> String {
    let Metrics { samples, loss, macro_f1, ece, invalid, .. } = metrics;
    let mut text = metrics.multi_label.as_ref().map_or_else(String::new, multi_label_summary);
    text += &format!(
        "top-1 {} (95% interval {})  top-5 {}  macro F1 {macro_f1:.3}  loss {loss:.4}  ECE {ece:.3}  \
         samples {samples}\n",
        percent(metrics.top1),
        interval(metrics.top1_interval),
        percent(metrics.top5),
    );
    if *invalid > 0 {
        text += &format!(
            "warning: {invalid} of {samples} samples have logits that are not finite; they count as wrong, \
             and the loss is not a number\n"
        );
    }
    text
}

/// The metrics that exist only with several labels an image.
fn multi_label_summary(metrics: &MultiLabelMetrics) -> String {
    let MultiLabelMetrics { mean_average_precision, chance_average_precision, micro_f1, exact_match } =
        metrics;
    format!(
        "mean average precision {} (chance {})  micro F1 {micro_f1:.3}  exact match {}\n",
        part(*mean_average_precision),
        part(*chance_average_precision),
        percent(*exact_match),
    )
}

/// A figure from 0 to 1, which no sample may tell.
fn part(value: f64) -> String {
    if value.is_nan() { "n/a".to_owned() } else { format!("{value:.3}") }
}

/// A class name that fits its column: without control characters, and cut to [`NAME_WIDTH`].
fn column_name(name: &str) -> String {
    let mut name = printable(name).into_owned();
    if let Some((cut, _)) = name.char_indices().nth(NAME_WIDTH) {
        name.truncate(cut);
        name.pop();
        name.push('…');
    }
    name
}

/// A fraction as a percentage with one decimal.
pub(crate) fn percent(fraction: f64) -> String {
    if fraction.is_nan() { "n/a".to_owned() } else { format!("{:.1}%", 100.0 * fraction) }
}

/// The two ends of an interval of fractions, as percentages.
pub(crate) fn interval([lower, upper]: [f64; 2]) -> String {
    format!("{:.1}–{:.1}%", 100.0 * lower, 100.0 * upper)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::Predictions;
    use vitrine_datasets::Labels;

    /// Metrics of predictions that are all class 0, with the same number of samples in each class.
    fn metrics(names: &[&str], samples_each: usize) -> Metrics {
        let mut predictions = Predictions::new(names.len());
        let mut logits = vec![0.0; names.len()];
        logits[0] = 3.0;
        for label in 0..names.len() {
            (0..samples_each).for_each(|_| predictions.push(&[label], &logits));
        }
        Metrics::compute(&predictions, &names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn two_classes_are_listed_with_their_confusion_and_a_summary() {
        let expected = "\
class       precision  recall     F1  support
cat             0.500   1.000  0.667        4
hippopotam      0.000   0.000  0.000        4

Most confused:
  hippopotam mistaken for cat: 4 of 4

top-1 50.0% (95% interval 21.5–78.5%)  top-5 100.0%  macro F1 0.333  loss 1.5486  ECE 0.453  samples 8
";
        assert_eq!(table(&metrics(&["cat", "hippopotam"], 4)), expected);
    }

    #[test]
    fn many_classes_are_cut_to_the_worst() {
        let names: Vec<_> = (0..60).map(|index| format!("class {index}")).collect();
        let text = table(&metrics(&names.iter().map(String::as_str).collect::<Vec<_>>(), 1));
        assert!(text.starts_with("The 20 of 60 classes with the lowest F1:\n"), "{text}");
        assert!(!text.contains("class 0   "), "{text}");
    }

    #[test]
    fn of_many_classes_those_without_samples_are_not_listed() {
        let table = |classes: usize, with_samples: usize| {
            let names: Vec<String> = (0..classes).map(|index| format!("class {index}")).collect();
            let mut predictions = Predictions::new(classes);
            for label in classes - with_samples..classes {
                let mut logits = vec![0.0; classes];
                logits[classes - 1] = 3.0;
                predictions.push(&[label], &logits);
            }
            table(&Metrics::compute(&predictions, &names))
        };
        let text = table(1000, 10);
        assert!(text.starts_with("The 10 of 1000 classes that have samples:\n"), "{text}");
        assert!(text.contains("\nclass 990 ") && text.contains("\nclass 999 "), "{text}");
        assert!(!text.contains("class 0 "), "{text}");
        let text = table(100, 60);
        assert!(text.starts_with("The 20 of 100 classes with the lowest F1, of those that have samples:\n"));
        assert!(text.contains("\nclass 40 ") && !text.contains("class 0 "), "{text}");
        let text = table(100, 0);
        assert!(!text.contains("classes") && !text.contains("support"), "{text}");
    }

    #[test]
    fn undefined_metrics_and_invalid_logits_are_reported() {
        let names = ["a".to_owned(), "b".to_owned()];
        let mut predictions = Predictions::new(2);
        assert!(
            table(&Metrics::compute(&predictions, &names)).contains("top-1 n/a (95% interval 0.0–100.0%)")
        );
        predictions.push(&[0, 1], &[f32::NAN, 0.0, 0.0, 1.0]);
        let text = table(&Metrics::compute(&predictions, &names));
        assert!(text.contains("loss NaN") && text.contains("1 of 2 samples have logits"), "{text}");
    }

    #[test]
    fn a_class_without_images_has_no_average_precision() {
        let mut predictions = Predictions::multi_label(2);
        predictions.push_labels(vec![0.into()], &[1.0, -1.0]);
        let text = table(&Metrics::compute(&predictions, &["a".to_owned(), "b".to_owned()]));
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        assert!(line("a ").ends_with("        1          1.000"), "{text}");
        assert!(line("b ").ends_with("        0            n/a"), "{text}");
    }

    #[test]
    fn without_any_label_there_is_no_mean_average_precision() {
        let mut predictions = Predictions::multi_label(2);
        predictions.push_labels(vec![Labels::new(Vec::new())], &[1.0, -1.0]);
        let text = table(&Metrics::compute(&predictions, &["a".to_owned(), "b".to_owned()]));
        assert!(text.contains("mean average precision n/a (chance n/a)"), "{text}");
    }

    #[test]
    fn names_fit_their_column() {
        assert_eq!(column_name("a\tb\u{1b}[31m"), "a\\tb\\u001b[31m");
        assert_eq!(column_name(&"é".repeat(40)), "é".repeat(31) + "…");
        assert_eq!(column_name(&"é".repeat(32)), "é".repeat(32));
    }
}
