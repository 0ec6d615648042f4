//! Images that several processes classify, a shard each: `vitrine classify --shard`.

use std::collections::BTreeSet;
use std::fs;

use predicates::prelude::PredicateBooleanExt;
use predicates::str::contains;

use crate::support::{Images, vitrine};

const JOB: &str = "classify run data --format jsonl --output parts --shard";

fn lines(text: &str) -> BTreeSet<String> {
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_parts_of_all_shards_are_the_results_of_one_run() {
    let images = Images::trained();
    images.write("data/red/broken.png", "no image");
    let whole = vitrine(&images).args("classify run data --format jsonl".split(' ')).assert().code(1);
    let whole = lines(&String::from_utf8(whole.get_output().stdout.clone()).unwrap());
    let mut parts = BTreeSet::new();
    let mut statuses = BTreeSet::new();
    for shard in ["0/3", "1/3", "2/3"] {
        let run = vitrine(&images).args(JOB.split(' ')).arg(shard).assert().stdout("");
        statuses.insert(run.get_output().status.code().unwrap());
        let part = format!("parts/part-0000{}-of-00003.jsonl", &shard[..1]);
        let rows = lines(&fs::read_to_string(images.path(&part)).unwrap());
        run.stderr(contains(format!("{part} ({} images", rows.len())));
        assert!(parts.is_disjoint(&rows), "{shard}");
        parts.extend(rows);
    }
    assert_eq!(parts, whole);
    assert_eq!(statuses, BTreeSet::from([0, 1]), "the shard of the broken image alone has status 1");

    // What is finished stays; what is missing is computed again.
    let part = images.path("parts/part-00001-of-00003.jsonl");
    fs::write(&part, "as it was").unwrap();
    let again = vitrine(&images).args(JOB.split(' ')).arg("1/3").assert().success();
    again.stderr(contains("this part is finished"));
    assert_eq!(fs::read_to_string(&part).unwrap(), "as it was");
    fs::remove_file(&part).unwrap();
    let variables =
        [("SLURM_ARRAY_TASK_ID", "2"), ("SLURM_ARRAY_TASK_MIN", "1"), ("SLURM_ARRAY_TASK_COUNT", "3")];
    let array = vitrine(&images).args(JOB.split(' ')).arg("auto").envs(variables).assert();
    array.stderr(contains("part-00001-of-00003"));
    assert!(lines(&fs::read_to_string(&part).unwrap()).is_subset(&whole));
}

#[test]
fn parts_of_different_jobs_do_not_mix() {
    let images = Images::trained();
    vitrine(&images).args(JOB.split(' ')).arg("0/3").assert().success();
    for (command, word) in [
        ("classify run data --format jsonl --output parts --shard 0/4", "number of shards"),
        ("classify run data --format csv --output parts --shard 1/3", "options"),
        ("classify run data --format jsonl --top 1 --output parts --shard 1/3", "options"),
        ("classify run data/red --format jsonl --output parts --shard 1/3", "inputs"),
        ("classify run data --format jsonl --output data --shard 1/3", "not empty"),
        ("classify run data --format jsonl --output run/model.safetensors --shard 1/3", "this is a file"),
        ("classify run data --shard 3/3", "numbered from 0 to 2"),
        ("classify run data --shard auto", "JOB_COMPLETION_INDEX"),
    ] {
        vitrine(&images)
            .args(command.split(' '))
            .env_remove("SLURM_ARRAY_TASK_ID")
            .env_remove("JOB_COMPLETION_INDEX")
            .assert()
            .code(2)
            .stderr(contains(word));
    }
    vitrine(&images).args("quantize run --output other.safetensors".split(' ')).assert().success();
    vitrine(&images)
        .args("classify other.safetensors data --format jsonl --output parts --shard 1/3".split(' '))
        .assert()
        .code(2)
        .stderr(contains("model differs").and(contains("choose another folder")));
    images.write("broken/job.json", "{}");
    vitrine(&images)
        .args("classify run data --output broken --shard 1/3".split(' '))
        .assert()
        .code(1)
        .stderr(contains("broken/job.json"));
}

#[test]
fn results_go_to_a_file_whole_or_not_at_all() {
    let images = Images::trained();
    let run = |command: &str| vitrine(&images).args(command.split(' ')).assert();
    run("classify run data --format csv --output results.csv").success().stdout("");
    let printed = run("classify run data --format csv").success();
    assert_eq!(fs::read(images.path("results.csv")).unwrap(), printed.get_output().stdout);
    // The name says the format.
    run("classify run data --top 1 --output results.csv").success();
    let of_name = fs::read_to_string(images.path("results.csv")).unwrap();
    assert!(of_name.starts_with("path,rank,label,index,probability\n"), "{of_name}");
    run("classify run data --output results.jsonl --logits").success();
    run("classify run data --format jsonl --output results.csv")
        .code(2)
        .stderr(contains("its name says csv, and --format says jsonl"));
    run("classify run data --format text --output results.csv")
        .code(2)
        .stderr(contains("--format says text"));
    for name in ["results.json", "results.TSV"] {
        run(&format!("classify run data --output {name}"))
            .code(2)
            .stderr(contains("(.txt, .jsonl, .csv, .parquet)").and(contains("--format")));
        assert!(!images.path(name).exists());
    }
    run("classify run data --format jsonl --output results.json").success();
    run("classify run data --output results.log").success();
    fs::write(images.path("notes"), "mine").unwrap();
    run("classify run data --output notes").code(2).stderr(contains("only files whose names end in .txt"));
    run("classify run data --output run/model.safetensors").code(2).stderr(contains("the model itself"));
    run("classify run data --output nowhere/results.txt").code(2).stderr(contains("no such folder"));
    // Without a file, a shard goes to standard output.
    let [first, second] = ["0/2", "1/2"].map(|shard| {
        let shard = run(&format!("classify run data --shard {shard}")).success();
        String::from_utf8(shard.get_output().stdout.clone()).unwrap()
    });
    let all = String::from_utf8(run("classify run data").get_output().stdout.clone()).unwrap();
    assert_eq!(&lines(&first) | &lines(&second), lines(&all));
    assert!(!first.is_empty() && !second.is_empty());
}
