//! The engine behind a handle: answers as without it, and an end for everyone whatever happens.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use futures_core::stream::FusedStream;
use futures_core::Stream;

use super::*;
use crate::engine::Clock;
use crate::sample::{Distribution, SampleContext, Sampler, SamplerSession, SamplingParams};
use crate::testing::TinyModel;
use crate::{EngineBuilder, FinishReason, Piece, RequestError, TokenId};

fn engine() -> Engine {
    engine_with(|builder| builder)
}

fn engine_with(set: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Engine {
    set(Engine::builder(TinyModel::llama().build().unwrap()).threads(1)).build().unwrap()
}

fn spawned() -> EngineHandle {
    engine().spawn().unwrap()
}

/// Different for each `seed`: prompt, length and, for every other one, drawn rather than greedy.
fn request(seed: usize) -> Request {
    let prompt: Vec<TokenId> = (0..1 + seed * 7 % 40).map(|i| ((i * 37 + seed * 101) % 200 + 20) as TokenId).collect();
    let request = Request::tokens(prompt).max_tokens(4 + seed % 9).ignore_eos(true).logprobs(2);
    if seed.is_multiple_of(2) {
        request
    } else {
        request.temperature(0.9).seed(seed as u64)
    }
}

/// One that does not end soon.
fn long() -> Request {
    Request::tokens(vec![5, 6, 7]).ignore_eos(true).max_tokens(400)
}

/// What does not depend on the time that it took.
fn essence(output: &Output) -> (String, Vec<TokenId>, Vec<u32>, FinishReason) {
    let bits = output.logprobs.iter().flatten().map(|l| l.chosen.log_prob.to_bits());
    (output.text.clone(), output.token_ids.clone(), bits.collect(), output.finish_reason)
}

type Output = crate::Output;

fn blocks(handle: &EngineHandle) -> usize {
    handle
        .inspect(|engine| {
            engine.check_integrity().unwrap();
            engine.kv_blocks_in_use()
        })
        .unwrap()
}

fn is_unavailable(error: &Error, words: &str) -> bool {
    matches!(error, Error::Unavailable { reason } if reason.contains(words))
}

/// Waits for something that another thread does; a test that hangs says nothing.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what} did not happen in 30 s");
        thread::sleep(Duration::from_millis(1));
    }
}

/// An executor of one task: polls when woken, and counts that.
struct Task {
    woken: AtomicBool,
    wakes: AtomicUsize,
    thread: thread::Thread,
}

impl Wake for Task {
    fn wake(self: Arc<Task>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Runs a future to its end; how often it was woken.
fn block_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> (T, usize) {
    let (woken, wakes) = (AtomicBool::new(false), AtomicUsize::new(0));
    let task = Arc::new(Task { woken, wakes, thread: thread::current() });
    let waker = Waker::from(Arc::clone(&task));
    loop {
        if let Poll::Ready(value) = poll(&mut Context::from_waker(&waker)) {
            return (value, task.wakes.load(Ordering::SeqCst));
        }
        while !task.woken.swap(false, Ordering::SeqCst) {
            thread::park_timeout(Duration::from_secs(30));
            assert!(task.woken.load(Ordering::SeqCst), "not woken for 30 s");
        }
    }
}

fn poll_pieces(stream: &mut TokenStream) -> (Vec<Piece>, usize) {
    let (mut pieces, mut wakes) = (Vec::new(), 0);
    loop {
        let (item, woken) = block_on(|context| Pin::new(&mut *stream).poll_next(context));
        wakes += woken;
        match item {
            Some(piece) => pieces.push(piece.unwrap()),
            None => return (pieces, wakes),
        }
    }
}

fn check_stream(pieces: &[Piece], stream: &TokenStream, expected: &Output) {
    let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    let tokens: Vec<TokenId> = pieces.iter().filter_map(|piece| piece.token).collect();
    let logprobs = pieces.iter().filter(|piece| piece.logprobs.is_some()).count();
    assert_eq!((text, &tokens, logprobs), (expected.text.clone(), &expected.token_ids, expected.token_ids.len()));
    assert_eq!(essence(stream.output().unwrap()), essence(expected));
}

#[test]
fn fronts_go_wherever_their_users_are() {
    fn everywhere<T: Send + Sync + 'static>() {}
    everywhere::<EngineHandle>();
    everywhere::<TokenStream>();
    everywhere::<Submission>();
}

#[test]
fn many_threads_with_many_streams_get_the_answers_of_a_lone_engine() {
    const THREADS: usize = 8;
    const EACH: usize = 6;
    let mut alone = engine();
    let expected: Vec<Output> = (0..THREADS * EACH).map(|seed| alone.complete(request(seed)).unwrap()).collect();
    let handle = spawned();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (handle, expected) = (handle.clone(), &expected);
            scope.spawn(move || {
                let seeds = || (0..EACH).map(|i| number * EACH + i);
                if number % 2 == 0 {
                    // All at once, then read one after the other.
                    let streams: Vec<TokenStream> = seeds().map(|s| handle.submit(request(s)).unwrap()).collect();
                    for (seed, mut stream) in seeds().zip(streams) {
                        let pieces: Vec<Piece> = stream.by_ref().map(Result::unwrap).collect();
                        check_stream(&pieces, &stream, &expected[seed]);
                        assert!(stream.next().is_none() && stream.is_terminated());
                    }
                } else {
                    // As a task: submitted and polled.
                    for seed in seeds() {
                        let mut submission = handle.submit_async(request(seed));
                        let mut stream = block_on(|context| Pin::new(&mut submission).poll(context)).0.unwrap();
                        let (pieces, wakes) = poll_pieces(&mut stream);
                        check_stream(&pieces, &stream, &expected[seed]);
                        assert!(wakes <= pieces.len() + 1, "{wakes} wake-ups for {} pieces", pieces.len());
                    }
                }
            });
        }
    });
    assert_eq!(blocks(&handle), 0);
    assert_eq!(essence(&handle.complete(request(3)).unwrap()), essence(&expected[3]));
}

