//! The memory of keys and values: blocks of 32 tokens of one layer, in the panel layout that attention reads.
//!
//! A block holds, for each KV head, a K panel `[head_dim][32 tokens]` and a V panel `[32 tokens][head_dim]`.

use half::{bf16, f16};

use super::vector::{bf16_to_f32, f16_to_f32, leveled};
use super::Cpu;

/// Tokens per block.
pub const BLOCK_TOKENS: usize = 32;

/// How keys and values are stored. Arithmetic is f32 in every case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvFormat {
    /// 4 bytes per value; exact.
    F32,
    /// 2 bytes, 11 significant bits, largest value 65504.
    F16,
    /// 2 bytes, 8 significant bits, the range of f32.
    #[default]
    Bf16,
}

impl KvFormat {
    /// Bytes per value.
    pub fn bytes(self) -> usize {
        match self {
            KvFormat::F32 => 4,
            KvFormat::F16 | KvFormat::Bf16 => 2,
        }
    }

    /// `f32`, `f16` or `bf16`.
    pub fn as_str(self) -> &'static str {
        match self {
            KvFormat::F32 => "f32",
            KvFormat::F16 => "f16",
            KvFormat::Bf16 => "bf16",
        }
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
        2 * self.panel_len() * self.kv_heads
    }

    fn panel_len(self) -> usize {
        self.head_dim * BLOCK_TOKENS
    }
}

#[derive(Debug)]
enum Storage {
    F32(Vec<Vec<f32>>),
    Half(Vec<Vec<u16>>),
}

/// Blocks of one shape and format, allocated in segments as they are needed and never moved.
#[derive(Debug)]
pub struct KvBlocks {
    format: KvFormat,
    shape: KvShape,
    segment_blocks: usize,
    /// One vector per segment.
    segments: Storage,
}

impl KvBlocks {
    /// No block yet; memory comes in pieces of `segment_blocks` blocks.
    pub fn new(format: KvFormat, shape: KvShape, segment_blocks: usize) -> KvBlocks {
        let segments = match format {
            KvFormat::F32 => Storage::F32(Vec::new()),
            KvFormat::F16 | KvFormat::Bf16 => Storage::Half(Vec::new()),
        };
        KvBlocks { format, shape, segment_blocks: segment_blocks.max(1), segments }
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
        let segments = match &self.segments {
            Storage::F32(segments) => segments.len(),
            Storage::Half(segments) => segments.len(),
        };
        segments * self.segment_blocks
    }

