//! Whole small runs on drawn images: their rows, events, and files.

#![allow(clippy::unwrap_used)]

mod loaders;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use vitrine_datasets::{Dataset, ImageSource, Sample, Split};

use super::{Outcome, Progress};
use crate::device::{self, FoundDevice};
use crate::events::{EpochEnd, EpochRow, Event, EventSink};
use crate::learner::micro_batch::{Contribution, MicroBatch};
use crate::model_file;
use crate::plan::Overrides;
use crate::recipe::AskedLength;
use crate::run::{Changes, FinishedRun, NewRun, PlannedRun, Resumed, Run};
use crate::run_folder::testing::drawn;
use crate::run_folder::{RunConfig, RunFolder};
use crate::runtime::Runtime;
use crate::workers::message::{Header, answer_length, read_answer, write_answer};
use crate::workers::{Answer, Computer, Deadlines, Failure, Pool, Task, Worker};

fn cpu() -> FoundDevice {
    device::select(Some("cpu")).unwrap().0
}

/// A sink that keeps every event, and shows steps or not.
#[derive(Default)]
struct Kept {
    events: Mutex<Vec<Event>>,
    shows_steps: bool,
}

impl EventSink for Kept {
    fn emit(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn shows_steps(&self) -> bool {
        self.shows_steps
    }
}

impl Kept {
    /// What `choose` gives for the events that it concerns, in order.
    fn all<T>(&self, choose: impl FnMut(&Event) -> Option<T>) -> Vec<T> {
        self.events.lock().unwrap().iter().filter_map(choose).collect()
    }

    fn ends(&self) -> Vec<EpochEnd> {
        self.all(|event| if let Event::EpochEnd(end) = event { Some(end.clone()) } else { None })
    }
}

/// A folder with an architecture and a place for a run.
struct Place(tempfile::TempDir);

const MODEL: &str = "image_size = 16\npatch_size = 4\nembed_dim = 16\ndepth = 1\nnum_heads = 2\nclass_token = false\n\
    pool = \"mean\"\nposition = \"rotary\"\n";

impl Place {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("model.toml"), MODEL).unwrap();
        Self(place)
    }

    fn run(&self) -> PathBuf {
        self.0.path().join("run")
    }

    /// Trains with a recipe, given as TOML, to the end.
    fn train(
        &self,
        dataset: Dataset,
        recipe: &str,
        length: AskedLength,
        events: &dyn EventSink,
    ) -> FinishedRun {
        self.train_with(None, dataset, recipe, length, events)
    }

    /// [`Self::train`] with workers.
    fn train_with(
        &self,
        workers: Option<&Pool>,
        dataset: Dataset,
        recipe: &str,
        length: AskedLength,
        events: &dyn EventSink,
    ) -> FinishedRun {
        let path = |name: &str| self.0.path().join(name).display().to_string();
        std::fs::write(path("recipe.toml"), recipe).unwrap();
        let overrides = Overrides {
            model: Some(path("model.toml")),
            recipe: Some(path("recipe.toml")),
            length,
            ..Overrides::default()
        };
        let new = NewRun {
            data: "drawn by a test",
            dataset,
            data_dir: self.0.path().to_owned(),
            max_file_size: None,
            label_separator: None,
            overrides: &overrides,
            pretrained: None,
            val_fraction: None,
            seed: 3,
            fold: None,
            begun: Instant::now(),
        };
        let runtime = Runtime { device: &cpu(), threads: 1, events, cache: None, workers };
        let planned = PlannedRun::new(new, runtime).unwrap();
        Run::begin(planned, Some(&self.run()), runtime).unwrap().train(runtime).unwrap()
    }
}

const EVEN: &str = "batch_size = 8\nlearning_rate = 0.001\nepochs = 3\n";

/// Rows of `metrics.csv`.
fn rows(run: &Path) -> Vec<EpochRow> {
    let mut reader = csv::Reader::from_path(run.join("metrics.csv")).unwrap();
    reader.deserialize().map(Result::unwrap).collect()
}

