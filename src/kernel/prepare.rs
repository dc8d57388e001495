//! Rows of an input into the forms that products read: made, quantized, rounded, interleaved.
//!
//! Tasks are groups of rows, or some columns of one where groups are few. Knows the kernels' lanes, no matrices.

use std::ops::Range;

use super::activations::{group_width, Input, GROUP};
use super::isa::{Cpu, KernelLevel};
use super::lanes::pairs::round_bf16;
use super::lanes::{round_codes, with_lanes, Kernel, Lanes};
use super::memory::{with_scratch, Shared};

/// Values that a task prepares at least.
const TASK_VALUES: usize = 4096;
/// Blocks whose largest magnitude is below this count as zero: their scale's reciprocal could overflow.
const SMALLEST: f32 = 1.0e-30;

/// One input on its way into the forms of [`Activations`](super::activations::Activations), whose buffers these are.
pub(super) struct Job<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) codes: Option<Shared<i32>>,
    pub(super) scales: Shared<f32>,
    pub(super) sums: [Option<Shared<f32>>; 2],
    pub(super) starts: Vec<(i32, usize, Shared<i32>)>,
    pub(super) values: Option<Shared<f32>>,
    pub(super) narrow: Option<Shared<f32>>,
    pub(super) pairs: Option<Shared<u32>>,
}

/// Some columns of a group of rows. The buffers of the job have room for all groups; each part is visited by one task,
/// once, and begins at a multiple of 32 columns.
struct Part<'a> {
    job: &'a Job<'a>,
    group: usize,
    columns: Range<usize>,
    made: &'a mut [f32],
}

impl<V: Lanes> Kernel<V> for Part<'_> {
    /// # Safety
    /// As [`Part`] says.
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: the caller's promise.
        unsafe { self.job.part::<V>(self.group, self.columns, self.made) }
    }
}

/// # Safety
/// As [`Part`] says; the machine has the level.
unsafe fn prepare_part(level: KernelLevel, job: &Job<'_>, group: usize, columns: Range<usize>, made: &mut [f32]) {
    // SAFETY: passed on; the machine has the level.
    unsafe {
        with_lanes!(
            level,
            V => V::enter(Part { job, group, columns, made }),
            else job.part::<Plain>(group, columns, made)
        )
    }
}

/// Who computes [`round_codes`]. Not a closure, which would lose the instruction set where it is not inlined.
trait Round {
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn round(x: &[f32; 32], factor: f32) -> ([i32; 8], [i32; 2]);
}

/// Without an instruction set.
struct Plain;

impl Round for Plain {
    #[inline(always)]
    unsafe fn round(x: &[f32; 32], factor: f32) -> ([i32; 8], [i32; 2]) {
        round_codes(x, factor)
    }
}

impl<V: Lanes> Round for V {
    #[inline(always)]
    unsafe fn round(x: &[f32; 32], factor: f32) -> ([i32; 8], [i32; 2]) {
        // SAFETY: the caller's promise.
        unsafe { V::round_codes(x, factor) }
    }
}