#[test]
fn one_stream_may_be_polled_iterated_and_sent_on() {
    let expected = engine().complete(request(11)).unwrap();
    let handle = spawned();
    let mut stream = handle.submit(request(11)).unwrap();
    let mut pieces = vec![stream.next().unwrap().unwrap()];
    let polled = block_on(|context| Pin::new(&mut stream).poll_next(context)).0;
    pieces.push(polled.unwrap().unwrap());
    let (rest, stream) =
        thread::spawn(move || (stream.by_ref().map(Result::unwrap).collect::<Vec<_>>(), stream)).join().unwrap();
    pieces.extend(rest);
    check_stream(&pieces, &stream, &expected);
    // Reading a stream that has ended needs no engine.
    let stream = handle.submit(request(11)).unwrap();
    drop(handle);
    assert_eq!(essence(&stream.into_output().unwrap()), essence(&expected));
}

#[test]
fn dropping_a_stream_frees_its_blocks_and_leaves_the_others() {
    let expected = engine().complete(request(5)).unwrap();
    let handle = spawned();
    let kept = handle.submit(request(5)).unwrap();
    let mut dropped: Vec<TokenStream> = (0..4).map(|_| handle.submit(long()).unwrap()).collect();
    for stream in &mut dropped {
        stream.next().unwrap().unwrap();
    }
    assert!(blocks(&handle) > 0);
    // Also one that was never read, and one that nobody waited for.
    dropped.push(handle.submit(long()).unwrap());
    drop(handle.submit_async(long()));
    drop(dropped);
    assert_eq!(essence(&kept.into_output().unwrap()), essence(&expected));
    eventually("freeing", || blocks(&handle) == 0);
    eventually("idleness", || handle.inspect(Engine::is_idle).unwrap());
}

#[test]
fn a_cancelled_stream_ends_with_what_it_has() {
    let handle = spawned();
    let mut stream = handle.submit(long()).unwrap();
    let first = stream.next().unwrap().unwrap();
    stream.cancel();
    let rest: Vec<Piece> = stream.by_ref().map(Result::unwrap).collect();
    let output = stream.output().unwrap();
    assert_eq!(output.finish_reason, FinishReason::Cancelled);
    assert_eq!(first.text + &rest.iter().map(|piece| piece.text.as_str()).collect::<String>(), output.text);
    assert!(output.token_ids.len() < 400);
    assert_eq!(blocks(&handle), 0);
    // By name too; a name that has ended already changes nothing.
    let other = handle.submit(long()).unwrap();
    handle.cancel(other.id());
    handle.cancel(stream.id());
    assert_eq!(other.into_output().unwrap().finish_reason, FinishReason::Cancelled);
}

