//! The memory of keys and values: blocks of 32 tokens of one layer, in the panel layout that attention reads.
//!
//! A block holds for each KV head a K panel `[head_dim][32 tokens]`, and then for each a V panel `[32 tokens][head_dim]`;
//! with [`KvFormat::Q8`] the scales follow, `[K, V][kv_heads][32 tokens]`. With [`KvFormat::Bf16`] two values that
//! are summed one after the other share a word: panels are `[head_dim / 2][32 tokens]` and `[16][head_dim]` pairs, the
//! former value in the upper half.

use std::cell::RefCell;
use std::ops::Range;

use half::f16;

use super::attention::AttentionSpan;
use super::chunks::Shared;
use super::lanes::pairs::round_bf16;
use super::memory::{prefetch, view, view_mut, Buffer};
use super::ops::rotate_halves;
use super::vector::{f16_to_f32, leveled};
use super::{Cpu, KernelLevel};

/// Tokens per block.
pub const BLOCK_TOKENS: usize = 32;

/// How keys and values are stored. Arithmetic is on what is stored, in f32; with [`Bf16`](KvFormat::Bf16) queries and
/// attention's weights are rounded to bf16 as well, as processors with products of bf16 want them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvFormat {
    /// 4 bytes per value; exact.
    F32,
    /// 2 bytes, 11 significant bits, largest value 65504.
    F16,
    /// 2 bytes, 8 significant bits, the range of f32; magnitudes below 2^-50 become zero. An odd `head_dim` takes one
    /// value more.
    #[default]
    Bf16,
    /// 1 byte, and an f32 scale per token and head for keys and for values: a value is `code * scale` with
    /// scale = largest magnitude / 127 and codes rounded to nearest, ties to even. A head with a value that is not
    /// finite is NaN as a whole.
    Q8,
}

impl KvFormat {
    /// Every format, the most exact first.
    pub const ALL: &'static [KvFormat] = &[KvFormat::F32, KvFormat::F16, KvFormat::Bf16, KvFormat::Q8];

    /// Bytes that one token's key and value take in one layer.
    pub fn token_bytes(self, shape: KvShape) -> usize {
        self.block_bytes(shape) / BLOCK_TOKENS
    }

    /// Bytes of a block; the largest number where they do not fit one.
    pub(crate) fn block_bytes(self, shape: KvShape) -> usize {
        let scales = if self == KvFormat::Q8 { shape.kv_heads.saturating_mul(2 * BLOCK_TOKENS * 4) } else { 0 };
        let panels = self.panel_len(shape).saturating_mul(2).saturating_mul(shape.kv_heads);
        panels.saturating_mul(self.width()).saturating_add(scales)
    }

    /// Values in a panel as it is stored.
    fn panel_len(self, shape: KvShape) -> usize {
        match self {
            KvFormat::Bf16 => shape.panel_len().saturating_add(BLOCK_TOKENS * (shape.head_dim % 2)),
            _ => shape.panel_len(),
        }
    }

    /// Bytes of one value, without scales.
    fn width(self) -> usize {
        match self {
            KvFormat::F32 => 4,
            KvFormat::F16 | KvFormat::Bf16 => 2,
            KvFormat::Q8 => 1,
        }
    }

    /// `f32`, `f16`, `bf16` or `q8`.
    pub fn as_str(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Bf16 => "bf16",
            KvFormat::Q8 => "q8",
        }
    }

    /// The format of a name that [`as_str`](Self::as_str) gives; `None` for any other text.
    pub fn parse(name: &str) -> Option<KvFormat> {
        Self::ALL.iter().copied().find(|format| format.as_str() == name)
    }
}

/// The heads of one layer's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Heads that keys and values have.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
}

impl KvShape {
    /// Values in a block: K and V of 32 tokens.
    pub fn block_len(self) -> usize {
        self.panel_len().saturating_mul(2).saturating_mul(self.kv_heads)
    }

    fn panel_len(self) -> usize {
        self.head_dim.saturating_mul(BLOCK_TOKENS)
    }

