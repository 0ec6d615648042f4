//! Heads that are fitted to features of a frozen backbone: `--freeze backbone`.

use std::fs;
use std::path::PathBuf;

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;
use serde_json::Value;
use vitrine_models::Pool;

use crate::support::{Images, vitrine};

const FIT: [&str; 7] = ["train", "data", "--pretrained", "run", "--freeze", "backbone", "--threads"];

/// Fits a head in the run folder `output`, and returns what was printed on standard error.
fn fit(images: &Images, output: &str, more: &[&str]) -> String {
    let assert = vitrine(images)
        .args(FIT)
        .args(["1", "--output", output])
        .args(more)
        .assert()
        .success()
        .stdout(contains("validation split (").and(contains("best epoch").not()));
    String::from_utf8(assert.get_output().stderr.clone()).unwrap()
}

/// The files of features in the cache.
fn cached(images: &Images) -> Vec<PathBuf> {
    let folders = fs::read_dir(images.path("cache/features")).unwrap();
    let files = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().path()).collect()
}

#[test]
fn a_fitted_head_is_an_ordinary_run_whose_features_are_computed_once() {
    let images = Images::trained();
    let told = fit(&images, "fitted", &[]);
    for part in ["fitted to the features", "features: 24 images computed, 0 from the cache", "C = ", "5-fold"]
    {
        assert!(told.contains(part), "{part} is not in: {told}");
    }
    assert!(!told.contains("epoch 1"), "{told}");
    let before = vitrine::model_file::read(&images.path("run")).unwrap().1;
    let after = vitrine::model_file::read(&images.path("fitted")).unwrap().1;
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old.values == new.values, !old.name.starts_with("head."), "{}", old.name);
    }
    let files =
        ["config.toml", "images.csv", "metrics.csv", "metrics.json", "report.html", "trained_on.json"];
    assert!(files.iter().all(|file| images.path(&format!("fitted/{file}")).is_file()));
    let report = fs::read_to_string(images.path("fitted/report.html")).unwrap();
    assert!(report.contains("logistic regression with C = ") && !report.contains("Best epoch"));
    // The model file gives the metrics that were computed from the features.
    let output =
        vitrine(&images).args(["evaluate", "fitted", "data", "--split", "val", "--json"]).assert().success();
    let measured: Value = serde_json::from_slice(&output.get_output().stdout).unwrap();
    let stated: Value =
        serde_json::from_slice(&fs::read(images.path("fitted/metrics.json")).unwrap()).unwrap();
    for metric in ["loss", "top1", "samples"] {
        let [measured, stated] = [&measured[metric], &stated["val"][metric]].map(|of| of.as_f64().unwrap());
        assert!((measured - stated).abs() < 1e-5, "{metric}: {measured} and {stated}");
    }
    vitrine(&images)
        .args(["classify", "fitted", "data/red/3.png"])
        .assert()
        .success()
        .stdout(contains("red"));
    // A second run computes nothing, and gives the same model.
    let told = fit(&images, "again", &[]);
    assert!(told.contains("features: 0 images computed, 24 from the cache"), "{told}");
    let model = |run: &str| fs::read(images.path(&format!("{run}/model.safetensors"))).unwrap();
    assert!(model("fitted") == model("again"));
    // Neither does a repetition, and folds only compute what is new.
    images.fill("data/red", [210, 40, 30], 13);
    let folds = ["--folds", "3", "--output", "folds"];
    let told = vitrine(&images).args(FIT).arg("1").args(folds).assert().success();
    let told = String::from_utf8(told.get_output().stderr.clone()).unwrap();
    assert!(told.contains("features: 13 images computed, 9 from the cache"), "{told}");
    assert_eq!(told.matches("features: 0 images computed, 22 from the cache").count(), 2, "{told}");
}

#[test]
fn an_image_that_could_not_be_decoded_may_be_removed_before_the_fit_is_reported_or_repeated() {
    let images = Images::trained();
    // The header of an image that was cut off can be read.
    let broken = images.path("data/red/3.png");
    let bytes = fs::read(&broken).unwrap();
    fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    fit(&images, "fitted", &["--bad-file-limit", "0.5"]);
    fs::remove_file(&broken).unwrap();
    fs::remove_file(images.path("fitted/report.html")).unwrap();
    vitrine(&images).args(["train", "--resume", "fitted", "--threads", "1"]).assert().success();
    assert!(images.path("fitted/report.html").is_file());
    vitrine(&images).args(["train", "--config", "fitted", "--output", "again"]).assert().success();
    // Others must be there.
    fs::remove_file(images.path("data/red/4.png")).unwrap();
    vitrine(&images)
        .args(["train", "--config", "fitted", "--output", "without"])
        .assert()
        .code(1)
        .stderr(contains("1 are gone").and(contains("4.png")));
}

