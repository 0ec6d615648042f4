//! What the threads of a pool know together: the micro-batches of the present update, and who is there to compute them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{CONNECTING, Deadlines};
use crate::learner::micro_batch::Contribution;
use crate::workers::{Failure, Task};

/// Failures in a row after which a worker is not tried again. Each costs the trainer a thread that burn keeps.
const FAILURES: usize = 20;
/// What is said when no worker is left.
pub(super) const ALONE: &str = "no worker is left: this process goes on alone";

/// What all threads know.
pub(super) struct State {
    /// The micro-batches of the present update.
    pub(super) slots: Vec<Slot>,
    /// The number of the present update.
    pub(super) update: u64,
    pub(super) is_over: bool,
    /// Whether the trainer computes, too.
    pub(super) trainer_computes: bool,
    pub(super) colleagues: Vec<Colleague>,
    /// Micro-batches that the trainer has computed.
    pub(super) own: usize,
    /// The time that it has taken for the last one.
    pub(super) own_last: Option<Duration>,
    /// Messages for the user that were not taken yet.
    pub(super) messages: VecDeque<String>,
}

/// A micro-batch of the present update.
pub(super) enum Slot {
    Free(Arc<Task>),
    /// By a worker, or by the trainer.
    Taken {
        task: Arc<Task>,
        by: Option<usize>,
    },
    Done(Contribution),
    /// The trainer has added what it contributes.
    Added,
}

/// What is known of a worker.
#[derive(Clone, Debug)]
pub(super) struct Colleague {
    pub(super) name: String,
    pub(super) state: Connection,
    /// Micro-batches that it has computed.
    pub(super) computed: usize,
    /// Micro-batches that it was sent and has not answered yet.
    pub(super) sent: usize,
    /// The longest time that it has taken for one.
    pub(super) longest: Option<Duration>,
    /// The time that it has taken for the last one.
    pub(super) last: Option<Duration>,
    /// When it is late with the micro-batch that it computes now, whether or not that still matters.
    pub(super) busy_until: Option<Instant>,
    /// Failures since it has computed a micro-batch.
    pub(super) failures: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
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

impl State {
    /// The first micro-batch that nobody has taken.
    pub(super) fn next_free(&self) -> Option<usize> {
        self.slots.iter().position(|slot| matches!(slot, Slot::Free(_)))
    }

    /// The first moment at which a worker is late.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let waited_for = self.colleagues.iter().filter(|colleague| colleague.state == Connection::Connected);
        waited_for.filter_map(|colleague| colleague.busy_until).min()
    }

    /// The micro-batch that a worker is sent next, if there is one for it. While it computes one, it is sent another, so that it does not
    /// wait for what goes back and forth.
    pub(super) fn next_for(&self, index: usize) -> Option<usize> {
        let is_wanted = match self.colleagues[index].sent {
            0 => true,
            1 => self.needs_more(index),
            _ => false,
        };
        self.next_free().filter(|_| is_wanted)
    }

    /// Whether the others will not have begun with all free micro-batches when the worker has computed the one that it has, going by the
    /// times of the last ones.
    fn needs_more(&self, index: usize) -> bool {
        let colleague = &self.colleagues[index];
        let is_there = |other: &Colleague| other.state == Connection::Connected;
        let workers = self
            .colleagues
            .iter()
            .enumerate()
            .filter(|(other, colleague)| *other != index && is_there(colleague));
        let mut times: Vec<Option<Duration>> = workers.map(|(_, other)| other.last).collect();
        times.extend(self.trainer_computes.then_some(self.own_last));
        let free = self.slots.iter().filter(|slot| matches!(slot, Slot::Free(_))).count();
        let others = times.len() as u32;
        let others_take_longer = || {
            let fastest = times.iter().flatten().min()?;
            Some(others * colleague.last? < free as u32 * *fastest)
        };
        is_there(colleague) && free > 0 && (others == 0 || others_take_longer() == Some(true))
    }

    /// Whether a worker may take a micro-batch.
    pub(super) fn has_workers(&self) -> bool {
        self.colleagues.iter().any(|colleague| colleague.state == Connection::Connected)
    }

