//! Resuming: finished, stopped, crashed, damaged, and moved runs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};

use clap::ValueEnum;
use predicates::prelude::*;
use predicates::str::contains;
use vitrine::recipe::Optimizer;

use crate::support::{Images, vitrine};

const TRAIN: [&str; 8] = ["train", "data", "--model", "tiny.toml", "--batch-size", "8", "--threads", "1"];

fn train(images: &Images, more: &[&str]) {
    vitrine(images).args(TRAIN).args(more).assert().success();
}

fn resume(images: &Images, run: &str, more: &[&str]) -> assert_cmd::assert::Assert {
    vitrine(images).args(["train", "--resume", run, "--threads", "1"]).args(more).assert()
}

/// The contents of all files in a folder, by path.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(contents(&path));
        } else {
            files.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    files
}

/// The columns of `metrics.csv` that do not depend on time.
fn metrics(images: &Images, run: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(images.path(run).join("metrics.csv")).unwrap();
    let untimed = |line: &str| -> Vec<String> {
        line.split(',').enumerate().filter(|(i, _)| ![2, 8].contains(i)).map(|(_, v)| v.to_owned()).collect()
    };
    text.lines().map(untimed).collect()
}

#[test]
fn a_finished_run_is_left_unchanged() {
    let images = Images::prepared();
    train(&images, &["--epochs", "3", "--output", "run"]);
    let before = contents(&images.path("run"));
    let finished = || {
        contains("run is finished: 3 epochs").and(contains("--epochs above 3").and(contains("--time above")))
    };
    resume(&images, "run", &[]).success().stderr(finished());
    resume(&images, "run", &["data"]).success().stderr(finished().and(contains("data has no effect")));
    resume(&images, "run", &["--epochs", "3"]).success().stderr(finished());
    resume(&images, "run", &["--epochs", "2"]).failure().stderr(contains("--epochs 2: 3 epochs are done"));
    resume(&images, "run", &["--time", "1ms"])
        .failure()
        .stderr(contains("--time").and(contains("3 epochs are done")));
    assert!(contents(&images.path("run")) == before, "a file of the run was changed");
}

#[test]
fn a_lengthened_run_has_the_same_bits_after_a_crash() {
    let images = Images::prepared();
    for run in ["whole", "crashed"] {
        train(&images, &["--epochs", "3", "--output", run]);
    }
    resume(&images, "whole", &["--epochs", "6"]).success().stderr(contains("epoch 6/6"));
    // A crash after the new length was written to config.toml, which leaves unfinished states.
    let config = fs::read_to_string(images.path("crashed/config.toml")).unwrap();
    images.write("crashed/config.toml", &config.replace("epochs = 3", "epochs = 6"));
    images.write("crashed/last/000000015-000000-0/model.bpk", "half");
    for folder in fs::read_dir(images.path("crashed/last")).unwrap().flatten() {
        let name = folder.file_name().into_string().unwrap();
        if folder.path().is_dir() && !name.ends_with("-000000-0") {
            images.write(&format!("crashed/last/{}9/progress.toml", &name[..name.len() - 1]), "half");
        }
    }
    resume(&images, "crashed", &[]).success().stderr(contains("epoch 6/6"));
    assert_eq!(metrics(&images, "whole"), metrics(&images, "crashed"));
    let model = |run: &str| fs::read(images.path(run).join("model.safetensors")).unwrap();
    assert!(model("whole") == model("crashed"));
    assert!(images.path("crashed/report.html").is_file());
}

#[test]
fn every_optimizer_resumes_with_the_same_metrics() {
    let images = Images::prepared();
    // With a constant learning rate, a run of one epoch equals the first epoch of a run of three.
    images.write("even.toml", "warmup = 0.0\nfinal_learning_rate = 1.0\n");
    for optimizer in Optimizer::value_variants().iter().map(|optimizer| optimizer.name()) {
        let [whole, stopped] = ["whole", "stopped"].map(|run| format!("{optimizer}-{run}"));
        for (run, epochs) in [(&whole, "3"), (&stopped, "1")] {
            let arguments = ["--recipe", "even.toml", "--optimizer", optimizer, "--epochs", epochs];
            train(&images, &[&arguments[..], &["--output", run]].concat());
        }
        resume(&images, &stopped, &["--epochs", "3"]).success().stderr(contains("epoch 3/3"));
        assert_eq!(metrics(&images, &whole), metrics(&images, &stopped), "{optimizer}");
    }
}

