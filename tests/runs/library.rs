//! Training and evaluation through the library: silent, with typed events in the order of the run, and resumable by the
//! program.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use predicates::str::contains;
use vitrine::events::{Event, EventSink};
use vitrine::plan::Overrides;
use vitrine::recipe::{AskedLength, RecipeOverrides};
use vitrine::run_folder::RunFolder;
use vitrine::{Classifier, TrainOptions};

use crate::support::{Images, vitrine};

/// The environment variable by which a test starts itself as a program of its own: the folder to work in.
const CHILD: &str = "VITRINE_TEST_SILENT_IN";
/// What such a program prints around its calls of the library.
const AROUND: [&str; 2] = ["[the library begins]", "[the library is done]"];

/// Options for a run of so many epochs in the folder `run`.
fn options(images: &Images, epochs: usize) -> TrainOptions {
    TrainOptions {
        overrides: Overrides {
            model: Some(images.path("tiny.toml").display().to_string()),
            length: AskedLength { epochs: Some(epochs), seconds: None },
            options: RecipeOverrides { batch_size: Some(8), ..RecipeOverrides::default() },
            ..Overrides::default()
        },
        output: Some(images.path("run")),
        device: Some("cpu".to_owned()),
        threads: Some(1),
        ..TrainOptions::default()
    }
}

fn data(images: &Images) -> String {
    images.path("data").display().to_string()
}

/// A sink that keeps every event.
#[derive(Default)]
struct Kept(Mutex<Vec<Event>>);

impl EventSink for Kept {
    fn emit(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

/// Trains, evaluates, and classifies in a folder, with data and a model that give cause for warnings.
fn use_the_library(folder: &Path) {
    let path = |name: &str| folder.join(name).display().to_string();
    let overrides = Overrides {
        model: Some(path("tiny.toml")),
        length: AskedLength { epochs: Some(2), seconds: None },
        options: RecipeOverrides { bad_file_limit: Some(0.5), ..RecipeOverrides::default() },
        ..Overrides::default()
    };
    let options = TrainOptions { overrides, output: Some(folder.join("run")), ..TrainOptions::default() };
    let run = vitrine::train(&path("data"), &options).unwrap();
    vitrine::evaluate(run.folder.path(), &path("data"), None).unwrap();
    let classifier = Classifier::load(run.folder.path()).unwrap();
    classifier.predict(&folder.join("data/red/0.png")).unwrap();
    classifier.predict(&folder.join("data/red/broken.png")).unwrap_err();
    vitrine::train(&path("nowhere"), &options).map(|_| ()).unwrap_err();
}

#[test]
#[allow(clippy::print_stdout)]
fn the_library_writes_to_no_stream() {
    if let Some(folder) = std::env::var_os(CHILD) {
        println!("{}", AROUND[0]);
        use_the_library(Path::new(&folder));
        println!("{}", AROUND[1]);
        std::io::stdout().flush().unwrap();
        return;
    }
    let images = Images::prepared();
    images.write("data/red/broken.png", "no image");
    images.write("data/notes.txt", "no image, either");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "library::the_library_writes_to_no_stream", "--nocapture", "--test-threads", "1"])
        .env(CHILD, images.path(""))
        .current_dir(images.path(""))
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let (_, rest) = printed.split_once(AROUND[0]).unwrap();
    let (within, _) = rest.split_once(AROUND[1]).unwrap();
    assert_eq!(within, "\n", "on standard output");
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "on standard error");
    assert!(images.path("run/report.html").is_file());
}

/// The place of an event in the order of a run; events that may come at any time have none.
fn rank(event: &Event) -> Option<usize> {
    match event {
        Event::Data { .. } => Some(0),
        Event::Choice { .. } => Some(1),
        Event::RunFolder { .. } => Some(2),
        Event::EpochStart { epoch, .. } => Some(10 * epoch),
        Event::EpochEnd(end) => Some(10 * end.row.epoch + 1),
        Event::Result { .. } => Some(1000),
        _ => None,
    }
}