#[test]
fn a_damaged_cache_or_none_gives_the_same_model() {
    let images = Images::trained();
    fit(&images, "first", &[]);
    let model = |run: &str| fs::read(images.path(&format!("{run}/model.safetensors"))).unwrap();
    for (number, damage) in [&b""[..], b"no features", &[0; 5000]].into_iter().enumerate() {
        for file in cached(&images) {
            fs::write(file, damage).unwrap();
        }
        let run = format!("damaged{number}");
        let told = fit(&images, &run, &[]);
        assert!(told.contains("warning: ") && told.contains("computed again"), "{told}");
        assert!(told.contains("features: 24 images computed, 0 from the cache"), "{told}");
        assert!(model("first") == model(&run));
    }
    // A single changed value.
    let file = cached(&images).pop().unwrap();
    let mut bytes = fs::read(&file).unwrap();
    bytes[70] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert!(fit(&images, "changed", &[]).contains("was changed"));
    assert!(model("first") == model("changed"));
    let told = fit(&images, "without", &["--no-cache"]);
    assert!(told.contains("features: 24 images computed, 0 from the cache"), "{told}");
    assert!(model("first") == model("without"));
    // A cache that cannot be written.
    images.write("file", "");
    let told = fit(&images, "refused", &["--cache", "file"]);
    assert!(told.contains("the features are not kept") && told.contains("--cache DIR"), "{told}");
    assert!(model("first") == model("refused"));
    // Other weights have other features.
    vitrine(&images)
        .args(["train", "data", "--model", "tiny.toml", "--epochs", "1", "--seed", "5", "--output", "other"])
        .assert()
        .success();
    vitrine(&images)
        .args(["train", "data", "--pretrained", "other", "--freeze", "backbone", "--output", "from-other"])
        .assert()
        .success()
        .stderr(contains("21 images computed, 0 from the cache"));
}

#[test]
fn options_for_steps_train_by_steps_and_say_so() {
    let images = Images::trained();
    let train = |more: &[&str]| vitrine(&images).args(FIT).arg("1").args(more).assert();
    train(&["--epochs", "2", "--output", "steps"])
        .success()
        .stderr(contains("because of --epochs").and(contains("epoch 2/2")));
    train(&["--epochs", "2", "--no-cache", "--output", "none"])
        .code(2)
        .stderr(contains("--no-cache has no effect"));
    for (run, options) in
        [("in-time", &["--time", "1h"][..]), ("in-time-by-file", &["--time", "1h", "--recipe", "fit.toml"])]
    {
        images.write("fit.toml", "fit_head = true\nfreeze = \"backbone\"\n");
        train(&[options, &["--output", run]].concat()).success().stderr(
            contains("head: ").and(contains("epoch 1").or(contains("the head is trained by steps")).not()),
        );
        let config = fs::read_to_string(images.path(&format!("{run}/config.toml"))).unwrap();
        assert!(config.contains("time_seconds = 3600.0") && config.contains("epochs = 1"), "{config}");
    }
    images.write("fit.toml", "freeze = \"backbone\"\nfit_head = true\nmetric = \"macro-f1\"\n");
    let file = ["train", "data", "--pretrained", "run", "--recipe", "fit.toml"];
    vitrine(&images).args(file).args(["--output", "by-file"]).assert().success().stderr(contains("head: "));
    let config = fs::read_to_string(images.path("by-file/config.toml")).unwrap();
    assert!(config.contains("fit_head = true") && config.contains("macro-f1"), "{config}");
    for (more, part) in
        [(&["--epochs", "3"][..], "`epochs` has no effect"), (&["--learning-rate", "0.1"], "`learning_rate`")]
    {
        vitrine(&images)
            .args(file)
            .args(more)
            .args(["--output", "none"])
            .assert()
            .code(2)
            .stderr(contains(part).and(contains("fit_head")));
    }
    images.write("hidden.toml", &format!("{}head_hidden = [8]\n", crate::support::TINY));
    vitrine(&images)
        .args(["train", "data", "--model", "hidden.toml", "--epochs", "1", "--output", "hidden"])
        .assert()
        .success();
    let hidden = ["train", "data", "--pretrained", "hidden"];
    vitrine(&images)
        .args(hidden)
        .args(["--freeze", "backbone", "--time", "1s", "--output", "hidden-steps"])
        .assert()
        .success();
    vitrine(&images)
        .args(hidden)
        .args(["--recipe", "fit.toml", "--output", "none"])
        .assert()
        .code(1)
        .stderr(contains("--recipe fit.toml: `fit_head`").and(contains("hidden layers")));
}