    /// Frees the micro-batches of workers that have not answered in time. Returns whether there are any.
    pub(super) fn release_overdue(&mut self, now: Instant) -> bool {
        let is_late = |colleague: &Colleague| {
            colleague.state == Connection::Connected && colleague.busy_until.is_some_and(|until| until <= now)
        };
        let late: Vec<usize> =
            (0..self.colleagues.len()).filter(|&index| is_late(&self.colleagues[index])).collect();
        for &index in &late {
            self.release(index);
            let Colleague { name, state, .. } = &mut self.colleagues[index];
            *state = Connection::Late;
            let message = format!("worker {name} does not answer: its micro-batch is computed again");
            self.messages.push_back(message);
            self.notice_loneliness();
        }
        !late.is_empty()
    }

    /// Frees the micro-batches of this update that a worker has taken.
    pub(super) fn release(&mut self, index: usize) {
        for slot in &mut self.slots {
            if let Slot::Taken { task, by: Some(by) } = slot
                && *by == index
            {
                *slot = Slot::Free(Arc::clone(task));
            }
        }
    }

    pub(super) fn connected(&mut self, index: usize, remarks: Vec<String>) {
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
    pub(super) fn give_up_waiting(&mut self) {
        for index in 0..self.colleagues.len() {
            if self.colleagues[index].state == Connection::New {
                let reason = format!("it has not answered in {} s", CONNECTING.as_secs());
                self.failed(index, Failure::Lost(reason));
            }
        }
    }

    /// Leaves the present update, because the run has failed.
    pub(super) fn abandon_update(&mut self) {
        self.slots.clear();
        self.update += 1;
    }

    /// Notes that a connected worker has failed.
    pub(super) fn broke(&mut self, index: usize, failure: Failure) {
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
    pub(super) fn failed(&mut self, index: usize, failure: Failure) {
        let Colleague { name, state, busy_until, sent, .. } = &mut self.colleagues[index];
        (*busy_until, *sent) = (None, 0);
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
    pub(super) fn notice_loneliness(&mut self) {
        let waits = self.colleagues.iter().any(|colleague| colleague.state == Connection::New);
        if !waits && !self.has_workers() && self.messages.back().is_none_or(|last| last != ALONE) {
            self.messages.push_back(ALONE.to_owned());
        }
    }

    /// Notes what a worker has computed, unless somebody else was faster.
    pub(super) fn computed(
        &mut self,
        index: usize,
        (slot, update): (usize, u64),
        contribution: Contribution,
        (time, deadlines): (Duration, Deadlines),
    ) {
        let is_wanted = update == self.update && !matches!(self.slots[slot], Slot::Done(_) | Slot::Added);
        // An hour of sleep is no reason to wait for hours the next time.
        let counted = time.min(2 * self.colleagues[index].deadline(deadlines));
        let Colleague { name, state, computed, longest, last, failures, sent, .. } =
            &mut self.colleagues[index];
        *last = Some(time);
        if *state == Connection::Late {
            self.messages.push_back(format!(
                "worker {name} has answered after {:.0} s: it goes on",
                time.as_secs_f64()
            ));
        }
        *longest = Some(longest.map_or(counted, |longest| longest.max(counted)));
        (*state, *failures, *sent) = (Connection::Connected, 0, *sent - 1);
        if is_wanted {
            *computed += 1;
            self.slots[slot] = Slot::Done(contribution);
        }
        let colleague = &mut self.colleagues[index];
        let until = || Instant::now() + colleague.deadline(deadlines);
        colleague.busy_until = (colleague.sent > 0).then(until);
    }
}

impl Slot {
    /// The task of a free slot, which is then taken.
    pub(super) fn take(&mut self, by: impl Into<Option<usize>>) -> Option<Arc<Task>> {
        let Self::Free(task) = self else { return None };
        let task = Arc::clone(task);
        *self = Self::Taken { task: Arc::clone(&task), by: by.into() };
        Some(task)
    }

    /// The contribution of a slot that is done, which then counts as added.
    pub(super) fn take_done(&mut self) -> Option<Contribution> {
        if !matches!(self, Self::Done(_)) {
            return None;
        }
        let Self::Done(contribution) = std::mem::replace(self, Self::Added) else { return None };
        Some(contribution)
    }
}

impl Colleague {
    /// A worker that was not reached yet.
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            state: Connection::New,
            computed: 0,
            sent: 0,
            longest: None,
            last: None,
            busy_until: None,
            failures: 0,
        }
    }

    /// How long it may take for the next micro-batch.
    pub(super) fn deadline(&self, Deadlines { first, least, factor }: Deadlines) -> Duration {
        self.longest.map_or(first, |longest| least.max(factor * longest))
    }
}
