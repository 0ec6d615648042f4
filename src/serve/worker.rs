//! The threads that compute answers, each for one model and one kind of answer. What waits when a thread is free becomes one
//! batch.

use std::cell::LazyCell;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};
use vitrine_datasets::ImageSource;

use super::refusal::Refusal;
use crate::explain::{self, Explainer, Method};
use crate::predict::{Asked, Classifier, Output};

/// How the requests that wait become batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batching {
    /// The largest number of images.
    pub(super) images: usize,
    /// How long a batch that is not full waits for more.
    pub(super) delay: Duration,
}

/// A place in the queue, and a share of the memory for bodies. Both are given back when the answer is there, or when the worker
/// finds that nobody waits for it any more.
pub(super) struct Place {
    pub(super) _image: OwnedSemaphorePermit,
    pub(super) _body: Arc<OwnedSemaphorePermit>,
}

/// Tells the server that a worker has ended by a defect: its model would never answer again.
#[derive(Clone)]
pub(super) struct Defects(pub(super) Arc<Notify>);

impl Drop for Defects {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.notify_one();
        }
    }
}

/// What a worker is asked about an image, where the answer goes, and the place in the queue.
struct Job<Q, A> {
    question: Q,
    image: ImageSource,
    answer: oneshot::Sender<Result<A>>,
    place: Place,
}

/// The sending end of a worker's queue. The thread ends when it is dropped, after it has answered everything in the queue.
pub(super) struct Worker<Q, A> {
    sender: Sender<Job<Q, A>>,
}

/// An answer that is being computed.
pub(super) struct Pending<A>(oneshot::Receiver<Result<A>>);

impl<A> Pending<A> {
    /// The answer for the image, or why there is none.
    ///
    /// # Errors
    /// If the worker has ended.
    pub(super) async fn answer(self) -> Result<Result<A>, Refusal> {
        self.0.await.map_err(|_| ended())
    }
}

/// The refusal when a worker has ended, as it only does after a defect.
fn ended() -> Refusal {
    Refusal::new(
        axum::http::StatusCode::INTERNAL_SERVER_ERROR,
        "the thread of this model has ended: see the server's log",
    )
}

impl<Q, A> Worker<Q, A> {
    /// Puts an image into the queue.
    ///
    /// # Errors
    /// If the worker has ended.
    pub(super) fn ask(&self, question: Q, image: ImageSource, place: Place) -> Result<Pending<A>, Refusal> {
        let (answer, pending) = oneshot::channel();
        self.sender.send(Job { question, image, answer, place }).map_err(|_| ended())?;
        Ok(Pending(pending))
    }
}

impl Worker<(), Vec<f32>> {
    /// A worker that computes one kind of answer. `observe` is told the size of each batch.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn of_output(
        classifier: Classifier,
        output: Output,
        batching: Batching,
        observe: impl Fn(usize) + Send + 'static,
        defects: Defects,
    ) -> Result<Self> {
        let (sender, receiver) = channel();
        let compute = move || {
            let defects = defects;
            let batches = Batches { receiver, batching };
            let answered = classifier.predictor().ask_checked_stream(output, batches, |batch| {
                observe(batch.len());
                for Asked { tag: (answer, place), value } in batch {
                    // The place is free before the answer is known, so that who has the answer can ask again.
                    drop(place);
                    // Whoever asked may be gone.
                    let _ = answer.send(value);
                }
                Ok(())
            });
            if answered.is_err() {
                // Its threads could not be started.
                defects.0.notify_one();
            }
        };
        thread::Builder::new()
            .name("model".to_owned())
            .spawn(compute)
            .context("a thread cannot be started")?;
        Ok(Self { sender })
    }
}

/// The batches of a queue, until its sending end is dropped.
struct Batches {
    receiver: Receiver<Job<(), Vec<f32>>>,
    batching: Batching,
}

/// An image with where its answer goes.
type Entry = Asked<(oneshot::Sender<Result<Vec<f32>>>, Place), ImageSource>;

impl Iterator for Batches {
    type Item = Vec<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut batch = Vec::new();
        while batch.is_empty() {
            batch.extend(entry(self.receiver.recv().ok()?));
        }
        let end = Instant::now() + self.batching.delay;
        while batch.len() < self.batching.images {
            match self.receiver.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(job) => batch.extend(entry(job)),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        Some(batch)
    }
}

/// The image of a job, unless nobody waits for the answer any more.
fn entry(Job { image, answer, place, .. }: Job<(), Vec<f32>>) -> Option<Entry> {
    (!answer.is_closed()).then(|| Asked { tag: (answer, place), value: Ok(image) })
}

impl Worker<Method, Vec<u8>> {
    /// A worker that draws what the model looked at over an image, as a PNG file. The explainer is made for the first image.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn of_overlays(
        explainer: impl FnOnce() -> Explainer + Send + 'static,
        defects: Defects,
    ) -> Result<Self> {
        let (sender, receiver) = channel::<Job<Method, Vec<u8>>>();
        let draw = move || {
            let (explainer, _defects) = (LazyCell::new(explainer), defects);
            for Job { question, image, answer, place } in receiver {
                if answer.is_closed() {
                    continue;
                }
                let overlay = overlay(&explainer, question, image);
                drop(place);
                let _ = answer.send(overlay);
            }
        };
        thread::Builder::new()
            .name("overlays".to_owned())
            .spawn(draw)
            .context("a thread cannot be started")?;
        Ok(Self { sender })
    }
}

/// The overlay of one image as a PNG file.
fn overlay(explainer: &Explainer, method: Method, image: ImageSource) -> Result<Vec<u8>> {
    /// The longer side of an overlay in pixels.
    const SIDE: u32 = 448;
    let block = explainer.model().config().depth.sum() - 1;
    let asked = explain::Asked { methods: vec![method], class: None, block, heads: false };
    let explanation = explainer.explain(&[image], &asked).pop().context("an answer is missing")??;
    let map = explanation.maps.first().context("an answer is missing")?;
    Ok(explain::image_png(&explanation.overlay(map, SIDE)))
}