#[test]
fn a_missing_report_of_a_finished_run_is_written() {
    let images = Images::prepared();
    train(&images, &["--epochs", "2", "--output", "run"]);
    fs::remove_file(images.path("run/report.html")).unwrap();
    resume(&images, "run", &[]).success().stdout(contains("report.html"));
    assert!(images.path("run/report.html").is_file());
    assert_eq!(metrics(&images, "run").len(), 3);
}

#[test]
fn a_run_without_a_model_says_when_there_is_one_and_how_it_goes_on() {
    let images = Images::prepared();
    train(&images, &["--epochs", "1", "--output", "run"]);
    // As if the program had been killed within the first epoch.
    fs::remove_file(images.path("run/model.safetensors")).unwrap();
    vitrine(&images)
        .args(["classify", "run", "data/red/0.png"])
        .assert()
        .failure()
        .stderr(contains("as soon as its first epoch is done").and(contains("vitrine train --resume run")));
}

/// The progress in the state of a run, after a change of it.
fn progress(images: &Images, run: &str, change: impl FnOnce(&mut toml::Table)) -> toml::Table {
    let current = fs::read_to_string(images.path(run).join("last/current")).unwrap();
    let state = images.path(run).join("last").join(current.trim());
    let read = |name: &str| -> toml::Table {
        toml::from_str(&fs::read_to_string(state.join(name)).unwrap()).unwrap()
    };
    let (mut progress, mut checksums) = (read("progress.toml"), read("checksums.toml"));
    change(&mut progress);
    checksums.remove("progress.toml").unwrap();
    fs::write(state.join("progress.toml"), toml::to_string(&progress).unwrap()).unwrap();
    fs::write(state.join("checksums.toml"), toml::to_string(&checksums).unwrap()).unwrap();
    progress
}

#[test]
fn a_run_that_was_killed_when_its_patience_had_ended_trains_no_further_epoch() {
    let images = Images::prepared();
    train(&images, &["--epochs", "40", "--patience", "2", "--output", "run"]);
    let before = metrics(&images, "run");
    assert!(before.len() < 40, "{}", before.len());
    progress(&images, "run", |progress| *progress.get_mut("finished").unwrap() = false.into());
    fs::remove_file(images.path("run/report.html")).unwrap();
    resume(&images, "run", &[]).success().stdout(contains("report.html"));
    assert_eq!(metrics(&images, "run"), before);
}

#[test]
fn the_best_epoch_is_measured_again_on_the_images_of_the_next_ones() {
    let images = Images::prepared();
    train(&images, &["--epochs", "2", "--output", "run"]);
    progress(&images, "run", |progress| {
        // As if few images had been measured, on which all looked well.
        progress.insert("highest".to_owned(), 2.0.into());
        progress.insert("validated_on".to_owned(), 1.into());
    });
    resume(&images, "run", &["--epochs", "3"]).success();
    let after = progress(&images, "run", |_| {});
    let highest = after["highest"].as_float().unwrap();
    assert!((0.0..=1.0).contains(&highest), "{highest}");
    assert!(after["validated_on"].as_integer().unwrap() > 1);
}

#[test]
fn a_run_of_a_series_is_not_made_longer_and_nothing_advises_it() {
    let images = Images::prepared();
    train(&images, &["--epochs", "2", "--seeds", "2", "--output", "series"]);
    train(&images, &["--epochs", "2", "--output", "alone"]);
    for (run, advice) in [
        ("series/seed-1", "(a new series with more --epochs or --time)"),
        ("alone", "(--resume with --epochs"),
    ] {
        // As if the last epoch had been much better than the first one.
        progress(&images, run, |progress| {
            let rows = progress.get_mut("history").unwrap().as_array_mut().unwrap();
            for (row, top1) in rows.iter_mut().zip([0.0, 1.0]) {
                row.as_table_mut().unwrap().insert("val_top1".to_owned(), top1.into());
            }
        });
        fs::remove_file(images.path(run).join("report.html")).unwrap();
        resume(&images, run, &[]).success().stderr(contains("still improving").and(contains(advice)));
    }
    let longer = || contains("train longer").and(contains("a new series")).and(contains("above").not());
    resume(&images, "series/seed-1", &[]).success().stderr(longer());
    resume(&images, "series/seed-1", &["data"]).success().stderr(longer());
    resume(&images, "series/seed-1", &["--epochs", "3"]).code(2).stderr(contains("one run of a series"));
    resume(&images, "alone", &["--epochs", "3"]).success().stderr(contains("epoch 3/3"));
}

