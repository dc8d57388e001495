//! Products of one input with packed matrices: the split into tasks, and which kernel takes which.
//!
//! Tasks are runs of panels of one matrix, that threads divide among them. The split follows the number of threads; the
//! order of every sum does not. Knows no formats beyond their [`Layout`](super::format::Layout).

use std::marker::PhantomData;
use std::ops::Range;

use super::activations::{group_width, kind, Activations, Kind, Precision, GROUP};
use super::float::{Dequantize, FloatColumn, FloatTile, PairTile, Widen, CHUNK, QUAD};
use super::format::{Layout, PANEL};
use super::int8::{unpacked_bytes, Direct, Tile, To, Unpack, Unpacked, MOST_PANELS};
use super::isa::Cpu;
#[cfg(test)]
use super::lanes;
use super::lanes::pairs::PairLanes;
use super::lanes::{with_lanes, Lanes};
use super::memory::{prefetch, with_scratch, Shared};
use super::packed::PackedMatrix;
use super::pool::first_task;
use super::scalar;
use super::unpack::{with_format, Format};
use crate::source::Dtype;

/// Rows whose f32 sums are kept at a time: 128 KiB for a quad of panels.
const FLOAT_ROWS: usize = 512;
/// Multiplications that are worth a task of their own (two microseconds or so, of one row that is read from memory).
const TASK_COST: usize = 1 << 15;
/// Bytes of weights that a waiting thread brings closer: a part of a core's second cache.
const AHEAD_BYTES: usize = 128 << 10;

/// Multiplies: `outs[i]`, `[acts.rows()][weights[i].rows()]` row-major, becomes `input × weights[i]` transposed.
///
/// One dispatch to the pool for all matrices. Every output is one chain of roundings in a fixed order, the same
/// for any number of rows and threads and every kernel level (see the README of this room), so a row's results do
/// not depend on the rows beside it.
///
/// # Panics
/// If a length differs from the above, or `acts` was not prepared for these matrices' types and columns.
pub fn matmul(cpu: &Cpu, weights: &[&PackedMatrix], acts: &Activations, outs: &mut [&mut [f32]]) {
    dispatch(cpu, runner(cpu), weights, acts, outs, false);
}

/// As [`matmul`], but adds to what the outputs hold: one more rounding per value.
///
/// # Panics
/// As [`matmul`].
pub fn matmul_add(cpu: &Cpu, weights: &[&PackedMatrix], acts: &Activations, outs: &mut [&mut [f32]]) {
    dispatch(cpu, runner(cpu), weights, acts, outs, true);
}

type Runner = fn(&Job<'_>, Range<usize>);

fn runner(cpu: &Cpu) -> Runner {
    #[cfg(target_arch = "x86_64")]
    if super::lanes::pairs::has_pairs(cpu.usable_level()) {
        return run_pairs::<super::lanes::avx512_bf16::Bf16>;
    }
    with_lanes!(cpu.usable_level(), V => run_lanes::<V>, else run_scalar)
}

/// [`matmul`] with lanes that the level would not choose. The machine must have them.
#[cfg(test)]
pub(crate) fn matmul_portable(cpu: &Cpu, weights: &[&PackedMatrix], acts: &Activations, outs: &mut [&mut [f32]]) {
    dispatch(cpu, run_lanes::<lanes::Portable>, weights, acts, outs, false);
}

/// The same for products of pairs.
#[cfg(test)]
pub(crate) fn matmul_portable_pairs(cpu: &Cpu, weights: &[&PackedMatrix], acts: &Activations, outs: &mut [&mut [f32]]) {
    dispatch(cpu, run_pairs::<lanes::pairs::Packed<lanes::Portable>>, weights, acts, outs, false);
}

/// One matrix of a dispatch.
pub(crate) struct Job<'a> {
    weights: &'a PackedMatrix,
    acts: &'a Activations,
    /// `[rows][weights.rows()]`.
    out: Shared<f32>,
    /// Panels per task.
    chunk: usize,
    /// Whether results are added to what the output holds.
    add: bool,
}

