//! The workers of a run, and the micro-batches of the present update. Each worker has a thread, which takes the next micro-batch when
//! its worker is free; so does the trainer. A micro-batch whose worker fails, or does not answer in time, is free again.

use std::collections::VecDeque;
use std::panic;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{Failure, Task, Worker};
use crate::events::{Event, EventSink};
use crate::learner::micro_batch::Contribution;

/// The names of the workers' threads begin with this.
const THREAD: &str = "vitrine-worker-";
/// How long the run waits for workers before it begins.
const CONNECTING: Duration = Duration::from_secs(30);
/// Failures in a row after which a worker is not tried again. Each costs the trainer a thread that burn keeps.
const FAILURES: usize = 20;
/// The pauses between attempts to reach a worker again.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(15)];

/// What is said when no worker is left.
const ALONE: &str = "no worker is left: this process goes on alone";

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

/// What all threads know.
struct State {
    /// The micro-batches of the present update.
    slots: Vec<Slot>,
    /// The number of the present update.
    update: u64,
    is_over: bool,
    colleagues: Vec<Colleague>,
    /// Micro-batches that the trainer has computed.
    own: usize,
    /// Messages for the user that were not taken yet.
    messages: VecDeque<String>,
}

/// A micro-batch of the present update.
enum Slot {
    Free(Arc<Task>),
    /// By a worker, or by the trainer.
    Taken {
        task: Arc<Task>,
        by: Option<usize>,
    },
    Done(Contribution),
}

/// What is known of a worker.
#[derive(Clone, Debug)]
struct Colleague {
    name: String,
    state: Connection,
    /// Micro-batches that it has computed.
    computed: usize,
    /// The longest time that it has taken for one.
    longest: Option<Duration>,
    /// When it is late with the micro-batch that it computes now, whether or not that still matters.
    busy_until: Option<Instant>,
    /// Failures since it has computed a micro-batch.
    failures: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    /// It was not reached yet.
    New,
    Connected,
    /// It has not answered in time.
    Late,
    /// The connection is broken.
    Lost,
    /// It has refused, and is not asked again.
    Refused,
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

impl State {
    /// The first micro-batch that nobody has taken.
    fn next_free(&self) -> Option<usize> {
        self.slots.iter().position(|slot| matches!(slot, Slot::Free(_)))
    }

    /// The first moment at which a worker is late.
    fn next_deadline(&self) -> Option<Instant> {
        let waited_for = self.colleagues.iter().filter(|colleague| colleague.state == Connection::Connected);
        waited_for.filter_map(|colleague| colleague.busy_until).min()
    }

    /// Whether a worker may take a micro-batch.
    fn has_workers(&self) -> bool {
        self.colleagues.iter().any(|colleague| colleague.state == Connection::Connected)
    }

    /// Frees the micro-batches of workers that have not answered in time. Returns whether there are any.
    fn release_overdue(&mut self, now: Instant) -> bool {
        let is_late = |colleague: &Colleague| {
            colleague.state == Connection::Connected && colleague.busy_until.is_some_and(|until| until <= now)
        };
        let late: Vec<usize> =
            (0..self.colleagues.len()).filter(|&index| is_late(&self.colleagues[index])).collect();
        for &index in &late {
            self.release(index, self.update);
            let Colleague { name, state, .. } = &mut self.colleagues[index];
            *state = Connection::Late;
            let message = format!("worker {name} does not answer: its micro-batch is computed again");
            self.messages.push_back(message);
            self.notice_loneliness();
        }
        !late.is_empty()
    }

    /// Frees the micro-batch of this update that a worker has taken.
    fn release(&mut self, index: usize, update: u64) {
        if update != self.update {
            return;
        }
        for slot in &mut self.slots {
            if let Slot::Taken { task, by: Some(by) } = slot
                && *by == index
            {
                *slot = Slot::Free(Arc::clone(task));
            }
        }
    }

