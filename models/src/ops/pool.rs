//! The threads that share an operation's tasks. Between operations they stay awake.
//!
//! A training step is hundreds of operations of a millisecond or less, microseconds apart. Threads that sleep in between have to be woken
//! for each; on a virtual machine they also give up their processors, and share the cores with others when they come back. So a thread
//! waits awake until nothing has come for [`PATIENCE`], as OpenMP's do; to whatever else is to run there it gives way.

use std::any::Any;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a thread waits awake: longer than what lies between two training steps.
const PATIENCE: Duration = Duration::from_millis(20);
/// How often a waiting thread looks before it gives way.
const LOOKS: usize = 16;

/// Runs `task` for every index below `tasks` on this thread and on those of the pool; together they are as many as rayon's global pool has.
/// While the pool works for another thread, or if `task` itself asks for more, all of it runs here.
///
/// # Panics
///
/// If a task does, once no other is running.
pub(super) fn run(tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    static POOL: LazyLock<&Pool> = LazyLock::new(|| Pool::start(rayon::current_num_threads() - 1));
    POOL.run(tasks, task);
}

/// What is written often has a pair of cache lines, which are fetched together, to itself.
#[repr(align(128))]
#[derive(Default)]
struct Apart<T>(T);

/// The tasks of one call.
struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    /// Each thread begins with one of its own, the same part of the rows in every operation, whose data may still lie in its cache.
    shares: Vec<Apart<Share>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Some tasks in order; those before `next` are begun.
struct Share {
    next: AtomicUsize,
    end: usize,
}

impl<'a> Job<'a> {
    fn new(tasks: usize, threads: usize, task: &'a (dyn Fn(usize) + Sync)) -> Self {
        let start = |thread: usize| thread * tasks / threads;
        let shares = (0..threads)
            .map(|thread| Apart(Share { next: AtomicUsize::new(start(thread)), end: start(thread + 1) }));
        Self { task, shares: shares.collect(), panic: Mutex::default() }
    }

    /// Runs tasks until all have begun. A panic is kept.
    fn work(&self, thread: usize) {
        let all = || {
            let (before, own) = self.shares.split_at(thread);
            for Apart(share) in own.iter().chain(before) {
                loop {
                    let index = share.next.fetch_add(1, Ordering::Relaxed);
                    if index >= share.end {
                        break;
                    }
                    (self.task)(index);
                }
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(all)) {
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
    }
}

struct Pool {
    /// Whether the helpers work for a caller.
    taken: AtomicBool,
    /// The job, while it runs.
    job: AtomicPtr<Job<'static>>,
    /// How many jobs there have been.
    round: Apart<AtomicU64>,
    helpers: Vec<Apart<Helper>>,
}

/// A thread beside the caller.
#[derive(Default)]
struct Helper {
    thread: OnceLock<Thread>,
    /// Whether it may be looking at the job.
    working: AtomicBool,
    asleep: AtomicBool,
}

impl Pool {
    /// A pool of so many helpers.
    fn start(helpers: usize) -> &'static Self {
        let pool: &Self = Box::leak(Box::new(Self {
            taken: AtomicBool::default(),
            job: AtomicPtr::default(),
            round: Apart::default(),
            helpers: (0..helpers).map(|_| Apart::default()).collect(),
        }));
        for index in 0..helpers {
            let builder = thread::Builder::new().name(format!("operations {index}"));
            // A thread that the system does not give is not missed: the others do its share.
            let _ = builder.spawn(move || pool.serve(index));
        }
        pool
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        if tasks < 2 || self.helpers.is_empty() || self.taken.swap(true, Ordering::Acquire) {
            return (0..tasks).for_each(task);
        }
        let job = Job::new(tasks, 1 + self.helpers.len(), task);
        self.job.store((&raw const job).cast_mut().cast(), Ordering::SeqCst);
        self.round.0.fetch_add(1, Ordering::SeqCst);
        for Apart(helper) in self.helpers.iter().take(tasks - 1) {
            if helper.asleep.load(Ordering::SeqCst) {
                helper.thread.get().expect("a thread that was awake").unpark();
            }
        }
        job.work(0);
        self.job.store(ptr::null_mut(), Ordering::SeqCst);
        // A helper that has not said that it works finds no job any more.
        for Apart(helper) in &self.helpers {
            wait(|| !helper.working.load(Ordering::SeqCst), None);
        }
        self.taken.store(false, Ordering::Release);
        if let Some(panic) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }

    /// Takes part in all jobs.
    fn serve(&self, index: usize) {
        let Apart(helper) = &self.helpers[index];
        helper.thread.get_or_init(thread::current);
        let mut seen = 0;
        loop {
            let came = || self.round.0.load(Ordering::SeqCst) != seen;
            if !wait(came, Some(PATIENCE)) {
                helper.asleep.store(true, Ordering::SeqCst);
                // Either this thread sees the job, or its caller sees that it sleeps.
                while !came() {
                    thread::park();
                }
                helper.asleep.store(false, Ordering::SeqCst);
            }
            seen = self.round.0.load(Ordering::SeqCst);
            helper.working.store(true, Ordering::SeqCst);
            let job = self.job.load(Ordering::SeqCst);
            if !job.is_null() {
                // SAFETY: the caller keeps the job until this thread does not work any more.
                unsafe { &*job }.work(1 + index);
            }
            helper.working.store(false, Ordering::SeqCst);
        }
    }
}

/// Waits awake until `done`, at most for as long as is said; whether it was.
fn wait(done: impl Fn() -> bool, patience: Option<Duration>) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if done() {
                return true;
            }
            spin_loop();
        }
        if patience.is_some_and(|patience| start.elapsed() > patience) {
            return false;
        }
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whoever_asks() {
        thread::scope(|scope| {
            for caller in 0..4 {
                scope.spawn(move || {
                    for round in 0..200 {
                        let tasks = (caller * 7 + round) % 40;
                        let times: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                        run(tasks, &|index| {
                            run(3, &|_| {
                                times[index].fetch_add(1, Ordering::Relaxed);
                            });
                        });
                        assert!(times.iter().all(|times| times.load(Ordering::Relaxed) == 3));
                    }
                });
            }
        });
    }

    #[test]
    fn a_helper_works_beside_its_caller_even_after_it_slept() {
        let pool = Pool::start(1);
        for pause in [Duration::ZERO, 4 * PATIENCE] {
            thread::sleep(pause);
            let begun = AtomicUsize::new(0);
            pool.run(2, &|_| {
                begun.fetch_add(1, Ordering::Relaxed);
                let both = || begun.load(Ordering::Relaxed) == 2;
                assert!(wait(both, Some(Duration::from_secs(60))), "the tasks did not run at the same time");
            });
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::start(1);
        for unlucky in 0..8 {
            let call = || pool.run(8, &|index| assert!(index != unlucky, "task {index}"));
            let panic = catch_unwind(call).expect_err("a task panics");
            assert_eq!(*panic.downcast::<String>().expect("a message"), format!("task {unlucky}"));
        }
        let done = AtomicUsize::new(0);
        pool.run(8, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 8);
    }
}
