//! Tests of the pool with workers that fail in every way.
#![allow(clippy::unwrap_used)]
use std::convert::Infallible;
use std::sync::atomic::AtomicUsize;

use vitrine_models::preset;

use super::*;
use crate::events::Quiet;
use crate::learner::micro_batch::{MicroBatch, ReplicaConfig};
use crate::recipe::Precision;
use crate::workers::Weights;

const SHORT: Deadlines =
    Deadlines { first: Duration::from_millis(500), least: Duration::from_millis(500), factor: 4 };

/// What a worker of a test does with its tasks, one after the other; the last one stays.
#[derive(Clone, Debug, PartialEq)]
enum Habit {
    Answers,
    /// The connection breaks.
    Dies,
    /// Answers long after the deadline.
    Sleeps,
    /// Never answers.
    Freezes,
    Refuses,
}

struct Fake {
    habits: Vec<Habit>,
    /// The outcomes of attempts to connect before one succeeds.
    unreachable: Vec<Failure>,
}

fn fake(habits: &[Habit]) -> Box<dyn Worker> {
    Box::new(Fake { habits: habits.to_vec(), unreachable: Vec::new() })
}

impl Worker for Fake {
    fn name(&self) -> String {
        format!("{:?}", self.habits.last())
    }

    fn connect(&mut self) -> Result<Vec<String>, Failure> {
        self.unreachable.pop().map_or(Ok(Vec::new()), Err)
    }

    fn send(&mut self, task: &Task) -> Result<Answer, Failure> {
        let habit = if self.habits.len() > 1 { self.habits.remove(0) } else { self.habits[0].clone() };
        let contribution = contribution(task);
        Ok(Box::pin(async move {
            match habit {
                Habit::Answers => thread::sleep(Duration::from_millis(2)),
                Habit::Dies => return Err(Failure::Lost("it died".to_owned())),
                Habit::Refuses => return Err(Failure::Refused("no memory".to_owned())),
                Habit::Sleeps => thread::sleep(Duration::from_secs(2)),
                Habit::Freezes => std::future::pending().await,
            }
            Ok(contribution)
        }))
    }
}

/// A worker that answers a task when it was sent the next one, or when there is none.
struct Eager {
    /// The number of tasks that it was sent.
    sent: Arc<AtomicUsize>,
    tasks: usize,
}

impl Worker for Eager {
    fn name(&self) -> String {
        "eager".to_owned()
    }

    fn connect(&mut self) -> Result<Vec<String>, Failure> {
        Ok(Vec::new())
    }

