//! Whole pages are well-formed, self-contained, and safe for any input.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::embed::{Embeddings, ImageClasses};
use crate::evaluate::{Predictions, reliability};
use crate::recipe::Metric;

/// Owns everything that a [`Report`] borrows.
struct Run {
    history: Vec<EpochRow>,
    metrics: Metrics,
    caveats: Vec<Caveat>,
    reliability: Vec<ReliabilityBin>,
    mistakes: Vec<Mistake>,
}

impl Run {
    /// A run whose model takes every third image for the next class.
    fn new(epochs: usize, names: &[String]) -> Self {
        let mut predictions = Predictions::new(names.len());
        for sample in 0..4 * names.len() {
            let label = sample % names.len();
            let chosen = (label + usize::from(sample % 3 == 0)) % names.len();
            let logits: Vec<_> =
                (0..names.len()).map(|class| if class == chosen { 4.0 } else { 0.0 }).collect();
            predictions.push(&[label], &logits);
        }
        let mistake = |mistake: crate::evaluate::ConfidentMistake| Mistake {
            name: format!("{}/{}.png", mistake.truth.names(names), mistake.sample),
            truth: mistake.truth.names(names),
            class: names[mistake.class].clone(),
            is_missed: mistake.is_missed,
            confidence: mistake.confidence,
            image: Thumbnail::new(2, 1, 3, vec![0, 50, 100, 150, 200, 250]),
            overlay: None,
        };
        Self {
            history: (1..=epochs).map(row).collect(),
            metrics: Metrics::compute(&predictions, names),
            caveats: Vec::new(),
            reliability: reliability(&predictions),
            mistakes: predictions.confident_mistakes(8).into_iter().map(mistake).collect(),
        }
    }

    fn report(&self) -> Report<'_> {
        Report {
            title: "shapes-tiny-1",
            summary: vec![("Data".into(), "shapes".into())],
            history: &self.history,
            best_epoch: Some(1),
            metrics: Some(&self.metrics),
            split: "validation",
            caveats: &self.caveats,
            reliability: &self.reliability,
            map: None,
            mistakes: &self.mistakes,
            config_toml: "seed = 0\n",
        }
    }
}

fn row(epoch: usize) -> EpochRow {
    EpochRow {
        epoch,
        step: 10 * epoch,
        seconds: epoch as f64,
        learning_rate: 1e-3,
        train_loss: 1.0 / epoch as f64,
        train_top1: Some(0.5),
        val_loss: Some(1.5 / epoch as f64),
        val_top1: Some(0.4),
        images_per_second: 100.0,
        val_macro_f1: Some(0.3),
        val_balanced_accuracy: Some(0.35),
        kept: false,
        val_mean_average_precision: None,
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("class {index}")).collect()
}

/// Renders a page and checks what every page must satisfy.
fn checked(report: &Report) -> String {
    let page = render(report);
    assert_balanced(&page);
    for outside in ["http:", "https:", "src=\"/", "url(", "@import", "<link", "<script"] {
        assert!(!page.contains(outside), "the page refers to something outside: {outside}");
    }
    for broken in ["=\"NaN", "=\"inf", ",NaN", "NaN,", "=\"-inf"] {
        assert!(!page.contains(broken), "a coordinate is not finite: {broken}");
    }
    page
}

/// Elements that HTML does not close.
const VOID: [&str; 4] = ["br", "img", "input", "meta"];

/// Checks that every element is closed, in order, and that `&` only begins the entities that the page uses.
fn assert_balanced(page: &str) {
    let page = page.strip_prefix("<!DOCTYPE html>").expect("a document type");
    let page = page.replace(include_str!("style.css"), "").replace(crate::page::BASE_STYLE, "");
    let mut open = Vec::new();
    for piece in page.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').expect("a tag ends");
        assert!(!text.contains('>'), "a bare > after <{tag}>");
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes in {tag:?}");
        let name = tag.split_whitespace().next().expect("a tag has a name");
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "still open: {open:?}");
    for entity in page.split('&').skip(1) {
        let known = ["amp;", "lt;", "gt;", "quot;"];
        assert!(known.iter().any(|known| entity.starts_with(known)), "a bare & before {entity:.20}");
    }
}

