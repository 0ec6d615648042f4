//! The workers of a run, and the micro-batches of the present update. Each worker has a thread, which takes the next micro-batch when
//! its worker is free; so does the trainer. A micro-batch whose worker fails, or does not answer in time, is free again.

mod state;

use std::collections::VecDeque;
use std::panic;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use self::state::{ALONE, Colleague, Connection, Slot, State};
use super::{Failure, Task, Worker};
use crate::events::{Event, EventSink};
use crate::learner::micro_batch::Contribution;

/// The names of the workers' threads begin with this.
const THREAD: &str = "vitrine-worker-";
/// How long the run waits for workers before it begins.
const CONNECTING: Duration = Duration::from_secs(30);
/// The pauses between attempts to reach a worker again.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(15)];

/// How long a worker may take for a micro-batch.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// For its first, before any time is known. It builds the model, too.
    pub first: Duration,
    /// For any other, at least.
    pub least: Duration,
    /// For any other, as a multiple of the longest time that it has taken so far.
    pub factor: u32,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { first: Duration::from_secs(60), least: Duration::from_secs(5), factor: 4 }
    }
}

/// The workers of a run.
pub struct Pool {
    shared: Arc<Shared>,
    /// Whether the trainer computes, too.
    trainer_computes: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    deadlines: Deadlines,
}

impl Pool {
    /// Starts a thread for each worker, which connects. If the trainer does not compute itself, it still does when no worker is left.
    pub fn new(workers: Vec<Box<dyn Worker>>, trainer_computes: bool, deadlines: Deadlines) -> Self {
        let colleague = |name: String| Colleague {
            name,
            state: Connection::New,
            computed: 0,
            longest: None,
            busy_until: None,
            failures: 0,
        };
        let state = State {
            slots: Vec::new(),
            update: 0,
            is_over: false,
            colleagues: workers.iter().map(|worker| colleague(worker.name())).collect(),
            own: 0,
            messages: VecDeque::new(),
        };
        hide_panics();
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), deadlines });
        for (index, worker) in workers.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            // Detached: a worker that never answers holds its thread for good.
            thread::Builder::new()
                .name(format!("{THREAD}{index}"))
                .spawn(move || shared.serve(index, worker))
                .expect("a thread can be started");
        }
        Self { shared, trainer_computes }
    }

    /// Waits until every worker is connected or has failed to, for half a minute at most.
    ///
    /// # Errors
    /// If a worker refuses.
    pub fn wait_for_connections(&self, events: &dyn EventSink) -> Result<()> {
        let until = Instant::now() + CONNECTING;
        let mut state = self.shared.lock();
        while state.colleagues.iter().any(|colleague| colleague.state == Connection::New) {
            let pause = until.saturating_duration_since(Instant::now());
            if pause.is_zero() {
                state.give_up_waiting();
                break;
            }
            state = self.shared.wait(state, Some(pause));
        }
        let mut messages: Vec<String> = state.messages.drain(..).collect();
        if state.colleagues.iter().any(|colleague| colleague.state == Connection::Refused) {
            messages.retain(|message| message != ALONE);
            bail!("{}", messages.join("; "));
        }
        drop(state);
        messages.into_iter().for_each(|message| events.emit(Event::notice(message)));
        Ok(())
    }

    /// Adds a micro-batch to the present update.
    pub fn submit(&self, task: Task) {
        self.shared.lock().slots.push(Slot::Free(Arc::new(task)));
        self.shared.changed.notify_all();
    }

    /// Ends the present update: what its micro-batches contribute, in the order in which they were submitted. `compute` is how the
    /// trainer computes one.
    ///
    /// # Errors
    /// The first error of `compute`.
    pub fn finish<E>(
        &self,
        mut compute: impl FnMut(&Task) -> Result<Contribution, E>,
    ) -> Result<Vec<Contribution>, E> {
        let mut state = self.shared.lock();
        loop {
            if state.release_overdue(Instant::now()) {
                self.shared.changed.notify_all();
            }
            let computes = self.trainer_computes || !state.has_workers();
            if let Some(index) = state.next_free().filter(|_| computes) {
                let Some(task) = state.slots[index].take(None) else { continue };
                drop(state);
                let outcome = compute(&task);
                state = self.shared.lock();
                let contribution = outcome.inspect_err(|_| state.abandon_update())?;
                state.own += 1;
                state.slots[index] = Slot::Done(contribution);
                continue;
            }
            if state.slots.iter().all(|slot| matches!(slot, Slot::Done(_))) {
                state.update += 1;
                return Ok(std::mem::take(&mut state.slots)
                    .into_iter()
                    .filter_map(Slot::into_done)
                    .collect());
            }
            let pause = state.next_deadline().map(|until| until.saturating_duration_since(Instant::now()));
            state = self.shared.wait(state, pause);
        }
    }

    /// The messages about workers since the last call.
    pub fn messages(&self) -> Vec<String> {
        self.shared.lock().messages.drain(..).collect()
    }

    /// Who has computed how many micro-batches so far: each worker by its name, and the trainer.
    pub fn shares(&self) -> (Vec<(String, usize)>, usize) {
        let state = self.shared.lock();
        let of_workers =
            state.colleagues.iter().map(|colleague| (colleague.name.clone(), colleague.computed));
        (of_workers.collect(), state.own)
    }
}