#[test]
fn a_run_with_time_is_lengthened_by_time_and_by_epochs() {
    let images = Images::prepared();
    train(&images, &["--time", "1s", "--output", "run"]);
    let epochs = metrics(&images, "run").len() - 1;
    resume(&images, "run", &[]).success().stderr(contains("is finished"));
    // The new time has to exceed the time that the run has taken, which depends on the machine.
    let rows = fs::read_to_string(images.path("run/metrics.csv")).unwrap();
    let taken: f64 = rows.lines().last().unwrap().split(',').nth(2).unwrap().parse().unwrap();
    let longer = format!("{}s", taken as u64 + 4);
    resume(&images, "run", &["--time", &longer]).success().stdout(contains("report.html"));
    let more = metrics(&images, "run").len() - 1;
    assert!(more > epochs, "{more} {epochs}");
    let (last, next) = ((more + 2).to_string(), format!("epoch {}/{}", more + 2, more + 2));
    let beyond = format!("epoch {}/{}", more + 3, more + 2);
    resume(&images, "run", &["--epochs", &last]).success().stderr(contains(next).and(contains(beyond).not()));
    resume(&images, "run", &["--time", "1s"]).failure().stderr(contains("--time"));
}

#[test]
fn batches_without_a_readable_image_count_toward_their_epoch() {
    let images = Images::prepared();
    for name in ["a", "b", "c"] {
        images.write(&format!("data/red/{name}.png"), "no image");
    }
    vitrine(&images)
        .args(["train", "data", "--model", "tiny.toml", "--batch-size", "1", "--epochs", "2"])
        .args(["--bad-file-limit", "0.5", "--output", "run"])
        .assert()
        .success()
        .stderr(contains("epoch 2/2").and(contains("epoch 3/2").not()));
}

#[test]
fn a_best_model_that_was_not_yet_moved_when_the_program_was_killed_is_moved() {
    let images = Images::prepared();
    train(&images, &["--epochs", "2", "--output", "run"]);
    let state = fs::read_to_string(images.path("run/last/current")).unwrap();
    let staged = images.path(&format!("run/last/{}.safetensors", state.trim()));
    let model = fs::read(images.path("run/model.safetensors")).unwrap();
    // The program is killed after `current` names the new state, and before the model of this state is moved.
    fs::rename(images.path("run/model.safetensors"), &staged).unwrap();
    fs::remove_file(images.path("run/report.html")).unwrap();
    resume(&images, "run", &[]).success();
    assert_eq!(fs::read(images.path("run/model.safetensors")).unwrap(), model);
    assert!(!staged.exists());
    let rows = metrics(&images, "run");
    let kept = rows[0].iter().position(|name| name == "kept").unwrap();
    assert!(rows.iter().any(|row| row[kept] == "true"), "{rows:?}");
}

#[test]
fn a_run_is_resumed_from_any_working_directory_and_with_moved_data() {
    let images = Images::prepared();
    // An unreadable image must count as unchanged after the folder was moved.
    #[cfg(unix)]
    std::os::unix::fs::symlink("nowhere", images.path("data/red/broken.png")).unwrap();
    train(&images, &["--epochs", "1", "--output", "run", "--bad-file-limit", "0.5"]);
    images.folder("elsewhere");
    let resume = |folder: &str, run: &str, epochs: &str| {
        vitrine(&images)
            .current_dir(images.path(folder))
            .args(["train", "--resume", run, "--epochs", epochs])
            .assert()
    };
    resume("elsewhere", "../run", "2").success();
    fs::create_dir(images.path("moved")).unwrap();
    fs::rename(images.path("data"), images.path("moved/data")).unwrap();
    resume("elsewhere", "../run", "3").failure().stderr(contains("data"));
    resume("moved", "../run", "3").success();
}

