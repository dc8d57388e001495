//! Products with packed matrices: one row, small batches and a prompt's chunk, per storage type and real shape.
//!
//! Up to 16 rows, every product takes another copy of the matrix, so that weights come from memory as in decoding.

use std::cell::OnceCell;

use candlewick::kernel::{matmul, Activations, Cpu, PackedMatrix, Precision};
use candlewick::source::Dtype;
use criterion::Criterion;

use super::rate::{timed, values, Group, Work, BEYOND_CACHES};

/// Rows of small products.
const BATCHES: [usize; 4] = [1, 4, 8, 16];
/// Rows of a prompt's chunk.
const CHUNK: usize = 512;

/// Outputs and inputs of the matrix that every type is measured with: the up-projection of Qwen2 1.5B.
const COMMON: (usize, usize) = (8960, 1536);

/// A matrix of a real model.
struct Real {
    model: &'static str,
    part: &'static str,
    dtype: Dtype,
    rows: usize,
    cols: usize,
}

const fn real(model: &'static str, part: &'static str, dtype: Dtype, rows: usize, cols: usize) -> Real {
    Real { model, part, dtype, rows, cols }
}

const REAL: [Real; 11] = [
    real("SmolLM2-135M", "up", Dtype::Q4_1, 1536, 576),
    real("SmolLM2-135M", "down", Dtype::Q4_1, 576, 1536),
    real("SmolLM2-135M", HEAD, Dtype::Q8_0, 49_152, 576),
    real("Gemma3-270M", "up", Dtype::Q5_0, 2048, 640),
    real("Gemma3-270M", HEAD, Dtype::Q8_0, 262_144, 640),
    real("Qwen2-0.5B", "up", Dtype::Q5_0, 4864, 896),
    real("Qwen2-0.5B", "down", Dtype::Q4_K, 896, 4864),
    real("Qwen2-0.5B", HEAD, Dtype::Q8_0, 151_936, 896),
    real("Qwen2-1.5B", "query", Dtype::Q4_K, 1536, 1536),
    real("Qwen2-1.5B", "down", Dtype::Q6_K, 1536, 8960),
    real("Qwen2-1.5B", HEAD, Dtype::Q6_K, 151_936, 1536),
];

/// A head's logits are computed for decoding rows only.
const HEAD: &str = "head";

pub(crate) fn bench(criterion: &mut Criterion, cpu: &Cpu) {
    let (rows, cols) = COMMON;
    // Every type that the kernels know.
    for &dtype in Dtype::ALL.iter().filter(|&&dtype| PackedMatrix::allocate(dtype, 16, cols).is_ok()) {
        products(criterion, cpu, dtype.name(), dtype, rows, cols, true);
    }
    for Real { model, part, dtype, rows, cols } in REAL {
        products(criterion, cpu, &format!("{model}-{part}-{}", dtype.name()), dtype, rows, cols, part != HEAD);
    }
}

fn products(criterion: &mut Criterion, cpu: &Cpu, name: &str, dtype: Dtype, rows: usize, cols: usize, chunk: bool) {
    let copies: OnceCell<Vec<PackedMatrix>> = OnceCell::new();
    let group = Group::new(cpu);
    let shape = format!("{rows}x{cols}");
    let file_bytes = rows * (cols / dtype.block_len()) * dtype.block_bytes();
    let mut run = |kind: &str, n: usize| {
        let is_small = n <= BATCHES[BATCHES.len() - 1];
        let work = Work {
            bytes: if is_small { file_bytes } else { 0 },
            macs: n * rows * cols,
            from_memory: true,
            on_integers: is_quantized(dtype),
        };
        let parameter = if kind == "batch" { format!("{shape}/{n}") } else { shape.clone() };
        group.bench(criterion, (&format!("{kind}/{name}"), &parameter), work, || {
            let copies = copies.get_or_init(|| distinct(cpu, dtype, rows, cols, file_bytes));
            let mut acts = Activations::new();
            acts.prepare(cpu, &values(n * cols), n, cols, &[&copies[0]], Precision::Int8Activations);
            let mut out = vec![0f32; n * rows];
            timed(move |i| matmul(cpu, &[&copies[i % copies.len()]], &acts, &mut [&mut out]))
        });
    };
    for n in BATCHES {
        run(if n == 1 { "gemv" } else { "batch" }, n);
    }
    if chunk {
        run("gemm512", CHUNK);
    }
}

/// Dense weights multiply in f32.
fn is_quantized(dtype: Dtype) -> bool {
    dtype.block_len() > 1
}

/// Enough copies of one matrix that none is left in a cache when its turn comes again.
fn distinct(cpu: &Cpu, dtype: Dtype, rows: usize, cols: usize, file_bytes: usize) -> Vec<PackedMatrix> {
    let bytes = blocks(file_bytes);
    let copy = |_| {
        let mut matrix = PackedMatrix::allocate(dtype, rows, cols).expect("memory for a matrix");
        matrix.pack_rows(cpu, 0, &bytes).expect("all rows at once");
        matrix
    };
    (0..BEYOND_CACHES.div_ceil(file_bytes).max(2)).map(copy).collect()
}

/// Bytes of xorshift64, each below 64, so that whatever of them is a float is finite in every type.
fn blocks(count: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 30 & 0x3f) as u8
    };
    (0..count).map(|_| next()).collect()
}
