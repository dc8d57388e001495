//! Times of one bench, what was done in them, and the machine's ceilings at that time.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use candlewick::kernel::{measure, Cpu};
use criterion::{BenchmarkId, Criterion, Throughput};

/// More than the last-level cache of most machines: what is read in turns from so many bytes comes from memory.
pub(crate) const BEYOND_CACHES: usize = 128 << 20;

/// Samples that count.
pub(crate) const SAMPLES: usize = 10;

/// What the machine gives at best.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ceilings {
    read: Option<f64>,
    int8: Option<f64>,
    float: Option<f64>,
}

impl Ceilings {
    fn measure(cpu: &Cpu) -> Ceilings {
        let ceilings = Ceilings {
            read: measure::read_bandwidth(cpu),
            int8: measure::int8_peak(cpu),
            float: measure::float_peak(cpu),
        };
        let barrier = measure::barrier_latency(cpu).as_secs_f64() * 1e6;
        let giga = |value: Option<f64>| value.map_or("-".to_string(), |value| format!("{:.1}", value / 1e9));
        println!(
            "ceilings: read {} GB/s, int8 {} GMAC/s, f32 {} GMAC/s, barrier {barrier:.2} µs",
            giga(ceilings.read),
            giga(ceilings.int8),
            giga(ceilings.float)
        );
        ceilings
    }
}

/// The ceilings of one group of benches: measured before the first of them that runs.
pub(crate) struct Group<'a> {
    cpu: &'a Cpu,
    ceilings: OnceCell<Ceilings>,
}

/// What one iteration does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Work {
    /// Bytes that it has to read and write.
    pub(crate) bytes: usize,
    /// Multiply-adds.
    pub(crate) macs: usize,
    /// Whether the bytes come from memory, so that the read bandwidth is their ceiling.
    pub(crate) from_memory: bool,
    /// Whether the multiply-adds are of integers; if not, the peak of f32 is their ceiling.
    pub(crate) on_integers: bool,
}

impl<'a> Group<'a> {
    pub(crate) fn new(cpu: &'a Cpu) -> Group<'a> {
        Group { cpu, ceilings: OnceCell::new() }
    }

    /// One bench. `setup` makes what is measured, if the bench is not filtered out: a function that makes some
    /// iterations and answers the time of what counts in them.
    pub(crate) fn bench<F: FnMut(u64) -> Duration>(
        &self,
        criterion: &mut Criterion,
        (name, parameter): (&str, &str),
        work: Work,
        setup: impl FnOnce() -> F,
    ) {
        let mut benches = criterion.benchmark_group(name);
        benches.throughput(work.throughput());
        let mut seconds = Vec::new();
        let (mut setup, mut run) = (Some(setup), None);
        // Criterion calls this for every sample.
        benches.bench_function(BenchmarkId::from_parameter(parameter), |bencher| {
            if let Some(setup) = setup.take() {
                run = Some(setup());
            }
            let Some(run) = &mut run else { return };
            bencher.iter_custom(|iterations| {
                let time = run(iterations);
                seconds.push(time.as_secs_f64() / iterations as f64);
                time
            });
            if seconds.len() == 2 {
                self.ceilings.get_or_init(|| Ceilings::measure(self.cpu));
            }
        });
        benches.finish();
        // Warming up comes first. A test is one call, of which there is nothing to tell.
        let warm_up = seconds.len().saturating_sub(SAMPLES);
        if let (Some(seconds), Some(ceilings)) = (median(&mut seconds[warm_up..]), self.ceilings.get()) {
            println!("{}", work.report(seconds, ceilings));
        }
    }
}

/// Calls `f` with the number of the iteration, counted over the whole bench, and takes the time of all of it.
pub(crate) fn timed(mut f: impl FnMut(usize)) -> impl FnMut(u64) -> Duration {
    let mut count = 0;
    move |iterations| {
        let start = Instant::now();
        for _ in 0..iterations {
            f(count);
            count += 1;
        }
        start.elapsed()
    }
}

impl Work {
    /// What criterion compares.
    fn throughput(self) -> Throughput {
        match self.bytes {
            0 => Throughput::Elements(self.macs as u64),
            bytes => Throughput::Bytes(bytes as u64),
        }
    }

    fn report(self, seconds: f64, ceilings: &Ceilings) -> String {
        let share = |rate: f64, ceiling: Option<f64>, name: &str| match ceiling {
            Some(ceiling) => format!(" ({:.0} % of {name})", rate / ceiling * 100.0),
            None => String::new(),
        };
        let mut line = format!("rate: {:?}", Duration::from_secs_f64(seconds));
        if self.bytes > 0 {
            let rate = self.bytes as f64 / seconds;
            line += &format!(", {:.2} GB/s", rate / 1e9);
            line += &share(rate, ceilings.read.filter(|_| self.from_memory), "read bandwidth");
        }
        if self.macs > 0 {
            let rate = self.macs as f64 / seconds;
            line += &format!(", {:.1} GMAC/s", rate / 1e9);
            line += &match self.on_integers {
                true => share(rate, ceilings.int8, "int8 peak"),
                false => share(rate, ceilings.float, "f32 peak"),
            };
        }
        line
    }
}

fn median(seconds: &mut [f64]) -> Option<f64> {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied()
}

/// Values between -1 and 1 that repeat after a thousand.
pub(crate) fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect()
}
