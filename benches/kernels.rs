//! The kernels one by one, each rate beside what the machine could do in the same seconds.
//!
//! Criterion measures and compares with earlier runs; below each result stands a line of our own with GB/s or GMAC/s
//! and the share of the read bandwidth or of the integer peak, which are measured anew for every group. Filter as with
//! any criterion bench: `cargo bench --bench kernels -- gemv/Q4_K`. Run by `cargo test --bench kernels`, every bench
//! runs once and nothing is measured. Knows the kernels and the samplers, no models.

// The macro below makes a public function without documentation.
#![allow(missing_docs)]

#[path = "kernels/attention.rs"]
mod attention;
#[path = "kernels/products.rs"]
mod products;
#[path = "kernels/rate.rs"]
mod rate;
#[path = "kernels/rows.rs"]
mod rows;
#[path = "kernels/sampler.rs"]
mod sampler;

use std::time::Duration;

use candlewick::kernel::Cpu;
use criterion::{criterion_group, criterion_main, Criterion};

criterion_group! {
    name = benches;
    // Short: there are hundreds, and each answers for itself beside its ceilings.
    config = Criterion::default()
        .sample_size(rate::SAMPLES)
        .warm_up_time(Duration::from_millis(50))
        .measurement_time(Duration::from_millis(200))
        .nresamples(1001)
        .without_plots();
    targets = all
}
criterion_main!(benches);

fn all(criterion: &mut Criterion) {
    let threads = candlewick::kernel::usable_cores();
    let cpu = Cpu::new(threads).expect("threads start");
    println!("kernels: {}, {threads} threads", cpu.level.detail());
    products::bench(criterion, &cpu);
    attention::bench(criterion, &cpu);
    rows::bench(criterion, &cpu);
    sampler::bench(criterion, &cpu);
}