#[test]
fn a_full_page_has_every_part() {
    let run = Run::new(5, &names(10));
    let page = checked(&run.report());
    let headings =
        ["Run", "Training", "Confusion", "Classes", "Calibration", "Worst mistakes", "Configuration"];
    let places: Vec<_> =
        headings.iter().map(|name| page.find(&format!("<h2>{name}</h2>")).unwrap()).collect();
    assert!(places.is_sorted());
    assert_eq!(page.matches("<polyline").count(), 6);
    assert_eq!(page.matches("data:image/png;base64,").count(), run.mistakes.len());
    assert!(page.contains(&format!("<p class=\"hero\">{}</p>", percent(run.metrics.top1))));
    assert!(page.contains("best: epoch 1<"));
    assert_eq!(page, render(&run.report()));
}

#[test]
fn maps_are_next_to_their_mistakes_and_explained_once() {
    let mut run = Run::new(2, &names(3));
    let without = checked(&run.report());
    assert!(!without.contains("map of the places") && !without.contains("counts least"));
    let overlay = |is_empty| Overlay { image: Thumbnail::new(128, 96, 3, vec![7; 128 * 96 * 3]), is_empty };
    run.mistakes[0].overlay = Some(overlay(false));
    run.mistakes[1].overlay = Some(overlay(true));
    let page = checked(&run.report());
    assert_eq!(page.matches("data:image/png;base64,").count(), run.mistakes.len() + 2);
    for (words, times) in [
        (format!("alt=\"map of the places that counted for {}\"", run.mistakes[0].class), 1),
        (format!("alt=\"map for {}: nothing counts: all values are 0\"", run.mistakes[1].class), 1),
        (">nothing counts: all values are 0<".to_owned(), 1),
        ("(Grad-CAM)".to_owned(), 1),
        ("counts least".to_owned(), 1),
    ] {
        assert_eq!(page.matches(&words).count(), times, "{words}");
    }
}

#[test]
fn a_mistake_about_an_image_without_a_label_says_so() {
    let mut run = Run::new(2, &names(3));
    run.mistakes[0].truth = String::new();
    let page = checked(&run.report());
    assert_eq!(page.matches(">has no label<").count(), 1);
    assert!(page.contains("alt=\"an image without a label, mistaken for class "), "{page}");
    assert!(!page.contains(">is <"), "{page}");
}

#[test]
fn many_classes_show_those_that_are_confused() {
    let run = Run::new(2, &names(2000));
    let page = checked(&run.report());
    let matrix = &page[page.find("<svg class=\"matrix\"").unwrap()..];
    let matrix = &matrix[..matrix.find("</svg>").unwrap()];
    assert_eq!(matrix.matches("<text class=\"label\"").count(), 2 * 24, "the names of 24 classes, twice");
    assert!(matrix.contains("class=\"miss\"") && matrix.contains(">class 1</text>"), "{matrix}");
    assert!(page.contains("24 of 2000 classes"));
    assert!(page.len() < 2_000_000, "{} bytes", page.len());
}

#[test]
fn caveats_are_shown_as_warnings() {
    let mut run = Run::new(2, &names(3));
    assert!(!checked(&run.report()).contains("class=\"warning\""));
    run.caveats = vec![
        Caveat::AtChance { chance: 0.5, measured: (0.5, 9) },
        Caveat::Overfitted { epoch: 2, losses: [0.5, 0.75] },
    ];
    let page = checked(&run.report());
    assert!(
        page.contains("<p class=\"warning\">at chance: ")
            && page.contains("<p class=\"warning\">overfitted: ")
    );
}

#[test]
fn a_report_without_content_is_a_valid_page() {
    let run = Run::new(0, &names(2));
    let report = Report {
        summary: Vec::new(),
        metrics: None,
        reliability: &[],
        mistakes: &[],
        config_toml: "",
        ..run.report()
    };
    assert!(!checked(&report).contains("<section>"));
}

