//! The pool: every task once, whatever the threads, nesting, panics and callers.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::kernel::{KernelLevel, Pool};

fn counts(pool: &Pool, tasks: usize) -> Vec<usize> {
    let seen: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    pool.run(tasks, &|task| {
        seen[task].fetch_add(1, Ordering::Relaxed);
    });
    seen.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_task_runs_once() {
    for threads in [1, 2, 3, 5] {
        let pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads);
        for tasks in [0, 1, 2, 3, 7, 100] {
            assert_eq!(counts(&pool, tasks), vec![1; tasks], "{threads} threads, {tasks} tasks");
        }
    }
}

#[test]
fn zero_threads_means_the_caller_alone() {
    let pool = Pool::new(0).unwrap();
    assert_eq!(pool.threads(), 1);
    let caller = std::thread::current().id();
    pool.run(4, &|_| assert_eq!(std::thread::current().id(), caller));
}

#[test]
fn many_short_jobs_and_pauses_long_enough_to_park() {
    let pool = Pool::new(3).unwrap();
    for round in 0..2000 {
        assert_eq!(counts(&pool, 5), vec![1; 5]);
        if round % 400 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn the_caller_waits_for_a_slow_worker() {
    let pool = Pool::new(2).unwrap();
    let ended = AtomicUsize::new(0);
    for _ in 0..10 {
        ended.store(0, Ordering::SeqCst);
        pool.run(2, &|_| {
            std::thread::sleep(Duration::from_millis(3));
            ended.fetch_add(1, Ordering::SeqCst);
        });
        assert_eq!(ended.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn work_is_shared_with_the_workers() {
    let pool = Pool::new(2).unwrap();
    let threads = std::sync::Mutex::new(std::collections::HashSet::new());
    pool.run(8, &|_| {
        std::thread::sleep(Duration::from_millis(5));
        threads.lock().unwrap().insert(std::thread::current().id());
    });
    assert_eq!(threads.into_inner().unwrap().len(), 2);
}

#[test]
fn a_nested_run_stays_on_its_thread() {
    let pool = Pool::new(2).unwrap();
    let other = Pool::new(2).unwrap();
    let total = AtomicUsize::new(0);
    pool.run(4, &|_| {
        let here = std::thread::current().id();
        for inner in [&pool, &other] {
            inner.run(3, &|_| {
                assert_eq!(std::thread::current().id(), here);
                total.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(total.into_inner(), 4 * 2 * 3);
}

#[test]
fn callers_on_several_threads_take_turns() {
    let pool = Pool::new(2).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for tasks in 0..200 {
                    assert_eq!(counts(&pool, tasks % 9), vec![1; tasks % 9]);
                }
            });
        }
    });
}

#[test]
fn a_panic_reaches_the_caller_after_the_other_tasks() {
    for threads in [1, 2] {
        let pool = Pool::new(threads).unwrap();
        for _ in 0..50 {
            let ran = AtomicUsize::new(0);
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(6, &|task| {
                    ran.fetch_add(1, Ordering::SeqCst);
                    if task == 2 {
                        std::panic::resume_unwind(Box::new("task 2"));
                    }
                })
            }));
            let payload = result.unwrap_err();
            assert_eq!(*payload.downcast_ref::<&str>().unwrap(), "task 2");
            assert_eq!(ran.into_inner(), 6);
            assert_eq!(counts(&pool, 6), vec![1; 6], "the pool stays usable");
        }
    }
}

#[test]
fn levels_have_names_and_one_is_found() {
    for &level in KernelLevel::ALL {
        assert_eq!(KernelLevel::parse(level.as_str()), Some(level));
        assert_eq!(level.detail().split('+').next(), Some(level.as_str()));
    }
    assert_eq!(KernelLevel::parse("AVX2"), None);
    assert!(KernelLevel::Scalar.is_available());
    assert!(KernelLevel::detect().is_available());
}

#[test]
fn no_task_is_lost_or_done_twice_when_threads_steal() {
    for threads in [2, 3, 8] {
        let pool = Pool::new(threads).unwrap();
        for round in 0..1500 {
            assert_eq!(counts(&pool, 97), vec![1; 97], "{threads} threads, round {round}");
        }
    }
}

#[test]
fn a_thread_that_is_done_takes_what_another_has_left() {
    let pool = Pool::new(2).unwrap();
    for held in [0, 50] {
        // Both threads begin with a half of the tasks. Whoever has this one gets to no other until all are done.
        let others = AtomicUsize::new(0);
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        pool.run(100, &|task| {
            if task == held {
                while others.load(Ordering::SeqCst) < 99 && std::time::Instant::now() < deadline {
                    std::thread::yield_now();
                }
                assert_eq!(others.load(Ordering::SeqCst), 99, "the tasks beside number {held}");
            } else {
                others.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
}

#[test]
fn what_is_expected_may_lie_anywhere() {
    let pool = Pool::new(3).unwrap();
    let memory = vec![0u8; 1 << 20];
    let places = [
        (memory.as_ptr(), memory.len()),
        (std::ptr::null(), 1 << 30),
        (usize::MAX as *const u8, usize::MAX),
        (8 as _, 0),
    ];
    for round in 0..400 {
        pool.expect(|thread| places[(round + thread) % places.len()]);
        if round % 50 == 0 {
            // So long that workers park.
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(counts(&pool, round % 20), vec![1; round % 20]);
    }
}