#[test]
fn rows_events_and_files_of_a_run_agree() {
    let (place, events) = (Place::new(), Kept::default());
    let run = place.train(drawn([30, 12, 0]), EVEN, AskedLength::default(), &events);
    let Progress { history, best, finished, epoch, updates, .. } = &run.progress;
    assert_eq!((run.outcome, *finished, *epoch, *updates), (Outcome::Finished, true, 3, 12));
    assert_eq!(*history, rows(&place.run()));
    let ends = events.ends();
    assert_eq!(ends.iter().map(|end| end.row.clone()).collect::<Vec<_>>(), *history);
    assert!(ends.iter().all(|end| (end.images, end.seen) == (30, 30)), "{ends:?}");
    assert_eq!(
        history.iter().map(|row| (row.epoch, row.step)).collect::<Vec<_>>(),
        [(1, 4), (2, 8), (3, 12)]
    );
    assert!(
        history.is_sorted_by_key(|row| row.seconds) && history[2].learning_rate < history[0].learning_rate
    );
    // The model file is that of the last row that is marked.
    let kept = history.iter().rfind(|row| row.kept).unwrap();
    let (card, _) = model_file::load(&place.run(), &cpu().device).unwrap();
    let validation = card.validation.unwrap();
    assert_eq!((validation.epoch, Some(validation.top1)), (kept.epoch, kept.val_top1));
    assert_eq!((Some(&validation), validation.samples), (best.as_ref(), 12));
    assert!(ends[0].best && ends[0].row.kept, "the first epoch has nothing before it");
    let highest = |until: usize| history[..until].iter().filter_map(|row| row.val_top1).fold(-1.0, f64::max);
    for (index, end) in ends.iter().enumerate() {
        assert_eq!(end.best, end.row.val_top1.unwrap() > highest(index), "epoch {}", index + 1);
    }
}

/// A sink that notes at the beginning of each epoch whether the run in a folder has a model.
struct ModelWatch {
    run: PathBuf,
    found: Mutex<Vec<bool>>,
}

impl EventSink for ModelWatch {
    fn emit(&self, event: Event) {
        if let Event::EpochStart { .. } = event {
            self.found.lock().unwrap().push(model_file::locate(&self.run).is_ok());
        }
    }
}

#[test]
fn a_run_has_a_model_as_soon_as_its_first_epoch_is_done() {
    let place = Place::new();
    let watch = ModelWatch { run: place.run(), found: Mutex::default() };
    place.train(drawn([30, 6, 0]), EVEN, AskedLength::default(), &watch);
    assert_eq!(*watch.found.lock().unwrap(), [false, true, true]);
}

#[test]
fn accumulated_batches_give_one_update() {
    let (place, events) = (Place::new(), Kept::default());
    let recipe = format!("{EVEN}accumulate = 3\n");
    let run = place.train(drawn([30, 6, 0]), &recipe, AskedLength::default(), &events);
    // Four batches of an epoch: three for the first update, and the last one for another.
    let steps: Vec<usize> = run.progress.history.iter().map(|row| row.step).collect();
    assert_eq!(steps, [2, 4, 6]);
}

#[test]
fn a_run_of_one_update_has_the_highest_learning_rate() {
    let rates = |epochs: usize| -> Vec<(usize, f64)> {
        let (place, events) = (Place::new(), Kept::default());
        let recipe = format!(
            "batch_size = 8\nlearning_rate = 0.001\nfinal_learning_rate = 0.0\nwarmup = 0.5\nepochs = {epochs}\n"
        );
        let run = place.train(drawn([8, 6, 0]), &recipe, AskedLength::default(), &events);
        run.progress.history.iter().map(|row| (row.step, row.learning_rate)).collect()
    };
    assert_eq!(rates(1), [(1, 0.001)]);
    assert_eq!(rates(2), [(1, 0.001), (2, 0.0)], "the schedule of two updates");
}

/// A sink that waits after the updates of an epoch for as long as the run may take, and notes which share of it was done before.
struct Waiting {
    limit: Duration,
    done: Mutex<Vec<f64>>,
}

impl EventSink for Waiting {
    fn emit(&self, event: Event) {
        match event {
            Event::Step { done, .. } => self.done.lock().unwrap().push(done),
            Event::UpdatesEnd => std::thread::sleep(self.limit),
            _ => {}
        }
    }

    fn shows_steps(&self) -> bool {
        true
    }
}

#[test]
fn the_row_of_an_epoch_has_the_learning_rate_of_its_last_update_however_late_it_ends() {
    let limit = Duration::from_secs(1);
    let (place, events) = (Place::new(), Waiting { limit, done: Mutex::default() });
    let recipe = "batch_size = 8\nlearning_rate = 0.001\nfinal_learning_rate = 0.0\nwarmup = 0.0\n";
    let length = AskedLength { epochs: None, seconds: Some(limit.as_secs_f64()) };
    let run = place.train(drawn([8, 6, 0]), recipe, length, &events);
    let (row, done) = (&run.progress.history[0], events.done.lock().unwrap()[0]);
    assert_eq!((row.step, row.learning_rate), (1, run.progress.learning_rate));
    // On a machine that is so slow that the time is over before the update, its rate is the highest.
    assert!(row.learning_rate < 0.001 || done >= 1.0, "{row:?} at {done}");
    assert!(row.learning_rate > 0.0);
}