impl Job<'_> {
    /// All groups of rows, on all threads.
    ///
    /// # Safety
    /// The buffers have room for every row's forms, and nobody else touches them meanwhile.
    pub(super) unsafe fn run(&self, cpu: &Cpu) {
        let level = cpu.usable_level();
        let (groups, threads) = (self.rows.div_ceil(GROUP), cpu.pool.threads());
        // Every part computes its rows' norms anew.
        let least = if let Input::Normed { .. } = self.input { 4 * TASK_VALUES } else { TASK_VALUES };
        let aim = (threads * 4).min(self.rows * self.cols / least).max(1);
        // Few groups are cut into columns as well, but into no more parts than pay for the hand-over.
        let parts = if threads > 1 && groups > 0 { aim.div_ceil(groups) } else { 1 };
        let columns = self.cols.div_ceil(parts).next_multiple_of(32);
        let parts = self.cols.div_ceil(columns.max(1));
        let units = groups * parts;
        let per_task = units.div_ceil(aim).max(1);
        cpu.pool.run(units.div_ceil(per_task), &|task| {
            with_scratch(columns, |made| {
                for unit in task * per_task..units.min((task + 1) * per_task) {
                    let first = unit % parts * columns;
                    let columns = first..self.cols.min(first + columns);
                    // SAFETY: units are different parts, and `usable_level` found the instruction set; the rest is the
                    // caller's promise.
                    unsafe { prepare_part(level, self, unit / parts, columns, made) };
                }
            });
        });
    }

    /// # Safety
    /// The buffers have room for all rows, and no other thread touches this part.
    #[inline(always)]
    unsafe fn part<R: Round>(&self, group: usize, columns: Range<usize>, made: &mut [f32]) {
        let (rows, cols) = (self.rows, self.cols);
        let first = group * GROUP;
        let width = group_width(rows, group);
        let start = columns.start;
        for c in 0..width {
            let row = self.input.part(first + c, cols, columns.clone(), made);
            if let Some(codes) = self.codes {
                for (b, block) in row.as_chunks::<32>().0.iter().enumerate() {
                    // SAFETY: block and column are inside this group's part of every buffer.
                    unsafe {
                        let quantized = quantize::<R>(block);
                        self.block(codes, first * (cols / 32), width, c, start / 32 + b, quantized);
                    }
                }
            }
            if let Some(values) = self.values {
                for (k, value) in (start..).zip(row) {
                    // SAFETY: as above.
                    unsafe { *values.get().add(first * cols + k * width + c) = *value };
                }
            }
            if let Some(narrow) = self.narrow {
                for (k, value) in (start..).zip(row) {
                    // SAFETY: as above.
                    unsafe { *narrow.get().add(first * cols + k * width + c) = round_bf16(*value) };
                }
            }
            if let Some(pairs) = self.pairs {
                for (j, pair) in (start / 2..).zip(row.chunks(2)) {
                    let second = pair.get(1).map_or(0, |second| round_bf16(*second).to_bits() >> 16);
                    let word = round_bf16(pair[0]).to_bits() | second;
                    // SAFETY: as above.
                    unsafe { *pairs.get().add(first * cols.div_ceil(2) + j * width + c) = word };
                }
            }
        }
    }

    /// # Safety
    /// As [`part`](Self::part).
    #[inline(always)]
    unsafe fn block(&self, codes: Shared<i32>, at: usize, width: usize, c: usize, b: usize, quantized: Quantized) {
        let (words, scale, sums) = quantized;
        // SAFETY: the caller's promise.
        unsafe {
            for (u, word) in words.into_iter().enumerate() {
                *codes.get().add(at * 8 + (b * 8 + u) * width + c) = word;
            }
            *self.scales.get().add(at + b * width + c) = scale;
            if let Some(out) = self.sums[0] {
                *out.get().add(at + b * width + c) = scale * (sums[0] + sums[1]) as f32;
            }
            if let Some(out) = self.sums[1] {
                for (sub, sum) in sums.into_iter().enumerate() {
                    *out.get().add(at * 2 + (b * 2 + sub) * width + c) = scale * sum as f32;
                }
            }
            for &(offset, subs, out) in &self.starts {
                if subs == 1 {
                    *out.get().add(at + b * width + c) = -offset * (sums[0] + sums[1]);
                } else {
                    for (sub, sum) in sums.into_iter().enumerate() {
                        *out.get().add(at * 2 + (b * 2 + sub) * width + c) = -offset * sum;
                    }
                }
            }
        }
    }
}

/// Codes of 32 values, four to a word; their scale; the sums of both halves.
type Quantized = ([i32; 8], f32, [i32; 2]);

/// # Safety
/// As [`Round::round`].
#[inline(always)]
unsafe fn quantize<R: Round>(x: &[f32; 32]) -> Quantized {
    // On the bit patterns of magnitudes, so that infinities and NaN win on every instruction set.
    let mut largest = 0u32;
    for value in x {
        largest = largest.max(value.to_bits() & 0x7fff_ffff);
    }
    if largest >= f32::INFINITY.to_bits() {
        return ([0; 8], f32::NAN, [0; 2]);
    }
    let largest = f32::from_bits(largest);
    if largest < SMALLEST {
        return ([0; 8], 0.0, [0; 2]);
    }
    // SAFETY: the caller's promise.
    let (words, sums) = unsafe { R::round(x, 127.0 / largest) };
    (words, largest / 127.0, sums)
}