    /// Place of a panel among those of its block.
    fn panel(self, head: usize, panel: Panel) -> usize {
        head + if let Panel::Values = panel { self.kv_heads } else { 0 }
    }
}

/// One of a head's two panels.
#[derive(Clone, Copy)]
pub(super) enum Panel {
    Keys,
    Values,
}

/// Blocks of one shape and format, allocated in segments as they are needed and never moved.
#[derive(Debug)]
pub struct KvBlocks {
    format: KvFormat,
    shape: KvShape,
    segment_blocks: usize,
    segments: Vec<Buffer>,
}

impl KvBlocks {
    /// No block yet; memory comes in pieces of `segment_blocks` blocks.
    pub fn new(format: KvFormat, shape: KvShape, segment_blocks: usize) -> KvBlocks {
        KvBlocks { format, shape, segment_blocks: segment_blocks.max(1), segments: Vec::new() }
    }

    /// The storage format.
    pub fn format(&self) -> KvFormat {
        self.format
    }

    /// The shape of every block.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Blocks that have memory; ids are below this number.
    pub fn len(&self) -> usize {
        self.segments.len() * self.segment_blocks
    }

    /// Whether no block has memory.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.format.block_bytes(self.shape)
    }

    /// Adds one segment of zeroed blocks; `false` if the system has no memory for it.
    pub fn grow(&mut self) -> bool {
        let bytes =
            self.block_bytes().checked_mul(self.segment_blocks).filter(|&bytes| bytes <= isize::MAX as usize / 2);
        let segment = bytes.and_then(Buffer::zeroed);
        let grown = segment.is_some();
        self.segments.extend(segment);
        grown
    }

    /// Segment of a block, and its bytes in it.
    fn place(&self, block: u32) -> (usize, Range<usize>) {
        let (block, bytes) = (block as usize, self.block_bytes());
        let start = block % self.segment_blocks * bytes;
        (block / self.segment_blocks, start..start + bytes)
    }

    fn block(&self, block: u32) -> &[u8] {
        let (segment, bytes) = self.place(block);
        &self.segments[segment].as_slice()[bytes]
    }

    /// A block's bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self, block: u32) -> &[u8] {
        self.block(block)
    }

    /// A block's bytes, to be written.
    ///
    /// # Safety
    /// Nobody else has this block's bytes meanwhile.
    #[allow(clippy::mut_from_ref)]
    unsafe fn block_shared(&self, block: u32) -> &mut [u8] {
        let (segment, bytes) = self.place(block);
        // SAFETY: passed on.
        unsafe { self.segments[segment].shared_part(bytes) }
    }

    fn block_mut(&mut self, block: u32) -> &mut [u8] {
        let (segment, bytes) = self.place(block);
        &mut self.segments[segment].as_mut_slice()[bytes]
    }

    /// Stores one token's key and value, each `[kv_heads][head_dim]`, at `offset < 32` of a block.
    ///
    /// Rounds to nearest, ties to even.
    ///
    /// # Panics
    /// If the block has no memory, the offset is outside it or the slices have another length.
    pub fn write(&mut self, block: u32, offset: usize, key: &[f32], value: &[f32]) {
        let KvShape { kv_heads, head_dim } = self.shape;
        assert!(offset < BLOCK_TOKENS && key.len() == kv_heads * head_dim && value.len() == key.len(), "kv write");
        let (format, shape) = (self.format, self.shape);
        write_token(format, shape, self.block_mut(block), offset, key, value);
    }

    /// Rotates the keys of the spans' rows in place, as [`rope`](super::rope) does, and stores them with their values:
    /// every row at its logical index, in the block that its span's table has for it. `keys` and `values` are
    /// `[rows][kv_heads][head_dim]`, `cos` and `sin` `[rows][n / 2]` for n values per head that rotate. One dispatch to the
    /// pool.
    ///
    /// # Panics
    /// If a block has no memory, two that are written are the same one, spans do not ascend or overlap, or the lengths do not
    /// fit.
    pub fn write_rotated(
        &mut self,
        cpu: &Cpu,
        spans: &[AttentionSpan<'_>],
        (keys, values): (&mut [f32], &[f32]),
        (cos, sin): (&[f32], &[f32]),
    ) {
        let (format, shape) = (self.format, self.shape);
        let width = shape.kv_heads * shape.head_dim;
        let rows = values.len() / width.max(1);
        assert!(keys.len() == rows * width && values.len() == keys.len() && cos.len() == sin.len(), "kv rows");
        if rows == 0 {
            return;
        }
        let half = cos.len() / rows;
        assert!(cos.len() == rows * half && 2 * half <= shape.head_dim, "kv rotation");
        let mut end = 0;
        for span in spans {
            assert!(span.first_row >= end && span.rows <= rows.saturating_sub(span.first_row), "kv spans");
            end = span.first_row + span.rows;
        }
        thread_local! {
            static WRITES: RefCell<Writes> = const { RefCell::new(Writes { tasks: Vec::new(), sorted: Vec::new() }) };
        }
        WRITES.with_borrow_mut(|Writes { tasks, sorted }| {
            tasks.clear();
            sorted.clear();
            for (s, span) in spans.iter().enumerate().filter(|(_, span)| span.rows > 0) {
                let blocks = span.first_index / BLOCK_TOKENS..(span.first_index + span.rows).div_ceil(BLOCK_TOKENS);
                sorted.extend_from_slice(&span.table[blocks.clone()]);
                tasks.extend(blocks.map(|block| (s, block)));
            }
            sorted.sort_unstable();
            assert!(sorted.windows(2).all(|pair| pair[0] != pair[1]), "a block is written twice");
            let keys = Shared::new(keys);
            let (this, level) = (&*self, cpu.usable_level());
            cpu.pool.run(tasks.len(), &|task| {
                let (span, block) = (&spans[tasks[task].0], tasks[task].1);
                // SAFETY: the tasks have different blocks (checked), and `self` is borrowed mutably.
                let data = unsafe { this.block_shared(span.table[block]) };
                let first = span.first_index;
                let indices = first.max(block * BLOCK_TOKENS)..(first + span.rows).min((block + 1) * BLOCK_TOKENS);
                for index in indices {
                    let row = span.first_row + index - first;
                    let angles = row * half..(row + 1) * half;
                    // SAFETY: every row has one task, since spans are apart (checked).
                    let key = unsafe { keys.slice(row * width, width) };
                    rotate_halves(level, key, shape.head_dim, &cos[angles.clone()], &sin[angles]);
                    let value = &values[row * width..(row + 1) * width];
                    write_token(format, shape, data, index % BLOCK_TOKENS, key, value);
                }
            });
        });
    }

    /// Says that the spans' rows will be written soon. Of spans of one row the lines are brought closer, hundreds that lie
    /// apart and were last touched a step ago. Changes no result.
    ///
    /// # Panics
    /// If a block has no memory.
    pub fn expect_writes(&self, spans: &[AttentionSpan<'_>]) {
        for span in spans.iter().filter(|span| span.rows == 1) {
            let block = self.block(span.table[span.first_index / BLOCK_TOKENS]).as_ptr();
            for line in token_lines(self.format, self.shape, span.first_index % BLOCK_TOKENS) {
                prefetch::<true>(block.wrapping_add(line));
            }
        }
    }

    /// Copies all of block `from` to block `to`, bit for bit.
    ///
    /// # Panics
    /// If a block has no memory.
    pub fn copy(&mut self, from: u32, to: u32) {
        let ((a, from), (b, to)) = (self.place(from), self.place(to));
        if a == b {
            self.segments[a].as_mut_slice().copy_within(from, to.start);
        } else if a < b {
            let (low, high) = self.segments.split_at_mut(b);
            high[0].as_mut_slice()[to].copy_from_slice(&low[a].as_slice()[from]);
        } else {
            let (low, high) = self.segments.split_at_mut(a);
            low[b].as_mut_slice()[to].copy_from_slice(&high[0].as_slice()[from]);
        }
    }

    /// Reads one token's key, `[kv_heads][head_dim]`, widened.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    #[cfg(any(test, feature = "testing"))]
    pub fn read_key(&self, block: u32, offset: usize, key: &mut [f32]) {
        let KvShape { kv_heads, head_dim } = self.shape;
        assert!(offset < BLOCK_TOKENS && key.len() == kv_heads * head_dim, "kv read");
        let mut panel = vec![0.0; self.shape.panel_len()];
        for (head, key) in key.chunks_exact_mut(head_dim).enumerate() {
            self.load_keys(KernelLevel::Scalar, block, head, &mut panel);
            key.iter_mut().zip(panel[offset..].iter().step_by(BLOCK_TOKENS)).for_each(|(key, k)| *key = *k);
        }
    }

    /// Widens the K panel `[head_dim][32]` of one head of a block.
    pub(super) fn load_keys(&self, level: KernelLevel, block: u32, head: usize, out: &mut [f32]) {
        let range = 0..self.shape.panel_len();
        match self.format {
            KvFormat::Q8 => {
                let (codes, scales) = self.q8(block, head, Panel::Keys);
                widen_q8_keys(level, &codes[range], scales, out);
            }
            KvFormat::Bf16 => widen_pairs(level, self.key_pairs(block, head), BLOCK_TOKENS, out),
            _ => self.load(level, block, head, Panel::Keys, range, out),
        }
    }

    /// Widens rows `tokens` of the V panel `[32][head_dim]` of one head of a block; other rows are not touched, but for
    /// those that share a pair with one of them.
    pub(super) fn load_values(
        &self,
        level: KernelLevel,
        block: u32,
        head: usize,
        tokens: Range<usize>,
        out: &mut [f32],
    ) {
        let dim = self.shape.head_dim;
        let range = tokens.start * dim..tokens.end * dim;
        match self.format {
            KvFormat::Q8 => {
                let (codes, scales) = self.q8(block, head, Panel::Values);
                widen_q8_values(level, &codes[range.clone()], &scales[tokens], dim, &mut out[range]);
            }
            KvFormat::Bf16 => {
                let rows = tokens.start / 2..tokens.end.div_ceil(2);
                let out = &mut out[2 * rows.start * dim..2 * rows.end * dim];
                widen_pairs(level, self.value_pairs(block, head, rows), dim, out);
            }
            _ => self.load(level, block, head, Panel::Values, range.clone(), &mut out[range]),
        }
    }

    fn load(&self, level: KernelLevel, block: u32, head: usize, panel: Panel, range: Range<usize>, out: &mut [f32]) {
        let start = self.panel_start(head, panel);
        let (data, range) = (self.block(block), start + range.start..start + range.end);
        match self.format {
            KvFormat::F16 => widen_f16(level, &view(data)[range], out),
            _ => out.copy_from_slice(&view(data)[range]),
        }
    }

    /// The K panel of one head of a block as pairs, `[head_dim / 2][32]`; the format is [`KvFormat::Bf16`].
    pub(super) fn key_pairs(&self, block: u32, head: usize) -> &[u32] {
        let start = self.panel_start(head, Panel::Keys) / 2;
        &view(self.block(block))[start..start + self.format.panel_len(self.shape) / 2]
    }

    /// Rows of pairs of the V panel, `[16][head_dim]`; the format is [`KvFormat::Bf16`].
    pub(super) fn value_pairs(&self, block: u32, head: usize, rows: Range<usize>) -> &[u32] {
        let (start, dim) = (self.panel_start(head, Panel::Values) / 2, self.shape.head_dim);
        &view(self.block(block))[start + rows.start * dim..start + rows.end * dim]
    }

    /// The first value of a panel, counted in values of the block.
    fn panel_start(&self, head: usize, panel: Panel) -> usize {
        self.shape.panel(head, panel) * self.format.panel_len(self.shape)
    }

    /// A panel's codes and the scales of its 32 tokens.
    fn q8(&self, block: u32, head: usize, panel: Panel) -> (&[i8], &[f32]) {
        let (codes, scales) = self.block(block).split_at(self.shape.block_len());
        let start = self.panel_start(head, panel);
        let scales = &view(scales)[self.shape.panel(head, panel) * BLOCK_TOKENS..][..BLOCK_TOKENS];
        (&view(codes)[start..start + self.shape.panel_len()], scales)
    }

    /// Where a panel of one head begins; `None` for a block without memory.
    pub(super) fn panel_address(&self, block: u32, head: usize, panel: Panel) -> Option<*const u8> {
        let (segment, bytes) = self.place(block);
        let start = bytes.start + self.panel_start(head, panel) * self.format.width();
        self.segments.get(segment).map(|segment| segment.as_slice()[start..].as_ptr())
    }

    /// Bytes of a panel.
    pub(super) fn panel_bytes(&self) -> usize {
        self.format.panel_len(self.shape) * self.format.width()
    }

    /// Hints that a panel will be read soon.
    pub(super) fn prefetch(&self, panel: *const u8) {
        for line in (0..self.panel_bytes()).step_by(64) {
            prefetch::<false>(panel.wrapping_add(line));
        }
    }
}

/// What a dispatch writes; kept for its memory.
struct Writes {
    /// The span and the place in its table of every block.
    tasks: Vec<(usize, usize)>,
    /// The blocks, ascending.
    sorted: Vec<u32>,
}

/// Where in a block lines begin that one token's key and value are written to, some of them twice.
pub(super) fn token_lines(format: KvFormat, shape: KvShape, offset: usize) -> impl Iterator<Item = usize> {
    let KvShape { kv_heads, head_dim } = shape;
    let panel = format.panel_len(shape) * format.width();
    // With pairs, rows are half as many and words twice as wide.
    let per_word = if format == KvFormat::Bf16 { 2 } else { 1 };
    let word = per_word * format.width();
    let value_row = head_dim * word;
    (0..kv_heads).flat_map(move |head| {
        let keys = shape.panel(head, Panel::Keys) * panel;
        let values = shape.panel(head, Panel::Values) * panel + offset / per_word * value_row;
        let key_words = (0..head_dim.div_ceil(per_word)).map(move |row| keys + (row * BLOCK_TOKENS + offset) * word);
        let value_lines = (values / 64 * 64..values + value_row).step_by(64);
        key_words.map(|at| at / 64 * 64).chain(value_lines)
    })
}

fn write_token(format: KvFormat, shape: KvShape, data: &mut [u8], offset: usize, key: &[f32], value: &[f32]) {
    let head_dim = shape.head_dim;
    match format {
        KvFormat::F32 => store(view_mut(data), head_dim, offset, key, value, |v| v),
        KvFormat::F16 => store(view_mut(data), head_dim, offset, key, value, |v| f16::from_f32(v).to_bits()),
        KvFormat::Bf16 => {
            let put = |word: &mut u32, at: usize, value: f32| {
                let bits = round_bf16(value).to_bits();
                *word = if at.is_multiple_of(2) { *word & 0xffff | bits } else { *word & 0xffff_0000 | bits >> 16 };
            };
            let words: &mut [u32] = view_mut(data);
            for (keys, values, key, value) in heads(words, format.panel_len(shape) / 2, head_dim, (key, value)) {
                for (d, k) in key.iter().enumerate() {
                    put(&mut keys[d / 2 * BLOCK_TOKENS + offset], d, *k);
                }
                for (word, v) in values[offset / 2 * head_dim..].iter_mut().zip(value) {
                    put(word, offset, *v);
                }
            }
        }
        KvFormat::Q8 => {
            let (codes, scales) = data.split_at_mut(shape.block_len());
            let (codes, scales): (&mut [i8], &mut [f32]) = (view_mut(codes), view_mut(scales));
            let heads = heads(codes, shape.panel_len(), head_dim, (key, value));
            for (head, (keys, values, key, value)) in heads.enumerate() {
                let scale = quantize(key, |d, code| keys[d * BLOCK_TOKENS + offset] = code);
                scales[shape.panel(head, Panel::Keys) * BLOCK_TOKENS + offset] = scale;
                let scale = quantize(value, |d, code| values[offset * head_dim + d] = code);
                scales[shape.panel(head, Panel::Values) * BLOCK_TOKENS + offset] = scale;
            }
        }
    }
}

/// Per KV head, its K panel, its V panel, and a token's key and value.
fn heads<'a, T>(
    block: &'a mut [T],
    panel: usize,
    head_dim: usize,
    (key, value): (&'a [f32], &'a [f32]),
) -> impl Iterator<Item = (&'a mut [T], &'a mut [T], &'a [f32], &'a [f32])> {
    let (keys, values) = block.split_at_mut(block.len() / 2);
    let panels = keys.chunks_exact_mut(panel).zip(values.chunks_exact_mut(panel));
    let token = key.chunks_exact(head_dim).zip(value.chunks_exact(head_dim));
    panels.zip(token).map(|((keys, values), (key, value))| (keys, values, key, value))
}

