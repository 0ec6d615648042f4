//! The options of `vitrine train` for workers, which compute some of the micro-batches.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use vitrine_models::StepMemory;

use crate::device::FoundDevice;
use crate::events::EventSink;
use crate::run_folder::RunConfig;
use crate::usage::usage;
use crate::workers::Pool;

/// The largest parameters in bytes: burn sends no message of more than 1 GiB.
const LARGEST: u64 = (1 << 30) - (1 << 20);

/// The options for workers.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct WorkersArgs {
    /// File with the addresses of workers (see `vitrine worker`), one a line. Each computes some of the batches that --accumulate sums,
    /// as this process does; the result has the same bits. Also with --resume, and others than before.
    #[arg(long, value_name = "FILE")]
    workers: Option<PathBuf>,
    /// File with the token of the workers.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Leave all batches to the workers, as long as there are any.
    #[arg(long)]
    workers_only: bool,
}

impl WorkersArgs {
    /// Begins to connect to the workers, if there are any.
    pub(super) fn pool(&self, device: &FoundDevice, threads: usize) -> Result<Option<Pool>> {
        match (&self.workers, &self.token_file) {
            (Some(file), None) => usage!("--workers {}: give --token-file, too", file.display()),
            (None, Some(file)) => usage!("--token-file {}: has no effect without --workers", file.display()),
            (None, None) if self.workers_only => usage!("--workers-only has no effect without --workers"),
            (None, None) => Ok(None),
            (Some(workers), Some(token)) => self.connected(workers, token, (device, threads)).map(Some),
        }
    }

    #[cfg(not(feature = "remote"))]
    fn connected(&self, _: &Path, _: &Path, _: (&FoundDevice, usize)) -> Result<Pool> {
        crate::cli::not_built("--workers")
    }

    #[cfg(feature = "remote")]
    fn connected(&self, workers: &Path, token: &Path, own: (&FoundDevice, usize)) -> Result<Pool> {
        use crate::token::Token;
        use crate::workers::remote::Remote;
        use crate::workers::{Address, Deadlines, Worker};

        let addresses = Address::list(workers)?;
        let token = Token::read(token)?;
        let remote = |address| -> Box<dyn Worker> { Box::new(Remote::new(address, &token, own)) };
        let remotes = addresses.into_iter().map(remote).collect();
        Ok(Pool::new(remotes, !self.workers_only, Deadlines::default()))
    }

    /// Checks that the run has something to share, and waits until each worker is connected or cannot be.
    ///
    /// # Errors
    /// If the run has no batches to share, or a worker refuses.
    pub(super) fn ready(
        &self,
        pool: Option<&Pool>,
        config: &RunConfig,
        events: &dyn EventSink,
    ) -> Result<()> {
        let Some(pool) = pool else { return Ok(()) };
        if config.recipe.fit_head {
            usage!(
                "--workers has no effect on a head that is fitted to features: leave it out, or train it by steps (--epochs)"
            );
        }
        if config.recipe.accumulate < 2 {
            usage!(
                "--workers has no effect on updates of one batch: give --accumulate N, such as twice the number of workers and this \
                 process (an update then sums the gradients of N times {} images)",
                config.recipe.batch_size
            );
        }
        let bytes = StepMemory::of(&config.model).parameters;
        if bytes > LARGEST {
            usage!(
                "--workers: the model has {} MB of parameters, and messages to workers have at most {}",
                bytes >> 20,
                LARGEST >> 20
            );
        }
        pool.wait_for_connections(events)
    }
}