#[test]
fn what_is_wrong_with_a_request_is_told_at_submit() {
    let handle = spawned();
    let refused = |request: Request| match handle.submit(request) {
        Err(Error::Request(error)) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(Request::tokens(vec![])), RequestError::EmptyPrompt);
    assert!(matches!(
        refused(request(1).temperature(-1.0)),
        RequestError::InvalidParameter { name: "temperature", .. }
    ));
    let mut submission = handle.submit_async(Request::tokens(vec![]));
    let answer = block_on(|context| Pin::new(&mut submission).poll(context)).0;
    assert!(matches!(answer, Err(Error::Request(RequestError::EmptyPrompt))));
    // Polled against the contract, it ends nevertheless.
    let again = block_on(|context| Pin::new(&mut submission).poll(context)).0;
    assert!(matches!(again, Err(Error::Unavailable { .. })));
    // A request that ends at submit has an output and no piece.
    let mut none = handle.submit(request(1).max_tokens(0)).unwrap();
    assert!(none.next().is_none());
    assert_eq!(none.output().unwrap().finish_reason, FinishReason::Length);
}

#[test]
fn a_slow_reader_loses_nothing_and_stops_nobody() {
    let expected = engine().complete(long()).unwrap();
    let handle = spawned();
    let mut slow = handle.submit(long()).unwrap();
    // Runs from beginning to end while the first is not read at all.
    for seed in 0..5 {
        handle.complete(request(seed)).unwrap();
    }
    eventually("the unread answer", || handle.inspect(Engine::is_idle).unwrap());
    let pieces: Vec<Piece> = slow.by_ref().map(Result::unwrap).collect();
    // All of them waited, and no more than the request allows.
    assert_eq!(pieces.len(), 400);
    let text: String = pieces.iter().map(|piece| piece.text.as_str()).collect();
    assert_eq!((text, slow.output().unwrap().token_ids.clone()), (expected.text, expected.token_ids));
}

/// A sampler that panics at its third token, or calls the engine that it belongs to.
#[derive(Debug)]
enum Foreign {
    Panics,
    Calls(EngineHandle),
}

struct ForeignSession(Option<EngineHandle>);

impl Sampler for Foreign {
    fn name(&self) -> &str {
        "foreign"
    }
    fn open(&self, _: &SamplingParams) -> Result<Box<dyn SamplerSession>> {
        Ok(Box::new(ForeignSession(match self {
            Foreign::Panics => None,
            Foreign::Calls(handle) => Some(handle.clone()),
        })))
    }
}

impl SamplerSession for ForeignSession {
    fn distribution(&mut self, context: &SampleContext<'_>, _: &mut [f32], out: &mut Distribution) -> Result<()> {
        match &self.0 {
            Some(handle) => drop(handle.submit(Request::tokens(vec![1]))?),
            None if context.generated.len() == 2 => panic!("by design"),
            None => {}
        }
        out.clear();
        out.push(1, 1.0);
        Ok(())
    }
    fn observe(&mut self, _: TokenId) {}
    fn can_fork(&self) -> bool {
        false
    }
    fn fork(&self) -> Option<Box<dyn SamplerSession>> {
        None
    }
}

#[test]
fn a_panicking_sampler_ends_its_stream_only() {
    let expected = engine().complete(request(8)).unwrap();
    let handle = spawned();
    let good = handle.submit(request(8)).unwrap();
    let mut bad = handle.submit(long().sampler(Foreign::Panics)).unwrap();
    let items: Vec<Result<Piece>> = bad.by_ref().collect();
    let (error, pieces) = items.split_last().unwrap();
    assert!(matches!(error, Err(Error::Extension { room: "sample", .. })), "{error:?}");
    assert!(pieces.iter().all(Result::is_ok));
    // The error was taken; the output says what there was before it.
    let output = bad.output().unwrap();
    assert_eq!((output.finish_reason, output.token_ids.as_slice()), (FinishReason::Error, [1, 1].as_slice()));
    assert_eq!(essence(&good.into_output().unwrap()), essence(&expected));
    let error = handle.complete(long().sampler(Foreign::Panics)).unwrap_err();
    assert!(error.to_string().contains("by design"), "{error}");
    assert_eq!(blocks(&handle), 0);
}

#[test]
fn the_engines_own_thread_is_refused_instead_of_waiting_for_itself() {
    let handle = spawned();
    let sampler = Foreign::Calls(handle.clone());
    let error = handle.complete(long().sampler(sampler)).unwrap_err();
    assert!(is_unavailable(&error, "own thread"), "{error}");
    assert_eq!(blocks(&handle), 0);
}

#[test]
fn a_panic_in_inspect_goes_to_its_caller() {
    let handle = spawned();
    let caught = catch_unwind(AssertUnwindSafe(|| handle.inspect(|_| panic!("by design"))));
    assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "by design");
    assert_eq!(handle.inspect(Engine::context_length).unwrap(), 512);
}

