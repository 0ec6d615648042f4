//! `vitrine worker`: computes micro-batches for runs of `vitrine train --workers`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::console::{Log, LogFormat};
use super::{DeviceArgs, Status, ThreadArgs};
#[cfg(feature = "remote")]
use crate::cli::output::note;

/// Compute for `vitrine train --workers`, on this machine's processor or GPU.
///
/// Prints its address for the list of workers, and computes for every trainer that shows the token, until SIGTERM or Ctrl-C. It keeps
/// no images and writes no files but its key. It needs a vitrine built with `--features remote`, as the trainer does, of the same version.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vitrine worker --listen 0.0.0.0:3700 --key worker.key --token-file token.txt\n  \
    vitrine worker --listen 127.0.0.1:3701 --key second.key --token-file token.txt --threads 1"
)]
pub(super) struct Worker {
    /// Where to listen (UDP): 0.0.0.0:PORT for connections from anywhere, by IPv6, too, or 127.0.0.1:PORT for those within this
    /// machine. All are encrypted.
    #[arg(long, value_name = "ADDR")]
    listen: String,
    /// File with the key that makes connections certain to reach this worker; it is made if there is none. Keep it secret.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// File with the token that trainers must show.
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// Form of the messages on standard error: text for people, or json, one object per line for programs.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

impl Worker {
    #[cfg(not(feature = "remote"))]
    pub(super) fn run(&self) -> Result<Status> {
        let Self { listen, key, token_file, log_format, device: DeviceArgs { device }, threads } = self;
        let _ = (listen, key, token_file, log_format, device, threads.threads, Log::new);
        super::not_built("worker")
    }

    #[cfg(feature = "remote")]
    pub(super) fn run(&self) -> Result<Status> {
        use crate::cli::output::outln;
        use crate::events::{Event, EventSink};
        use crate::token::Token;
        use crate::usage::UsageError;
        use crate::workers::remote::{Listen, Settings, serve};

        let listen: Listen = self
            .listen
            .parse()
            .map_err(|problem| UsageError::new(format!("--listen {}: {problem}", self.listen)))?;
        let token = Token::read(&self.token_file)?;
        let log = Log::new(self.log_format, false);
        let threads = self.threads.apply_to_workers()?;
        let device = self.device.select(&log)?;
        std::panic::set_hook(Box::new(name_failure));
        let settings = Settings { listen, key: self.key.clone(), token, device, threads, admits };
        serve(settings, |address| {
            log.emit(Event::notice(format!(
                "waits for trainers ({threads} compute threads); its line in their --workers file:"
            )));
            Ok(outln!("{address}")?)
        })?;
        Ok(Status::Done)
    }
}

/// Names a panic in one line. Each connection has a thread or a task of its own, which ends alone: burn's engine panics if a message
/// cannot be read.
#[cfg(feature = "remote")]
fn name_failure(problem: &std::panic::PanicHookInfo<'_>) {
    let payload = problem.payload();
    let text =
        payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    let line = text.and_then(|text| text.lines().next()).unwrap_or("without a reason");
    note!("warning: a connection was closed: {line}");
}

/// Whether the memory suffices for a task.
#[cfg(feature = "remote")]
fn admits(
    config: &crate::learner::micro_batch::ReplicaConfig,
    images: usize,
    device: &crate::device::FoundDevice,
) -> Result<(), String> {
    use crate::memory::{self, Work};
    use crate::recipe::Recipe;
    let recipe = Recipe {
        batch_size: images,
        gradient_checkpointing: config.gradient_checkpointing,
        precision: config.precision,
        ..Recipe::default()
    };
    if !device.suits(recipe.precision) {
        return Err(device.slow_bfloat16());
    }
    memory::check(&config.model, Work::Training(&recipe, images), device)
        .map(|_| ())
        .map_err(|error| error.to_string())
}