    fn send(&mut self, task: &Task) -> Result<Answer, Failure> {
        let needed = (self.sent.fetch_add(1, Ordering::SeqCst) + 2).min(self.tasks);
        let (sent, contribution) = (Arc::clone(&self.sent), contribution(task));
        Ok(Box::pin(async move {
            std::future::poll_fn(|context| {
                if sent.load(Ordering::SeqCst) >= needed {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
            Ok(contribution)
        }))
    }
}

#[test]
fn a_worker_has_its_next_task_before_it_has_answered_the_one_before() {
    let worker = Box::new(Eager { sent: Arc::default(), tasks: 6 });
    let pool = Pool::new(vec![worker], false, Deadlines { first: Duration::from_secs(20), ..SHORT });
    pool.wait_for_connections(&Quiet).unwrap();
    updates(&pool, 1);
    assert_eq!((pool.shares().0[0].1, said(&pool).as_str()), (6, ""));
}

#[test]
fn the_last_tasks_are_left_to_whoever_is_free_first() {
    let seconds = Duration::from_secs;
    for (trainer_computes, free, took, is_sent) in [
        (true, 2, Some(1), true),
        (true, 1, Some(1), false),
        // The trainer is three times as fast, or the worker may be slow.
        (true, 2, Some(3), false),
        (true, 9, None, false),
        (false, 1, None, true),
        (false, 0, Some(1), false),
    ] {
        let last = took.map(seconds);
        let busy = Colleague { sent: 1, last, ..colleague(Connection::Connected) };
        let state = State {
            slots: (0..free).map(|seed| Slot::Free(Arc::new(task(seed)))).collect(),
            update: 0,
            is_over: false,
            trainer_computes,
            colleagues: vec![busy, colleague(Connection::Lost)],
            own: 0,
            own_last: Some(seconds(1)),
            messages: VecDeque::new(),
        };
        assert_eq!(state.next_for(0).is_some(), is_sent, "{trainer_computes} {free} {took:?}");
    }
}

/// A worker that has done nothing yet.
fn colleague(state: Connection) -> Colleague {
    Colleague { state, ..Colleague::new(String::new()) }
}

/// A contribution from which the task can be told.
fn contribution(task: &Task) -> Contribution {
    Contribution {
        loss: task.batch.seed as f32,
        answers: Vec::new(),
        has_gradient: Vec::new(),
        values: Vec::new(),
    }
}

fn task(seed: u64) -> Task {
    let model = preset::find("vit_pico_patch4_32").unwrap();
    let image_size = model.image_size;
    let precision = Precision::F32;
    let config =
        ReplicaConfig { model, freeze: None, multi_label: false, gradient_checkpointing: false, precision };
    let weights = Weights { version: 0, values: Vec::new(), sizes: Vec::new() };
    let batch = MicroBatch { size: 1, image_size, images: Vec::new(), targets: Vec::new(), seed };
    Task { config: Arc::new(config), weights: Arc::new(weights), batch }
}

/// Computes updates of six micro-batches and checks that nothing is lost, doubled, or out of order.
fn updates(pool: &Pool, count: u64) {
    for update in 0..count {
        let seeds: Vec<u64> = (0..6).map(|part| 10 * update + part).collect();
        seeds.iter().for_each(|seed| pool.submit(task(*seed)));
        let compute = |task: &Task| {
            thread::sleep(Duration::from_millis(5));
            Ok::<_, Infallible>(contribution(task))
        };
        let mut found = Vec::new();
        let Ok(()) = pool.finish(compute, |contribution| found.push(contribution.loss as u64));
        assert_eq!(found, seeds);
    }
}

fn said(pool: &Pool) -> String {
    pool.messages().join("\n")
}

#[test]
fn contributions_come_in_order_whoever_computes_them() {
    let pool = Pool::new(vec![fake(&[Habit::Answers]), fake(&[Habit::Answers])], true, SHORT);
    pool.wait_for_connections(&Quiet).unwrap();
    updates(&pool, 20);
    let (workers, own) = pool.shares();
    assert_eq!(workers.iter().map(|(_, computed)| computed).sum::<usize>() + own, 120);
    assert!(own > 0 && workers.iter().all(|(_, computed)| *computed > 0), "{workers:?}, {own}");
    assert_eq!(said(&pool), "");
}

#[test]
fn whatever_fails_is_computed_by_others() {
    use Habit::{Answers, Dies, Freezes, Refuses, Sleeps};
    for (habits, part) in [
        (vec![Answers, Dies, Answers], "is lost: it died; it is tried again"),
        (vec![Answers, Freezes], "does not answer"),
        (vec![Sleeps, Answers], "does not answer"),
        (vec![Answers, Refuses], "refuses: no memory"),
    ] {
        for trainer_computes in [true, false] {
            let workers = vec![fake(&habits), fake(&[Answers])];
            let pool = Pool::new(workers, trainer_computes, SHORT);
            pool.wait_for_connections(&Quiet).unwrap();
            let mut all = String::new();
            while !all.contains(part) {
                updates(&pool, 1);
                all.push_str(&said(&pool));
            }
            updates(&pool, 3);
            // On a busy machine any worker may be late.
            let is_alone = all.contains("alone") || said(&pool).contains("alone");
            assert!(pool.shares().1 == 0 || trainer_computes || is_alone, "{habits:?}: {all}");
        }
    }
}

#[test]
fn a_worker_that_was_late_or_lost_takes_part_again() {
    use Habit::{Answers, Dies, Sleeps};
    for habits in [vec![Sleeps, Answers], vec![Dies, Answers]] {
        let pool = Pool::new(vec![fake(&habits)], true, SHORT);
        pool.wait_for_connections(&Quiet).unwrap();
        // Until it is there again, after two seconds.
        while pool.shares().0[0].1 == 0 {
            updates(&pool, 1);
        }
        let said = said(&pool);
        assert!(said.contains("goes on") || said.contains("is there"), "{said}");
    }
}

#[test]
fn without_workers_the_trainer_goes_on_alone_and_says_so() {
    use Habit::{Answers, Dies, Freezes};
    for habits in [vec![Dies], vec![Answers, Freezes]] {
        let pool = Pool::new(vec![fake(&habits), fake(&habits)], false, SHORT);
        pool.wait_for_connections(&Quiet).unwrap();
        updates(&pool, 5);
        assert!(said(&pool).contains("no worker is left: this process goes on alone"), "{habits:?}");
        assert!(pool.shares().1 > 0);
    }
}

#[test]
fn a_refusal_ends_the_run_before_it_begins_and_absence_does_not() {
    let failing = |failure: &Failure| -> Box<dyn Worker> {
        Box::new(Fake { habits: vec![Habit::Answers], unreachable: vec![failure.clone()] })
    };
    let absent = Failure::Lost("it cannot be reached".to_owned());
    let pool = Pool::new(vec![failing(&absent), fake(&[Habit::Answers])], true, SHORT);
    pool.wait_for_connections(&Quiet).unwrap();
    updates(&pool, 3);
    let refusal = Failure::Refused("the token is wrong".to_owned());
    let pool = Pool::new(vec![failing(&refusal), fake(&[Habit::Answers])], true, SHORT);
    let message = pool.wait_for_connections(&Quiet).unwrap_err().to_string();
    assert!(message.contains("refuses: the token is wrong"), "{message}");
    let pool = Pool::new(vec![failing(&refusal)], true, SHORT);
    let message = pool.wait_for_connections(&Quiet).unwrap_err().to_string();
    assert!(message.contains("refuses") && !message.contains("goes on"), "{message}");
}

#[test]
fn deadlines_follow_the_longest_time() {
    let mut colleague = colleague(Connection::Connected);
    let deadlines = Deadlines { first: Duration::from_secs(60), ..SHORT };
    assert_eq!(colleague.deadline(deadlines), Duration::from_secs(60));
    colleague.longest = Some(Duration::from_millis(1));
    assert_eq!(colleague.deadline(deadlines), SHORT.least);
    colleague.longest = Some(Duration::from_secs(2));
    assert_eq!(colleague.deadline(deadlines), Duration::from_secs(8));
}