    fn connected(&mut self, index: usize, remarks: Vec<String>) {
        let Colleague { name, state, computed, .. } = &mut self.colleagues[index];
        if *state == Connection::Lost {
            self.messages.push_back(format!("worker {name} is there"));
        }
        *state = Connection::Connected;
        if *computed == 0 {
            self.messages.extend(remarks);
        }
    }

    /// Marks workers that have not connected yet as lost, although they may still come.
    fn give_up_waiting(&mut self) {
        for index in 0..self.colleagues.len() {
            if self.colleagues[index].state == Connection::New {
                let reason = format!("it has not answered in {} s", CONNECTING.as_secs());
                self.failed(index, Failure::Lost(reason));
            }
        }
    }

    /// Leaves the present update, because the run has failed.
    fn abandon_update(&mut self) {
        self.slots.clear();
        self.update += 1;
    }

    /// Notes that a connected worker has failed.
    fn broke(&mut self, index: usize, failure: Failure) {
        let colleague = &mut self.colleagues[index];
        colleague.failures += 1;
        let failure = match failure {
            Failure::Lost(reason) if colleague.failures >= FAILURES => {
                Failure::Refused(format!("{reason}, for the {FAILURES}th time in a row"))
            }
            failure => failure,
        };
        self.failed(index, failure);
    }

    /// Notes that a worker cannot be asked at present, or any more.
    fn failed(&mut self, index: usize, failure: Failure) {
        let Colleague { name, state, busy_until, .. } = &mut self.colleagues[index];
        *busy_until = None;
        let before = *state;
        let message = match &failure {
            Failure::Lost(reason) => {
                *state = Connection::Lost;
                format!("worker {name} is lost: {reason}; it is tried again")
            }
            Failure::Refused(reason) => {
                *state = Connection::Refused;
                format!("worker {name} refuses: {reason}")
            }
        };
        if before != *state {
            self.messages.push_back(message);
            self.notice_loneliness();
        }
    }

    /// Says so if no worker is left.
    fn notice_loneliness(&mut self) {
        let waits = self.colleagues.iter().any(|colleague| colleague.state == Connection::New);
        if !waits && !self.has_workers() && self.messages.back().is_none_or(|last| last != ALONE) {
            self.messages.push_back(ALONE.to_owned());
        }
    }

    /// Notes what a worker has computed, unless somebody else was faster.
    fn computed(
        &mut self,
        index: usize,
        (slot, update): (usize, u64),
        contribution: Contribution,
        (time, counted): (Duration, Duration),
    ) {
        let is_wanted = update == self.update && !matches!(self.slots[slot], Slot::Done(_));
        let Colleague { name, state, computed, longest, busy_until, failures } = &mut self.colleagues[index];
        if *state == Connection::Late {
            self.messages.push_back(format!(
                "worker {name} has answered after {:.0} s: it goes on",
                time.as_secs_f64()
            ));
        }
        *longest = Some(longest.map_or(counted, |longest| longest.max(counted)));
        (*state, *busy_until, *failures) = (Connection::Connected, None, 0);
        if is_wanted {
            *computed += 1;
            self.slots[slot] = Slot::Done(contribution);
        }
    }
}

impl Slot {
    /// The task of a free slot, which is then taken.
    fn take(&mut self, by: impl Into<Option<usize>>) -> Option<Arc<Task>> {
        let Self::Free(task) = self else { return None };
        let task = Arc::clone(task);
        *self = Self::Taken { task: Arc::clone(&task), by: by.into() };
        Some(task)
    }

    fn into_done(self) -> Option<Contribution> {
        match self {
            Self::Done(contribution) => Some(contribution),
            Self::Free(_) | Self::Taken { .. } => None,
        }
    }
}

impl Colleague {
    /// How long it may take for the next micro-batch.
    fn deadline(&self, Deadlines { first, least, factor }: Deadlines) -> Duration {
        self.longest.map_or(first, |longest| least.max(factor * longest))
    }
}

#[cfg(test)]
mod tests;
