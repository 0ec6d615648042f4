//! What all requests share.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::access::Access;
use super::metrics::Metrics;
use super::models::Models;
use super::refusal::Refusal;
use super::worker::Place;
use crate::events::EventSink;

/// What all requests share.
pub(super) struct Server {
    pub(super) models: Models,
    pub(super) metrics: Arc<Metrics>,
    pub(super) events: Arc<dyn EventSink>,
    pub(super) access: Access,
    pub(super) time_limit: Duration,
    pub(super) max_body_bytes: usize,
    /// The places for requests that are read or answered.
    pub(super) requests: Semaphore,
    pub(super) queue: Queue,
}

impl Server {
    /// The metrics as text.
    pub(super) fn metrics_text(&self) -> String {
        self.metrics.waiting.set(i64::try_from(self.queue.waiting()).unwrap_or(i64::MAX));
        self.metrics.text()
    }
}

/// The places for images that wait for their answer, and the memory for the bodies that they came in.
pub(super) struct Queue {
    places: Arc<Semaphore>,
    size: usize,
    /// The memory in blocks of [`BLOCK`].
    memory: Arc<Semaphore>,
}

/// The unit in which memory for bodies is counted, in bytes.
const BLOCK: usize = 4096;

impl Queue {
    /// A queue for `size` images, whose bodies take at most `bytes` bytes at a time.
    pub(super) fn new(size: usize, bytes: usize) -> Self {
        let blocks = bytes.div_ceil(BLOCK).min(u32::MAX as usize);
        Self { places: Arc::new(Semaphore::new(size)), size, memory: Arc::new(Semaphore::new(blocks)) }
    }

    /// Number of images that wait.
    fn waiting(&self) -> usize {
        self.size - self.places.available_permits()
    }

    /// Memory for the next `bytes` of a body, of which there are `before` already.
    ///
    /// # Errors
    /// 503 if bodies already take as much as they may.
    pub(super) fn memory(&self, before: usize, bytes: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        let blocks = (before + bytes).div_ceil(BLOCK) - before.div_ceil(BLOCK);
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        Arc::clone(&self.memory)
            .try_acquire_many_owned(blocks)
            .map_err(|_| Refusal::busy("bodies take all the memory they may: send it again in a moment"))
    }

    /// Checks the number of images of a request, which may not be all of them yet.
    ///
    /// # Errors
    /// 413 if there will never be as many places.
    pub(super) fn check_number(&self, images: usize) -> Result<(), Refusal> {
        if images <= self.size {
            return Ok(());
        }
        let message = format!("this server takes at most {} images in one request", self.size);
        Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message))
    }

    /// Places for images, which keep the memory of their body.
    ///
    /// # Errors
    /// 413 if there will never be as many, and 503 if there are not now.
    pub(super) fn places(&self, images: usize, body: OwnedSemaphorePermit) -> Result<Vec<Place>, Refusal> {
        self.check_number(images)?;
        let body = Arc::new(body);
        let place = |_| {
            let image = Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
                Refusal::busy("more images wait than the queue holds: send it again in a moment")
            })?;
            Ok(Place { _image: image, _body: Arc::clone(&body) })
        };
        (0..images).map(place).collect()
    }
}
