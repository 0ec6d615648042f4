//! Tests of whole training runs: every kind of model learns, the same seed gives the same bits, and a run that is
//! killed and resumed ends like one that was not interrupted.

#![allow(clippy::unwrap_used)]

mod support;
#[path = "../models/src/testing.rs"]
mod variants;

use std::path::Path;
use std::process::{Command as Process, Stdio};
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread::{self, available_parallelism, sleep};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Distribution, Tensor, TensorData};
use clap::ValueEnum;
use support::{Images, TINY, vitrine};
use vitrine::device;
use vitrine::learner::Learner;
use vitrine::recipe::{Optimizer, Recipe};
use vitrine_models::{ImageSize, ModelConfig, Normalizer};

#[test]
fn every_mixer_gate_position_and_pooling_learns_32_images_by_heart() {
    let name = std::env::var("VITRINE_DEVICE").ok();
    let (found, _) = device::select(name.as_deref().or(Some("cpu"))).unwrap();
    // Backends without fused operations take minutes for all variants. They run the same modules as flex, so every
    // third variant is enough there.
    let step = if found.name == "flex" { 1 } else { 3 };
    // These models are too small to occupy all threads.
    let all = Mutex::new(variants::variants().into_iter().step_by(step));
    let learn = || loop {
        let Some(config) = all.lock().unwrap().next() else { return };
        assert_learns(&config, Optimizer::default(), &found.device);
    };
    thread::scope(|scope| {
        (0..available_parallelism().map_or(1, usize::from)).for_each(|_| drop(scope.spawn(learn)));
    });
}

#[test]
fn every_optimizer_learns_32_images_by_heart() {
    let name = std::env::var("VITRINE_DEVICE").ok();
    let (found, _) = device::select(name.as_deref().or(Some("cpu"))).unwrap();
    for &optimizer in Optimizer::value_variants() {
        assert_learns(&variants::base(), optimizer, &found.device);
    }
}

/// Asserts that the loss on 32 random images of five classes falls below 0.05 within 600 steps.
fn assert_learns(config: &ModelConfig, optimizer: Optimizer, device: &Device) {
    // The random numbers of a device are the same for all threads, and each step begins them anew.
    static RANDOM: RwLock<()> = RwLock::new(());
    let alone = || RANDOM.write().unwrap_or_else(PoisonError::into_inner);
    let draws = config.attention.normalizer == Normalizer::HardSampled
        || [config.dropout, config.attention_dropout, config.drop_path].iter().any(|&share| share > 0.0);
    let tracked = device.clone().autodiff();
    let ImageSize { height, width } = config.image_size;
    let (model, images) = {
        let _alone = alone();
        device.seed(7);
        let model = config.init(&tracked).unwrap();
        model.initialize();
        let images = Tensor::<4>::random([32, 2, height, width], Distribution::Normal(0.0, 1.0), &tracked);
        (model, images)
    };
    let targets: Vec<f32> =
        (0..32).flat_map(|image| (0..5).map(move |class| f32::from(image % 5 == class))).collect();
    let targets = Tensor::<2>::from_data(TensorData::new(targets, [32, 5]), &tracked);
    let recipe = Recipe { optimizer, weight_decay: 0.0, clip_norm: 0.0, ..Recipe::default() };
    let mut learner = Learner::new(model, &recipe);
    let mut last = f32::INFINITY;
    for number in 1..=600 {
        let mut step =
            || learner.backward(&recipe, images.clone(), targets.clone(), 7).loss.into_scalar::<f32>();
        last = if draws {
            let _alone = alone();
            step()
        } else {
            let _others = RANDOM.read().unwrap_or_else(PoisonError::into_inner);
            step()
        };
        if last < 0.05 {
            break;
        }
        learner.update(&recipe, 3e-3, number);
    }
    assert!(last < 0.05, "the loss is still {last}: {optimizer:?}, {config:?}");
}

/// A tiny model like the default: a residual tokenizer, whose batch norms keep running averages, and rotary positions.
fn tiny_hybrid(depth: usize) -> String {
    let tiny = TINY.replace("depth = 1", &format!("depth = {depth}"));
    format!("{tiny}position = \"rotary\"\ntokenizer = {{ residual = {{ width = 4 }} }}\n")
}

/// Keys of a model that draws random numbers in training.
const RANDOM: &str = "dropout = 0.1\nattention_dropout = 0.1\ndrop_path = 0.1\n";

/// Attention whose choice is drawn in training. Only on the CPU's default backend, for which the same bits are promised:
/// elsewhere a difference in the last bit of a score may change a choice.
fn sampled_attention() -> &'static str {
    match std::env::var_os("VITRINE_DEVICE") {
        None => "[attention]\nnormalizer = \"hard_sampled\"\n",
        Some(_) => "",
    }
}

/// A folder with a small data set, and with a model and a recipe in which everything random is turned on.
fn prepared() -> Images {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 40);
    images.fill("data/blue", [30, 30, 200], 40);
    images.fill("data/green", [30, 200, 30], 15);
    let tiny = tiny_hybrid(2);
    images.write("model.toml", &format!("{tiny}{RANDOM}{}", sampled_attention()));
    images.write(
        "recipe.toml",
        "epochs = 40\nbatch_size = 8\naccumulate = 2\noptimizer = \"muon\"\nema_decay = 0.99\nbalanced_sampling = true\n\
         progressive_learning = { until = 0.5, scale = 0.5 }\n[augmentation]\nhorizontal_flip = 0.5\n\
         alternate_flips = true\nrepeats = 3\nauto_augment = \"cifar10\"\nmixup = 0.8\ncutmix = 1.0\nmix_mode = \"elem\"\n\
         mix_until = 0.8\nrandom_erasing = 0.2\n",
    );
    images
}

