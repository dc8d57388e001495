//! The inputs of a product in the forms the kernels read, computed once for all linears of one input.
//!
//! Rows are taken in groups of 8, the last of those that remain, and interleaved within a group, so that a kernel that
//! works on a group finds every operand at a constant distance. Knows which forms a storage type needs, no panels.

use std::ops::Range;

use super::format::Layout;
use super::isa::{Cpu, KernelLevel};
use super::lanes::pairs::has_pairs;
use super::memory::Shared;
use super::ops::{inverse_rms, Activation};
use super::packed::PackedMatrix;
use super::prepare::Job;
use super::vector::leveled;
use crate::source::Dtype;

/// Rows of a group.
pub(crate) const GROUP: usize = 8;

/// How weights and activations are multiplied. Weights of F32 and F16 always take f32 activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// Quantized weights take activations as int8 with one scale per 32 values; weights of BF16 take activations rounded
    /// to bf16 (to nearest, ties to even; magnitudes below 2^-50 become zero), summed in f32.
    #[default]
    Int8Activations,
    /// f32 activations, and the weights' values in f32.
    F32,
}

/// What a product's input is made from on the way into its forms.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// `[rows][cols]` as they are.
    Rows(&'a [f32]),
    /// Each row of `x`, `[rows][cols]`, as [`rms_norm`](super::rms_norm) would give it.
    Normed {
        /// The rows before the norm.
        x: &'a [f32],
        /// A factor per column.
        weight: &'a [f32],
        /// Added to the mean of squares.
        eps: f32,
    },
    /// `activation(gate) * up`, value by value; both `[rows][cols]`.
    Gated {
        /// The nonlinearity.
        activation: Activation,
        /// Its argument.
        gate: &'a [f32],
        /// The other factor.
        up: &'a [f32],
    },
}

impl<'a> Input<'a> {
    /// The length of what it is made from, where all parts have the same and a norm's weight is a row.
    fn len(&self, cols: usize) -> Option<usize> {
        match self {
            Input::Rows(x) => Some(x.len()),
            Input::Normed { x, weight, .. } => (weight.len() == cols).then_some(x.len()),
            Input::Gated { gate, up, .. } => (gate.len() == up.len()).then_some(gate.len()),
        }
    }

    /// Values in all rows.
    pub fn values(&self) -> usize {
        match self {
            Input::Rows(x) | Input::Normed { x, .. } => x.len(),
            Input::Gated { gate, .. } => gate.len(),
        }
    }

    /// What row `r` is multiplied with before anything else, which all of its columns decide.
    #[inline(always)]
    pub(super) fn scale(&self, r: usize, cols: usize) -> f32 {
        match *self {
            Input::Normed { x, eps, .. } => inverse_rms(&x[r * cols..(r + 1) * cols], eps),
            _ => 1.0,
        }
    }

    /// Some columns of some rows with those scales, where they are or made in `made`, and how far apart rows are.
    #[inline(always)]
    pub(super) fn rows<'b>(
        &self,
        rows: Range<usize>,
        cols: usize,
        columns: Range<usize>,
        scales: &[f32],
        made: &'b mut [f32],
    ) -> (&'b [f32], usize)
    where
        'a: 'b,
    {
        if let Input::Rows(x) = *self {
            return (&x[rows.start * cols + columns.start..rows.end * cols], cols);
        }
        let apart = columns.len();
        for (r, made) in rows.clone().zip(made.chunks_exact_mut(apart)) {
            self.make(r, cols, columns.clone(), scales[r - rows.start], made);
        }
        (made, apart)
    }

    /// Some columns of row `r`, whose scale is given, to `out`.
    #[inline(always)]
    fn make(&self, r: usize, cols: usize, columns: Range<usize>, scale: f32, out: &mut [f32]) {
        let range = r * cols + columns.start..r * cols + columns.end;
        match *self {
            Input::Rows(x) => out.copy_from_slice(&x[range]),
            Input::Normed { x, weight, .. } => {
                for ((out, x), w) in out.iter_mut().zip(&x[range]).zip(&weight[columns]) {
                    *out = x * scale * w;
                }
            }
            Input::Gated { activation, gate, up } => {
                // Two loops: the choice must not be made per value.
                let values = out.iter_mut().zip(gate[range.clone()].iter().zip(&up[range]));
                match activation {
                    Activation::Silu => values.for_each(|(out, (g, u))| *out = Activation::Silu.gate(*g, *u)),
                    Activation::GeluTanh => values.for_each(|(out, (g, u))| *out = Activation::GeluTanh.gate(*g, *u)),
                }
            }
        }
    }

    /// All rows, `[rows][cols]`, written to `out`.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn write(&self, cpu: &Cpu, cols: usize, out: &mut [f32]) {
        assert_eq!(self.len(cols), Some(out.len()), "an input of rows of {cols} columns");
        let rows = ((16 << 10) / cols.max(1)).max(1);
        cpu.for_each_chunk(out, rows * cols, &|first, out| write_rows(cpu, self, first / cols, cols, out));
    }
}

