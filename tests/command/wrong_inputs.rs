//! Wrong arguments and files: the exit status of each, and the words that its message must have.

#[cfg(not(feature = "remote"))]
use predicates::{prelude::PredicateBooleanExt, str::contains};

use crate::support::{Images, TINY, vitrine};

/// The exit status, the arguments of the program separated by blanks, and words that the message must have.
type Case = (i32, &'static str, &'static [&'static str]);

/// Files, folders, and models that are missing or cannot be used.
const FILES: &[Case] = &[
    (1, "train nowhere", &["nowhere", "shapes"]),
    (1, "train minst", &["'minst'", "did you mean mnist?"]),
    (1, "train empty", &["empty"]),
    (1, "train single", &["single", "red"]),
    (1, "train lopsided", &["blue"]),
    (1, "train list.csv.gz", &["list.csv.gz", "is packed: unpack it"]),
    (1, "train good --model nowhere.toml", &["nowhere.toml"]),
    (1, "train good --model unknown_key.toml", &["unknown_key.toml", "heads"]),
    (1, "train good --model tiny.toml --recipe recipe.toml", &["recipe.toml", "learning_rat"]),
    (1, "train good --model tiny.toml --recipe bad_recipe.toml", &["warmup", "at least 0 and below 1"]),
    (1, "train good --model tiny.toml --recipe both.toml", &["both.toml", "auto_augment", "only one of"]),
    (1, "train good --model tiny.toml --recipe typed.toml", &["typed.toml: line 2: `epochs`: invalid type"]),
    (1, "train good --model typed_model.toml", &["typed_model.toml: line 1: `depth`: a whole number"]),
    (1, "train good --model tiny.toml --recipe metric.toml", &["metric.toml", "`metric`", "several labels"]),
    (1, "train good --pretrained nope", &["--pretrained: nope: there is no such file"]),
    (1, "train --resume good", &["good", "not a run folder"]),
    (1, "train --resume nowhere", &["nowhere"]),
    (1, "evaluate nowhere good", &["nowhere"]),
    (1, "evaluate text.safetensors good", &["text.safetensors"]),
    (1, "classify text.safetensors good", &["text.safetensors"]),
    (1, "classify empty good", &["empty", "model.safetensors"]),
    (1, "inspect nowhere", &["nowhere"]),
];

/// Values of options that make no sense, and names that do not exist.
const VALUES: &[Case] = &[
    (2, "inspect dinov2-small", &["facebook/dinov2-small", "vitrine import"]),
    (2, "inspect short", &["vitrine presets --show short"]),
    (2, "presets --show dinov2-small", &["--pretrained dinov2-small"]),
    (
        2,
        "import text.safetensors --output nowhere/m.safetensors",
        &["--output nowhere/m.safetensors", "no such folder"],
    ),
    (2, "train good --epochs none --log-format json", &["{\"event\":\"error\"", "--epochs"]),
    (2, "inspect good --image-size 32", &["--image-size", "good"]),
    (2, "inspect vit_tiny_patch16_224 --image-size 33", &["--image-size", "patch_size"]),
    (2, "train good --model vit_huge", &["vit_huge", "vitrine presets"]),
    (2, "train good --model tiny.toml --recipe secret", &["secret", "short"]),
    (2, "train good --model tiny.toml --image-size 15", &["image_size", "patch_size"]),
    (2, "train good --model tiny.toml --device abacus", &["abacus", "flex"]),
    (
        2,
        "train good --model tiny.toml --learning-rate -1",
        &["--learning-rate", "-1", "above 0 and at most 1"],
    ),
    (2, "train good --model tiny.toml --learning-rate 7", &["--learning-rate", "7"]),
    (2, "train good --model tiny.toml --lr nan", &["--learning-rate", "nan"]),
    (2, "train good --model tiny.toml --weight-decay -0.1", &["--weight-decay", "at least 0"]),
    (2, "train good --model tiny.toml --layer-decay 0", &["--layer-decay", "above 0"]),
    (2, "train good --model tiny.toml --optimizer sgd", &["--optimizer", "adamw", "muon"]),
    (2, "train good --model tiny.toml --bad-file-limit 1.1", &["--bad-file-limit", "at most 1"]),
    (2, "train good --model tiny.toml --patience 0", &["--patience", "at least 1"]),
    (2, "train good --model tiny.toml --image-size 1000000000", &["--image-size", "at most"]),
    (2, "train good --model tiny.toml --recipe shrot", &["did you mean short?"]),
    (2, "train good --model tiny.toml --device wgup:0", &["--device", "did you mean wgpu?"]),
    (2, "train good --model tiny.toml --device flex:one", &["--device", "not a device number"]),
    (2, "train good --model tiny.toml --time 0s", &["--time", "above 0"]),
    (2, "train good --model tiny.toml --time -5s", &["--time", "-5s", "30m"]),
    (2, "train good --model vit_tiny_patch16", &["did you mean vit_tiny_patch16_224?"]),
    (2, "train good --model tiny.toml --output full", &["full", "not empty"]),
    (2, "train good --model tiny.toml --seeds 2 --output full", &["full", "not empty"]),
    (2, "train good --pretrained hf:dinov2", &["hf:dinov2", "the owner is missing", "hf:OWNER/NAME"]),
    (2, "bench --steps 0", &["--steps"]),
    (2, "classify good good --top 0", &["--top", "at least 1"]),
    (2, "classify good good --threshold 2", &["--threshold", "at most 1"]),
    (2, "classify good good --batch-size -3", &["--batch-size", "at least 1"]),
    (2, "classify good good --logits", &["--logits", "jsonl"]),
    (2, "explain good good --output maps --block -1", &["--block", "-1"]),
    (2, "import text.safetensors --output m.safetensors --heads -1", &["--heads", "-1", "above 0"]),
    (2, "import text.safetensors --output m.safetensors --image-size -32", &["--image-size", "above 0"]),
    (2, "import text.safetensors --output m.safetensors --patch-size -8", &["--patch-size", "above 0"]),
    (2, "import text.safetensors --output m.safetensors --crop -0.5", &["--crop", "at most 1"]),
    (2, "evaluate good good --batch-size 99999999", &["--batch-size", "at most"]),
    (2, "evaluate good good --split most", &["--split", "train, val, test or all"]),
    (2, "train good --model tiny.toml --epochs 0", &["--epochs", "at least 1"]),
    (2, "train good --model tiny.toml --epochs -1", &["--epochs", "-1", "at least 1"]),
    (2, "train good --model tiny.toml --batch-size 0", &["--batch-size", "at least 1"]),
    (2, "train good --model tiny.toml --time soon", &["--time", "30m"]),
    (2, "train good --model tiny.toml --val-fraction 1.5", &["1.5"]),
    (
        2,
        "train good --model tiny.toml --seed 9223372036854775808",
        &["--seed", "at most 9223372036854775807"],
    ),
    (
        2,
        "train good --model tiny.toml --seed 9223372036854775807 --seeds 2",
        &["--seeds 2", "not so many numbers"],
    ),
    (2, "train good --model tiny.toml --flag", &["--flag"]),
    (2, "train --resume good --seed 1", &["--seed"]),
    (2, "classify text.safetensors", &["PATH"]),
    (2, "bench --model vit_huge", &["vit_huge"]),
    (2, "paint", &["paint"]),
];

/// Options and recipe keys that would have no effect.
const WITHOUT_EFFECT: &[Case] = &[
    (2, "train good --model tiny.toml --mirror https://example.org", &["--mirror has no effect for good"]),
    (2, "train good --model tiny.toml --mirror example.org", &["--mirror", "https://"]),
    (
        2,
        "train mnist --mirror https://example.org --offline",
        &["--mirror", "cannot be used with '--offline'"],
    ),
    (2, "train good --model tiny.toml --data-dir somewhere", &["--data-dir has no effect for good"]),
    (2, "train --data-dir somewhere", &["--data-dir has no effect for shapes"]),
    (2, "train shapes --val-fraction 0.1", &["--val-fraction 0.1 has no effect", "shapes"]),
    (2, "train good --model tiny.toml --offline", &["--offline has no effect"]),
    (2, "train good --model tiny.toml --patience 5 --epochs 5", &["--patience 5 has no effect"]),
    (
        2,
        "train good --model tiny.toml --accumulate 2",
        &["`accumulate` (--accumulate) is 2", "only 1 batch of 32 images (--batch-size): leave it out"],
    ),
    (2, "train good --model tiny.toml --recipe cct --no-tta", &["--no-tta has no effect"]),
    (2, "train good --model tiny.toml --recipe still.toml --no-flips", &["--no-flips has no effect"]),
    (2, "train --max-file-size 1M", &["--max-file-size has no effect for shapes"]),
    (2, "train --bad-file-limit 0.1", &["--bad-file-limit has no effect for shapes"]),
    (2, "train batches --max-file-size 1M", &["--max-file-size has no effect for batches"]),
    (2, "train batches --bad-file-limit 0.1", &["--bad-file-limit has no effect for batches"]),
    (2, "inspect batches --max-file-size 1M", &["--max-file-size has no effect for batches"]),
    (1, "train good --model tiny.toml --recipe mix.toml", &["mix_probability", "no effect"]),
    (1, "train good --model tiny.toml --recipe patient.toml", &["patient.toml: `patience` 5 has no effect"]),
    (2, "train good --model tiny.toml --recipe patient.toml --patience 9", &["--patience 9 has no effect"]),
    (
        1,
        "train good --model tiny.toml --recipe one.toml",
        &["one.toml: `batch_size`", "`augmentation.mixup`"],
    ),
    (
        1,
        "train good --model tiny.toml --recipe copies.toml",
        &["copies.toml: `augmentation.repeats`", "`batch_size`", "`augmentation.cutmix`"],
    ),
    (2, "train good --freeze backbone", &["--pretrained"]),
    (2, "train good --workers-only", &["--workers-only has no effect"]),
    (2, "train good --token-file text.safetensors", &["--token-file", "no effect"]),
    (2, "inspect tiny.toml --val-fraction 0.1", &["--val-fraction has no effect"]),
    (2, "inspect tiny.toml --data-dir x", &["--data-dir has no effect"]),
    (2, "import text.safetensors --output m.safetensors --offline", &["--offline has no effect"]),
    (2, "classify good good -0", &["-0", "only works with the path -"]),
    (2, "classify good - -", &["give it only once"]),
];

/// The files that the arguments name.
fn prepared() -> Images {
    let images = Images::new();
    images.fill("good/red", [200, 30, 30], 6);
    images.fill("good/blue", [30, 30, 200], 6);
    images.fill("single/red", [200, 30, 30], 6);
    images.fill("lopsided/train/red", [200, 30, 30], 6);
    images.fill("lopsided/train/blue", [30, 30, 200], 6);
    images.fill("lopsided/val/red", [200, 30, 30], 6);
    images.folder("empty");
    images.write("tiny.toml", TINY);
    images.write("unknown_key.toml", &format!("{TINY}\nheads = 3"));
    images.write("recipe.toml", "learning_rat = 0.1");
    images.write("bad_recipe.toml", "warmup = 2.0");
    images.write("still.toml", "[augmentation]\nhorizontal_flip = 0.0");
    images.write("mix.toml", "[augmentation]\nmix_probability = 0.5");
    images.write("both.toml", "[augmentation]\ntrivial_augment = true\nauto_augment = \"cifar10\"");
    images.write("typed.toml", "warmup = 0.1\nepochs = \"many\"");
    images.write("typed_model.toml", "depth = \"two\"");
    images.write("metric.toml", "metric = \"mean-average-precision\"");
    images.write("patient.toml", "epochs = 3\npatience = 5");
    images.write("one.toml", "epochs = 1\nbatch_size = 1\n[augmentation]\nmixup = 0.5");
    images.write("copies.toml", "epochs = 1\nbatch_size = 4\n[augmentation]\nrepeats = 4\ncutmix = 1.0");
    images.write("full/file", "in the way");
    images.write("text.safetensors", "this is no model");
    images.write("list.csv.gz", "packed");
    // Two images of CIFAR.
    images.write("batches/data_batch_1.bin", &"\0".repeat(2 * 3073));
    images
}

/// Runs every case and checks its exit status and its message.
fn check(cases: &[Case]) {
    let images = prepared();
    for (status, arguments, words) in cases {
        let assert = vitrine(&images).args(arguments.split(' ')).assert();
        let output = assert.get_output();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(*status), "{arguments}: {message}");
        assert!(!message.contains("panicked"), "{arguments}: {message}");
        for word in *words {
            assert!(message.contains(word), "{arguments} should mention `{word}`: {message}");
        }
    }
    assert!(!images.path("runs").exists(), "a refused run leaves no folder behind");
}

#[test]
fn unusable_files_and_folders_are_named() {
    check(FILES);
}

#[test]
fn values_that_make_no_sense_are_wrong_usage() {
    check(VALUES);
}

#[cfg(not(feature = "remote"))]
#[test]
fn what_the_binary_was_built_without_is_refused_with_the_feature() {
    let images = prepared();
    images.write("token.txt", "secret");
    images.write("workers.txt", "iroh:abc@127.0.0.1:3700");
    for arguments in [
        "worker --listen 127.0.0.1:3700 --key worker.key --token-file token.txt",
        "train good --accumulate 2 --workers workers.txt --token-file token.txt",
    ] {
        vitrine(&images)
            .args(arguments.split(' '))
            .assert()
            .code(2)
            .stderr(contains("--features remote").and(contains("secret").not()));
    }
}

#[test]
fn options_without_effect_are_refused() {
    check(WITHOUT_EFFECT);
}