fn dispatch(cpu: &Cpu, run: Runner, weights: &[&PackedMatrix], acts: &Activations, outs: &mut [&mut [f32]], add: bool) {
    assert_eq!(weights.len(), outs.len(), "an output per matrix");
    for (weights, out) in weights.iter().zip(outs.iter()) {
        assert_eq!(weights.cols(), acts.cols(), "the columns of the input");
        assert_eq!(Some(out.len()), acts.rows().checked_mul(weights.rows()), "the length of an output");
        acts.assert_prepared(weights.layout());
    }
    if acts.rows() == 0 {
        return;
    }
    let cut = Cut::new(cpu, weights.iter().copied(), acts.rows(), |layout| acts.kind(layout));
    let jobs: Vec<Job<'_>> = weights
        .iter()
        .zip(outs.iter_mut())
        .map(|(weights, out)| Job { weights, acts, out: Shared(out.as_mut_ptr()), chunk: cut.chunk(weights), add })
        .collect();
    let parts = || jobs.iter().map(|job| (job.weights.panels(), job.chunk));
    cpu.pool.run(tasks(parts()), &|task| {
        if let Some((job, panels)) = find(parts(), task) {
            run(&jobs[job], panels);
        }
    });
}

/// How much one task is, where some matrices are multiplied with one input.
struct Cut<K> {
    threads: usize,
    rows: usize,
    kind: K,
    /// Panels that integer products take at a time.
    panels: usize,
    /// Cost of a task.
    task_cost: usize,
}

impl<K: Fn(&Layout) -> Kind> Cut<K> {
    fn new<'a>(cpu: &Cpu, weights: impl Iterator<Item = &'a PackedMatrix>, rows: usize, kind: K) -> Cut<K> {
        let panels = with_lanes!(cpu.usable_level(), V => if rows > V::DIRECT_ROWS { V::TILE.0 } else { 1 }, else 1);
        let mut cut = Cut { threads: cpu.pool.threads(), rows, kind, panels, task_cost: 0 };
        let total = weights.fold(0usize, |sum, w| sum.saturating_add(cut.cost(w).saturating_mul(w.panels())));
        cut.task_cost = (total / (cut.threads * 6)).max(TASK_COST);
        cut
    }

    /// Cost of a panel.
    fn cost(&self, weights: &PackedMatrix) -> usize {
        let per_value = match (self.kind)(weights.layout()) {
            Kind::Int8 => 1,
            Kind::Pairs => 2,
            Kind::Float => 8,
        };
        (PANEL * weights.cols()).saturating_mul(self.rows.saturating_mul(per_value)).max(1)
    }

    /// Panels per task.
    fn chunk(&self, weights: &PackedMatrix) -> usize {
        // One thread needs no balance.
        let panels = weights.panels();
        if self.threads == 1 {
            return panels;
        }
        let chunk = (self.task_cost / self.cost(weights)).clamp(1, panels);
        match (self.kind)(weights.layout()) {
            Kind::Int8 => (chunk / self.panels).max(1) * self.panels,
            _ => chunk.next_multiple_of(QUAD),
        }
    }
}

/// The tasks of matrices with some panels each, and so many panels per task.
fn tasks(parts: impl Iterator<Item = (usize, usize)>) -> usize {
    parts.map(|(panels, chunk)| panels.div_ceil(chunk)).sum()
}

/// The matrix and the panels of a task.
fn find(parts: impl Iterator<Item = (usize, usize)>, mut task: usize) -> Option<(usize, Range<usize>)> {
    for (index, (panels, chunk)) in parts.enumerate() {
        let tasks = panels.div_ceil(chunk);
        if task < tasks {
            return Some((index, task * chunk..panels.min((task + 1) * chunk)));
        }
        task -= tasks;
    }
    None
}

/// Says which product comes after the one that is about to run, of an input of `rows` rows: threads that wait meanwhile bring
/// the weights closer that they will read first. Changes no result.
pub fn expect(cpu: &Cpu, weights: &[&PackedMatrix], rows: usize, precision: Precision) {
    let threads = cpu.pool.threads();
    let cut = Cut::new(cpu, weights.iter().copied(), rows, |layout| kind(layout, precision, cpu.usable_level()));
    let parts = || weights.iter().map(|w| (w.panels(), cut.chunk(w)));
    let tasks = tasks(parts());
    cpu.pool.expect(|thread| match find(parts(), first_task(tasks, thread, threads)) {
        Some((index, panels)) => {
            let bytes = weights[index].panels_from(panels.start);
            (bytes.as_ptr(), bytes.len().min(AHEAD_BYTES))
        }
        None => (std::ptr::null(), 0),
    });
}

