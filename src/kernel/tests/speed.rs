//! Rates of the kernels, printed: `cargo test --lib kernel::tests::speed -- --ignored --nocapture`.
//! One thread, by processor time; memory and caches are still shared with what else runs.

use super::{cpu, prepare, Random};
use crate::kernel::{matmul, measure, KernelLevel, PackedMatrix, Precision};
use crate::source::Dtype;

/// Processor seconds of this thread: other processes do not count.
#[cfg(unix)]
fn now() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(not(unix))]
fn now() -> f64 {
    std::time::UNIX_EPOCH.elapsed().map_or(0.0, |elapsed| elapsed.as_secs_f64())
}

/// Best seconds of one call.
fn best(mut f: impl FnMut()) -> f64 {
    let start = now();
    let mut best = f64::MAX;
    while now() - start < 0.1 {
        let before = now();
        f();
        best = best.min(now() - before);
    }
    best
}

#[test]
fn ceilings_are_measured() {
    let cpu = cpu(KernelLevel::detect(), 2);
    let (read, peak) = (measure::read_bandwidth(&cpu), measure::int8_peak(&cpu));
    let barrier = measure::barrier_latency(&cpu);
    println!("read {read:?} B/s, barrier {barrier:?}, int8 {peak:?} MAC/s");
    assert!(read.unwrap() > 1e7);
    assert!(barrier.as_nanos() > 0);
    assert_eq!(peak.is_some(), cpu.level != KernelLevel::Scalar);
    assert!(peak.unwrap_or(1e9) > 1e6);
}

#[test]
#[ignore = "prints rates, checks nothing: cargo test --release --lib rates -- --ignored --nocapture"]
fn rates() {
    let mut random = Random(1);
    let cpu = cpu(KernelLevel::detect(), 1);
    println!("{}, one thread, by its processor time", cpu.level);
    let types = [
        Dtype::Q4_0,
        Dtype::Q4_1,
        Dtype::Q5_0,
        Dtype::Q5_1,
        Dtype::Q8_0,
        Dtype::Q2_K,
        Dtype::Q3_K,
        Dtype::Q4_K,
        Dtype::Q5_K,
        Dtype::Q6_K,
        Dtype::IQ4_NL,
        Dtype::IQ4_XS,
        Dtype::MXFP4,
        Dtype::BF16,
        Dtype::F16,
        Dtype::F32,
    ];
    let (n, k) = (2048usize, 1536usize);
    for dtype in types {
        let bytes = random.weights(dtype, n, k);
        // Distinct copies, so that decoding reads memory and not the cache.
        let copies = (64usize << 20).div_ceil(bytes.len()).max(2);
        let start = now();
        let weights: Vec<PackedMatrix> = (0..copies)
            .map(|_| {
                let mut matrix = PackedMatrix::allocate(dtype, n, k).unwrap();
                matrix.pack_rows(&cpu, 0, &bytes).unwrap();
                matrix
            })
            .collect();
        let packing = (copies * bytes.len()) as f64 / (now() - start) / 1e9;
        let mut line = format!("{dtype:>5} pack {packing:.2} GB/s |");
        for precision in [Precision::Int8Activations, Precision::F32] {
            if precision == Precision::F32 && !dtype.is_quantized() {
                continue;
            }
            for m in [1usize, 4, 8, 16, 64, 128] {
                let x = random.input(m * k);
                let acts = prepare(&cpu, &x, m, &[&weights[0]], precision);
                let mut out = vec![0f32; m * n];
                let mut i = 0;
                let seconds = best(|| {
                    matmul(&cpu, &[&weights[i % copies]], &acts, &mut [&mut out]);
                    i += 1;
                });
                let rate = (n * k * m) as f64 / seconds / 1e9;
                if m == 1 {
                    line += &format!(" {precision:?} m1 {:.1} GB/s", weights[0].size_in_bytes() as f64 / seconds / 1e9);
                } else {
                    line += &format!(" m{m} {rate:.0}");
                }
            }
            line += " GMAC/s |";
        }
        println!("{line}");
    }
    let (n, k, m) = (576, 576, 1);
    let bytes = random.weights(Dtype::Q4_1, n, k);
    let mut weights = PackedMatrix::allocate(Dtype::Q4_1, n, k).unwrap();
    weights.pack_rows(&cpu, 0, &bytes).unwrap();
    let x = random.input(m * k);
    let acts = prepare(&cpu, &x, m, &[&weights], Precision::Int8Activations);
    let mut out = vec![0f32; m * n];
    let seconds = best(|| (0..100).for_each(|_| matmul(&cpu, &[&weights], &acts, &mut [&mut out]))) / 100.0;
    println!("Q4_1 576 x 576, one row, from cache: {:.2} us", seconds * 1e6);
    let mut acts = acts;
    let x = random.input(512 * 1536);
    let wide = PackedMatrix::allocate(Dtype::Q4_1, 16, 1536).unwrap();
    for m in [1, 512] {
        let seconds = best(|| acts.prepare(&cpu, &x[..m * 1536], m, 1536, &[&wide], Precision::Int8Activations));
        println!("prepare {m} rows: {:.3} ns per value", seconds * 1e9 / (m * 1536) as f64);
    }
}