/// Arguments that train with the files of [`prepared`].
const ARGUMENTS: [&str; 8] =
    ["train", "data", "--model", "model.toml", "--recipe", "recipe.toml", "--threads", "2"];

/// The bytes of the file with the best model.
fn best_model(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("model.safetensors")).unwrap()
}

#[test]
fn a_run_that_is_killed_and_resumed_ends_with_the_same_bits() {
    let images = prepared();
    let start = Instant::now();
    vitrine(&images).args(ARGUMENTS).args(["--output", "whole"]).assert().success();
    let whole = start.elapsed();
    let run = images.path("killed");
    // Each start is killed after this share of the duration of a whole run. The shares add up to most of it.
    for (kill, share) in [0.1, 0.2, 0.25, 0.2, 0.15].into_iter().enumerate() {
        let mut process = Process::new(assert_cmd::cargo::cargo_bin!("vitrine"));
        process.current_dir(images.path("")).stdout(Stdio::null()).stderr(Stdio::null());
        if kill == 0 {
            process.args(ARGUMENTS).args(["--output", "killed"]);
        } else {
            process.args(["train", "--resume", "killed", "--threads", "2"]);
        }
        let mut child = process.spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        while !run.join("last/current").exists() && Instant::now() < deadline {
            sleep(Duration::from_millis(5));
        }
        sleep(whole.mul_f64(share));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    vitrine(&images).args(["train", "--resume", "killed", "--threads", "2"]).assert().success();
    assert_eq!(best_model(&run), best_model(&images.path("whole")));
    let metrics = |run: &str| {
        let text = std::fs::read_to_string(images.path(run).join("metrics.csv")).unwrap();
        // All columns except seconds and images per second.
        text.lines()
            .map(|line| {
                line.split(',')
                    .enumerate()
                    .filter(|(i, _)| ![2, 8].contains(i))
                    .map(|(_, v)| v.to_owned())
                    .collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(metrics("killed"), metrics("whole"));
    // The last weights and the optimizer's moments are the same, too, because two more epochs give the same metrics.
    for run in ["killed", "whole"] {
        vitrine(&images)
            .args(["train", "--resume", run, "--epochs", "42", "--threads", "2"])
            .assert()
            .success();
    }
    assert_eq!(metrics("killed").len(), 43);
    assert_eq!(metrics("killed"), metrics("whole"));
}

#[test]
fn the_same_seed_gives_the_same_model_and_another_seed_does_not() {
    let images = prepared();
    let train = |output: &str, seed: &str, threads: &str| {
        vitrine(&images)
            .args(["train", "data", "--model", "model.toml", "--recipe", "recipe.toml", "--epochs", "3"])
            .args(["--seed", seed, "--threads", threads, "--output", output])
            .assert()
            .success();
        best_model(&images.path(output))
    };
    let first = train("first", "1", "2");
    assert_eq!(first, train("again", "1", "2"));
    assert_ne!(first, train("other", "2", "2"));
}

#[test]
fn gradient_checkpointing_gives_the_same_losses_and_accuracies() {
    let images = prepared();
    let tiny = tiny_hybrid(3);
    images.write("model.toml", &tiny);
    let train = |output: &str, more: &[&str]| {
        vitrine(&images)
            .args(["train", "data", "--model", "model.toml", "--recipe", "recipe.toml", "--epochs", "3"])
            .args(["--threads", "2", "--output", output])
            .args(more)
            .assert()
            .success();
        std::fs::read_to_string(images.path(output).join("metrics.csv")).unwrap()
    };
    let columns = |metrics: String| -> Vec<f64> {
        // Only losses and accuracies.
        metrics
            .lines()
            .skip(1)
            .flat_map(|line| {
                line.split(',').skip(4).take(4).map(|v| v.parse().unwrap()).collect::<Vec<f64>>()
            })
            .collect()
    };
    let whole = columns(train("whole", &[]));
    let blocks = columns(train("blocks", &["--gradient-checkpointing"]));
    assert_eq!(whole.len(), 12);
    for (whole, blocks) in whole.iter().zip(&blocks) {
        assert!((whole - blocks).abs() < 1e-3, "{blocks} instead of {whole}");
    }
    // With gradient checkpointing, every block draws its dropout separately. The result differs from that without it,
    // but not from that of a second run.
    images.write("model.toml", &format!("{tiny}{RANDOM}{}", sampled_attention()));
    let whole = columns(train("whole-dropout", &[]));
    let blocks = columns(train("blocks-dropout", &["--gradient-checkpointing"]));
    assert_ne!(whole, blocks);
    assert_eq!(columns(train("blocks-again", &["--gradient-checkpointing"])), blocks);
}

#[test]
fn a_run_with_a_time_limit_ends_even_with_fewer_images_than_a_batch() {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 3);
    images.fill("data/blue", [30, 30, 200], 3);
    images.write("tiny.toml", TINY);
    vitrine(&images)
        .args(["train", "data", "--model", "tiny.toml", "--time", "2s", "--output", "run"])
        .assert()
        .success();
    assert!(images.path("run/report.html").is_file());
}