#[test]
fn steps_are_reported_to_a_sink_that_shows_them_and_change_nothing_else() {
    let told = |shows_steps| {
        let (place, events) = (Place::new(), Kept { shows_steps, ..Kept::default() });
        place.train(drawn([30, 6, 0]), EVEN, AskedLength::default(), &events);
        events
    };
    let (shown, hidden) = (told(true), told(false));
    let steps = shown.all(|event| match event {
        Event::Step { epoch, images, loss, done, .. } => Some((*epoch, *images, *loss, *done)),
        _ => None,
    });
    assert_eq!(steps.iter().map(|step| (step.0, step.1)).collect::<Vec<_>>(), {
        let epoch = |number| [8, 8, 8, 6].map(|images| (number, images));
        [epoch(1), epoch(2), epoch(3)].concat()
    });
    assert!(steps.is_sorted_by_key(|step| step.3) && steps.last().unwrap().3 == 1.0, "{steps:?}");
    for (last, end) in [steps[3], steps[7], steps[11]].iter().zip(shown.ends()) {
        assert_eq!(last.2, end.row.train_loss, "the mean loss of the whole epoch");
    }
    let kinds = |events: &Kept| {
        events.all(|event| (!matches!(event, Event::Step { .. })).then(|| std::mem::discriminant(event)))
    };
    assert_eq!(kinds(&shown), kinds(&hidden));
    assert!(hidden.all(|event| matches!(event, Event::Step { .. }).then_some(())).is_empty());
}

#[test]
fn an_epoch_begins_and_its_updates_end_before_it_is_measured() {
    let (place, events) = (Place::new(), Kept::default());
    place.train(drawn([30, 6, 0]), EVEN, AskedLength::default(), &events);
    let order = events.all(|event| match event {
        Event::EpochStart { epoch, epochs, images, seen } => {
            assert_eq!((*epochs, *images, *seen), (Some(3), 30, 0));
            Some(format!("start {epoch}"))
        }
        Event::UpdatesEnd => Some("updates".to_owned()),
        Event::EpochEnd(end) => Some(format!("end {}", end.row.epoch)),
        Event::Data { training, validation, .. } => Some(format!("data {training} {validation}")),
        Event::RunFolder { .. } => Some("folder".to_owned()),
        Event::Result { .. } => Some("result".to_owned()),
        _ => None,
    });
    let epoch = |number| [format!("start {number}"), "updates".to_owned(), format!("end {number}")];
    let begin = ["data 30 6", "folder"].map(str::to_owned);
    let whole = [&begin[..], &epoch(1), &epoch(2), &epoch(3), &["result".to_owned()]].concat();
    assert_eq!(order, whole);
}

#[test]
fn a_run_without_a_better_epoch_stops_after_its_patience() {
    let (place, events) = (Place::new(), Kept::default());
    // With such a learning rate, no prediction changes.
    let recipe = "batch_size = 8\nlearning_rate = 1e-12\nweight_decay = 0.0\nepochs = 9\npatience = 2\n";
    let run = place.train(drawn([16, 6, 0]), recipe, AskedLength::default(), &events);
    assert_eq!(run.outcome, Outcome::StoppedEarly);
    let Progress { history, stale_epochs, finished, .. } = &run.progress;
    assert_eq!((history.len(), *stale_epochs, *finished), (3, 2, true));
    let best: Vec<bool> = events.ends().iter().map(|end| end.best).collect();
    assert_eq!(best, [true, false, false]);
    let stops = events.all(|event| match event {
        Event::EarlyStop { metric, patience } => Some((metric.clone(), *patience)),
        _ => None,
    });
    assert_eq!(stops, [("accuracy".to_owned(), 2)]);
    assert!(run.report.is_some(), "a run that stops early is measured");
}

