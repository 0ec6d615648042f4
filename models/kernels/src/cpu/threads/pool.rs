//! The thread pool of the operations, whose threads stay awake between operations.
//!
//! A training step consists of hundreds of operations of a millisecond or less, most of them microseconds apart.
//! Threads that slept in between would have to be woken for each operation; on a virtual machine, their cores may run
//! something else by then. A thread therefore waits awake for [`PATIENCE`] after its last job, as OpenMP's threads do,
//! and yields its CPU to other threads in the meantime.
//!
//! ```text
//! caller                                       helper
//! writes the address of the job to each helper waits until its address is set
//! runs tasks                                   takes the address, runs tasks, counts itself as done
//! takes back addresses that no helper took
//! waits until all helpers that took it are done
//! ```

use crossbeam_utils::CachePadded;
use std::any::Any;
use std::hint::spin_loop;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long a thread waits awake: longer than the pauses between most operations of a step. Longer pauses (operations
/// of burn itself, waiting for data) end with waking the threads, which costs little compared with the pause.
const PATIENCE: Duration = Duration::from_micros(500);
/// How often a waiting thread checks before it yields its CPU.
const LOOKS: usize = 16;

/// Runs `task` for every index below `tasks`, on this thread and threads of the pool. Together they are as many as
/// rayon has where this is called, but no more than rayon had at the first call. If the pool is in use, by another
/// thread or because a task calls this function, all tasks run on this thread.
///
/// # Panics
///
/// If a task panics, after all other tasks that have begun are over.
pub(crate) fn run(tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    pool().run(tasks, rayon::current_num_threads(), task);
}

/// The pool of the program, which the first call starts.
fn pool() -> &'static Pool {
    // An atomic, because ThreadSanitizer does not see how the standard library's `LazyLock` synchronizes.
    static POOL: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());
    static STARTING: Mutex<()> = Mutex::new(());
    // SAFETY: a pointer that is not null is that of a pool which is never freed, and which was complete before it was stored.
    let started = || unsafe { POOL.load(Ordering::Acquire).as_ref() };
    started().unwrap_or_else(|| {
        let _guard = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        started().unwrap_or_else(|| {
            let pool = Pool::start(rayon::current_num_threads() - 1);
            POOL.store(ptr::from_ref(pool).cast_mut(), Ordering::Release);
            pool
        })
    })
}

/// The tasks of one call.
struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    /// A share of the tasks for each thread to begin with. If there are enough tasks, this is the same part of the rows
    /// in every operation, whose data the thread's cache may still hold.
    shares: Vec<CachePadded<Share>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A range of tasks; those before `next` have begun.
struct Share {
    next: AtomicUsize,
    end: usize,
}

impl<'a> Job<'a> {
    fn new(tasks: usize, threads: usize, task: &'a (dyn Fn(usize) + Sync)) -> Self {
        let start = |thread: usize| thread * tasks / threads;
        let shares = (0..threads).map(|thread| {
            CachePadded::new(Share { next: AtomicUsize::new(start(thread)), end: start(thread + 1) })
        });
        Self { task, shares: shares.collect(), panic: Mutex::default() }
    }

    /// Runs tasks until all tasks of the job have begun. Keeps a panic for the caller.
    fn work(&self, thread: usize) {
        let all = || {
            let (before, own) = self.shares.split_at(thread);
            for share in own.iter().chain(before) {
                while share.next.load(Ordering::Relaxed) < share.end {
                    let index = share.next.fetch_add(1, Ordering::Relaxed);
                    if index < share.end {
                        (self.task)(index);
                    }
                }
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(all)) {
            let earlier = self.panic.lock().unwrap_or_else(PoisonError::into_inner).replace(panic);
            // Dropping the payload of a panic may panic, too.
            mem::forget(earlier);
        }
    }
}

struct Pool {
    /// Whether a caller uses the helpers.
    taken: AtomicBool,
    /// How many helpers have finished the job.
    done: CachePadded<AtomicUsize>,
    helpers: Vec<CachePadded<Helper>>,
}

/// A thread of the pool.
#[derive(Default)]
struct Helper {
    /// The job to take part in, until the helper takes it or the caller takes it back.
    job: AtomicPtr<Job<'static>>,
    thread: OnceLock<Thread>,
    asleep: AtomicBool,
}

impl Pool {
    /// Starts a pool of this many helpers, which lives as long as the program.
    fn start(helpers: usize) -> &'static Self {
        let pool: &Self = Box::leak(Box::new(Self {
            taken: AtomicBool::default(),
            done: CachePadded::default(),
            helpers: (0..helpers).map(|_| CachePadded::default()).collect(),
        }));
        for index in 0..helpers {
            let builder = thread::Builder::new().name(format!("operations {index}"));
            // If the system refuses a thread, the others run its share of the tasks.
            let _ = builder.spawn(move || pool.serve(index));
        }
        pool
    }

