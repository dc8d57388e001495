//! The queue under threads and tasks: nothing lost, nobody left waiting.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;
use std::thread;
use std::time::Duration;

use super::*;

/// A task's waker: counts, and unparks the thread that polls.
struct Task {
    wakes: AtomicUsize,
    thread: thread::Thread,
}

impl Task {
    fn here() -> Arc<Task> {
        Arc::new(Task { wakes: AtomicUsize::new(0), thread: thread::current() })
    }

    fn wakes(&self) -> usize {
        self.wakes.load(Ordering::SeqCst)
    }
}

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Polls only after being woken, as an executor does; a lost wake-up would leave it parked.
fn poll_all<T>(receiver: &Receiver<T>) -> (Vec<T>, usize) {
    let task = Task::here();
    let waker = Waker::from(Arc::clone(&task));
    let mut items = Vec::new();
    loop {
        let before = task.wakes();
        match receiver.poll_recv(&mut Context::from_waker(&waker)) {
            Poll::Ready(Some(item)) => items.push(item),
            Poll::Ready(None) => return (items, task.wakes()),
            Poll::Pending => {
                while task.wakes() == before {
                    thread::park_timeout(Duration::from_secs(20));
                    assert!(task.wakes() > before, "not woken for 20 s");
                }
            }
        }
    }
}

#[test]
fn items_come_in_order_and_the_end_after_them() {
    let (sender, receiver) = channel();
    sender.send(1).unwrap();
    sender.send(2).unwrap();
    drop(sender);
    assert_eq!((receiver.recv(), receiver.recv(), receiver.recv(), receiver.recv()), (Some(1), Some(2), None, None));
    let (sender, receiver) = channel();
    drop(receiver);
    assert_eq!(sender.send(3), Err(3));
}

#[test]
fn a_task_is_woken_once_per_wait_and_by_the_end() {
    let (sender, receiver) = channel();
    let task = Task::here();
    let waker = Waker::from(Arc::clone(&task));
    let mut context = Context::from_waker(&waker);
    // Nobody waits yet: nobody is woken.
    sender.send(1).unwrap();
    assert_eq!(receiver.poll_recv(&mut context), Poll::Ready(Some(1)));
    assert_eq!(task.wakes(), 0);
    for _ in 0..3 {
        assert_eq!(receiver.poll_recv(&mut context), Poll::Pending);
    }
    sender.send(2).unwrap();
    sender.send(3).unwrap();
    assert_eq!(task.wakes(), 1);
    assert_eq!(receiver.poll_recv(&mut context), Poll::Ready(Some(2)));
    assert_eq!(receiver.poll_recv(&mut context), Poll::Ready(Some(3)));
    assert_eq!(receiver.poll_recv(&mut context), Poll::Pending);
    drop(sender);
    assert_eq!(task.wakes(), 2);
    assert_eq!(receiver.poll_recv(&mut context), Poll::Ready(None));
}

#[test]
fn the_task_that_polled_last_is_the_one_that_is_woken() {
    let (sender, receiver) = channel();
    let (old, new) = (Task::here(), Task::here());
    for task in [&old, &new] {
        let waker = Waker::from(Arc::clone(task));
        assert_eq!(receiver.poll_recv(&mut Context::from_waker(&waker)), Poll::Pending);
    }
    sender.send(()).unwrap();
    assert_eq!((old.wakes(), new.wakes()), (0, 1));
    // No waker is kept once it was used, nor with a receiver that is gone.
    assert_eq!((Arc::strong_count(&old), Arc::strong_count(&new)), (1, 1));
    assert_eq!(receiver.poll_recv(&mut Context::from_waker(&Waker::from(Arc::clone(&new)))), Poll::Ready(Some(())));
    assert_eq!(receiver.poll_recv(&mut Context::from_waker(&Waker::from(Arc::clone(&new)))), Poll::Pending);
    assert_eq!(Arc::strong_count(&new), 2);
    drop(receiver);
    assert_eq!(Arc::strong_count(&new), 1);
}

struct Angry;

impl Wake for Angry {
    fn wake(self: Arc<Angry>) {
        panic!("by design");
    }
}

#[test]
fn a_panicking_waker_does_not_reach_the_sender() {
    let (sender, receiver) = channel();
    let waker = Waker::from(Arc::new(Angry));
    assert_eq!(receiver.poll_recv(&mut Context::from_waker(&waker)), Poll::Pending);
    sender.send(1).unwrap();
    drop(sender);
    assert_eq!((receiver.recv(), receiver.recv()), (Some(1), None));
}

/// Many short lives with sender and reader at full speed, so that their steps meet in every order.
#[test]
fn no_wake_up_is_lost_under_stress() {
    let mut waited = 0;
    for round in 0..2_000 {
        let (sender, receiver) = channel();
        let count = round % 7;
        let producer = thread::spawn(move || {
            for item in 0..count {
                if (round + item) % 3 == 0 {
                    thread::yield_now();
                }
                sender.send(item).unwrap();
            }
        });
        let expected: Vec<usize> = (0..count).collect();
        if round % 2 == 0 {
            let (items, wakes) = poll_all(&receiver);
            assert_eq!(items, expected);
            assert!(wakes <= count + 1, "{wakes} wake-ups for {count} items");
            waited += wakes;
        } else {
            assert_eq!(std::iter::from_fn(|| receiver.recv()).collect::<Vec<_>>(), expected);
        }
        producer.join().unwrap();
    }
    assert!(waited > 0, "no reader ever waited: this tests nothing");
}

#[test]
fn a_reader_that_leaves_stops_the_sender_and_frees_what_waits() {
    let token = Arc::new(());
    for round in 0..500 {
        let (sender, receiver) = channel();
        let item = Arc::clone(&token);
        let producer = thread::spawn(move || {
            let mut sent = 0usize;
            while sender.send(Arc::clone(&item)).is_ok() {
                sent += 1;
                thread::yield_now();
            }
            sent
        });
        for _ in 0..round % 4 {
            receiver.recv().unwrap();
        }
        drop(receiver);
        assert!(producer.join().unwrap() >= round % 4);
    }
    assert_eq!(Arc::strong_count(&token), 1);
}
