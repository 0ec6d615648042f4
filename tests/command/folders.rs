//! Ordinary image folders: images of several shapes, classes of very different sizes, and copies of an image.

use image::{Rgb, RgbImage};
use predicates::prelude::*;
use predicates::str::contains;

use crate::support::{Images, TINY, vitrine};

/// A small plain ViT, which can be exported for every library.
const PLAIN: &str = "image_size = 16\npatch_size = 8\nembed_dim = 16\ndepth = 1\nnum_heads = 2\nclass_token = true\n\
    pool = \"class_token\"\nposition = \"learned\"\nnorm_epsilon = 1e-6\n";

/// Trains a plain ViT on the folder `data` for one epoch, into the run folder `run`.
fn train(images: &Images, run: &str, more: &[&str]) -> assert_cmd::assert::Assert {
    images.write("plain.toml", PLAIN);
    vitrine(images)
        .args(["train", "data", "--model", "plain.toml", "--epochs", "1", "--threads", "1", "--output", run])
        .args(more)
        .assert()
}

/// The resolved configuration of a run.
fn config(images: &Images, run: &str) -> String {
    std::fs::read_to_string(images.path(run).join("config.toml")).unwrap()
}

/// Two classes of strips of the given size, no two alike.
fn strips(images: &Images, width: u32, height: u32) {
    for (class, color) in [("red", [200, 30, 30]), ("blue", [30, 30, 200])] {
        images.folder(&format!("data/{class}"));
        for index in 0..12u8 {
            let strip = RgbImage::from_pixel(width, height, Rgb(color.map(|value: u8| value + index)));
            strip.save(images.path(&format!("data/{class}/{index}.png"))).unwrap();
        }
    }
}

#[test]
fn images_that_are_not_square_are_cropped_only_on_request() {
    let images = Images::new();
    strips(&images, 60, 12);
    train(&images, "run", &[]).success().stderr(
        contains("padded to squares (letterbox)")
            .and(contains("5.00 times"))
            .and(contains("--resize squash or crop")),
    );
    assert!(config(&images, "run").contains("resize = \"letterbox\""));
    vitrine(&images).args(["classify", "run", "data/red/0.png"]).assert().success();
    // timm can pad images, and importing the exported model restores the padding. Hugging Face's processors cannot.
    let export = |layout: &str, output: &str| {
        vitrine(&images).args(["export", "run", "--layout", layout, "--output", output]).assert()
    };
    export("hugging-face", "there").code(2).stderr(contains("letterbox").and(contains("--layout timm")));
    assert!(!images.path("there").exists());
    export("timm", "timm").success();
    let timm = std::fs::read_to_string(images.path("timm/config.json")).unwrap();
    assert!(timm.contains("\"crop_mode\": \"border\"") && timm.contains("\"crop_pct\": 1.0"), "{timm}");
    vitrine(&images).args(["import", "timm", "--output", "back.safetensors"]).assert().success();
    vitrine(&images)
        .args(["inspect", "back.safetensors"])
        .assert()
        .success()
        .stdout(contains("resize = \"letterbox\""));
    // --resize is followed without a message, and a resumed run keeps its resize rule.
    train(&images, "cropped", &["--resize", "crop"]).success().stderr(contains("--resize").not());
    assert!(config(&images, "cropped").contains("shorter_side"));
    vitrine(&images)
        .args(["train", "--resume", "run", "--resize", "crop"])
        .assert()
        .code(2)
        .stderr(contains("--resize"));
    strips(&images, 18, 12);
    train(&images, "mild", &[]).success().stderr(contains("squashed to squares").and(contains("1.50 times")));
    assert!(config(&images, "mild").contains("resize = \"squash\""));
}