fn run_scalar(job: &Job<'_>, panels: Range<usize>) {
    let rows = panels.start * PANEL..job.weights.rows().min(panels.end * PANEL);
    let n = job.weights.rows();
    // SAFETY: m is below the input's rows and r below the matrix's, and the output has a value for each pair;
    // only this task has these r.
    let mut store = |m: usize, r: usize, value: f32| unsafe {
        let out = job.out.get().add(m * n + r);
        *out = if job.add { *out + value } else { value };
    };
    if job.acts.int8_for(job.weights.layout()) {
        scalar::int8_rows(job.weights, job.acts, rows, &mut store);
    } else {
        scalar::float_rows(job.weights, job.acts, rows, &mut store);
    }
}

/// Panels with the lanes of `V`, which this machine has: [`matmul`] chose it so.
fn run_lanes<V: Lanes>(job: &Job<'_>, panels: Range<usize>) {
    let dtype = job.weights.dtype();
    if job.acts.int8_for(job.weights.layout()) {
        with_format!(dtype, F => int8::<V, F>(job, panels), else unreachable!("dense weights take f32"));
    } else {
        float::<V>(job, panels);
    }
}

/// Runs an expression with `$columns` as a constant: the rows of a group.
macro_rules! with_columns {
    ($value:expr, $columns:ident => $body:expr) => {
        with_columns!(@ $value, $columns, $body, 1 2 3 4 5 6 7 8)
    };
    (@ $value:expr, $columns:ident, $body:expr, $($count:literal)*) => {
        match $value {
            $( $count => { const $columns: usize = $count; $body } )*
            _ => unreachable!("a group has 1 to 8 rows"),
        }
    };
}

/// As [`run_lanes`], with products of pairs where the input has them; `P` takes factors as pairs.
#[cfg_attr(not(any(test, target_arch = "x86_64")), allow(dead_code))]
fn run_pairs<P: PairLanes>(job: &Job<'_>, panels: Range<usize>) {
    let (layout, cols) = (job.weights.layout(), job.weights.cols());
    if job.acts.group_pairs(layout, 0).is_none() {
        return run_lanes::<P::V>(job, panels);
    }
    // Two panels share what is read of a row, and their chains hide each other's latency; for few rows memory is the limit, and
    // one stream is read faster.
    let most = if job.acts.rows() > GROUP { MOST_PANELS } else { 1 };
    let mut index = panels.start;
    while index < panels.end {
        if job.weights.has_tiny(index) {
            float::<P::V>(job, index..index + 1);
            index += 1;
            continue;
        }
        let two = most == 2 && index + 1 < panels.end && !job.weights.has_tiny(index + 1);
        let count = if two { 2 } else { 1 };
        for group in 0..job.acts.rows().div_ceil(GROUP) {
            let Some(pairs) = job.acts.group_pairs(layout, group) else { continue };
            macro_rules! tile {
                ($panels:literal, $columns:ident, $to:ident) => {{
                    let panels = std::array::from_fn(|p| job.weights.panel(index + p).as_ptr());
                    let (out, stride, add) = $to;
                    P::enter(PairTile::<$panels, $columns> { panels, cols, pairs, out, stride, add })
                }};
            }
            // SAFETY: panels and pairs have `cols` columns; `write` hands out room for the results; the machine has P.
            unsafe {
                job.write(index, count, group, |out, stride, add| {
                    let to = (out, stride, add);
                    with_columns!(job.columns(group), C => if two { tile!(2, C, to) } else { tile!(1, C, to) })
                });
            }
        }
        index += count;
    }
}