/// A clock that panics when told to, in the middle of a step: a failure that belongs to no request.
#[derive(Clone, Debug, Default)]
struct Fragile(Arc<AtomicBool>);

impl Clock for Fragile {
    fn elapsed(&self) -> Duration {
        assert!(!self.0.load(Ordering::SeqCst), "the clock broke");
        Duration::ZERO
    }
    fn date(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
}

#[test]
fn a_panicking_step_ends_every_stream_and_call_with_an_error() {
    let clock = Fragile::default();
    let handle = engine_with(|builder| builder.clock(clock.clone())).spawn().unwrap();
    let mut streams: Vec<TokenStream> = (0..3).map(|_| handle.submit(long()).unwrap()).collect();
    for stream in &mut streams {
        stream.next().unwrap().unwrap();
    }
    // One waits as a thread, one as a task, one reads later.
    let (later, second, first) = (streams.pop().unwrap(), streams.pop().unwrap(), streams.pop().unwrap());
    let thread = thread::spawn(move || first.into_output().unwrap_err());
    let task = thread::spawn(move || {
        let mut second = second;
        loop {
            match block_on(|context| Pin::new(&mut second).poll_next(context)).0 {
                Some(Ok(_)) => {}
                Some(Err(error)) => return error,
                None => panic!("the stream ended without an error"),
            }
        }
    });
    clock.0.store(true, Ordering::SeqCst);
    let ends = [thread.join().unwrap(), task.join().unwrap(), later.into_output().unwrap_err()];
    for error in &ends {
        assert!(is_unavailable(error, "the clock broke"), "{error}");
    }
    eventually("the thread's end", || handle.submit(long()).is_err_and(|e| is_unavailable(&e, "the clock broke")));
    let mut submission = handle.submit_async(long());
    assert!(block_on(|context| Pin::new(&mut submission).poll(context)).0.is_err());
    assert!(is_unavailable(&handle.inspect(|_| ()).unwrap_err(), "the clock broke"));
    assert!(is_unavailable(&handle.shutdown().unwrap_err(), "the clock broke"));
}

#[test]
fn a_failing_step_ends_every_stream_and_gives_the_engine_back() {
    let mut engine = engine();
    let own = engine.submit(long().max_tokens(40)).unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let breaks = Arc::clone(&broken);
    let handle = EngineHandle::start(engine, move |engine| match breaks.load(Ordering::SeqCst) {
        true => Err(crate::ResourceError::OutOfMemory.into()),
        false => engine.step(),
    })
    .unwrap();
    let mut stream = handle.submit(long()).unwrap();
    stream.next().unwrap().unwrap();
    broken.store(true, Ordering::SeqCst);
    let last = stream.by_ref().last().unwrap();
    assert!(is_unavailable(&last.unwrap_err(), "no memory"));
    assert!(stream.output().is_none() && stream.into_output().is_err());
    let mut engine = handle.shutdown().unwrap();
    engine.check_integrity().unwrap();
    // The stream's request is gone, the host's own goes on.
    let mut events = Vec::new();
    while !engine.is_idle() {
        events.extend(engine.step().unwrap());
    }
    assert!(events.iter().all(|event| event.id() == own));
    assert!(matches!(events.last(), Some(Event::Finished { output, .. }) if output.token_ids.len() == 40));
}

#[test]
fn shutdown_ends_streams_and_gives_the_engine_back() {
    let mut engine = engine();
    let expected = engine.complete(request(7)).unwrap();
    let own = engine.submit(request(7)).unwrap();
    let handle = engine.spawn().unwrap();
    let mut stream = handle.submit(long()).unwrap();
    let first = stream.next().unwrap().unwrap();
    let other = handle.clone();
    let mut engine = handle.shutdown().unwrap();
    let rest: Vec<Piece> = stream.by_ref().map(Result::unwrap).collect();
    let output = stream.output().unwrap();
    assert_eq!(output.finish_reason, FinishReason::Cancelled);
    assert_eq!(first.text + &rest.iter().map(|piece| piece.text.as_str()).collect::<String>(), output.text);
    assert!(is_unavailable(&other.submit(long()).unwrap_err(), "shut down"));
    assert!(is_unavailable(&other.shutdown().unwrap_err(), "shut down"));
    // What the host submitted before lost no event, whichever steps computed it.
    let mut events = Vec::new();
    while !engine.is_idle() {
        events.extend(engine.step().unwrap());
    }
    assert!(events.iter().all(|event| event.id() == own));
    let tokens = events.iter().filter(|event| matches!(event, Event::Token { piece, .. } if piece.token.is_some()));
    assert_eq!(tokens.count(), expected.token_ids.len());
    assert!(matches!(events.last(), Some(Event::Finished { output, .. }) if essence(output) == essence(&expected)));
    engine.check_integrity().unwrap();
    assert_eq!(engine.kv_blocks_in_use(), 0);
}

#[test]
fn the_thread_ends_with_its_last_handle_and_stream() {
    // The sampler is held by the engine, so its end is the engine's end.
    let alive = Arc::new(AtomicUsize::new(0));
    let handle = engine_with(|builder| builder.clock(Counted::new(&alive))).spawn().unwrap();
    let mut stream = handle.submit(request(4)).unwrap();
    drop(handle.clone());
    drop(handle);
    stream.next().unwrap().unwrap();
    assert!(stream.by_ref().all(|piece| piece.is_ok()) && stream.output().is_some());
    eventually("the engine's end", || alive.load(Ordering::SeqCst) == 0);
    // A stream that is dropped instead ends it as well, and so does a submission that nobody waits for.
    for wait in [true, false] {
        let handle = engine_with(|builder| builder.clock(Counted::new(&alive))).spawn().unwrap();
        if wait {
            let stream = handle.submit(long()).unwrap();
            drop(handle);
            drop(stream);
        } else {
            drop(handle.submit_async(long()));
            drop(handle);
        }
        eventually("the engine's end", || alive.load(Ordering::SeqCst) == 0);
    }
}

#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::SeqCst);
        Counted(Arc::clone(count))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Clock for Counted {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
    fn date(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
}

#[test]
fn an_idle_thread_sleeps_and_deadlines_still_fire() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let handle = EngineHandle::start(engine_with(|builder| builder.max_sequences(1)), move |engine| {
        counted.fetch_add(1, Ordering::SeqCst);
        engine.step()
    })
    .unwrap();
    let output = handle.complete(request(2)).unwrap();
    eventually("idleness", || handle.inspect(Engine::is_idle).unwrap());
    let before = calls.load(Ordering::SeqCst);
    assert!(before <= output.token_ids.len() + 2, "{before} steps for {} tokens", output.token_ids.len());
    thread::sleep(Duration::from_millis(50));
    assert_eq!(calls.load(Ordering::SeqCst), before, "an idle engine stepped");
    // A deadline passes for a request that waits for its turn and one that runs, while nobody calls anything.
    let running = handle.submit(long().deadline(Duration::from_millis(30))).unwrap();
    let waiting = handle.submit(long().deadline(Duration::from_millis(1))).unwrap();
    for stream in [running, waiting] {
        let output = stream.into_output().unwrap();
        assert!(matches!(output.finish_reason, FinishReason::Deadline | FinishReason::Length), "{output:?}");
    }
}

/// Threads that submit, read a little, drop and cancel at random moments while others inspect: everything ends, and
/// nothing is left in the cache.
#[test]
fn nothing_is_lost_or_left_under_stress() {
    let mut alone = engine();
    let expected: Vec<Output> = (0..12).map(|seed| alone.complete(request(seed)).unwrap()).collect();
    let handle = engine_with(|builder| builder.max_sequences(5)).spawn().unwrap();
    let ids = Mutex::new(HashSet::new());
    thread::scope(|scope| {
        for number in 0..6 {
            let (handle, expected, ids) = (handle.clone(), &expected, &ids);
            scope.spawn(move || {
                for round in 0..40 {
                    let seed = (number * 5 + round) % expected.len();
                    let mut stream = handle.submit(request(seed)).unwrap();
                    assert!(ids.lock().unwrap().insert(stream.id()), "an id came twice");
                    match (number + round) % 5 {
                        0 => drop(stream),
                        1 => {
                            stream.next().unwrap().unwrap();
                            drop(stream);
                        }
                        2 => {
                            stream.cancel();
                            let output = stream.into_output().unwrap();
                            assert!(expected[seed].text.starts_with(output.text.trim_end_matches('\u{fffd}')));
                        }
                        3 => {
                            blocks(&handle);
                            let (pieces, _) = poll_pieces(&mut stream);
                            check_stream(&pieces, &stream, &expected[seed]);
                        }
                        _ => assert_eq!(essence(&stream.into_output().unwrap()), essence(&expected[seed])),
                    }
                }
            });
        }
    });
    eventually("idleness", || handle.inspect(Engine::is_idle).unwrap());
    assert_eq!(blocks(&handle), 0);
}