#[test]
fn a_run_remembers_the_new_folder_of_a_named_data_set() {
    let images = Images::prepared();
    images.folder("store/mnist");
    fs::rename(images.path("data"), images.path("store/mnist/train")).unwrap();
    let train = |more: &[&str]| vitrine(&images).args(["train", "--threads", "1"]).args(more).assert();
    let named = ["mnist", "--data-dir", "store", "--model", "tiny.toml", "--epochs", "1"];
    train(&[&named[..], &["--output", "run"]].concat()).success();
    train(&[&named[..], &["--seeds", "2", "--output", "all"]].concat()).success();
    fs::rename(images.path("store"), images.path("moved")).unwrap();
    resume(&images, "run", &["--epochs", "2", "--offline"]).code(1).stderr(contains("mnist is not in"));
    resume(&images, "run", &["--epochs", "2", "--data-dir", "moved"]).success();
    resume(&images, "run", &["--epochs", "3", "--offline"]).success();
    // A repeated run, and the missing one of a series.
    fs::rename(images.path("moved"), images.path("third")).unwrap();
    train(&["--config", "run", "--data-dir", "third", "--output", "again"]).success();
    resume(&images, "again", &["--epochs", "4", "--offline"]).success();
    fs::remove_dir_all(images.path("all/seed-1")).unwrap();
    resume(&images, "all", &["--data-dir", "third"]).success();
    fs::remove_dir_all(images.path("all/seed-1")).unwrap();
    resume(&images, "all", &["--offline"]).success();
}

#[test]
fn a_model_with_nan_weights_is_never_saved_as_the_best() {
    let images = Images::prepared();
    let assert = vitrine(&images)
        .args([
            "train",
            "data",
            "--model",
            "tiny.toml",
            "--batch-size",
            "1",
            "--threads",
            "1",
            "--epochs",
            "1",
        ])
        .args(["--learning-rate", "1", "--weight-decay", "1e6", "--output", "run"])
        .assert();
    assert.code(1).stderr(contains("training diverged").and(contains("--weight-decay")));
    assert!(!images.path("run/model.safetensors").exists());
}

#[test]
fn damaged_files_of_a_run_are_named_and_not_used() {
    let images = Images::prepared();
    train(&images, &["--epochs", "1", "--output", "run"]);
    let last = fs::read_to_string(images.path("run/last/current")).unwrap();
    for (name, part) in
        [("model.bpk", "model.bpk was damaged"), ("optimizer.bpk", "optimizer.bpk was damaged")]
    {
        let file = images.path("run/last").join(last.trim()).join(name);
        let whole = fs::read(&file).unwrap();
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 1;
        fs::write(&file, damaged).unwrap();
        resume(&images, "run", &["--epochs", "2"]).code(1).stderr(contains(part));
        fs::write(&file, whole).unwrap();
    }
    resume(&images, "run", &["--epochs", "2"]).success();
    let config = fs::read_to_string(images.path("run/config.toml")).unwrap();
    for (key, value) in [("learning_rate = ", "nan"), ("image_size = ", "[0, 16]"), ("channels = ", "7")] {
        let line = config.lines().find(|line| line.starts_with(key)).unwrap();
        images.write("run/config.toml", &config.replace(line, &format!("{key}{value}")));
        resume(&images, "run", &["--epochs", "3"]).code(1).stderr(contains("config.toml: "));
    }
    images.write("run/config.toml", &config);
    fs::write(images.path("run/images.csv"), "").unwrap();
    resume(&images, "run", &["--epochs", "3"]).code(1).stderr(contains("images.csv: was damaged or changed"));
}

#[test]
fn a_run_folder_inside_the_data_set_is_refused_before_a_file_is_written() {
    let images = Images::prepared();
    let data = images.path("data");
    for more in [&[][..], &["--output", "run"], &["--output", "../data/red/run"]] {
        vitrine(&images)
            .current_dir(&data)
            .args(["train", ".", "--model", "../tiny.toml", "--epochs", "1"])
            .args(more)
            .assert()
            .failure()
            .stderr(contains("--output").and(contains("data set .")));
    }
    assert_eq!(fs::read_dir(&data).unwrap().count(), 2);
    assert_eq!(fs::read_dir(data.join("red")).unwrap().count(), 12);
}