#[test]
fn events_come_in_the_order_of_the_run_with_the_numbers_of_its_result() {
    let images = Images::prepared();
    let events = Kept::default();
    let run = vitrine::train_with_events(&data(&images), &options(&images, 3), &events).unwrap();
    let events = events.0.into_inner().unwrap();
    let ranks: Vec<usize> = events.iter().filter_map(rank).collect();
    assert!(ranks.is_sorted(), "{events:#?}");
    let mut once = ranks.clone();
    once.dedup();
    assert_eq!(once, [0, 1, 2, 10, 11, 20, 21, 30, 31, 1000]);
    let rows: Vec<_> = events
        .iter()
        .filter_map(|event| if let Event::EpochEnd(end) = event { Some(end.row.clone()) } else { None })
        .collect();
    assert_eq!(rows, run.progress.history);
    assert!(events.iter().any(|event| *event == Event::RunFolder { path: images.path("run") }));
    assert!(!events.iter().any(|event| matches!(event, Event::Step { .. })), "the sink shows no steps");
    let report = run.report.unwrap();
    let Some(Event::Result { message, caveats, top1, .. }) = events.last() else {
        panic!("{:?}", events.last())
    };
    assert_eq!((message, caveats.len(), *top1), (&report.line, report.caveats.len(), report.metrics.top1));
}

#[test]
fn every_event_is_a_line_and_an_object_with_its_kind() {
    let images = Images::prepared();
    images.write("data/red/broken.png", "no image");
    let mut options = options(&images, 2);
    options.overrides.options.bad_file_limit = Some(0.5);
    let events = Kept::default();
    vitrine::train_with_events(&data(&images), &options, &events).unwrap();
    let events = events.0.into_inner().unwrap();
    assert!(events.iter().any(|event| matches!(event, Event::UnreadableImages { .. })));
    for event in &events {
        assert!(!event.to_string().trim().is_empty(), "{event:?}");
        let object = serde_json::to_value(event).unwrap();
        let kind = object["event"].as_str().unwrap();
        assert!(kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{kind}");
        let name = format!("{event:?}");
        let name = name.split([' ', '(']).next().unwrap().to_lowercase();
        assert_eq!(kind.replace('_', ""), name);
    }
}

#[test]
fn the_program_resumes_evaluates_and_uses_a_run_of_the_library() {
    let images = Images::prepared();
    let run = vitrine::train(&data(&images), &options(&images, 2)).unwrap();
    let results = RunFolder::results(run.folder.path()).unwrap();
    // The lock on the folder is that of this value.
    vitrine(&images)
        .args(["train", "--resume", "run", "--epochs", "3"])
        .assert()
        .code(1)
        .stderr(contains("another vitrine is training"));
    let evaluation = vitrine::evaluate(run.folder.path(), &data(&images), None).unwrap();
    let measured = results.values().next().unwrap();
    assert_eq!((evaluation.metrics.samples, evaluation.metrics.top1), (measured.samples, measured.top1));
    drop(run);
    vitrine(&images)
        .args(["train", "--resume", "run", "--epochs", "3", "--threads", "1"])
        .assert()
        .success()
        .stderr(contains("epoch 3/3"));
    vitrine(&images).args(["classify", "run", "data/red/0.png"]).assert().success();
}

#[test]
fn options_out_of_range_are_errors_before_anything_is_written() {
    let images = Images::prepared();
    let usual = || options(&images, 1);
    for (options, part) in [
        (TrainOptions { threads: Some(0), ..usual() }, "threads is 0"),
        (TrainOptions { val_fraction: Some(1.5), ..usual() }, "1.5"),
        (TrainOptions { device: Some("abacus".to_owned()), ..usual() }, "abacus"),
        (
            TrainOptions { pretrained: Some("nowhere.safetensors".to_owned()), ..usual() },
            "nowhere.safetensors",
        ),
    ] {
        let error = vitrine::train(&data(&images), &options).map(|_| ()).unwrap_err();
        let message = format!("{error:#}");
        assert!(message.contains(part), "{message} lacks {part}");
        assert!(!images.path("run").exists(), "{part}");
    }
    let missing = vitrine::evaluate(&images.path("run"), &data(&images), None).map(|_| ()).unwrap_err();
    assert!(format!("{missing:#}").contains("run"), "{missing:#}");
}

#[test]
fn the_report_shows_what_counted_for_mistakes() {
    let images = Images::new();
    images.write("tiny.toml", crate::support::TINY);
    // Equal shades in both classes, so that half of the answers are wrong.
    images.fill("data/red", [200, 30, 30], 12);
    images.fill("data/also-red", [201, 30, 30], 12);
    let run = vitrine::train(&data(&images), &options(&images, 1)).unwrap();
    let page = std::fs::read_to_string(images.path("run/report.html")).unwrap();
    let metrics = run.report.unwrap().metrics;
    let wrong = ((1.0 - metrics.top1) * metrics.samples as f64).round() as usize;
    assert!(wrong > 0);
    let described = page.matches("alt=\"map ").count();
    assert_eq!((described, page.matches("counts least").count()), (wrong, 1));
}