leveled! {
    fn write_rows(input: &Input<'_>, first: usize, cols: usize, out: &mut [f32]) {
        for (r, out) in out.chunks_exact_mut(cols).enumerate() {
            input.make(first + r, cols, 0..cols, input.scale(first + r, cols), out);
        }
    }
}

/// Which integer a dot product starts from, so that codes may be unsigned: minus the offset times the sum.
struct Starts {
    offset: i32,
    subs: usize,
    values: Vec<i32>,
}

/// Which forms of the present input are there.
#[derive(Clone, Copy, Debug, Default)]
struct Forms {
    int8: bool,
    float: bool,
    narrow: bool,
    pairs: bool,
    sums: [bool; 2],
}

/// One input `[rows][cols]`, prepared for some matrices. Reusable: buffers grow and are kept.
///
/// An input that is not finite makes the outputs NaN that it contributes to: with int8 activations its whole
/// block of 32 counts as NaN; with f32 activations IEEE arithmetic applies, also where BF16 weights round a value beyond
/// 3.39e38 to infinity.
pub struct Activations {
    rows: usize,
    cols: usize,
    precision: Precision,
    forms: Forms,
    /// Four codes of consecutive columns per word: `[group][cols / 4][rows of the group]`.
    codes: Vec<i32>,
    /// `[group][cols / 32][rows of the group]`.
    scales: Vec<f32>,
    /// scale × sum of codes, per 32 and per 16 values: `[group][cols / 32][subs][rows of the group]`.
    sums: [Vec<f32>; 2],
    starts: Vec<Starts>,
    /// `[group][cols][rows of the group]`.
    values: Vec<f32>,
    /// The same, rounded to bf16.
    narrow: Vec<f32>,
    /// Those as pairs of consecutive columns, the former in the upper half: `[group][cols / 2][rows of the group]`, the
    /// columns rounded up.
    pairs: Vec<u32>,
}

/// A group's operands: what a kernel reads. Pointers to the first block; `columns` is the group's row count.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) codes: *const i32,
    pub(crate) scales: *const f32,
    /// Null for types without a min.
    pub(crate) sums: *const f32,
    /// Null for types with a min.
    pub(crate) starts: *const i32,
}

impl Default for Activations {
    fn default() -> Self {
        Self::new()
    }
}

impl Activations {
    /// Empty buffers.
    pub fn new() -> Self {
        Activations {
            rows: 0,
            cols: 0,
            precision: Precision::default(),
            forms: Forms::default(),
            codes: Vec::new(),
            scales: Vec::new(),
            sums: [Vec::new(), Vec::new()],
            starts: Vec::new(),
            values: Vec::new(),
            narrow: Vec::new(),
            pairs: Vec::new(),
        }
    }

    /// Takes the input `x`, `[rows][cols]` row-major, and computes the forms that `weights` need at `precision`.
    ///
    /// # Panics
    /// If `x` is not `rows * cols` long or a matrix does not have `cols` columns.
    pub fn prepare(
        &mut self,
        cpu: &Cpu,
        x: &[f32],
        rows: usize,
        cols: usize,
        weights: &[&PackedMatrix],
        precision: Precision,
    ) {
        self.prepare_input(cpu, &Input::Rows(x), rows, cols, weights, precision);
    }