    /// Whether no block has memory.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.shape.block_len() * self.format.bytes()
    }

    /// Adds one segment of zeroed blocks; `false` if the system has no memory for it.
    pub fn grow(&mut self) -> bool {
        fn push<T: Clone + Default>(segments: &mut Vec<Vec<T>>, len: usize) -> bool {
            let segment = zeroed(len);
            let grown = segment.is_some();
            segments.extend(segment);
            grown
        }
        let Some(len) = self.shape.block_len().checked_mul(self.segment_blocks) else { return false };
        match &mut self.segments {
            Storage::F32(segments) => push(segments, len),
            Storage::Half(segments) => push(segments, len),
        }
    }

    fn range(&self, block: u32) -> (usize, usize) {
        let block = block as usize;
        (block / self.segment_blocks, block % self.segment_blocks * self.shape.block_len())
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
        let (segment, start) = self.range(block);
        let (format, len) = (self.format, self.shape.block_len());
        match &mut self.segments {
            Storage::F32(segments) => {
                store(&mut segments[segment][start..start + len], head_dim, offset, key, value, |v| v)
            }
            Storage::Half(segments) => {
                let data = &mut segments[segment][start..start + len];
                match format {
                    KvFormat::F16 => store(data, head_dim, offset, key, value, |v| f16::from_f32(v).to_bits()),
                    _ => store(data, head_dim, offset, key, value, |v| bf16::from_f32(v).to_bits()),
                }
            }
        }
    }

    /// Copies all of block `from` to block `to`, bit for bit.
    ///
    /// # Panics
    /// If a block has no memory.
    pub fn copy(&mut self, from: u32, to: u32) {
        fn within<T: Copy>(segments: &mut [Vec<T>], len: usize, (a, from): (usize, usize), (b, to): (usize, usize)) {
            if a == b {
                segments[a].copy_within(from..from + len, to);
            } else if a < b {
                let (low, high) = segments.split_at_mut(b);
                high[0][to..to + len].copy_from_slice(&low[a][from..from + len]);
            } else {
                let (low, high) = segments.split_at_mut(a);
                low[b][to..to + len].copy_from_slice(&high[0][from..from + len]);
            }
        }
        let (from, to, len) = (self.range(from), self.range(to), self.shape.block_len());
        match &mut self.segments {
            Storage::F32(segments) => within(segments, len, from, to),
            Storage::Half(segments) => within(segments, len, from, to),
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
        let (segment, start) = self.range(block);
        for (i, key) in key.iter_mut().enumerate() {
            let panel = start + 2 * (i / head_dim) * self.shape.panel_len();
            let at = panel + i % head_dim * BLOCK_TOKENS + offset;
            *key = match (&self.segments, self.format) {
                (Storage::F32(segments), _) => segments[segment][at],
                (Storage::Half(segments), KvFormat::F16) => f16::from_bits(segments[segment][at]).to_f32(),
                (Storage::Half(segments), _) => bf16::from_bits(segments[segment][at]).to_f32(),
            };
        }
    }

    /// Widens the K panel `[head_dim][32]` of one head of a block.
    pub(super) fn load_keys(&self, cpu: &Cpu, block: u32, head: usize, out: &mut [f32]) {
        let at = 2 * head * self.shape.panel_len();
        self.load(cpu, block, at, out);
    }

    /// Widens rows `tokens` of the V panel `[32][head_dim]` of one head of a block; other rows are not touched.
    pub(super) fn load_values(
        &self,
        cpu: &Cpu,
        block: u32,
        head: usize,
        tokens: std::ops::Range<usize>,
        out: &mut [f32],
    ) {
        let dim = self.shape.head_dim;
        let at = (2 * head + 1) * self.shape.panel_len() + tokens.start * dim;
        self.load(cpu, block, at, &mut out[tokens.start * dim..tokens.end * dim]);
    }

    fn load(&self, cpu: &Cpu, block: u32, at: usize, out: &mut [f32]) {
        let (segment, start) = self.range(block);
        let range = start + at..start + at + out.len();
        match (&self.segments, self.format) {
            (Storage::F32(segments), _) => out.copy_from_slice(&segments[segment][range]),
            (Storage::Half(segments), KvFormat::F16) => widen_f16(cpu, &segments[segment][range], out),
            (Storage::Half(segments), _) => widen_bf16(cpu, &segments[segment][range], out),
        }
    }
}

fn zeroed<T: Clone + Default>(len: usize) -> Option<Vec<T>> {
    // A probe first: `vec!` asks for zeroed pages (so that untouched blocks cost nothing) but aborts on failure.
    let mut probe: Vec<T> = Vec::new();
    probe.try_reserve_exact(len).ok()?;
    drop(probe);
    Some(vec![T::default(); len])
}

fn store<T: Copy>(
    block: &mut [T],
    head_dim: usize,
    offset: usize,
    key: &[f32],
    value: &[f32],
    convert: impl Fn(f32) -> T,
) {
    let panel = head_dim * BLOCK_TOKENS;
    for ((block, key), value) in
        block.chunks_exact_mut(2 * panel).zip(key.chunks_exact(head_dim)).zip(value.chunks_exact(head_dim))
    {
        let (keys, values) = block.split_at_mut(panel);
        for (d, &k) in key.iter().enumerate() {
            keys[d * BLOCK_TOKENS + offset] = convert(k);
        }
        for (slot, &v) in values[offset * head_dim..(offset + 1) * head_dim].iter_mut().zip(value) {
            *slot = convert(v);
        }
    }
}

leveled! {
    fn widen_bf16(data: &[u16], out: &mut [f32]) {
        for (out, &bits) in out.iter_mut().zip(data) {
            *out = bf16_to_f32(bits);
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
