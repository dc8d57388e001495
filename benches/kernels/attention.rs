//! Attention per KV format and depth: a decoding row, and the last 128 rows of a prompt.
//!
//! Every call reads another sequence's keys and values, as each layer has its own in a model.

use candlewick::kernel::{attention, AttentionShape, AttentionSpan, Cpu, KvBlocks, KvFormat, KvShape, BLOCK_TOKENS};
use criterion::Criterion;

use super::rate::{timed, values, Group, Work, BEYOND_CACHES};

/// The heads of a real model.
struct Heads {
    model: &'static str,
    query: usize,
    kv: usize,
    dim: usize,
}

const QWEN_1_5B: Heads = Heads { model: "Qwen2-1.5B", query: 12, kv: 2, dim: 128 };
const OTHERS: [Heads; 3] = [
    Heads { model: "SmolLM2-135M", query: 9, kv: 3, dim: 64 },
    Heads { model: "Gemma3-270M", query: 4, kv: 1, dim: 256 },
    Heads { model: "Qwen2-0.5B", query: 14, kv: 2, dim: 64 },
];

const FORMATS: &[KvFormat] = KvFormat::ALL;
const DEPTHS: [usize; 3] = [512, 2048, 8192];
/// The depth at which the other models' heads are measured.
const OTHERS_DEPTH: usize = 4096;
/// Rows of a prompt that are computed behind a depth.
const ROWS: usize = 128;

pub(crate) fn bench(criterion: &mut Criterion, cpu: &Cpu) {
    for &format in FORMATS {
        for depth in DEPTHS {
            run(criterion, cpu, &QWEN_1_5B, format, depth, 1);
        }
    }
    for depth in DEPTHS {
        run(criterion, cpu, &QWEN_1_5B, KvFormat::default(), depth, ROWS);
    }
    for heads in &OTHERS {
        for rows in [1, ROWS] {
            run(criterion, cpu, heads, KvFormat::default(), OTHERS_DEPTH, rows);
        }
    }
}

/// `rows` rows, the last of which sees `depth` keys.
fn run(criterion: &mut Criterion, cpu: &Cpu, heads: &Heads, format: KvFormat, depth: usize, rows: usize) {
    let kind = if rows == 1 { "attention-decode" } else { "attention-prefill" };
    let group = Group::new(cpu);
    let keys: usize = (depth - rows + 1..=depth).sum();
    // A score and a weighted value per key, head and dimension.
    let macs = 2 * keys * heads.query * heads.dim;
    let shape = KvShape { kv_heads: heads.kv, head_dim: heads.dim };
    let bytes = depth * format.token_bytes(shape);
    let work = Work { bytes: if rows == 1 { bytes } else { 0 }, macs, from_memory: true, on_integers: false };
    let name = format!("{kind}/{}-{}", heads.model, format.as_str());
    group.bench(criterion, (&name, &depth.to_string()), work, || {
        let (blocks, tables) = sequences(shape, format, depth, BEYOND_CACHES.div_ceil(bytes));
        let q = values(rows * heads.query * heads.dim);
        let mut out = vec![0f32; q.len()];
        let scale = 1.0 / (heads.dim as f32).sqrt();
        let shape = AttentionShape { heads: heads.query, scale, softcap: None, window: None, sinks: 0 };
        timed(move |i| {
            let table = &tables[i % tables.len()];
            let span = AttentionSpan { first_row: 0, rows, first_index: depth - rows, table, live: None };
            attention(cpu, &shape, &blocks, &[span], &q, None, &mut out);
        })
    });
}

/// Blocks of `count` sequences of `depth` tokens, filled, and the table of each.
fn sequences(shape: KvShape, format: KvFormat, depth: usize, count: usize) -> (KvBlocks, Vec<Vec<u32>>) {
    let each = depth / BLOCK_TOKENS;
    let mut blocks = KvBlocks::new(format, shape, each);
    let width = shape.kv_heads * shape.head_dim;
    let tokens = values(BLOCK_TOKENS * 2 * width);
    for _ in 0..count {
        assert!(blocks.grow(), "memory for keys and values");
    }
    for (offset, token) in tokens.chunks_exact(2 * width).enumerate() {
        blocks.write(0, offset, &token[..width], &token[width..]);
    }
    for block in 1..(count * each) as u32 {
        blocks.copy(0, block);
    }
    let table = |sequence: usize| (sequence * each..(sequence + 1) * each).map(|block| block as u32).collect();
    (blocks, (0..count).map(table).collect())
}