#[test]
fn a_fit_is_resumed_repeated_and_never_lengthened() {
    let images = Images::trained();
    for number in [3, 4, 7, 8] {
        fs::remove_file(images.path(&format!("data/red/{number}.png"))).unwrap();
    }
    fit(&images, "fitted", &["--class-weights"]);
    let resume = |more: &[&str]| vitrine(&images).args(["train", "--resume", "fitted"]).args(more).assert();
    resume(&[]).success().stderr(contains("its head is fitted"));
    resume(&["--epochs", "5"]).code(2).stderr(contains("no length to change"));
    vitrine(&images)
        .args(["train", "--config", "fitted", "--output", "again"])
        .assert()
        .success()
        .stderr(contains("features: 0 images computed"));
    let model = |run: &str| fs::read(images.path(&format!("{run}/model.safetensors"))).unwrap();
    assert!(model("fitted") == model("again"));
    // A finished run whose report is gone writes it again.
    fs::remove_file(images.path("fitted/report.html")).unwrap();
    resume(&[]).success().stdout(contains("report: "));
    assert!(images.path("fitted/report.html").is_file() && model("fitted") == model("again"));
    // A run that was killed before the fit.
    let state = fs::read_to_string(images.path("again/last/current")).unwrap();
    let folder = images.path("again/last").join(state.trim());
    let progress = fs::read_to_string(folder.join("progress.toml")).unwrap();
    let unfinished = progress.replace("finished = true", "finished = false");
    assert_ne!(progress, unfinished);
    fs::write(folder.join("progress.toml"), unfinished).unwrap();
    fs::remove_file(folder.join("checksums.toml")).unwrap();
    fs::write(folder.join("checksums.toml"), "").unwrap();
    fs::remove_file(images.path("again/model.safetensors")).unwrap();
    vitrine(&images)
        .args(["train", "--resume", "again"])
        .assert()
        .success()
        .stderr(contains("features: 0 images computed"));
    assert!(model("fitted") == model("again"));
}

#[test]
fn a_fit_without_time_for_all_images_takes_a_part_of_each_class() {
    let images = Images::trained();
    images.fill("data/red", [200, 30, 30], 150);
    images.fill("data/blue", [30, 30, 200], 50);
    let told = fit(&images, "hurried", &["--time", "1ms"]);
    let part = told.lines().find_map(|line| line.strip_prefix("the head is fitted to "));
    let numbers: Vec<usize> = part.unwrap().split(' ').filter_map(|word| word.parse().ok()).collect();
    assert!(matches!(numbers[..], [100..=103, 140..=240]), "{told}");
    let longer = format!(
        "the time of 1ms does not pay for the least that a run needs, {} images to train on",
        numbers[0]
    );
    assert!(told.contains(&longer) && told.contains(": it will take about "), "{told}");
    // The features that the cache holds cost no time, so that few more are computed.
    let told = fit(&images, "later", &["--time", "1h"]);
    assert!(!told.contains("\nthe head is fitted to ") && !told.contains(" 0 from the cache"), "{told}");
    assert!(!told.contains("does not pay for the least"), "{told}");
}