/// Keeps panics of the threads of workers, which are caught there, from being printed.
fn hide_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !thread::current().name().is_some_and(|name| name.starts_with(THREAD)) {
                print(info);
            }
        }));
    });
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something has changed, for this long at most.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, pause: Option<Duration>) -> MutexGuard<'a, State> {
        match pause {
            Some(pause) => self.changed.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0,
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// The life of a worker's thread: connects, computes until the connection breaks, and connects again.
    fn serve(&self, index: usize, mut worker: Box<dyn Worker>) {
        let mut pause = PAUSES[0];
        while !self.lock().is_over {
            let before = self.lock().colleagues[index].computed;
            let outcome = worker.connect();
            let goes_on = self.connected(index, outcome) && self.work(index, &mut *worker);
            if !goes_on && self.lock().colleagues[index].state == Connection::Refused {
                return;
            }
            let state = self.lock();
            if !state.is_over {
                drop(self.changed.wait_timeout_while(state, pause, |state| !state.is_over));
            }
            let has_computed = self.lock().colleagues[index].computed > before;
            pause = if has_computed { PAUSES[0] } else { (2 * pause).min(PAUSES[1]) };
        }
    }

    /// Notes the outcome of an attempt to connect. Returns whether there is a connection.
    fn connected(&self, index: usize, outcome: Result<Vec<String>, Failure>) -> bool {
        let mut state = self.lock();
        let is_connected = outcome.is_ok();
        match outcome {
            Ok(remarks) => state.connected(index, remarks),
            Err(failure) => state.failed(index, failure),
        }
        drop(state);
        self.changed.notify_all();
        is_connected
    }

    /// Computes micro-batches until the worker fails or the run is over. Returns whether the run is over.
    fn work(&self, index: usize, worker: &mut dyn Worker) -> bool {
        while let Some((slot, update, task)) = self.take(index) {
            let begun = Instant::now();
            let outcome = worker.compute(&task);
            let mut state = self.lock();
            let failed = outcome.is_err();
            match outcome {
                Ok(contribution) => {
                    let time = begun.elapsed();
                    // An hour of sleep is no reason to wait for hours the next time.
                    let counted = time.min(2 * state.colleagues[index].deadline(self.deadlines));
                    state.computed(index, (slot, update), contribution, (time, counted));
                }
                Err(failure) => {
                    state.release(index, update);
                    state.broke(index, failure);
                }
            }
            drop(state);
            self.changed.notify_all();
            if failed {
                return false;
            }
        }
        true
    }

    /// Waits for a free micro-batch and takes it; `None` once the run is over.
    fn take(&self, by: usize) -> Option<(usize, u64, Arc<Task>)> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(slot) = state.next_free() {
                let until = Instant::now() + state.colleagues[by].deadline(self.deadlines);
                state.colleagues[by].busy_until = Some(until);
                let task = state.slots[slot].take(by);
                let update = state.update;
                drop(state);
                // Whoever waits for the present update has another deadline now.
                self.changed.notify_all();
                return task.map(|task| (slot, update, task));
            }
            state = self.wait(state, None);
        }
    }
}

#[cfg(test)]
mod tests;