impl Job<'_> {
    /// Rows of group `group`.
    fn columns(&self, group: usize) -> usize {
        group_width(self.acts.rows(), group)
    }

    /// Lets `f` write the results of one or two panels for a group of input rows, 16 per row and panel, at a pointer with a
    /// stride, or add them to what is there if it is told so; what the output does not hold in full is written aside first.
    ///
    /// # Safety
    /// `f` writes nothing else; no other thread writes these panels' part of the output.
    unsafe fn write(&self, panel: usize, panels: usize, group: usize, f: impl FnOnce(*mut f32, usize, bool)) {
        let row = group * GROUP;
        let n = self.weights.rows();
        let width = panels * PANEL;
        let lanes = width.min(n - panel * PANEL);
        // SAFETY: row and panel lie inside the output.
        let out = unsafe { self.out.get().add(row * n + panel * PANEL) };
        // Wanted when the products are done: a store that misses the caches holds up the ones behind it. The results of few
        // rows are in the caches.
        if self.add || self.acts.rows() > 2 * GROUP {
            for (c, p) in (0..self.columns(group)).flat_map(|c| (0..panels).map(move |p| (c, p))) {
                prefetch::<true>(out.wrapping_add(c * n + p * PANEL).cast());
            }
        }
        if lanes == width {
            return f(out, n, self.add);
        }
        let mut aside = [0f32; MOST_PANELS * GROUP * PANEL];
        f(aside.as_mut_ptr(), width, false);
        for (c, results) in aside.chunks_exact(width).take(self.columns(group)).enumerate() {
            // SAFETY: `lanes` values of row `row + c` remain from these panels' start, and only this task has them.
            let out = unsafe { std::slice::from_raw_parts_mut(out.add(c * n), lanes) };
            if self.add {
                out.iter_mut().zip(results).for_each(|(out, result)| *out += result);
            } else {
                out.copy_from_slice(&results[..lanes]);
            }
        }
    }
}

fn int8<V: Lanes, F: Format>(job: &Job<'_>, panels: Range<usize>) {
    let format = PhantomData::<F>;
    let layout = job.weights.layout();
    let blocks = job.weights.cols() / 32;
    let groups = job.acts.rows().div_ceil(GROUP);
    // Without any, their code is not even made.
    if const { V::DIRECT_ROWS > 0 } && job.acts.rows() <= V::DIRECT_ROWS {
        for index in panels {
            let panel = job.weights.panel(index).as_ptr();
            for group in 0..groups {
                let operands = &job.acts.operands(layout, group);
                // SAFETY: the panel and the operands have `blocks` blocks; `write` hands out room for the results;
                // the machine has V.
                unsafe {
                    job.write(index, 1, group, |out, stride, add| {
                        with_columns!(job.columns(group), C => {
                            V::enter(Direct::<F, C> { panel, blocks, operands, out, stride, add, format })
                        })
                    });
                }
            }
        }
        return;
    }
    let cut = Parts::new::<V, F>(blocks, panels.len());
    let sums_len = if cut.blocks < blocks { groups * GROUP * V::TILE.0 * PANEL } else { 0 };
    with_scratch(cut.bytes::<F>(cut.panels) / 4 + sums_len, |scratch| {
        let (unpacked, sums) = scratch.split_at_mut(cut.bytes::<F>(cut.panels) / 4);
        let unpacked: *mut u8 = unpacked.as_mut_ptr().cast();
        for index in panels.clone().step_by(cut.panels) {
            let at_once = index..panels.end.min(index + cut.panels);
            for first in (0..blocks).step_by(cut.blocks) {
                let part = first..blocks.min(first + cut.blocks);
                for (i, index) in at_once.clone().enumerate() {
                    let panel = job.weights.panel(index).as_ptr();
                    let to = unpacked.wrapping_add(i * part.len() * unpacked_bytes(F::SUBS, F::HAS_MIN));
                    // SAFETY: the panel has these blocks and the scratch room for them; the machine has V.
                    unsafe { V::enter(Unpack { panel, blocks: part.clone(), to, format }) };
                }
                // SAFETY: the scratch is as `Unpack` left it, and has room for the sums of a part that is not the last.
                unsafe { all_rows::<V, F>(job, at_once.clone(), part, unpacked, sums) };
            }
        }
    });
}

/// How panels are cut for unpacking.
struct Parts {
    panels: usize,
    blocks: usize,
}

impl Parts {
    fn new<V: Lanes, F: Format>(blocks: usize, panels: usize) -> Parts {
        const { assert!(V::TILE.0 <= MOST_PANELS) };
        let bytes = V::TILE.0 * unpacked_bytes(F::SUBS, F::HAS_MIN);
        // Parts alike, of whole groups of the packed form.
        let groups = blocks.div_ceil(F::BLOCKS);
        let most = (V::UNPACKED_BYTES / (bytes * F::BLOCKS)).max(1);
        let blocks = (groups.div_ceil(groups.div_ceil(most)) * F::BLOCKS).min(blocks);
        // Sums wait for one tile's panels only.
        let tiles = if groups > most { 1 } else { (V::UNPACKED_BYTES / (bytes * blocks)).max(1) };
        Parts { panels: (V::TILE.0 * tiles).min(panels.next_multiple_of(V::TILE.0)), blocks }
    }

