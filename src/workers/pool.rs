//! The workers of a run, and the micro-batches of the present update. Each worker has a thread, which takes the next micro-batch when
//! its worker is free; so does the trainer. A micro-batch whose worker fails, or does not answer in time, is free again.

mod state;

use std::collections::VecDeque;
use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use self::state::{ALONE, Colleague, Connection, Slot, State};
use super::{Answer, Failure, Task, Worker};
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
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    deadlines: Deadlines,
}

impl Pool {
    /// Starts a thread for each worker, which connects. If the trainer does not compute itself, it still does when no worker is left.
    pub fn new(workers: Vec<Box<dyn Worker>>, trainer_computes: bool, deadlines: Deadlines) -> Self {
        let state = State {
            slots: Vec::new(),
            update: 0,
            is_over: false,
            trainer_computes,
            colleagues: workers.iter().map(|worker| Colleague::new(worker.name())).collect(),
            own: 0,
            own_last: None,
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
        Self { shared }
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

    /// Ends the present update: adds what its micro-batches contribute, in the order in which they were submitted, as soon as those
    /// before are there. `compute` is how the trainer computes one.
    ///
    /// # Errors
    /// The first error of `compute`.
    pub fn finish<E>(
        &self,
        mut compute: impl FnMut(&Task) -> Result<Contribution, E>,
        mut add: impl FnMut(Contribution),
    ) -> Result<(), E> {
        let mut state = self.shared.lock();
        let mut added = 0;
        loop {
            if state.release_overdue(Instant::now()) {
                self.shared.changed.notify_all();
            }
            if let Some(contribution) = state.slots.get_mut(added).and_then(Slot::take_done) {
                drop(state);
                add(contribution);
                added += 1;
                state = self.shared.lock();
                continue;
            }
            let computes = state.trainer_computes || !state.has_workers();
            if let Some(index) = state.next_free().filter(|_| computes) {
                let Some(task) = state.slots[index].take(None) else { continue };
                drop(state);
                let begun = Instant::now();
                let outcome = compute(&task);
                state = self.shared.lock();
                let contribution = outcome.inspect_err(|_| state.abandon_update())?;
                state.own += 1;
                state.own_last = Some(begun.elapsed());
                state.slots[index] = Slot::Done(contribution);
                continue;
            }
            if added == state.slots.len() {
                state.update += 1;
                state.slots.clear();
                return Ok(());
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
    fn serve(self: &Arc<Self>, index: usize, mut worker: Box<dyn Worker>) {
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

    /// Sends micro-batches and takes their answers until the worker fails or the run is over. Returns whether the run is over.
    fn work(self: &Arc<Self>, index: usize, worker: &mut dyn Worker) -> bool {
        let bell = Arc::new(Bell { shared: Arc::clone(self), rung: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&bell));
        let mut sent: VecDeque<Sent> = VecDeque::new();
        loop {
            let outcome = match self.next(index, &bell) {
                Next::Over => return true,
                Next::Task(place, task) => worker.send(&task).map(|answer| {
                    sent.push_back(Sent { place, answer, begun: Instant::now() });
                }),
                Next::Answer => Ok(()),
            };
            if let Err(failure) = outcome.and_then(|()| self.answers(index, &mut sent, &waker)) {
                let mut state = self.lock();
                state.release(index);
                state.broke(index, failure);
                drop(state);
                self.changed.notify_all();
                return false;
            }
        }
    }

    /// Notes the answers that have come, in the order of their tasks. `waker` is woken when the next one comes.
    ///
    /// # Errors
    /// If the worker fails.
    fn answers(&self, index: usize, sent: &mut VecDeque<Sent>, waker: &Waker) -> Result<(), Failure> {
        while let Some(first) = sent.front_mut() {
            let Poll::Ready(outcome) = first.answer.as_mut().poll(&mut Context::from_waker(waker)) else {
                break;
            };
            let contribution = outcome?;
            let (place, time) = (first.place, first.begun.elapsed());
            sent.pop_front();
            // The next one was begun after it.
            sent.iter_mut().for_each(|next| next.begun = Instant::now());
            self.lock().computed(index, place, contribution, (time, self.deadlines));
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Waits for a micro-batch for the worker, which is taken, or for an answer, for which the bell is rung.
    fn next(&self, by: usize, bell: &Bell) -> Next {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return Next::Over;
            }
            if let Some(slot) = state.next_for(by)
                && let Some(task) = state.slots[slot].take(by)
            {
                let update = state.update;
                let colleague = &mut state.colleagues[by];
                let until = Instant::now() + colleague.deadline(self.deadlines);
                colleague.busy_until.get_or_insert(until);
                colleague.sent += 1;
                drop(state);
                // Whoever waits for the present update has another deadline now.
                self.changed.notify_all();
                return Next::Task((slot, update), task);
            }
            if bell.rung.swap(false, Ordering::SeqCst) {
                return Next::Answer;
            }
            state = self.wait(state, None);
        }
    }
}

/// A task that a worker was sent.
struct Sent {
    /// Its slot, and the update.
    place: (usize, u64),
    answer: Answer,
    /// When the worker began with it.
    begun: Instant,
}

/// What a worker's thread does next.
enum Next {
    /// The run is over.
    Over,
    /// It sends a task of this slot and update.
    Task((usize, u64), Arc<Task>),
    /// It looks for answers.
    Answer,
}

/// Wakes a worker's thread when an answer has come.
struct Bell {
    shared: Arc<Shared>,
    rung: AtomicBool,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.rung.store(true, Ordering::SeqCst);
        // Not between the thread's look at the bell and its wait.
        drop(self.shared.lock());
        self.shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
