//! What the machine can do at most, measured beside a benchmark: reading memory, waking the threads, and products
//! of 8-bit integers that stay in the caches.

use std::hint::black_box;
use std::time::Instant;

use candlewick::kernel::{matmul, Activations, Cpu, PackedMatrix};
use candlewick::source::Dtype;
use candlewick::Precision;

use super::Result;

/// More than any cache holds, and little enough for a small machine.
const READ_BYTES: usize = 512 << 20;
/// Repetitions; the best counts, since everything else was disturbed.
const ATTEMPTS: usize = 5;
/// A square matrix of this width in Q8_0 takes about 270 kB: within a core's second cache.
const WIDTH: usize = 512;
/// Rows of the other operand.
const ROWS: usize = 64;

/// A measured limit.
#[derive(Debug)]
pub(crate) struct Ceiling {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
}

/// Measures all of them on the threads and at the level of `cpu`.
pub(crate) fn measure(cpu: &Cpu) -> Result<[Ceiling; 3]> {
    Ok([
        Ceiling { name: "read_bandwidth", value: read_bandwidth(cpu), unit: "bytes_per_second" },
        Ceiling { name: "barrier_latency", value: barrier_latency(cpu), unit: "seconds" },
        Ceiling { name: "int8_products", value: int8_products(cpu)?, unit: "operations_per_second" },
    ])
}

fn best(mut attempt: impl FnMut() -> f64) -> f64 {
    (0..ATTEMPTS).map(|_| attempt()).fold(f64::INFINITY, f64::min).max(f64::MIN_POSITIVE)
}

/// All threads sum a buffer that fits no cache.
fn read_bandwidth(cpu: &Cpu) -> f64 {
    let words = vec![1u64; READ_BYTES / size_of::<u64>()];
    let parts: Vec<&[u64]> = words.chunks(words.len().div_ceil(cpu.pool.threads() * 8)).collect();
    let seconds = best(|| {
        let start = Instant::now();
        cpu.pool.run(parts.len(), &|part| {
            // Independent sums, so that additions do not wait for each other.
            let mut sums = [0u64; 16];
            for group in parts[part].chunks_exact(16) {
                for (sum, word) in sums.iter_mut().zip(group) {
                    *sum = sum.wrapping_add(*word);
                }
            }
            black_box(sums);
        });
        start.elapsed().as_secs_f64()
    });
    READ_BYTES as f64 / seconds
}

/// One empty job for every thread, from start to end.
fn barrier_latency(cpu: &Cpu) -> f64 {
    const JOBS: usize = 2000;
    let seconds = best(|| {
        let start = Instant::now();
        for _ in 0..JOBS {
            cpu.pool.run(cpu.pool.threads(), &|task| {
                black_box(task);
            });
        }
        start.elapsed().as_secs_f64()
    });
    seconds / JOBS as f64
}

/// Our own kernel on operands that stay in the caches; a multiplication and an addition are two operations.
fn int8_products(cpu: &Cpu) -> Result<f64> {
    const JOBS: usize = 50;
    let mut weights = PackedMatrix::allocate(Dtype::Q8_0, WIDTH, WIDTH)?;
    // Blocks of 32 values: a scale of 1.0 in f16, then bytes.
    let block: Vec<u8> = [0x00, 0x3c].into_iter().chain((0..32).map(|i| i * 3)).collect();
    weights.pack_rows(cpu, 0, &block.repeat(WIDTH * WIDTH / 32))?;
    let input: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i % 17) as f32 - 8.0).collect();
    let mut activations = Activations::new();
    activations.prepare(cpu, &input, ROWS, WIDTH, &[&weights], Precision::Int8Activations);
    let mut out = vec![0.0; ROWS * WIDTH];
    let seconds = best(|| {
        let start = Instant::now();
        for _ in 0..JOBS {
            matmul(cpu, &[&weights], &activations, &mut [&mut out]);
        }
        start.elapsed().as_secs_f64()
    });
    black_box(&out);
    Ok((2 * ROWS * WIDTH * WIDTH * JOBS) as f64 / seconds)
}