#[test]
fn a_time_limit_that_is_over_at_once_leaves_a_model_measured_on_a_part() {
    let (place, events) = (Place::new(), Kept::default());
    let length = AskedLength { epochs: None, seconds: Some(0.001) };
    let run = place.train(drawn([40, 130, 120]), "batch_size = 8\n", length, &events);
    let parts = events.all(|event| match event {
        Event::PartialValidation { measured, images } => Some((*measured, *images)),
        _ => None,
    });
    // A hundred images are measured however little time there is.
    assert_eq!(parts, [(100, 130)]);
    let Progress { history, validation_images, best, .. } = &run.progress;
    assert_eq!((history.len(), *validation_images, history[0].step), (1, Some(100), 1));
    assert_eq!(best.as_ref().unwrap().samples, 100);
    let ends: Vec<_> = events.ends().iter().map(|end| (end.images, end.seen)).collect();
    assert_eq!(ends, [(40, 8)], "the time is up after one batch");
    assert!(history[0].kept && place.run().join("model.safetensors").is_file());
    let tested = RunFolder::results(&place.run()).unwrap()[&Split::Test].samples;
    assert!((100..=120).contains(&tested), "{tested}");
}

#[test]
fn the_second_phase_of_progressive_learning_begins_once() {
    let (place, events) = (Place::new(), Kept::default());
    let recipe = format!("{EVEN}[progressive_learning]\nuntil = 0.5\nscale = 0.5\n");
    place.train(drawn([32, 6, 0]), &recipe, AskedLength::default(), &events);
    let sizes = events.all(|event| match event {
        Event::FullSize { updates, width, height } => Some((*updates, *width, *height)),
        _ => None,
    });
    assert_eq!(sizes, [(6, 16, 16)], "after half of twelve updates, within the second epoch");
}

#[test]
fn an_unreadable_image_is_reported_once_and_trained_without() {
    let (place, events) = (Place::new(), Kept { shows_steps: true, ..Kept::default() });
    let mut dataset = drawn([30, 6, 0]);
    let source =
        ImageSource::Encoded { name: "cut.png".to_owned(), bytes: b"\x89PNG\r\n\x1a\n".as_slice().into() };
    dataset.train.insert(4, Sample { labels: 0.into(), source });
    place.train(dataset, EVEN, AskedLength::default(), &events);
    let told = events.all(|event| match event {
        Event::UnreadableImages { split, unreadable, images, first } => {
            Some((*split, *unreadable, *images, first.name.clone()))
        }
        _ => None,
    });
    assert_eq!(told, [(Split::Train, 1, 31, "cut.png".to_owned())], "in three epochs");
    let trained: usize = events
        .all(|event| if let Event::Step { images, .. } = event { Some(*images) } else { None })
        .iter()
        .sum();
    assert_eq!(trained, 90);
}

/// Images of two classes that look the same, so that nothing can be learned: they differ in one pixel.
fn alike(counts: [usize; 3]) -> Dataset {
    let mut dataset = drawn(counts);
    for (number, sample) in dataset.train.iter_mut().chain(&mut dataset.val).enumerate() {
        let mut image = image::RgbImage::from_pixel(16, 16, image::Rgb([90, 60, 120]));
        image.put_pixel(0, 0, image::Rgb([number as u8, 0, 0]));
        let mut bytes = std::io::Cursor::new(Vec::new());
        image.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        sample.source =
            ImageSource::Encoded { name: format!("{number}.png"), bytes: bytes.into_inner().into() };
    }
    dataset
}

