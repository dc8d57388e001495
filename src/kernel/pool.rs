//! The thread pool of the kernels: fork-join over numbered tasks.
//!
//! Every thread starts on an equal run of consecutive tasks, so that what it reads is one stream; who is done takes half
//! of what another has left. A decode step has a few hundred joins, some of a few microseconds, so workers spin for a
//! moment before they park, and the caller never waits for a worker that has not joined in: it takes that one's tasks.
//! Knows nothing of what the tasks do.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::memory::prefetch;

/// How long a worker looks for the next job before it parks.
const WORKER_SPIN: Duration = Duration::from_micros(50);
/// How long the caller looks for the last task's end before it blocks.
const CALLER_SPIN: Duration = Duration::from_micros(50);

/// `state`: the job's number in the high half; below it whether it may be joined, whether the caller blocks,
/// and how many workers are inside.
const OPEN: u64 = 1 << 31;
const CALLER_BLOCKED: u64 = 1 << 30;
const ACTIVE: u64 = CALLER_BLOCKED - 1;
const EPOCH_SHIFT: u32 = 32;

thread_local! {
    /// Set while this thread runs a pool's task: a `run` from inside it stays on this thread.
    static INSIDE_TASK: Cell<bool> = const { Cell::new(false) };
}

/// What a job calls with the number of each task.
type Job = *const (dyn Fn(usize) + Sync);

/// The tasks from `start` to before `end` as one word.
fn pack(start: u32, end: u32) -> u64 {
    u64::from(start) << 32 | u64::from(end)
}

/// The task that a thread begins with. Rounded up: the caller, who is awake, has no fewer than others.
pub(super) fn first_task(tasks: usize, thread: usize, threads: usize) -> usize {
    (tasks as u128 * thread as u128).div_ceil(threads as u128) as usize
}

/// What [`pack`] packed.
fn unpack(range: u64) -> (u32, u32) {
    ((range >> 32) as u32, range as u32)
}

/// Bytes of a cache line.
const LINE: u64 = 64;
const LINES_SHIFT: u32 = 16;
const MOST_LINES: u64 = (1 << LINES_SHIFT) - 1;

/// How far a thread has got with what it expects to read.
#[derive(Default)]
struct Progress {
    expected: u64,
    lines: u64,
}

impl Progress {
    /// Brings a few more lines closer, if something is expected that is not there yet.
    fn go_on(&mut self, expected: &AtomicU64) {
        let expected = expected.load(Ordering::Relaxed);
        if expected != self.expected {
            *self = Progress { expected, lines: 0 };
        }
        let end = (expected & MOST_LINES).min(self.lines + 4);
        if self.lines == end {
            std::hint::spin_loop();
        }
        for line in self.lines..end {
            prefetch::<false>((((expected >> LINES_SHIFT) + line) * LINE) as *const u8);
        }
        self.lines = end;
    }
}

/// Keeps the counters that different threads write on different cache lines.
#[repr(align(128))]
struct Line<T>(T);

/// What one thread has for itself.
#[derive(Default)]
struct Own {
    /// Its tasks that nobody has begun; see [`pack`].
    range: AtomicU64,
    /// Lines of memory that it reads next: the number of the first above [`LINES_SHIFT`], how many below.
    expected: AtomicU64,
}

struct Shared {
    state: Line<AtomicU64>,
    /// For each thread.
    own: Box<[Line<Own>]>,
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    quit: AtomicBool,
    parked: AtomicUsize,
    park_lock: Mutex<()>,
    wake: Condvar,
    done_lock: Mutex<()>,
    done: Condvar,
}

