//! Reading an object while other work goes on.

use std::future::Future;
use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::{Result, anyhow};
use tokio::sync::Semaphore;

use super::stores;

/// The number of objects that are read at the same time, each through a connection.
const CONNECTIONS: usize = 64;

/// An object, or a part of one, that is being read.
pub(crate) struct Fetch(Receiver<Result<Vec<u8>>>);

impl Fetch {
    /// Begins to read, as soon as there is a connection.
    pub(super) fn begin(read: impl Future<Output = Result<Vec<u8>>> + Send + 'static) -> Self {
        static PERMITS: Semaphore = Semaphore::const_new(CONNECTIONS);
        let (sender, receiver) = sync_channel(1);
        match stores::handle() {
            Ok(handle) => {
                handle.spawn(async move {
                    let _permit = PERMITS.acquire().await;
                    // Nobody waits for it any more if the receiver is gone.
                    drop(sender.send(read.await));
                });
            }
            Err(error) => drop(sender.send(Err(error))),
        }
        Self(receiver)
    }

    /// Waits for the bytes.
    ///
    /// # Errors
    /// If the object cannot be read.
    pub(crate) fn wait(self) -> Result<Vec<u8>> {
        self.0.recv().unwrap_or_else(|_| Err(anyhow!("reading it ended without an answer")))
    }
}