#[test]
fn programs_that_start_at_the_same_time_get_different_run_folders() {
    let images = Images::prepared();
    let start = |_| -> Child {
        Process::new(assert_cmd::cargo::cargo_bin!("vitrine"))
            .current_dir(images.path(""))
            .args(TRAIN)
            .args(["--epochs", "1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..4).map(start).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    for number in 1..=4 {
        assert!(images.path(&format!("runs/data-tiny-{number}/report.html")).is_file(), "{number}");
    }
}

#[cfg(unix)]
#[test]
fn a_run_that_nohup_has_started_outlives_its_session() {
    let images = Images::prepared();
    let mut child = Process::new("sh")
        // As `nohup` does.
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(assert_cmd::cargo::cargo_bin!("vitrine"))
        .current_dir(images.path(""))
        .args(TRAIN)
        .args(["--epochs", "400", "--output", "run"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !images.path("run/model.safetensors").is_file() && child.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Process::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(images.path("run/report.html").is_file());
}

#[test]
fn a_run_folder_that_another_program_is_training_in_is_refused() {
    let images = Images::prepared();
    train(&images, &["--epochs", "1", "--output", "run"]);
    let lock = File::options().write(true).open(images.path("run/last/lock")).unwrap();
    lock.try_lock().unwrap();
    resume(&images, "run", &["--epochs", "2"]).failure().stderr(contains("run: another vitrine is training"));
    drop(lock);
    resume(&images, "run", &["--epochs", "2"]).success();
}

#[test]
fn an_image_that_could_not_be_decoded_may_be_removed_before_the_run_goes_on() {
    let images = Images::prepared();
    // The header of an image that was cut off can be read.
    let broken = images.path("data/red/3.png");
    let bytes = fs::read(&broken).unwrap();
    fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    for run in ["whole", "cleaned"] {
        train(&images, &["--epochs", "1", "--bad-file-limit", "0.5", "--output", run]);
    }
    resume(&images, "whole", &["--epochs", "2"]).success();
    fs::remove_file(&broken).unwrap();
    resume(&images, "cleaned", &["--epochs", "2"]).success().stderr(contains("epoch 2/2"));
    assert_eq!(metrics(&images, "whole"), metrics(&images, "cleaned"));
    vitrine(&images).args(["train", "--config", "whole", "--output", "again"]).assert().success();
    // Others must be there.
    fs::remove_file(images.path("data/red/4.png")).unwrap();
    resume(&images, "cleaned", &["--epochs", "3"])
        .code(1)
        .stderr(contains("1 are gone").and(contains("4.png")));
}

#[test]
fn a_test_image_that_could_not_be_decoded_may_be_removed_before_the_run_goes_on() {
    let images = Images::prepared();
    for (class, color) in [("red", [200, 30, 30]), ("blue", [30, 30, 200])] {
        images.fill(&format!("split/train/{class}"), color, 12);
        images.fill(&format!("split/val/{class}"), color.map(|value: u8| value + 5), 4);
        images.fill(&format!("split/test/{class}"), color.map(|value: u8| value + 10), 4);
    }
    let broken = images.path("split/test/red/3.png");
    let bytes = fs::read(&broken).unwrap();
    fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let arguments = "train split --model tiny.toml --epochs 1 --batch-size 8 --threads 1 --bad-file-limit 0.5 --output run";
    vitrine(&images).args(arguments.split(' ')).assert().success();
    fs::remove_file(&broken).unwrap();
    resume(&images, "run", &["--epochs", "2"]).success().stderr(contains("epoch 2/2"));
    vitrine(&images).args(["train", "--config", "run", "--output", "again"]).assert().success();
    // Others must be there.
    fs::remove_file(images.path("split/test/red/2.png")).unwrap();
    resume(&images, "run", &["--epochs", "3"]).code(1).stderr(contains("1 are gone").and(contains("2.png")));
}

#[test]
fn a_run_that_stopped_at_unreadable_images_goes_on_with_another_limit() {
    let images = Images::prepared();
    for (class, color) in [("red", [200, 30, 30]), ("blue", [30, 30, 200])] {
        images.fill(&format!("split/train/{class}"), color, 12);
        images.fill(&format!("split/val/{class}"), color.map(|value: u8| value + 10), 4);
    }
    let broken = images.path("split/val/red/3.png");
    let bytes = fs::read(&broken).unwrap();
    fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let arguments = "train split --model tiny.toml --epochs 2 --batch-size 8 --threads 1 --output run";
    vitrine(&images)
        .args(arguments.split(' '))
        .assert()
        .failure()
        .stderr(contains("1 of 8 validation images cannot be read").and(contains("also with --resume")));
    resume(&images, "run", &[]).failure().stderr(contains("1 of 8 validation images"));
    resume(&images, "run", &["--bad-file-limit", "0.2"]).success().stdout(contains("report.html"));
    // All runs of a series go on with it, begun or not.
    let series = arguments.replace("run", "all --seeds 2");
    vitrine(&images).args(series.split(' ')).assert().failure().stderr(contains("also with --resume"));
    resume(&images, "all", &["--bad-file-limit", "0.2"]).success().stdout(contains("summary.json"));
}
