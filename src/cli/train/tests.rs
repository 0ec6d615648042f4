//! Tests of the options of `train`, which go with each other or are refused.

#![allow(clippy::unwrap_used)]
use clap::error::ErrorKind;
use clap::{Arg, ArgAction};

use super::*;

fn command() -> Command {
    with_conflicts(Train::augment_args(Command::new("train")))
}

/// The options of `train` with a value that each accepts, without `--config`, `--resume`, and `--help`.
fn options() -> Vec<Arg> {
    let command = command();
    command
        .get_opts()
        .filter(|option| !["config", "resume"].contains(&option.get_id().as_str()))
        .cloned()
        .collect()
}

/// An option on the command line, with a value that its parser accepts.
fn written(option: &Arg) -> Vec<String> {
    let name = format!("--{}", option.get_long().unwrap());
    if matches!(option.get_action(), ArgAction::SetTrue) {
        return vec![name];
    }
    let possible = option.get_possible_values();
    let value = match (option.get_id().as_str(), possible.first()) {
        (_, Some(value)) => value.get_name(),
        ("time", None) => "1m",
        ("val_fraction" | "learning_rate" | "layer_decay" | "bad_file_limit" | "weight_decay", None) => "0.5",
        ("model" | "pretrained" | "recipe" | "output" | "data_dir" | "workers" | "token_file", None) => {
            "somewhere"
        }
        ("mirror", None) => "https://example.org",
        ("device", None) => "cpu",
        ("max_file_size" | "cache_limit", None) => "1MB",
        ("freeze", None) => "backbone",
        (_, None) => "2",
    };
    vec![name, value.to_owned()]
}

/// The kind of the error for these arguments, if there is one.
fn refused(arguments: &[String]) -> Option<ErrorKind> {
    let all = std::iter::once("train".to_owned()).chain(arguments.iter().cloned());
    command().try_get_matches_from(all).err().map(|error| error.kind())
}

#[test]
fn the_command_that_resumes_a_run_can_be_pasted() {
    for (folder, word) in [("runs/a-1", "runs/a-1"), ("k/sp ace's", "\"k/sp ace's\"")] {
        let message = stopped(Path::new(folder));
        assert!(message.ends_with(&format!(" vitrine train --resume {word}")), "{message}");
    }
}

#[test]
fn every_option_goes_with_a_repeated_or_resumed_run_or_is_refused() {
    for (way, allowed) in [("config", &WITH_CONFIG[..]), ("resume", &WITH_RESUME[..])] {
        let run = [format!("--{way}"), "run".to_owned()];
        assert_eq!(refused(&run), None, "--{way} alone");
        for option in options() {
            let id = option.get_id().as_str();
            let outcome = refused(&[&run[..], &written(&option)].concat());
            let expected = (!allowed.contains(&id)).then_some(ErrorKind::ArgumentConflict);
            // `--freeze` lacks `--pretrained`, which conflicts as well: either complaint will do.
            let is_refused = expected.is_some() && outcome == Some(ErrorKind::MissingRequiredArgument);
            assert!(outcome == expected || is_refused, "--{way} with {id}: {outcome:?}");
        }
        let positional = [&run[..], &["data".to_owned()]].concat();
        assert_eq!(refused(&positional), None, "--{way} with the new place of the images");
    }
    let both = ["--config", "a", "--resume", "b"].map(str::to_owned);
    assert_eq!(refused(&both), Some(ErrorKind::ArgumentConflict));
}

#[test]
fn the_lists_name_options_that_exist() {
    let command = command();
    let known: Vec<&str> = command.get_arguments().map(|argument| argument.get_id().as_str()).collect();
    for name in WITH_CONFIG.iter().chain(&WITH_RESUME) {
        assert!(known.contains(name), "{name} is no option of train: {known:?}");
    }
}

#[test]
fn every_option_is_accepted_in_a_new_run() {
    for option in options() {
        let mut arguments = written(&option);
        if ["freeze", "pool"].contains(&option.get_id().as_str()) {
            arguments.extend(["--pretrained", "somewhere"].map(str::to_owned));
        }
        assert_eq!(refused(&arguments), None, "{arguments:?}");
    }
}
