//! The command line: one file per command, which declares its arguments and calls the library.

mod aliases;
mod bench;
mod cache;
mod classify;
mod completions;
mod console;
mod data;
mod devices;
mod embed;
mod evaluate;
mod explain;
mod export;
mod file_size;
mod import;
mod inputs;
mod inspect;
mod interrupt;
mod manual;
mod model;
mod output;
mod output_file;
mod presets;
mod quantize;
#[cfg(feature = "serve")]
mod serve;
mod similar;
mod train;
mod views;
mod within;
mod worker;

use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use self::output::OutputError;
use self::within::within;
use crate::bounds;
use crate::device::{self, FoundDevice};
use crate::events::EventSink;
use crate::flags;
use crate::threads;
use crate::usage::UsageError;

/// Train a Vision Transformer on a folder of images, measure it honestly, and classify images.
#[derive(Parser)]
#[command(name = "vitrine", version, max_term_width = 110)]
#[command(
    after_help = "Example:\n  vitrine train photos/\n  vitrine classify runs/photos-hybrid_nano_patch16_128-1 cat.jpg"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Train(Box<train::Train>),
    Evaluate(evaluate::Evaluate),
    Classify(classify::Classify),
    Explain(explain::Explain),
    Embed(embed::Embed),
    Similar(similar::Similar),
    Inspect(inspect::Inspect),
    Import(import::Import),
    Export(export::Export),
    Quantize(quantize::Quantize),
    Presets(presets::Presets),
    Cache(cache::Cache),
    #[cfg(feature = "serve")]
    Serve(serve::Serve),
    Worker(worker::Worker),
    Devices(devices::Devices),
    Bench(bench::Bench),
    Completions(completions::Completions),
    // Hidden from the list of commands, because only packages need it.
    #[command(name = "man", hide = true)]
    Manual(manual::Manual),
}

impl Command {
    /// Whether the command itself says what happens at Ctrl-C.
    fn handles_signals(&self) -> bool {
        match self {
            Self::Train(_) | Self::Worker(_) => true,
            #[cfg(feature = "serve")]
            Self::Serve(_) => true,
            Self::Evaluate(_)
            | Self::Classify(_)
            | Self::Explain(_)
            | Self::Embed(_)
            | Self::Similar(_)
            | Self::Inspect(_)
            | Self::Import(_)
            | Self::Export(_)
            | Self::Quantize(_)
            | Self::Presets(_)
            | Self::Cache(_)
            | Self::Devices(_)
            | Self::Bench(_)
            | Self::Completions(_)
            | Self::Manual(_) => false,
        }
    }
}

/// The result of a command that did not fail as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// Everything was done.
    Done,
    /// Some input could not be processed, and messages have named it.
    Partial,
}

/// The option that chooses a device.
#[derive(Args)]
struct DeviceArgs {
    /// cpu, gpu, or a backend's name with an index, such as wgpu:0; by default what the environment variable VITRINE_DEVICE names, or
    /// else the best one this binary supports.
    #[arg(long, value_name = "DEVICE", value_parser = device::known)]
    device: Option<String>,
}

impl DeviceArgs {
    /// The device of the option, or else the default. A notice names a default that may be unexpected.
    fn select(&self, events: &dyn EventSink) -> Result<FoundDevice> {
        let (device, message) = match (&self.device, std::env::var_os(DEVICE_VARIABLE)) {
            (None, Some(name)) if !name.is_empty() => {
                device::select(Some(&name.to_string_lossy())).context(DEVICE_VARIABLE)?
            }
            (stated, _) => device::select(stated.as_deref())?,
        };
        events.emit_notice(message);
        Ok(device)
    }
}

/// The environment variable that names the device where no option does.
const DEVICE_VARIABLE: &str = "VITRINE_DEVICE";

/// The option for the number of compute threads.
#[derive(Args)]
struct ThreadArgs {
    /// Number of compute threads; by default one per available physical core.
    #[arg(long, value_name = "N", value_parser = within(bounds::THREADS), allow_negative_numbers = true, aliases = aliases::THREADS)]
    threads: Option<usize>,
}