// SAFETY: `job` is the only part that is not Send + Sync. It is written by the thread that holds `Pool::turn`
// while no job is open and no worker is inside, and read by workers only after they joined an open job; `state`
// orders the two. The closure behind the pointer is Sync and outlives the job, since `run` returns only when
// the job is closed and empty.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// A fixed set of threads that run numbered tasks. Several engines may share one; their jobs take turns.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held while a job runs, with how far its caller has got with what it expects.
    turn: Mutex<Progress>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// A pool of `threads` threads, one of which is the caller of [`run`](Self::run): `threads - 1` are started.
    /// 0 counts as 1.
    ///
    /// # Errors
    /// The operating system's error when a thread cannot be started.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared {
            state: Line(AtomicU64::new(0)),
            own: (0..threads.max(1)).map(|_| Line(Own::default())).collect(),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            quit: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            park_lock: Mutex::new(()),
            wake: Condvar::new(),
            done_lock: Mutex::new(()),
            done: Condvar::new(),
        });
        // Built first, so that an error below drops it, which ends the workers already started.
        let mut pool = Pool { shared, workers: Vec::new(), turn: Mutex::default() };
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("candlewick-{index}"));
            pool.workers.push(builder.spawn(move || shared.work(index))?);
        }
        Ok(pool)
    }

    /// Threads that take part in a job, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f(0)`, `f(1)`, … `f(tasks - 1)`, each once, on any thread of the pool and in any order, and returns
    /// when all have ended. Callers on different threads take turns; a call from inside a task (of any pool), or with
    /// more tasks than a u32 counts, runs on that thread alone.
    ///
    /// # Panics
    /// If a task panics, the others still run; then the first panic continues here. The pool stays usable.
    pub fn run(&self, tasks: usize, f: &(dyn Fn(usize) + Sync)) {
        let numbers = u32::try_from(tasks);
        let alone = tasks <= 1 || self.workers.is_empty() || INSIDE_TASK.get();
        let Some(numbers) = numbers.ok().filter(|_| !alone) else {
            let mut panic = None;
            for task in 0..tasks {
                run_task(f, task, |payload| keep_first(&mut panic, payload));
            }
            if let Some(payload) = panic {
                resume_unwind(payload);
            }
            return;
        };
        let mut turn = lock(&self.turn);
        self.shared.open(f, numbers);
        self.shared.take_tasks(0, f);
        self.shared.close(&mut turn);
        let panic = lock(&self.shared.panic).take();
        drop(turn);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Pool {
    /// Says what each thread will read first in a job to come: `first(thread)` is its address and length in bytes. Threads
    /// that wait bring it closer, until something else is expected. Any address is allowed.
    pub(super) fn expect(&self, first: impl Fn(usize) -> (*const u8, usize)) {
        for (thread, own) in self.shared.own.iter().enumerate() {
            let (address, len) = first(thread);
            let lines = (len as u64 / LINE).min(MOST_LINES);
            own.0.expected.store(((address as u64 / LINE) << LINES_SHIFT) | lines, Ordering::Relaxed);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::SeqCst);
        {
            let _guard = lock(&self.shared.park_lock);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker cannot panic: tasks are caught.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// Offers a job to the workers. The caller holds the turn and no job is open.
    fn open(&self, f: &(dyn Fn(usize) + Sync), tasks: u32) {
        // SAFETY: only the lifetime changes; `close` ends every use before `run` returns.
        let run: *const (dyn Fn(usize) + Sync) =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(f) };
        // SAFETY: no job is open and no worker is inside, so nothing reads `job` now.
        unsafe { *self.job.get() = Some(run) };
        let threads = self.own.len();
        // At most `tasks`, which is a u32.
        let start = |thread: usize| first_task(tasks as usize, thread, threads) as u32;
        for (thread, own) in self.own.iter().enumerate() {
            own.0.range.store(pack(start(thread), start(thread + 1)), Ordering::Relaxed);
        }
        let epoch = (self.state.0.load(Ordering::Relaxed) >> EPOCH_SHIFT).wrapping_add(1) & u64::from(u32::MAX);
        // SeqCst here and on `parked`: either the worker sees the job, or the caller sees the parked worker.
        self.state.0.store(epoch << EPOCH_SHIFT | OPEN, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst) > 0 {
            let _guard = lock(&self.park_lock);
            self.wake.notify_all();
        }
    }

    /// Lets no more workers in and waits until none is inside.
    fn close(&self, progress: &mut Progress) {
        if self.state.0.fetch_and(!OPEN, Ordering::AcqRel) & ACTIVE == 0 {
            return;
        }
        let empty = || self.state.0.load(Ordering::Acquire) & ACTIVE == 0;
        if spin_until(CALLER_SPIN, || empty() || self.meanwhile(0, progress)) {
            return;
        }
        self.state.0.fetch_or(CALLER_BLOCKED, Ordering::AcqRel);
        let mut guard = lock(&self.done_lock);
        while !empty() {
            guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Runs tasks until none is left to take. `me` is this thread's number.
    fn take_tasks(&self, me: usize, f: &(dyn Fn(usize) + Sync)) {
        while let Some(task) = self.next_own(me).or_else(|| self.steal(me)) {
            run_task(f, task as usize, |payload| keep_first(&mut lock(&self.panic), payload));
        }
    }

    /// The first task of this thread's range. Whose it is is all that threads settle here, so no order is asked for.
    fn next_own(&self, me: usize) -> Option<u32> {
        let next = |range| {
            let (start, end) = unpack(range);
            (start < end).then(|| pack(start + 1, end))
        };
        let taken = self.own[me].0.range.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        taken.ok().map(|range| unpack(range).0)
    }

    /// Takes the latter half of another thread's range, whose first task is returned and whose rest becomes this
    /// thread's. `None` when nobody has any. Tasks that are changing hands at that moment are not seen: who took them does
    /// them, without this thread's help.
    fn steal(&self, me: usize) -> Option<u32> {
        let shorter = |range| {
            let (start, end) = unpack(range);
            (start < end).then(|| pack(start, start + (end - start) / 2))
        };
        (me + 1..self.own.len()).chain(0..me).find_map(|other| {
            let old = self.own[other].0.range.fetch_update(Ordering::Relaxed, Ordering::Relaxed, shorter).ok()?;
            let (start, end) = unpack(old);
            let first = start + (end - start) / 2;
            // This thread's range is empty, so nobody takes from it before this.
            self.own[me].0.range.store(pack(first + 1, end), Ordering::Relaxed);
            Some(first)
        })
    }

    /// What thread `me` does between two looks at what it waits for. Always false.
    fn meanwhile(&self, me: usize, progress: &mut Progress) -> bool {
        progress.go_on(&self.own[me].0.expected);
        false
    }

    /// A worker's life.
    fn work(&self, me: usize) {
        let mut seen = 0u64;
        let mut progress = Progress::default();
        while self.wait_for_job(seen, me, &mut progress) {
            let state = self.state.0.load(Ordering::Acquire);
            if state & OPEN == 0 || state >> EPOCH_SHIFT == seen {
                continue;
            }
            if self.state.0.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            seen = state >> EPOCH_SHIFT;
            // SAFETY: this worker is inside an open job, so `job` is set and not written until it leaves.
            if let Some(job) = unsafe { *self.job.get() } {
                // SAFETY: the closure lives until the job is closed and empty; this worker is inside.
                self.take_tasks(me, unsafe { &*job });
            }
            let before = self.state.0.fetch_sub(1, Ordering::AcqRel);
            if before & ACTIVE == 1 && before & CALLER_BLOCKED != 0 {
                let _guard = lock(&self.done_lock);
                self.done.notify_all();
            }
        }
    }

    /// Returns true when an open job other than `seen` is offered, false when the pool ends.
    fn wait_for_job(&self, seen: u64, me: usize, progress: &mut Progress) -> bool {
        let ready = || {
            let state = self.state.0.load(Ordering::SeqCst);
            (state & OPEN != 0 && state >> EPOCH_SHIFT != seen) || self.quit.load(Ordering::SeqCst)
        };
        if !spin_until(WORKER_SPIN, || ready() || self.meanwhile(me, progress)) {
            let mut guard = lock(&self.park_lock);
            self.parked.fetch_add(1, Ordering::SeqCst);
            while !ready() {
                guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
        }
        !self.quit.load(Ordering::SeqCst)
    }
}

/// Runs one task and hands a panic to `caught`.
fn run_task(f: &(dyn Fn(usize) + Sync), task: usize, caught: impl FnOnce(Box<dyn Any + Send>)) {
    let outer = INSIDE_TASK.replace(true);
    // The payload is resumed on the caller, who sees whatever state the task left behind, as with a plain loop.
    let result = catch_unwind(AssertUnwindSafe(|| f(task)));
    INSIDE_TASK.set(outer);
    if let Err(payload) = result {
        caught(payload);
    }
}

fn keep_first(slot: &mut Option<Box<dyn Any + Send>>, payload: Box<dyn Any + Send>) {
    if slot.is_none() {
        *slot = Some(payload);
    }
}

/// Polls `ready` for at most `limit`; whether it came true.
fn spin_until(limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
    // A look at the clock costs as much as some dozens of polls.
    const POLLS_PER_LOOK: u32 = 64;
    let mut start = None;
    loop {
        for _ in 0..POLLS_PER_LOOK {
            if ready() {
                return true;
            }
        }
        let now = Instant::now();
        if now.duration_since(*start.get_or_insert(now)) >= limit {
            return false;
        }
    }
}

/// A poisoned lock guards nothing that a panic could have broken.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