    /// Bytes of a part of so many panels.
    fn bytes<F: Format>(&self, panels: usize) -> usize {
        panels * self.blocks * unpacked_bytes(F::SUBS, F::HAS_MIN)
    }
}

/// Unpacked blocks of some panels times all rows.
///
/// # Safety
/// `unpacked` holds the part of each panel; `sums` has room for all rows of a tile's panels, unless the part is all blocks; the
/// machine has V.
unsafe fn all_rows<V: Lanes, F: Format>(
    job: &Job<'_>,
    panels: Range<usize>,
    part: Range<usize>,
    unpacked: *mut u8,
    sums: &mut [f32],
) {
    let layout = job.weights.layout();
    let blocks = job.weights.cols() / 32;
    let groups = job.acts.rows().div_ceil(GROUP);
    let is_last = part.end == blocks;
    // Bring the packed blocks that follow closer during the first groups; all of them if there is one group only.
    let (then, after) = if is_last { (panels.end, 0) } else { (panels.start, part.end / F::BLOCKS * F::BYTES) };
    let lines = (part.len().div_ceil(F::BLOCKS) * F::BYTES).div_ceil(64 * part.len() * groups.min(8));
    for group in 0..groups {
        let operands = &job.acts.operands(layout, group);
        for index in panels.clone().step_by(V::TILE.0) {
            let i = index - panels.start;
            let count = V::TILE.0.min(panels.end - index);
            let next: [*const u8; MOST_PANELS] = std::array::from_fn(|p| {
                let panel = job.weights.panels_from((then + i + p).min(job.weights.panels() - 1)).as_ptr();
                panel.wrapping_add(after + group * part.len() * lines * 64)
            });
            let place = if is_last && part.start == 0 { 0 } else { group * GROUP * count * PANEL };
            let sums = sums[place..].as_mut_ptr();
            let from = Unpacked {
                units: unpacked.wrapping_add(i * part.len() * unpacked_bytes(F::SUBS, F::HAS_MIN)),
                blocks: part.clone(),
                operands,
                sums: if part.start == 0 { std::ptr::null() } else { sums.cast_const() },
                next,
                next_lines: if group < 8 { lines } else { 0 },
            };
            let size = (count, job.columns(group));
            // SAFETY: the caller's promise; `write` hands out room for the results.
            unsafe {
                if is_last {
                    job.write(index, count, group, |out, stride, add| {
                        multiply::<V, F>(&from, size, &To { out, stride, add })
                    });
                } else {
                    multiply::<V, F>(&from, size, &To { out: sums, stride: count * PANEL, add: false });
                }
            }
        }
    }
}

/// The tile for some panels and columns.
///
/// # Safety
/// As [`Tile`].
unsafe fn multiply<V: Lanes, F: Format>(from: &Unpacked<'_>, (panels, columns): (usize, usize), to: &To) {
    // SAFETY: passed on.
    unsafe {
        with_columns!(columns, C => match panels {
            2 => multiply_by::<V, F, 2, C>(from, to),
            _ => multiply_by::<V, F, 1, C>(from, to),
        })
    }
}

/// The tile for a format's constants.
///
/// # Safety
/// As [`Tile`].
unsafe fn multiply_by<V: Lanes, F: Format, const P: usize, const C: usize>(from: &Unpacked<'_>, to: &To) {
    macro_rules! tile {
        ($subs:literal, $min:literal, $bits:literal) => {
            // Without so many panels at a time, their code is not even made.
            if const { P <= V::TILE.0 } {
                // SAFETY: passed on.
                unsafe { V::enter(Tile::<P, C, $subs, $min, $bits> { from, to }) }
            }
        };
    }
    match (F::SUBS, F::HAS_MIN, F::BITS) {
        (1, false, 0..=4) => tile!(1, false, 4),
        (1, false, 5) => tile!(1, false, 5),
        // `format!` sees to it that there are no others.
        (1, false, _) => tile!(1, false, 8),
        (1, true, 0..=4) => tile!(1, true, 4),
        (1, true, _) => tile!(1, true, 5),
        (_, true, _) => tile!(2, true, 4),
        (_, false, 0..=4) => tile!(2, false, 4),
        (_, false, _) => tile!(2, false, 6),
    }
}

