//! What the machine gives at best, measured beside a benchmark so that rates can be read as fractions.
//!
//! Nothing in inference depends on these figures.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::isa::Cpu;
use super::lanes::{each_column, each_part, with_lanes, Kernel, Lanes};
use super::memory::Buffer;

/// Bytes read per measurement: far above any last-level cache.
const BYTES: usize = 256 << 20;
/// Rounds of a measurement. Of arithmetic the best counts, since others' work only slows; of memory the median, since its
/// speed changes by itself and what it is compared with is a mean or a median too.
const ROUNDS: usize = 5;

/// Bytes per second that all threads together read from memory; `None` without memory for the test (256 MiB).
pub fn read_bandwidth(cpu: &Cpu) -> Option<f64> {
    let mut buffer = Buffer::zeroed(BYTES)?;
    // Pages that were never written may all be the same page of zeros.
    buffer.as_mut_slice().iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let parts: Vec<&[u8]> = buffer.as_slice().chunks(1 << 20).collect();
    let seconds = median(|| {
        cpu.pool.run(parts.len(), &|part| {
            let mut sums = [0u64; 8];
            for line in parts[part].as_chunks::<64>().0 {
                for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                    *sum ^= u64::from_ne_bytes(*word);
                }
            }
            black_box(sums);
        });
    });
    Some(BYTES as f64 / seconds)
}

/// Time of one fork and join of all threads with nothing to do, as in a decode step.
pub fn barrier_latency(cpu: &Cpu) -> Duration {
    const CALLS: u32 = 1000;
    let threads = cpu.pool.threads();
    let seconds = best(|| (0..CALLS).for_each(|_| cpu.pool.run(threads, &|task| _ = black_box(task))));
    Duration::from_secs_f64(seconds / f64::from(CALLS))
}

/// Integer multiply-adds per second of all threads together, on operands in the first-level cache; `None` at the
/// scalar level, which has no integer kernel to measure.
pub fn int8_peak(cpu: &Cpu) -> Option<f64> {
    with_lanes!(cpu.usable_level(), V => Some(peak::<V>(cpu)), else None)
}

/// f32 multiply-adds per second of all threads together, fused and in registers; `None` at the scalar level, which
/// has no vectors.
pub fn float_peak(cpu: &Cpu) -> Option<f64> {
    with_lanes!(cpu.usable_level(), V => Some(peak_of_floats::<V>(cpu)), else None)
}

/// Multiply-adds of every sum in one task: some tens of microseconds.
const FUSED: usize = 8192;

/// Chains of sums that hide the latency of an fma and leave registers for its factors.
const fn chains<V: Lanes>() -> usize {
    if V::FLOAT_COLUMNS == 8 {
        8
    } else {
        6
    }
}

fn peak_of_floats<V: Lanes>(cpu: &Cpu) -> f64 {
    let tasks = cpu.pool.threads() * 16;
    let seconds = best(|| {
        cpu.pool.run(tasks, &|_| {
            // SAFETY: `usable_level` found the instruction set.
            unsafe { V::enter(FloatPeak) };
        });
    });
    (tasks * FUSED * chains::<V>() * 16) as f64 / seconds
}

struct FloatPeak;

impl<V: Lanes> Kernel<V> for FloatPeak {
    /// # Safety
    /// The machine has the instruction set.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: 16 results fit `out`; the rest is the caller's promise.
        unsafe {
            let (factor, term) = (V::splat_f(black_box(0.5)), V::splat_f(black_box(1.0)));
            let mut sums = [V::splat_f(black_box(0.25)); 8];
            // Different starts, so that the sums stay apart.
            for i in 1..8 {
                sums[i] = V::add(sums[i - 1], term);
            }
            for _ in 0..FUSED {
                each_column!(chains::<V>(), I => { sums[I] = V::fma(sums[I], factor, term); });
            }
            let mut out = [0f32; 16];
            for sum in sums {
                V::store_f(out.as_mut_ptr(), sum);
                black_box(&out);
            }
        }
    }
}

/// Columns of the peak's dot products.
const COLUMNS: usize = 8;
/// Dot products of one task: some 100 microseconds.
const DOTS: usize = 4096;

fn peak<V: Lanes>(cpu: &Cpu) -> f64 {
    let tasks = cpu.pool.threads() * 16;
    let seconds = best(|| {
        cpu.pool.run(tasks, &|_| {
            let mut operands = Operands { units: [0x07; 17 * 512], words: [0x0102_0304; 8 * COLUMNS * 2] };
            black_box(&mut operands);
            // SAFETY: `usable_level` found the instruction set; the kernel reads inside the operands.
            unsafe { V::enter(Peak { operands: &operands }) };
        });
    });
    (tasks * DOTS * COLUMNS * 32 * 16 * V::TILE.0) as f64 / seconds
}

#[repr(C, align(64))]
struct Operands {
    units: [u8; 17 * 512],
    words: [i32; 8 * COLUMNS * 2],
}

struct Peak<'a> {
    operands: &'a Operands,
}

impl Peak<'_> {
    /// # Safety
    /// As [`Kernel::run`]; `P` is the panels of a tile.
    #[inline(always)]
    unsafe fn panels<V: Lanes, const P: usize>(self) {
        // SAFETY: blocks are below 17 of 512 bytes, words start below 8 * COLUMNS of twice as many; the rest is
        // the caller's promise.
        unsafe {
            let mut all = [V::splat_i(0); COLUMNS];
            for i in 0..DOTS {
                let units = self.operands.units.as_ptr().add(i % 16 * 512).cast();
                let words = self.operands.words.as_ptr().add(i % (8 * COLUMNS));
                macro_rules! part {
                    ($width:expr, $first:expr) => {{
                        let first = $first;
                        let words = words.add(first);
                        let dots = V::dots::<P, COLUMNS, { $width }, 1, true, 4>(units, 512, words, words);
                        for dots in dots {
                            each_column!($width, COLUMN => {
                                all[first + COLUMN] = V::or(all[first + COLUMN], dots[COLUMN]);
                            });
                        }
                    }};
                }
                each_part!(if V::TILE.1 < V::DOT_COLUMNS { V::TILE.1 } else { V::DOT_COLUMNS }, COLUMNS, part);
            }
            let mut out = [0u8; 64];
            for all in all {
                V::store_i(out.as_mut_ptr(), all);
                black_box(&out);
            }
        }
    }
}

impl<V: Lanes> Kernel<V> for Peak<'_> {
    /// # Safety
    /// The machine has the instruction set.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: passed on.
        unsafe {
            if const { V::TILE.0 == 2 } {
                self.panels::<V, 2>();
            } else {
                self.panels::<V, 1>();
            }
        }
    }
}

/// Seconds of every round, ascending.
fn rounds(mut f: impl FnMut()) -> [f64; ROUNDS] {
    let mut seconds = [(); ROUNDS].map(|()| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64().max(1e-9)
    });
    seconds.sort_by(f64::total_cmp);
    seconds
}

fn best(f: impl FnMut()) -> f64 {
    rounds(f)[0]
}

fn median(f: impl FnMut()) -> f64 {
    rounds(f)[ROUNDS / 2]
}
