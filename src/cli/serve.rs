//! `vitrine serve`: an HTTP server for models.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use vitrine_datasets::DecodeLimits;

use super::console::{Log, LogFormat};
use super::file_size::bytes;
use super::{DeviceArgs, Status, ThreadArgs};
use crate::bounds;
use crate::cli::aliases;
use crate::cli::within::within;
use crate::hub;
use crate::serve::{self, NamedSource, Settings};
use crate::token::Token;
use crate::usage::usage;

/// The default of --batch-size, unless --queue is less.
const BATCH_SIZE: usize = 16;

/// The default of --max-body-size in bytes.
const BODY_BYTES: u64 = 32 << 20;

/// Serve models over HTTP: a page to try them, an API, and metrics.
///
/// The page is at /, the description of the API at /openapi.json: POST an image to /classify, /embed, or /explain. Requests that
/// wait are computed together. SIGTERM and Ctrl-C end the server when all requests are answered; SIGHUP loads models whose files
/// have changed. Encryption is left to a proxy in front of it.
#[derive(Args)]
#[command(after_help = "Examples:\n  vitrine serve runs/photos-hybrid_nano_patch16_128-1\n  \
    vitrine serve cats=cats.safetensors dogs=dogs.safetensors --listen 0.0.0.0:8080 --token-file token.txt\n  \
    curl --data-binary @cat.jpg http://127.0.0.1:8080/classify")]
pub(super) struct Serve {
    /// Models to serve, the default one first: what `vitrine classify` takes, or NAME=MODEL to choose the name in the API.
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<NamedSource>,
    /// Address and port to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// File with a token that every request must show as `Authorization: Bearer TOKEN`; by default VITRINE_TOKEN from the
    /// environment, or no token.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Let pages of another server ask, such as https://example.com; * for all. Repeatable.
    #[arg(long = "allow-origin", value_name = "ORIGIN", value_parser = origin)]
    origins: Vec<String>,
    /// Images per forward pass, at most [default: 16].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = within(bounds::BATCH_SIZE), aliases = aliases::BATCH_SIZE)]
    batch_size: Option<usize>,
    /// How long a batch that is not full waits for more images.
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = delay)]
    batch_delay: Duration,
    /// Images that may wait for their answer; more are refused with status 503.
    #[arg(long, value_name = "N", default_value_t = 256, allow_negative_numbers = true, value_parser = within(bounds::QUEUE))]
    queue: usize,
    /// Largest body of a request, such as 300M or 2G; larger ones are refused with status 413 [default: 32M].
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    max_body_size: Option<u64>,
    /// How long a request may take, from its header to its answer; slower ones get status 408.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time_limit)]
    timeout: Duration,
    /// Form of the messages on standard error, a line or JSON object for each request.
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text)]
    log_format: LogFormat,
    /// Use only what is already in the Hugging Face cache; never the network.
    #[arg(long)]
    offline: bool,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

impl Serve {
    pub(super) fn run(&self) -> Result<Status> {
        if self.offline
            && !self.models.iter().any(|model| model.source.to_str().is_some_and(hub::is_repository))
        {
            usage!("--offline has no effect: none of these models is downloaded; leave it out");
        }
        if self.batch_delay >= self.timeout {
            usage!("--batch-delay must be shorter than --timeout");
        }
        if let Some(size) = self.batch_size.filter(|size| *size > self.queue) {
            usage!(
                "--batch-size {size} has no effect beyond --queue {queue}, as no more images wait at once: raise --queue, or lower --batch-size",
                queue = self.queue
            );
        }
        let settings = self.settings()?;
        let log = Log::new(self.log_format, false);
        self.threads.apply_to_workers()?;
        let device = self.device.select(&log)?;
        let limits = DecodeLimits { max_bytes: 256 << 20, ..DecodeLimits::default() };
        serve::serve(&self.models, &settings, &device, limits, Arc::new(log))?;
        Ok(Status::Done)
    }

    fn settings(&self) -> Result<Settings> {
        let max_body_bytes = usize::try_from(self.max_body_size.unwrap_or(BODY_BYTES))
            .context("--max-body-size: more than this computer can address")?;
        Ok(Settings {
            listen: self.listen,
            token: self.token()?,
            allowed_origins: self.origins.clone(),
            batch_size: self.batch_size.unwrap_or(BATCH_SIZE.min(self.queue)),
            batch_delay: self.batch_delay,
            queue: self.queue,
            max_body_bytes,
            time_limit: self.timeout,
            offline: self.offline,
        })
    }

    /// The token of the file, or of the environment.
    fn token(&self) -> Result<Option<Token>> {
        const VARIABLE: &str = "VITRINE_TOKEN";
        if let Some(path) = &self.token_file {
            return Token::read(path).map(Some);
        }
        match std::env::var(VARIABLE) {
            Ok(text) => Token::new(&text).context(VARIABLE).map(Some),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(error) => Err(error).context(VARIABLE),
        }
    }
}

/// An origin as browsers send it: scheme and host, and a port unless it is the scheme's own.
fn origin(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let is_origin = rest.is_some_and(|host| {
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@*".contains(&byte))
    });
    let has_usual_port = text.starts_with("https://") && text.ends_with(":443")
        || text.starts_with("http://") && text.ends_with(":80");
    if text == "*" || is_origin && !has_usual_port {
        return Ok(text.to_ascii_lowercase());
    }
    Err("it must be https://HOST or http://HOST, with :PORT if it is not the usual one, or *".to_owned())
}

/// A time of at most a second.
fn delay(text: &str) -> Result<Duration, String> {
    let problem = || "it must be a time of at most 1s, such as 5ms".to_owned();
    humantime::parse_duration(text).ok().filter(|time| *time <= Duration::from_secs(1)).ok_or_else(problem)
}

/// A time of 10 ms to a day.
fn time_limit(text: &str) -> Result<Duration, String> {
    let range = Duration::from_millis(10)..=Duration::from_secs(24 * 60 * 60);
    let problem = || "it must be a time from 10ms to 1d, such as 30s".to_owned();
    humantime::parse_duration(text).ok().filter(|time| range.contains(time)).ok_or_else(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_have_a_scheme_and_a_host_and_nothing_else() {
        for good in ["*", "https://example.com", "http://localhost:3000", "https://[::1]:80", "http://a:443"]
        {
            assert_eq!(origin(good), Ok(good.to_owned()));
        }
        for wrong in [
            "example.com",
            "https://",
            "https://a/",
            "https://a/b",
            "ftp://a",
            "https://u@a",
            "https://*.a",
            "https://a:443",
        ] {
            assert!(origin(wrong).is_err(), "{wrong}");
        }
    }
}
