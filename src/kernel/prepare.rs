//! Rows of an input into the forms that products read: made, quantized, rounded, interleaved.
//!
//! Tasks are groups of rows, or some columns of one where groups are few. Knows the kernels' lanes, no matrices.

use std::ops::Range;

use super::activations::{group_width, Input, GROUP};
use super::isa::{Cpu, KernelLevel};
use super::lanes::pairs::round_bf16;
use super::lanes::{round_codes, with_lanes, Kernel, Lanes, RowCodes, SMALLEST};
use super::memory::{with_scratch, Shared};

/// Values that a task prepares at least.
const TASK_VALUES: usize = 4096;
/// Columns of a group that are made at a time.
const COLUMNS: usize = 256;

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

/// Who computes [`round_codes`] and [`Lanes::quantize_rows`]. Not a closure, which would lose the instruction set where it is not inlined.
trait Round {
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn round(x: &[f32; 32], factor: f32) -> ([i32; 8], [i32; 2]);

    /// # Safety
    /// As [`Lanes::quantize_rows`].
    unsafe fn rows(x: *const f32, apart: usize, codes: *mut i32) -> Option<RowCodes>;
}

/// Without an instruction set.
struct Plain;

impl Round for Plain {
    #[inline(always)]
    unsafe fn round(x: &[f32; 32], factor: f32) -> ([i32; 8], [i32; 2]) {
        round_codes(x, factor)
    }
    #[inline(always)]
    unsafe fn rows(_x: *const f32, _apart: usize, _codes: *mut i32) -> Option<RowCodes> {
        None
    }
}

impl<V: Lanes> Round for V {
    #[inline(always)]
    unsafe fn round(x: &[f32; 32], factor: f32) -> ([i32; 8], [i32; 2]) {
        // SAFETY: the caller's promise.
        unsafe { V::round_codes(x, factor) }
    }
    #[inline(always)]
    unsafe fn rows(x: *const f32, apart: usize, codes: *mut i32) -> Option<RowCodes> {
        // SAFETY: the caller's promise.
        unsafe { V::quantize_rows(x, apart, codes) }
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
            with_scratch(GROUP * COLUMNS, |made| {
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
        let first = group * GROUP;
        let width = group_width(self.rows, group);
        let mut scales = [0f32; GROUP];
        for (c, scale) in scales[..width].iter_mut().enumerate() {
            *scale = self.input.scale(first + c, self.cols);
        }
        for start in columns.clone().step_by(COLUMNS) {
            let some = start..columns.end.min(start + COLUMNS);
            let rows = self.input.rows(first..first + width, self.cols, some.clone(), &scales, made);
            // SAFETY: the caller's promise; `rows` are these columns.
            unsafe { self.forms::<R>((first, width), some, rows) };
        }
    }

    /// Writes the forms of some columns of a group of `width` rows from `first` on. The rows are some values apart.
    ///
    /// # Safety
    /// As [`part`](Self::part).
    #[inline(always)]
    unsafe fn forms<R: Round>(
        &self,
        (first, width): (usize, usize),
        columns: Range<usize>,
        (rows, apart): (&[f32], usize),
    ) {
        let cols = self.cols;
        if let Some(codes) = self.codes {
            debug_assert!(columns.len().is_multiple_of(32), "matrices that take codes have whole blocks");
            for (b, from) in (0..columns.len()).step_by(32).enumerate() {
                let at = Place { first: first * (cols / 32), width, block: columns.start / 32 + b };
                let to = codes.get().wrapping_add((at.first + at.block * width) * 8);
                // SAFETY: block and columns are inside this group's part of every buffer; `rows` has whole blocks.
                unsafe {
                    let quantized = if width == GROUP { R::rows(rows[from..].as_ptr(), apart, to) } else { None };
                    if let Some((scales, sums)) = quantized {
                        self.factors(at, 0, scales, sums);
                        continue;
                    }
                    for c in 0..width {
                        let Some(block) = rows[c * apart + from..].first_chunk() else { continue };
                        let (words, scale, [low, high]) = quantize::<R>(block);
                        for (u, word) in words.into_iter().enumerate() {
                            *to.add(u * width + c) = word;
                        }
                        self.factors(at, c, [scale], [[low], [high]]);
                    }
                }
            }
        }
        for c in 0..width {
            let (row, start) = (&rows[c * apart..][..columns.len()], columns.start);
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

    /// Writes what goes with the codes of a block, for `N` rows from `c` on.
    ///
    /// # Safety
    /// As [`part`](Self::part).
    #[inline(always)]
    unsafe fn factors<const N: usize>(&self, at: Place, c: usize, scales: [f32; N], sums: [[i32; N]; 2]) {
        let whole = at.first + at.block * at.width + c;
        let half = |sub: usize| 2 * at.first + (2 * at.block + sub) * at.width + c;
        // SAFETY: the caller's promise.
        unsafe {
            for (i, scale) in scales.into_iter().enumerate() {
                *self.scales.get().add(whole + i) = scale;
            }
            if let Some(out) = self.sums[0] {
                for i in 0..N {
                    *out.get().add(whole + i) = scales[i] * (sums[0][i] + sums[1][i]) as f32;
                }
            }
            if let Some(out) = self.sums[1] {
                for (sub, sums) in sums.into_iter().enumerate() {
                    for i in 0..N {
                        *out.get().add(half(sub) + i) = scales[i] * sums[i] as f32;
                    }
                }
            }
            for &(offset, subs, out) in &self.starts {
                if subs == 1 {
                    for (i, (low, high)) in sums[0].into_iter().zip(sums[1]).enumerate() {
                        *out.get().add(whole + i) = -offset * (low + high);
                    }
                } else {
                    for (sub, sums) in sums.into_iter().enumerate() {
                        for (i, sum) in sums.into_iter().enumerate() {
                            *out.get().add(half(sub) + i) = -offset * sum;
                        }
                    }
                }
            }
        }
    }
}

/// A block of 32 columns of a group, in the buffers of factors.
#[derive(Clone, Copy)]
struct Place {
    /// Blocks of the rows before the group.
    first: usize,
    width: usize,
    block: usize,
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