#[test]
fn a_map_of_images_is_part_of_a_valid_page() {
    let run = Run::new(2, &names(2));
    let mut embeddings = Embeddings::new(2);
    for image in 0..6u8 {
        embeddings.push(format!("<{image}>.png"), &[f32::from(image), f32::from(image % 2)]);
    }
    let classes = ImageClasses { names: names(2), of_images: vec![0, 1, 0, 1, 0, 1] };
    let map = Map::new(&embeddings, Some(&classes), |_| None);
    let page = checked(&Report { map: Some(&map), ..run.report() });
    assert!(page.contains("Map of validation images") && page.matches("class=\"point ").count() == 6);
    assert!(!checked(&run.report()).contains("class=\"map\""));
}

#[test]
fn pages_are_valid_for_any_number_of_classes_and_epochs() {
    for classes in [1, 2, 5, 6, 24, 25, 60, 61, 100, 101] {
        checked(&Run::new(3, &names(classes)).report());
    }
    for epochs in [1, 2, 7, 401] {
        checked(&Run::new(epochs, &names(3)).report());
    }
}

#[test]
fn a_run_without_validation_shows_only_its_training_curves() {
    let mut run = Run::new(4, &names(3));
    for row in &mut run.history {
        (row.val_loss, row.val_top1, row.val_macro_f1) = (None, None, None);
    }
    let page = checked(&Report { best_epoch: None, ..run.report() });
    assert!(page.contains("line train") && !page.contains("line validation"));
    for row in &mut run.history {
        row.train_top1 = None;
    }
    assert!(!checked(&run.report()).contains("<h3>Accuracy</h3>"));
}

#[test]
fn values_that_are_not_finite_are_named() {
    let mut run = Run::new(4, &names(3));
    run.history[0].train_loss = f64::NAN;
    run.history[1].val_loss = Some(f64::INFINITY);
    run.history[2].val_top1 = Some(f64::NAN);
    for row in &mut run.history {
        row.learning_rate = f64::NAN;
    }
    let mut predictions = Predictions::new(3);
    predictions.push(&[0], &[f32::NAN; 3]);
    run.metrics = Metrics::compute(&predictions, &names(3));
    run.reliability = reliability(&predictions);
    run.caveats = Caveat::of(&run.metrics, &run.history, Metric::Accuracy, 1, false);
    let page = checked(&run.report());
    assert!(
        page.contains("All values are NaN or infinite.") && page.contains("NaN or infinity for 1 images")
    );
    run.metrics = Metrics::compute(&Predictions::new(3), &names(3));
    assert!(checked(&run.report()).contains("<p class=\"hero\">n/a</p>"));
}

#[test]
fn text_from_outside_stays_text() {
    let evil = [
        "</title><script>alert(1)</script>",
        "\" onload=\"x",
        "a & b",
        "new\nline\u{0}\u{1b}",
        &"long".repeat(99),
    ];
    let names = evil.map(str::to_owned);
    let run = Run::new(2, &names);
    let summary = vec![(names[0].clone(), names[1].clone())];
    let page = checked(&Report {
        title: evil[0],
        split: evil[1],
        summary,
        config_toml: "a = \"<b>\"</pre>",
        ..run.report()
    });
    assert!(!page.contains("<script") && !page.contains("\" onload") && !page.contains("<b>"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(!page.contains(['\u{0}', '\u{1b}']) && page.contains("new\nline\u{fffd}"));
}

#[test]
fn epochs_survive_csv() {
    let rows = [row(1), EpochRow { train_top1: None, val_loss: None, val_top1: None, ..row(2) }];
    let mut writer = csv::Writer::from_writer(Vec::new());
    rows.iter().for_each(|row| writer.serialize(row).unwrap());
    let text = String::from_utf8(writer.into_inner().unwrap()).unwrap();
    assert!(text.starts_with(
        "epoch,step,seconds,learning_rate,train_loss,train_top1,val_loss,val_top1,images_per_second,val_macro_f1,val_balanced_accuracy,kept,val_mean_average_precision\n"
    ));
    let read: Vec<EpochRow> =
        csv::Reader::from_reader(text.as_bytes()).deserialize().collect::<Result<_, _>>().unwrap();
    assert_eq!(read, rows);
}