fn float<V: Lanes>(job: &Job<'_>, panels: Range<usize>) {
    let rows = job.acts.rows();
    let sums_len = QUAD * rows.min(FLOAT_ROWS).next_multiple_of(GROUP) * PANEL;
    with_scratch(QUAD * CHUNK * PANEL + sums_len, |scratch| {
        let (weights, sums) = scratch.split_at_mut(QUAD * CHUNK * PANEL);
        let weights = weights.as_mut_ptr();
        let mut first = panels.start;
        while first < panels.end {
            let quad = first..panels.end.min(first + QUAD);
            for row in (0..rows).step_by(FLOAT_ROWS) {
                let part = row..rows.min(row + FLOAT_ROWS);
                // SAFETY: the scratch as laid out above; panels and rows exist; the machine has V.
                unsafe { float_quad::<V>(job, quad.clone(), part, weights, sums) };
            }
            first = quad.end;
        }
    });
}

/// Up to four panels times some input rows; `sums` is laid out `[row][quad][16]` by groups.
///
/// # Safety
/// `weights` takes four chunks; `rows` starts at a group; the machine has V.
unsafe fn float_quad<V: Lanes>(
    job: &Job<'_>,
    quad: Range<usize>,
    rows: Range<usize>,
    weights: *mut f32,
    sums: &mut [f32],
) {
    let cols = job.weights.cols();
    let groups = rows.start / GROUP..rows.end.div_ceil(GROUP);
    sums.fill(0.0);
    // Group-major, then panel, then row of the group.
    let place = |group: usize, p: usize| ((group - groups.start) * GROUP * quad.len() + p * job.columns(group)) * PANEL;
    for first in (0..cols).step_by(CHUNK) {
        let count = CHUNK.min(cols - first);
        let mut from = [std::ptr::null::<f32>(); QUAD];
        for (p, index) in quad.clone().enumerate() {
            let panel = job.weights.panel(index).as_ptr();
            // SAFETY: a chunk's columns lie inside the panel, and its values in the p-th part of the scratch.
            unsafe {
                let to = weights.add(p * CHUNK * PANEL);
                from[p] = to;
                match job.weights.dtype() {
                    Dtype::F32 => from[p] = panel.cast::<f32>().add(first * PANEL),
                    Dtype::F16 => V::enter(Widen::<false> { from: panel.add(first * PANEL * 2), count, to }),
                    Dtype::BF16 => V::enter(Widen::<true> { from: panel.add(first * PANEL * 2), count, to }),
                    dtype => with_format!(dtype, F => {
                        V::enter(Dequantize { panel, first: first / 32, blocks: count / 32, to, format: PhantomData::<F> })
                    }, else unreachable!("layouts have these types")),
                }
            }
        }
        for group in groups.clone() {
            let columns = job.columns(group);
            // SAFETY: the group has `cols` times `columns` values.
            let values = unsafe { job.acts.group_values(job.weights.layout(), group).add(first * columns) };
            if columns == 1 && quad.len() == QUAD && job.weights.dtype().is_quantized() {
                let sums = sums[place(group, 0)..][..QUAD * PANEL].as_mut_ptr();
                // SAFETY: all four chunks are in the scratch; the machine has V.
                unsafe { V::enter(FloatColumn { weights, values, count, sums }) };
                continue;
            }
            for (p, &weights) in from.iter().enumerate().take(quad.len()) {
                let sums = sums[place(group, p)..][..columns * PANEL].as_mut_ptr();
                // SAFETY: `from` holds `count` columns per panel; the machine has V.
                unsafe { with_columns!(columns, C => V::enter(FloatTile::<C> { weights, values, count, sums })) };
            }
        }
    }
    for group in groups.clone() {
        let columns = job.columns(group);
        for (p, index) in quad.clone().enumerate() {
            let results = &sums[place(group, p)..][..columns * PANEL];
            // SAFETY: `write` hands out room for 16 results per row.
            unsafe {
                job.write(index, 1, group, |out, stride, add| {
                    for (c, results) in results.as_chunks::<PANEL>().0.iter().enumerate() {
                        let out = &mut *out.add(c * stride).cast::<[f32; PANEL]>();
                        if add {
                            out.iter_mut().zip(results).for_each(|(out, result)| *out += result);
                        } else {
                            *out = *results;
                        }
                    }
                });
            }
        }
    }
}