fn store<T: Copy>(
    block: &mut [T],
    head_dim: usize,
    offset: usize,
    key: &[f32],
    value: &[f32],
    convert: impl Fn(f32) -> T,
) {
    for (keys, values, key, value) in heads(block, head_dim * BLOCK_TOKENS, head_dim, (key, value)) {
        for (d, &k) in key.iter().enumerate() {
            keys[d * BLOCK_TOKENS + offset] = convert(k);
        }
        for (slot, &v) in values[offset * head_dim..(offset + 1) * head_dim].iter_mut().zip(value) {
            *slot = convert(v);
        }
    }
}

/// Hands out the codes of some values and returns their scale.
fn quantize(values: &[f32], mut take: impl FnMut(usize, i8)) -> f32 {
    // Of bits, so that infinities and NaN win.
    let largest = values.iter().fold(0, |most, v| most.max(v.to_bits() & 0x7fff_ffff));
    let scale = f32::from_bits(largest) / 127.0;
    if !scale.is_finite() {
        return f32::NAN;
    }
    for (d, value) in values.iter().enumerate() {
        // A scale that is zero or underflowed leaves zeros; a quotient just above 127 is cut.
        let code = if scale > 0.0 { (value / scale).round_ties_even() } else { 0.0 };
        take(d, code as i8);
    }
    scale
}