#[test]
fn classes_of_very_different_sizes_are_named_and_balanced_on_request() {
    let images = Images::new();
    images.fill("data/red", [200, 30, 30], 90);
    images.fill("data/blue", [30, 30, 200], 6);
    let message =
        || contains("class 'red' has").and(contains("'blue' only")).and(contains("--balanced-sampling"));
    train(&images, "run", &[]).success().stderr(message());
    for (flag, key) in [("--class-weights", "class_weights"), ("--balanced-sampling", "balanced_sampling")] {
        train(&images, key, &[flag]).success().stderr(message().not());
        assert!(config(&images, key).contains(&format!("{key} = true")));
    }
    let both = ["--class-weights", "--balanced-sampling"];
    train(&images, "both", &both).code(2).stderr(contains(both[0]).and(contains(both[1])));
    images.write("both.toml", "class_weights = true\nbalanced_sampling = true\n");
    train(&images, "both", &["--recipe", "both.toml"])
        .code(1)
        .stderr(contains("both.toml").and(contains(both[0])).and(contains(both[1])));
    assert!(!images.path("both").exists());
    let even = Images::new();
    for split in ["train", "val"] {
        even.fill(&format!("data/{split}/red"), [200, 30, if split == "val" { 90 } else { 30 }], 8);
        even.fill(&format!("data/{split}/blue"), [30, if split == "val" { 90 } else { 30 }, 200], 8);
    }
    for flag in both {
        train(&even, "run", &[flag])
            .code(2)
            .stderr(contains(flag).and(contains("no effect")).and(contains("8 training images")));
    }
    assert!(!even.path("run").exists());
}

/// One training image in seventeen is of the rare class, which looks nearly like the common one: without weights or
/// balanced sampling, a model predicts the common class.
#[test]
fn balancing_raises_the_recall_of_a_rare_class() {
    let images = Images::new();
    for (split, common, rare) in [("train", 96, 6), ("val", 30, 30)] {
        let shift = split.len() as u8;
        images.fill(&format!("data/{split}/common"), [100, 100, 80 + shift], common);
        images.fill(&format!("data/{split}/rare"), [108, 100, 80 + shift], rare);
    }
    images
        .write("recipe.toml", "epochs = 3\nbatch_size = 16\nlearning_rate = 0.001\nlabel_smoothing = 0.0\n");
    let recall = |run: &str, more: &[&str]| {
        images.write("tiny.toml", TINY);
        vitrine(&images)
            .args(["train", "data", "--model", "tiny.toml", "--recipe", "recipe.toml", "--threads", "1"])
            .args(["--output", run])
            .args(more)
            .assert()
            .success();
        let text = std::fs::read_to_string(images.path(run).join("metrics.json")).unwrap();
        let metrics: serde_json::Value = serde_json::from_str(&text).unwrap();
        let classes = metrics["val"]["per_class"].as_array().unwrap();
        classes.iter().find(|class| class["label"] == "rare").unwrap()["recall"].as_f64().unwrap()
    };
    let unbalanced = recall("unbalanced", &[]);
    for flag in ["--class-weights", "--balanced-sampling"] {
        let balanced = recall(flag.trim_start_matches('-'), &[flag]);
        assert!(balanced > unbalanced, "{flag}: {balanced}, without it {unbalanced}");
    }
}

#[test]
fn an_image_in_two_classes_or_splits_is_named_before_training() {
    let images = Images::new();
    for split in ["train", "val"] {
        let shade = 20 * split.len() as u8;
        images.fill(&format!("data/{split}/red"), [100 + shade, 30, 30], 8);
        images.fill(&format!("data/{split}/blue"), [30, 30, 100 + shade], 8);
    }
    let copy = |from: &str, to: &str| {
        std::fs::copy(images.path(&format!("data/{from}")), images.path(&format!("data/{to}"))).unwrap();
    };
    copy("train/red/0.png", "train/blue/copy.png");
    copy("train/red/1.png", "val/red/copy.png");
    // Empty files have the same bytes, but are not reported as copies of an image.
    images.write("data/train/red/empty.png", "");
    images.write("data/train/blue/empty.png", "");
    let place = |path: &str| std::path::Path::new("data").join(path).display().to_string();
    let pair = format!("{} (blue) = {} (red)", place("train/blue/copy.png"), place("train/red/0.png"));
    train(&images, "run", &["--bad-file-limit", "0.5"]).success().stderr(
        contains("1 image is in two classes or more")
            .and(contains(pair))
            .and(contains("1 validation and 0 test images are also trained on"))
            .and(contains(format!("{} = {}", place("val/red/copy.png"), place("train/red/1.png")))),
    );
}