#[test]
fn an_attempt_that_is_given_up_after_the_last_batch_of_an_epoch_has_its_row() {
    let (place, events) = (Place::new(), Kept::default());
    // The watch begins after 16 updates and judges 64 later: after the tenth epoch of eight.
    let recipe = "batch_size = 16\nlearning_rate = 1e-7\nepochs = 40\nwarmup = 0.05\n";
    let run = place.train(alike([128, 12, 0]), recipe, AskedLength::default(), &events);
    let Progress { history, given_up, .. } = &run.progress;
    assert_eq!((given_up[0].epoch, given_up[0].batch, given_up[0].updates), (10, 0, 80));
    assert_eq!((history[9].epoch, history[9].step), (10, 80));
    assert!(history[9].learning_rate > 5e-8, "that of the next attempt rises from 0: {:?}", history[9]);
    let order = events.all(|event| match event {
        Event::EpochEnd(end) => Some(format!("end {}", end.row.epoch)),
        Event::NotLearning { message } => Some(message.clone()),
        _ => None,
    });
    assert_eq!(order[9], "end 10");
    assert!(order[10].starts_with("after 80 updates, in epoch 10:"), "{}", order[10]);
    assert_eq!(history.iter().map(|row| row.epoch).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
}

/// A worker in this process, which fails at every third task, and is given tasks and gives answers as they are sent.
struct InProcess {
    computer: Computer,
    tasks: usize,
}

impl Worker for InProcess {
    fn name(&self) -> String {
        "worker".to_owned()
    }

    fn connect(&mut self) -> Result<Vec<String>, Failure> {
        Ok(Vec::new())
    }

    fn send(&mut self, task: &Task) -> Result<Answer, Failure> {
        let outcome = self.compute(task);
        Ok(Box::pin(std::future::ready(outcome)))
    }
}

impl InProcess {
    fn compute(&mut self, task: &Task) -> Result<Contribution, Failure> {
        self.tasks += 1;
        if self.tasks.is_multiple_of(3) {
            return Err(Failure::Lost("it failed".to_owned()));
        }
        let Header { config, size, image_size, seed } =
            Header::from_words(&Header::of(task).to_words()).unwrap();
        let batch = MicroBatch { size, image_size, seed, ..task.batch.clone() };
        let sent = Task { config: Arc::new(config), weights: Arc::clone(&task.weights), batch };
        let sizes = &task.weights.sizes;
        let numbers = write_answer(self.computer.compute(&sent), answer_length(sizes, size));
        read_answer(numbers, sizes, size).map_err(Failure::Refused)
    }
}

// That they change no bit is tested with processes (`tests/workers.rs`): the tests here share the seed of their device.
#[test]
fn workers_take_part_in_a_run_and_every_micro_batch_is_computed_once() {
    let recipe = "batch_size = 4\nlearning_rate = 0.001\nepochs = 3\naccumulate = 4\nema_decay = 0.9\n";
    for trainer_computes in [true, false] {
        let worker = || -> Box<dyn Worker> {
            Box::new(InProcess { computer: Computer::new(&cpu().device), tasks: 0 })
        };
        let pool = Pool::new(vec![worker(), worker()], trainer_computes, Deadlines::default());
        let (place, events) = (Place::new(), Kept::default());
        let run = place.train_with(Some(&pool), drawn([30, 12, 0]), recipe, AskedLength::default(), &events);
        assert_eq!((run.progress.epoch, run.progress.updates), (3, 6));
        assert!(
            run.progress.history.iter().all(|row| row.train_loss.is_finite() && row.train_top1.is_some())
        );
        let shares = events.all(|event| match event {
            Event::Shares { workers, own } => {
                Some(workers.iter().map(|share| share.micro_batches).sum::<usize>() + own)
            }
            _ => None,
        });
        assert_eq!(shares, [8, 8, 8], "three epochs of eight micro-batches");
        assert!(pool.shares().0.iter().any(|(_, computed)| *computed > 0));
    }
}

#[test]
fn a_resumed_run_continues_its_rows_and_drops_those_after_its_state() {
    let (place, events) = (Place::new(), Kept::default());
    let first = place.train(drawn([30, 6, 0]), EVEN, AskedLength::default(), &events);
    let before = first.progress.history.clone();
    drop(first);
    let metrics = place.run().join("metrics.csv");
    let text = std::fs::read_to_string(&metrics).unwrap();
    std::fs::write(&metrics, format!("{text}{}\n", text.lines().last().unwrap())).unwrap();
    let events = Kept::default();
    let runtime = Runtime { device: &cpu(), threads: 1, events: &events, cache: None, workers: None };
    let resume = |epochs| {
        let length = AskedLength { epochs: Some(epochs), seconds: None };
        Run::resume(&place.run(), Changes { length, ..Changes::default() }, runtime, |_| {
            Ok(drawn([30, 6, 0]))
        })
    };
    let Resumed::Finished(progress) = resume(3).unwrap() else { panic!("three epochs are done") };
    assert_eq!(progress.history, before);
    let Resumed::Ready(run) = resume(5).unwrap() else { panic!("two epochs are left") };
    let longer = run.train(runtime).unwrap();
    assert_eq!(longer.progress.history[..3], before);
    assert_eq!(rows(&place.run()), longer.progress.history);
    let steps: Vec<(usize, usize)> = events.ends().iter().map(|end| (end.row.epoch, end.row.step)).collect();
    assert_eq!(steps, [(4, 16), (5, 20)]);
    assert!(
        longer.config.recipe.epochs == Some(5)
            && RunConfig::read(&place.run().join("config.toml")).unwrap().lengthened
    );
    drop(longer);
    let shorter = resume(4).map(|_| ()).unwrap_err().to_string();
    assert!(shorter.contains("--epochs 4") && shorter.contains("5 epochs are done"), "{shorter}");
}
