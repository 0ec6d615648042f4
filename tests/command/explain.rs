//! `vitrine explain`: the files it writes, and what it refuses.

use predicates::prelude::*;
use predicates::str::contains;

use crate::support::{Images, TINY, vitrine};

/// Two rows of two patches, with attention in windows.
const WINDOWS: &str = "image_size = 16\npatch_size = 4\nembed_dim = 16\ndepth = 1\nnum_heads = 2\nclass_token = false\n\
    pool = \"mean\"\nposition = \"none\"\nmixers = [{ window = 2 }]\n";

#[test]
fn overlays_arrays_and_a_page_are_written_for_every_readable_image() {
    let images = Images::trained();
    images.fill("more/a", [200, 30, 30], 1);
    images.fill("more/b", [30, 30, 200], 1);
    images.write("more/broken.png", "no image");
    vitrine(&images)
        .args(["explain", "run", "more", "--output", "looked", "--class", "red"])
        .args(["--method", "attention", "--heads", "--method", "rollout", "--method", "patch_logits"])
        .assert()
        .code(1)
        .stdout(
            contains("more/a/0.png: red").and(contains("maps for red")).and(contains("looked/index.html")),
        )
        .stderr(contains("more/broken.png"));
    for stem in ["0", "0-2"] {
        let original = image::open(images.path(&format!("looked/{stem}.png"))).unwrap();
        assert_eq!((original.width(), original.height()), (224, 224));
        for map in ["attention.head0", "attention.head1", "rollout", "patch-logits"] {
            let overlay = image::open(images.path(&format!("looked/{stem}.{map}.png"))).unwrap();
            assert!(overlay.width() > 224 && overlay.height() == 224, "{map}");
        }
        let header = |name: &str| {
            let bytes = std::fs::read(images.path(&format!("looked/{stem}.{name}.npy"))).unwrap();
            (String::from_utf8_lossy(&bytes[10..128]).into_owned(), bytes.len() - 128)
        };
        for (name, kind, shape, values) in [
            ("attention", "<f4", "(2, 2, 2)", 8),
            ("rollout", "<f4", "(2, 2)", 4),
            ("patch-logits", "<f4", "(2, 2)", 4),
            ("patch-logits.classes", "<i4", "(2, 2)", 4),
        ] {
            let (text, length) = header(name);
            assert!(text.contains(kind) && text.contains(shape) && length == 4 * values, "{name}: {text}");
        }
    }
    let page = std::fs::read_to_string(images.path("looked/index.html")).unwrap();
    for word in ["more/a/0.png", "more/b/0.png", "0-2.rollout.png", "head 1", "predicted", "blue"] {
        assert!(page.contains(word), "{word}");
    }
    assert!(!page.contains("http") && !page.contains("<script"), "the page needs no network and no script");
}

#[test]
fn options_without_effect_and_methods_that_do_not_suit_the_model_are_refused() {
    let images = Images::trained();
    images.write("windows.toml", WINDOWS);
    images.write("full/file", TINY);
    vitrine(&images)
        .args([
            "train",
            "data",
            "--model",
            "windows.toml",
            "--epochs",
            "1",
            "--batch-size",
            "8",
            "--output",
            "windows",
        ])
        .assert()
        .success();
    let cases: [(&str, &[&str]); 10] = [
        ("explain run data --output full", &["full", "not empty"]),
        ("explain run data --output tiny.toml", &["tiny.toml", "a file"]),
        ("explain run data --output x --class redd", &["--class redd", "blue", "did you mean red?"]),
        ("explain run data --output x --class red --method rollout", &["--class", "no effect"]),
        ("explain run data --output x --heads", &["--heads", "no effect", "--method attention"]),
        ("explain run data --output x --method attention --block 1", &["--block 1", "1 blocks"]),
        (
            "explain windows data --output x --method rollout",
            &["--method rollout", "windows", "grad-cam, patch-logits"],
        ),
        (
            "explain run data --output x --method pooling",
            &["--method pooling", "mean of the patches", "attention, rollout, gradient-attention, grad-cam"],
        ),
        ("explain run data --output x --block 0", &["--block", "no effect", "--method attention"]),
        ("explain run data --output x --method gradcam", &["gradcam", "grad-cam"]),
    ];
    for (arguments, words) in cases {
        let assert = vitrine(&images).args(arguments.split(' ')).assert().code(2);
        let message = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(words.iter().all(|word| message.contains(word)), "{arguments}: {message}");
        assert!(!images.path("x").exists(), "{arguments}: nothing is written");
    }
    vitrine(&images).args(["explain", "windows", "data/red/0.png", "--output", "x"]).assert().success();
    assert!(images.path("x/0.grad-cam.png").is_file());
}

#[test]
fn the_pooling_shows_what_the_query_of_each_class_reads() {
    let images = Images::prepared();
    images.write("queries.toml", &TINY.replace("\"mean\"", "{ class_queries = { depth = 1 } }"));
    vitrine(&images)
        .args(["train", "data", "--model", "queries.toml", "--epochs", "1", "--batch-size", "8"])
        .args(["--output", "run"])
        .assert()
        .success();
    let values = |output: &str, options: &[&str]| {
        vitrine(&images)
            .args(["explain", "run", "data/red/0.png", "--method", "pooling", "--output", output])
            .args(options)
            .assert()
            .success();
        std::fs::read(images.path(&format!("{output}/0.pooling.npy"))).unwrap()
    };
    let [red, blue] = ["red", "blue"].map(|class| values(class, &["--class", class]));
    assert_eq!(red.len(), 128 + 4 * 4);
    assert!(red != blue, "each class has its own map");
    let predicted = values("predicted", &[]);
    assert!(predicted == red || predicted == blue);
    assert_eq!(values("heads", &["--heads"]).len(), 128 + 2 * 4 * 4);
    let page = std::fs::read_to_string(images.path("red/index.html")).unwrap();
    assert!(page.contains("alt=\"pooling of red\""), "{page}");
    assert!(images.path("heads/0.pooling.head1.png").is_file());
}