#[test]
fn with_test_images_the_head_learns_from_validation_images_too() {
    let images = Images::trained();
    for (split, count) in [("train", 20), ("test", 23)] {
        images.fill(&format!("split/{split}/red"), [210, 40, 20], count);
        images.fill(&format!("split/{split}/blue"), [20, 40, 210], count);
    }
    let train = |output: &str, more: &[&str]| {
        let begin = ["train", "split", "--pretrained", "run", "--freeze", "backbone", "--output", output];
        let assert = vitrine(&images).args(begin).args(more).assert().success();
        String::from_utf8(assert.get_output().stderr.clone()).unwrap()
    };
    let trained_on = |run: &str| {
        let (card, _) = vitrine::model_file::read(&images.path(run)).unwrap();
        card.trained_on.unwrap().images
    };
    // Some of the test images are among the validation images.
    assert!(!train("leaking", &[]).contains("fitted once more"));
    images.fill("split/test/red", [212, 45, 15], 23);
    images.fill("split/test/blue", [15, 45, 212], 23);
    let told = train("both", &[]);
    assert!(told.contains("fitted once more"), "{told}");
    let earlier = trained_on("run");
    assert_eq!(trained_on("both"), earlier + 40, "those of the weights, and all here");
    let report = fs::read_to_string(images.path("both/report.html")).unwrap();
    assert!(report.contains("fitted once more"), "the report says it, too");
    // The validation images are measured before the head learns from them, also by a report that is written again.
    let metrics = fs::read_to_string(images.path("both/metrics.json")).unwrap();
    fs::remove_file(images.path("both/report.html")).unwrap();
    fs::remove_file(images.path("both/metrics.json")).unwrap();
    vitrine(&images).args(["train", "--resume", "both"]).assert().success();
    assert!(fs::read_to_string(images.path("both/metrics.json")).unwrap() == metrics);
    vitrine(&images)
        .args(["evaluate", "both", "split", "--split", "val"])
        .assert()
        .code(1)
        .stderr(contains("the model was trained on all 40 images"));
    // As pretrained weights for the same images it is a backbone alone, which has not seen the validation images.
    vitrine(&images)
        .args([
            "train",
            "split",
            "--pretrained",
            "both",
            "--epochs",
            "1",
            "--threads",
            "1",
            "--output",
            "tuned",
        ])
        .assert()
        .success()
        .stderr(contains("a new head for 2 classes").and(contains("a probe first")));
    assert!(trained_on("tuned") < earlier + 40);
    // An exported file keeps the record: the same holds for it.
    vitrine(&images).args(["export", "both", "--layout", "timm", "--output", "exported"]).assert().success();
    vitrine(&images)
        .args(["evaluate", "exported", "split", "--split", "val"])
        .assert()
        .code(1)
        .stderr(contains("the model was trained on all 40 images"));
    let tune = ["train", "split", "--pretrained", "exported", "--epochs", "1", "--threads", "1"];
    vitrine(&images)
        .args(tune)
        .args(["--output", "tuned-exported"])
        .assert()
        .success()
        .stderr(contains("a new head for 2 classes").and(contains("a probe first")));
    // Validation images that the user has set aside, or that are a fold, are no training images.
    for (output, more) in [("folds", &["--folds", "2"][..]), ("own", &[])] {
        if output == "own" {
            images.fill("split/val/red", [215, 45, 20], 4);
            images.fill("split/val/blue", [20, 45, 215], 4);
        }
        assert!(!train(output, more).contains("fitted once more"));
    }
    assert_eq!(trained_on("own"), earlier + 40);
}

#[test]
fn half_the_image_size_of_the_weights_is_tried_for_small_images() {
    let images = Images::prepared();
    images.write("tiny.toml", &crate::support::TINY.replace("image_size = 16", "image_size = 48"));
    vitrine(&images)
        .args(["train", "data", "--model", "tiny.toml", "--epochs", "1", "--output", "run"])
        .assert()
        .success();
    images.fill("many/red", [210, 40, 20], 70);
    images.fill("many/blue", [20, 40, 210], 70);
    let train = |more: &[&str]| {
        let begin = ["train", "many", "--pretrained", "run", "--freeze", "backbone", "--threads", "1"];
        let assert = vitrine(&images).args(begin).args(more).assert().success();
        String::from_utf8(assert.get_output().stderr.clone()).unwrap()
    };
    let size = |run: &str| vitrine::model_file::read(&images.path(run)).unwrap().0.preprocessing.image_size;
    let told = train(&["--output", "half"]);
    assert!(
        told.contains("image size 24x24: by cross-validation")
            && told.contains("is 100.0%, and 100.0% at 48x48"),
        "{told}"
    );
    assert_eq!(size("half"), [24, 24]);
    for (output, more) in [("asked", ["--image-size", "48"]), ("hurried", ["--time", "1ms"])] {
        let told = train(&[&more[..], &["--output", output]].concat());
        assert!(!told.contains("a probe of"), "{told}");
        assert_eq!(size(output), [48, 48]);
    }
}

