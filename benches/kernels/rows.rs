//! What happens between products: norms, rotary positions, gates, and the quantization of activations.
//!
//! One row as in decoding, and a prompt's chunk; all of it from the caches, where a model finds it too.

use std::time::{Duration, Instant};

use candlewick::kernel::{gate, rms_norm, rope, Activation, Activations, Cpu, PackedMatrix, Precision};
use candlewick::source::Dtype;
use criterion::{BenchmarkId, Criterion, Throughput};

use super::rate::{values, Group, Work};

/// Width of a row: Qwen2 1.5B.
const WIDTH: usize = 1536;
/// Width inside its MLP.
const INNER: usize = 8960;
/// Its query heads and their size.
const HEADS: (usize, usize) = (12, 128);
const ROWS: [usize; 2] = [1, 512];

pub(crate) fn bench(criterion: &mut Criterion, cpu: &Cpu) {
    let group = Group::new(cpu);
    for rows in ROWS {
        let (x, weight) = (values(rows * WIDTH), values(WIDTH));
        let mut out = vec![0f32; x.len()];
        run(criterion, &group, "rms_norm", rows, 8 * x.len(), |_| rms_norm(cpu, &x, &weight, 1e-6, &mut out));

        let (heads, dim) = HEADS;
        let mut x = values(rows * heads * dim);
        // A rotation by a fixed angle keeps lengths, however often it is repeated.
        let (cos, sin) = (vec![0.8f32; rows * dim / 2], vec![0.6f32; rows * dim / 2]);
        run(criterion, &group, "rope", rows, 8 * (x.len() + cos.len()), |_| rope(cpu, &mut x, heads, dim, &cos, &sin));

        gates(criterion, cpu, &group, rows);

        let x = values(rows * WIDTH);
        for dtype in [Dtype::Q4_K, Dtype::Q6_K] {
            let weights = PackedMatrix::allocate(dtype, 16, WIDTH).expect("memory for a matrix");
            let mut acts = Activations::new();
            run(criterion, &group, &format!("quantize-for-{}", dtype.name()), rows, 5 * x.len(), |_| {
                acts.prepare(cpu, &x, rows, WIDTH, &[&weights], Precision::Int8Activations);
            });
        }
    }
}

fn run(criterion: &mut Criterion, group: &Group<'_>, name: &str, rows: usize, bytes: usize, mut f: impl FnMut(usize)) {
    let mut benches = criterion.benchmark_group(name);
    benches.throughput(Throughput::Bytes(bytes as u64));
    benches.bench_function(BenchmarkId::from_parameter(rows), |bencher| {
        group.run(bencher, Work { bytes, ..Work::default() }, &mut f);
    });
    benches.finish();
}

/// The gate works in place and would end in denormal numbers: each call gets fresh values, outside of its time.
fn gates(criterion: &mut Criterion, cpu: &Cpu, group: &Group<'_>, rows: usize) {
    let (fresh, up) = (values(rows * INNER), values(rows * INNER));
    let mut x = fresh.clone();
    let bytes = 12 * x.len();
    let mut benches = criterion.benchmark_group("gate-silu");
    benches.throughput(Throughput::Bytes(bytes as u64));
    benches.bench_function(BenchmarkId::from_parameter(rows), |bencher| {
        group.run_timed(bencher, Work { bytes, ..Work::default() }, |iterations| {
            let mut time = Duration::ZERO;
            for _ in 0..iterations {
                x.copy_from_slice(&fresh);
                let start = Instant::now();
                gate(cpu, Activation::Silu, &mut x, &up);
                time += start.elapsed();
            }
            time
        });
    });
    benches.finish();
}