impl ThreadArgs {
    /// Checks the environment variables that concern computing, and sets up rayon's global thread pool. The fused
    /// operations use as many threads as this pool has.
    ///
    /// The calling thread becomes a member of the pool. It then computes its share of an operation itself, instead of
    /// waking another thread for it.
    fn apply(&self) -> Result<usize> {
        threads::set_up(self.threads, rayon::ThreadPoolBuilder::use_current_thread)
    }

    /// [`Self::apply`] for a command whose other threads compute, while the calling one waits.
    #[cfg(any(feature = "serve", feature = "remote"))]
    fn apply_to_workers(&self) -> Result<usize> {
        threads::set(self.threads)
    }
}

/// The error for what this binary was built without.
#[cfg(not(feature = "remote"))]
fn not_built<T>(what: &str) -> Result<T> {
    crate::usage::usage!("{what}: this binary was built without it; build it with `--features remote`")
}

/// The exit status of wrong usage, the same as clap's.
const WRONG_USAGE: u8 = 2;

/// Runs the program with the arguments of the process. The exit status is 0 for success, 1 for failure, and 2 for wrong
/// usage.
pub fn main() -> ExitCode {
    let parsed = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    match parsed {
        Ok(cli) => exit_status(run(cli.command)),
        Err(usage) if usage.use_stderr() => {
            print_usage_error(&usage);
            ExitCode::from(WRONG_USAGE)
        }
        Err(help) => {
            exit_status(help.print().map(|()| Status::Done).map_err(|error| OutputError::from(error).into()))
        }
    }
}

/// Prints an error of the command line: as JSON if the command line asks for it, although it could not be read.
fn print_usage_error(usage: &clap::Error) {
    let arguments: Vec<_> = std::env::args_os().collect();
    let asks_for_json = arguments.iter().any(|argument| argument == "--log-format=json")
        || arguments.windows(2).any(|pair| pair[0] == "--log-format" && pair[1] == "json");
    if asks_for_json {
        output::write_json_messages();
        let text = usage.render().to_string();
        output::error(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    } else {
        // If the message cannot be printed, the exit status still reports the error.
        let _ = usage.print();
    }
}

/// The declaration of the command line, with the conflicts that concern all options of `train`.
fn command() -> clap::Command {
    Cli::command().mut_subcommand("train", train::with_conflicts)
}

fn run(command: Command) -> Result<Status> {
    if !command.handles_signals() {
        interrupt::leave_nothing_behind()?;
    }
    match command {
        Command::Train(command) => command.run(),
        Command::Evaluate(command) => command.run(),
        Command::Classify(command) => command.run(),
        Command::Explain(command) => command.run(),
        Command::Embed(command) => command.run(),
        Command::Similar(command) => command.run(),
        Command::Inspect(command) => command.run(),
        Command::Import(command) => command.run(),
        Command::Export(command) => command.run(),
        Command::Quantize(command) => command.run(),
        Command::Presets(command) => command.run(),
        Command::Cache(command) => command.run(),
        #[cfg(feature = "serve")]
        Command::Serve(command) => command.run(),
        Command::Worker(command) => command.run(),
        Command::Devices(command) => command.run(),
        Command::Bench(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::Manual(command) => command.run(),
    }
}

/// The exit status for the result of a command. An error is printed to standard error, unless a reader of standard
/// output such as `head` caused it by closing the pipe.
fn exit_status(result: Result<Status>) -> ExitCode {
    match result {
        Ok(Status::Done) => ExitCode::SUCCESS,
        Ok(Status::Partial) => ExitCode::FAILURE,
        Err(error) if output::is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::error(&flags::explained(&error));
            let is_usage = UsageError::is_cause_of(&error) || flags::is_wrong_usage(&error);
            if is_usage { ExitCode::from(WRONG_USAGE) } else { ExitCode::FAILURE }
        }
    }
}