    /// Takes an input of `rows` rows and `cols` columns, which may have to be made, and computes the forms that `weights`
    /// need at `precision`. One dispatch; what is made never leaves the cache.
    ///
    /// Each row's codes depend on that row alone: per 32 values the scale is amax / 127 and a code is
    /// x · (127 / amax), rounded to nearest, ties to even. Blocks with amax below 1e-30 count as zero.
    ///
    /// # Panics
    /// If the input has another length or a matrix does not have `cols` columns.
    pub fn prepare_input(
        &mut self,
        cpu: &Cpu,
        input: &Input<'_>,
        rows: usize,
        cols: usize,
        weights: &[&PackedMatrix],
        precision: Precision,
    ) {
        let len = rows.checked_mul(cols);
        assert!(len.is_some() && input.len(cols) == len, "an input of {rows} rows and {cols} columns");
        assert!(weights.iter().all(|w| w.cols() == cols), "every matrix has {cols} columns");
        (self.rows, self.cols, self.precision) = (rows, cols, precision);
        self.starts.iter_mut().for_each(|starts| starts.subs = 0);
        let mut forms = Forms::default();
        for layout in weights.iter().map(|w| w.layout()) {
            match form(layout, precision) {
                Form::Float => forms.float = true,
                Form::Narrow => forms.narrow = true,
                Form::Int8 if layout.has_min => (forms.int8, forms.sums[layout.subs - 1]) = (true, true),
                Form::Int8 => {
                    forms.int8 = true;
                    self.add_starts(layout.offset, layout.subs);
                }
            }
        }
        let level = cpu.usable_level();
        // Tests look at products of pairs on any machine.
        forms.pairs = forms.narrow && (has_pairs(level) || cfg!(test));
        self.forms = forms;
        let Forms { int8, float, narrow, pairs, sums } = forms;
        let blocks = rows * (cols / 32);
        if int8 {
            grow(&mut self.codes, blocks * 8);
            grow(&mut self.scales, blocks);
            for (i, sums) in self.sums.iter_mut().enumerate().filter(|(i, _)| sums[*i]) {
                grow(sums, blocks * (i + 1));
            }
            for starts in &mut self.starts {
                grow(&mut starts.values, blocks * starts.subs);
            }
        }
        if float {
            grow(&mut self.values, rows * cols);
        }
        if narrow {
            grow(&mut self.narrow, rows * cols);
        }
        if pairs {
            grow(&mut self.pairs, rows * cols.div_ceil(2));
        }
        let job = Job {
            input,
            rows,
            cols,
            codes: int8.then_some(Shared(self.codes.as_mut_ptr())),
            scales: Shared(self.scales.as_mut_ptr()),
            sums: [0, 1].map(|i| sums[i].then(|| Shared(self.sums[i].as_mut_ptr()))),
            starts: (self.starts.iter_mut().filter(|s| s.subs > 0))
                .map(|s| (s.offset, s.subs, Shared(s.values.as_mut_ptr())))
                .collect(),
            values: float.then_some(Shared(self.values.as_mut_ptr())),
            narrow: narrow.then_some(Shared(self.narrow.as_mut_ptr())),
            pairs: pairs.then_some(Shared(self.pairs.as_mut_ptr())),
        };
        // SAFETY: the buffers have grown for all rows, and `self` is borrowed mutably.
        unsafe { job.run(cpu) };
    }

    /// Rows of the prepared input.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the prepared input.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Whether products with this layout take the int8 form.
    pub(crate) fn int8_for(&self, layout: &Layout) -> bool {
        form(layout, self.precision) == Form::Int8
    }

    /// How products with this layout are computed.
    pub(crate) fn kind(&self, layout: &Layout) -> Kind {
        match form(layout, self.precision) {
            Form::Int8 => Kind::Int8,
            Form::Narrow if self.forms.pairs => Kind::Pairs,
            _ => Kind::Float,
        }
    }

    /// Checks that the forms of a layout were prepared.
    pub(crate) fn assert_prepared(&self, layout: &Layout) {
        let ready = match form(layout, self.precision) {
            Form::Float => self.forms.float,
            Form::Narrow => self.forms.narrow,
            Form::Int8 if layout.has_min => self.forms.sums[layout.subs - 1],
            Form::Int8 => self.starts_for(layout).is_some(),
        };
        assert!(ready, "the input was not prepared for {} weights", layout.dtype);
    }