    /// [`run`] on at most this many threads.
    fn run(&self, tasks: usize, threads: usize, task: &(dyn Fn(usize) + Sync)) {
        let threads = threads.min(1 + self.helpers.len()).min(tasks);
        if threads < 2 || self.taken.swap(true, Ordering::Acquire) {
            return (0..tasks).for_each(task);
        }
        let helpers = &self.helpers[..threads - 1];
        let job = Job::new(tasks, threads, task);
        self.done.store(0, Ordering::Relaxed);
        for helper in helpers {
            helper.job.store((&raw const job).cast_mut().cast(), Ordering::SeqCst);
            if helper.asleep.load(Ordering::SeqCst)
                && let Some(thread) = helper.thread.get()
            {
                thread.unpark();
            }
        }
        job.work(0);
        let took = |helper: &Helper| helper.job.swap(ptr::null_mut(), Ordering::Acquire).is_null();
        let working = helpers.iter().filter(|helper| took(helper)).count();
        // From here on, no helper can take the job. The caller waits for those that did, because the job lies on its
        // stack.
        wait(|| self.done.load(Ordering::Acquire) == working, None);
        self.taken.store(false, Ordering::Release);
        if let Some(panic) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
    }

    /// The loop of a helper: takes part in every job.
    fn serve(&self, index: usize) {
        let helper = &self.helpers[index];
        helper.thread.get_or_init(thread::current);
        let came = || !helper.job.load(Ordering::SeqCst).is_null();
        loop {
            if !wait(came, Some(PATIENCE)) {
                helper.asleep.store(true, Ordering::SeqCst);
                // Sequential consistency: either this thread sees the job, or the caller sees that this thread sleeps
                // and wakes it.
                while !came() {
                    thread::park();
                }
                helper.asleep.store(false, Ordering::SeqCst);
            }
            let job = helper.job.swap(ptr::null_mut(), Ordering::Acquire);
            // SAFETY: `run` keeps the job alive until every helper that took its address has counted itself as done.
            if let Some(job) = unsafe { job.as_ref() } {
                job.work(index + 1);
                self.done.fetch_add(1, Ordering::Release);
            }
        }
    }
}

/// Waits awake until `done` returns true, or for `patience` at most; returns whether it did.
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

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn every_task_runs_once_whichever_thread_calls() {
        let pool = Pool::start(3);
        thread::scope(|scope| {
            for caller in 0..4 {
                scope.spawn(move || {
                    for round in 0..200 {
                        let tasks = (caller * 7 + round) % 40;
                        let times: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                        pool.run(tasks, 1 + round % 6, &|index| {
                            pool.run(3, 4, &|_| {
                                times[index].fetch_add(1, Ordering::Relaxed);
                            });
                        });
                        assert!(times.iter().all(|times| times.load(Ordering::Relaxed) == 3));
                    }
                });
            }
        });
    }

    /// A race, as a task would have it that is given the memory of another.
    #[test]
    #[ignore = "`.ci/sanitize` runs it to see that ThreadSanitizer reports it"]
    fn tasks_that_write_to_the_same_place() {
        struct Place(std::cell::UnsafeCell<usize>);
        // SAFETY: there is none. The test is run under ThreadSanitizer alone.
        unsafe impl Sync for Place {}
        let (pool, begun, place) = (Pool::start(1), AtomicUsize::new(0), Place(0.into()));
        let place = &place;
        pool.run(2, 2, &|_| {
            begun.fetch_add(1, Ordering::Relaxed);
            let both = || begun.load(Ordering::Relaxed) == 2;
            assert!(wait(both, Some(LONG)), "the tasks must run at the same time");
            // Often, because ThreadSanitizer misses accesses at the very same time.
            for _ in 0..1000 {
                // SAFETY: as above.
                unsafe { *std::hint::black_box(place.0.get()) += 1 };
            }
        });
    }

    #[test]
    fn helpers_work_with_their_caller_even_after_they_slept() {
        let pool = Pool::start(2);
        for _ in 0..2 {
            let begun = AtomicUsize::new(0);
            pool.run(3, 3, &|_| {
                begun.fetch_add(1, Ordering::Relaxed);
                let all = || begun.load(Ordering::Relaxed) == 3;
                assert!(wait(all, Some(LONG)), "the tasks must run at the same time");
            });
            let asleep = || pool.helpers.iter().all(|helper| helper.asleep.load(Ordering::SeqCst));
            assert!(wait(asleep, Some(LONG)), "the helpers must fall asleep");
        }
    }

    #[test]
    fn no_more_threads_work_than_the_caller_asks_for() {
        let pool = Pool::start(3);
        let (working, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        for _ in 0..20 {
            pool.run(8, 2, &|_| {
                most.fetch_max(1 + working.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
                thread::sleep(Duration::from_millis(1));
                working.fetch_sub(1, Ordering::SeqCst);
            });
        }
        assert!(most.into_inner() <= 2);
    }

    #[test]
    fn a_panic_reaches_the_caller_once_no_task_runs_and_the_pool_goes_on() {
        let pool = Pool::start(1);
        for unlucky in 0..8 {
            let running = AtomicUsize::new(0);
            let call = || {
                pool.run(8, 2, &|index| {
                    running.fetch_add(1, Ordering::SeqCst);
                    assert!(index != unlucky, "task {index}");
                    thread::sleep(Duration::from_millis(5));
                    running.fetch_sub(1, Ordering::SeqCst);
                });
            };
            let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("a task panics");
            assert_eq!(*panic.downcast::<String>().expect("a message"), format!("task {unlucky}"));
            assert_eq!(running.into_inner(), 1, "tasks other than the one that panicked");
        }
        let done = AtomicUsize::new(0);
        pool.run(8, 2, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 8);
    }
}