#[test]
fn the_head_reads_two_depths_of_a_backbone_unless_its_own_pooling_is_wanted() {
    let images = Images::trained();
    images.write("deep.toml", "image_size = 16\npatch_size = 8\nembed_dim = 16\ndepth = 4\nnum_heads = 2\n");
    vitrine(&images)
        .args(["train", "data", "--model", "deep.toml", "--epochs", "1", "--output", "deep"])
        .assert()
        .success();
    for (class, color) in [("rouge", [210, 40, 20]), ("bleu", [20, 40, 210])] {
        images.fill(&format!("other/{class}"), color, 12);
    }
    let train = |more: &[&str]| {
        let begin = ["train", "other", "--pretrained", "deep", "--threads", "1"];
        let assert = vitrine(&images).args(begin).args(more).assert().success();
        String::from_utf8(assert.get_output().stderr.clone()).unwrap()
    };
    let pool = |run: &str| vitrine::model_file::read(&images.path(run)).unwrap().0.model.pool;
    let told = train(&["--freeze", "backbone", "--output", "fitted"]);
    assert!(told.contains("after all 4 blocks, and their mean after block 3"), "{told}");
    assert_eq!(pool("fitted"), Pool::TwoDepths { early: 3 });
    vitrine(&images).args(["evaluate", "fitted", "other"]).assert().success();
    // Fine-tuning starts from the same head, and is resumed with the same weights.
    train(&["--epochs", "1", "--output", "tuned"]);
    assert_eq!(pool("tuned"), Pool::TwoDepths { early: 3 });
    vitrine(&images).args(["train", "--resume", "tuned", "--epochs", "2"]).assert().success();
    // A head of its own can be given to other libraries.
    let export = |run: &str| {
        let arguments = ["export", run, "--layout", "timm", "--output", "exported"];
        vitrine(&images).args(arguments).assert()
    };
    export("fitted").code(2).stderr(contains("because of its pool").and(contains("--pool own")));
    let told = train(&["--freeze", "backbone", "--pool", "own", "--output", "own"]);
    assert!(!told.contains("the head reads"), "{told}");
    assert_eq!(pool("own"), Pool::ClassToken);
    export("own").success();

    for (arguments, part) in [
        (&["--pretrained", "deep", "--recipe", "fine-tune", "--pool", "own"][..], "--pool own has no effect"),
        (&["--pretrained", "run", "--pool", "two-depths"], "--pool two-depths"),
        (&["--pool", "own"], "--pretrained"),
    ] {
        vitrine(&images).args(["train", "other"]).args(arguments).assert().code(2).stderr(contains(part));
    }
}

#[test]
fn with_flips_the_head_is_fitted_to_mirror_images_too() {
    let images = Images::trained();
    let told = fit(&images, "mirrored", &["--flips"]);
    assert!(told.contains("once in the mirror"), "{told}");
    assert_eq!(told.matches("features: 24 images computed, 0 from the cache").count(), 2, "{told}");
    assert!(told.contains("mirror image, as the head was fitted to both"), "{told}");
    let config = fs::read_to_string(images.path("mirrored/config.toml")).unwrap();
    assert!(config.contains("horizontal_flip = 0.5") && config.contains("mirror_views = true"), "{config}");
    let told = fit(&images, "again", &["--flips"]);
    assert_eq!(told.matches("features: 0 images computed, 24 from the cache").count(), 2, "{told}");
    let model = |run: &str| fs::read(images.path(&format!("{run}/model.safetensors"))).unwrap();
    assert!(model("mirrored") == model("again"));
    // The features of the images themselves are those of a run without flips.
    let told = fit(&images, "plain", &[]);
    assert!(told.contains("features: 0 images computed, 24 from the cache"), "{told}");
    assert_eq!(told.matches("features: ").count(), 1, "{told}");
    // Asked as they are.
    fit(&images, "one-view", &["--flips", "--no-tta"]);
    let config = fs::read_to_string(images.path("one-view/config.toml")).unwrap();
    assert!(config.contains("horizontal_flip = 0.5") && !config.contains("mirror_views = true"), "{config}");
}