    /// The operands of a group for a layout that was prepared.
    pub(crate) fn operands(&self, layout: &Layout, group: usize) -> Operands {
        let block = group * GROUP * (self.cols / 32);
        let sums =
            if layout.has_min { self.sums[layout.subs - 1][block * layout.subs..].as_ptr() } else { std::ptr::null() };
        let starts = self.starts_for(layout).map_or(std::ptr::null(), |s| s.values[block * s.subs..].as_ptr());
        Operands { codes: self.codes[block * 8..].as_ptr(), scales: self.scales[block..].as_ptr(), sums, starts }
    }

    /// The f32 values of a group for a dense layout, or any at f32 precision: `[cols][rows of the group]`.
    pub(crate) fn group_values(&self, layout: &Layout, group: usize) -> *const f32 {
        self.float_values(layout)[group * GROUP * self.cols..].as_ptr()
    }

    /// The pairs of a group, `[cols / 2][rows of the group]`, if a layout takes them and this machine multiplies them.
    pub(crate) fn group_pairs(&self, layout: &Layout, group: usize) -> Option<*const u32> {
        let wanted = self.forms.pairs && form(layout, self.precision) == Form::Narrow;
        wanted.then(|| self.pairs[group * GROUP * self.cols.div_ceil(2)..].as_ptr())
    }

    fn float_values(&self, layout: &Layout) -> &[f32] {
        match form(layout, self.precision) {
            Form::Narrow => &self.narrow,
            _ => &self.values,
        }
    }

    /// Code of row `m`, column `k`.
    pub(crate) fn code(&self, m: usize, k: usize) -> i8 {
        let (at, width) = self.place(m, self.cols / 4);
        self.codes[at + k / 4 * width].to_le_bytes()[k % 4] as i8
    }

    /// Scale of row `m`, block `b` of 32.
    pub(crate) fn scale(&self, m: usize, b: usize) -> f32 {
        let (at, width) = self.place(m, self.cols / 32);
        self.scales[at + b * width]
    }

    /// Value of row `m`, column `k`, as [`group_values`](Self::group_values) has it.
    pub(crate) fn value(&self, layout: &Layout, m: usize, k: usize) -> f32 {
        let (at, width) = self.place(m, self.cols);
        self.float_values(layout)[at + k * width]
    }

    /// Index of a row's first entry where a row has `per_row` entries, and the distance to the next.
    fn place(&self, m: usize, per_row: usize) -> (usize, usize) {
        let first = m / GROUP * GROUP;
        (first * per_row + m % GROUP, group_width(self.rows, m / GROUP))
    }

    fn add_starts(&mut self, offset: i32, subs: usize) {
        if self.starts.iter().any(|s| s.offset == offset && s.subs == subs) {
            return;
        }
        // One that this input has no use for (`subs` is 0) lends its memory.
        match self.starts.iter_mut().find(|s| s.subs == 0) {
            Some(starts) => (starts.offset, starts.subs) = (offset, subs),
            None => self.starts.push(Starts { offset, subs, values: Vec::new() }),
        }
    }

    fn starts_for(&self, layout: &Layout) -> Option<&Starts> {
        self.starts.iter().find(|s| s.subs == layout.subs && s.offset == layout.offset && !layout.has_min)
    }
}

/// Rows of group `group` of an input of `rows` rows.
pub(crate) fn group_width(rows: usize, group: usize) -> usize {
    GROUP.min(rows - group * GROUP)
}

/// What a storage type is multiplied with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Int8,
    /// f32 rounded to bf16.
    Narrow,
    Float,
}

/// How a product is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Int8,
    Pairs,
    Float,
}

/// [`Activations::kind`] before there is an input.
pub(crate) fn kind(layout: &Layout, precision: Precision, level: KernelLevel) -> Kind {
    match form(layout, precision) {
        Form::Int8 => Kind::Int8,
        Form::Narrow if has_pairs(level) => Kind::Pairs,
        _ => Kind::Float,
    }
}

fn form(layout: &Layout, precision: Precision) -> Form {
    match (precision, layout.dtype) {
        (Precision::F32, _) => Form::Float,
        (Precision::Int8Activations, Dtype::BF16) => Form::Narrow,
        (Precision::Int8Activations, dtype) if dtype.is_quantized() => Form::Int8,
        (Precision::Int8Activations, _) => Form::Float,
    }
}

fn grow<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, T::default());
    }
}