leveled! {
    /// Rows of pairs, `columns` wide, to twice as many rows of values; the last one may be missing.
    fn widen_pairs(pairs: &[u32], columns: usize, out: &mut [f32]) {
        for (pairs, out) in pairs.chunks_exact(columns).zip(out.chunks_mut(2 * columns)) {
            let (first, second) = out.split_at_mut(columns);
            for (out, pair) in first.iter_mut().zip(pairs) {
                *out = f32::from_bits(pair & 0xffff_0000);
            }
            for (out, pair) in second.iter_mut().zip(pairs) {
                *out = f32::from_bits(pair << 16);
            }
        }
    }
}

leveled! {
    fn widen_f16(data: &[u16], out: &mut [f32]) {
        for (out, &bits) in out.iter_mut().zip(data) {
            *out = f16_to_f32(bits);
        }
    }
}

leveled! {
    /// `[dim][32]` codes times the 32 scales.
    fn widen_q8_keys(codes: &[i8], scales: &[f32], out: &mut [f32]) {
        let scales: &[f32; BLOCK_TOKENS] = scales.as_chunks().0.first().unwrap_or(&[0.0; BLOCK_TOKENS]);
        for (out, codes) in out.as_chunks_mut::<BLOCK_TOKENS>().0.iter_mut().zip(codes.as_chunks::<BLOCK_TOKENS>().0) {
            for t in 0..BLOCK_TOKENS {
                out[t] = f32::from(codes[t]) * scales[t];
            }
        }
    }
}

leveled! {
    /// `[tokens][dim]` codes times a scale per token.
    fn widen_q8_values(codes: &[i8], scales: &[f32], dim: usize, out: &mut [f32]) {
        for ((out, codes), scale) in out.chunks_exact_mut(dim).zip(codes.chunks_exact(dim)).zip(scales) {
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = f32::from(code) * scale;
            }
        }
    }
}
