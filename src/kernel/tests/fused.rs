//! What is computed on the way in or out of another operation equals the operations one by one, bit for bit.

use std::collections::BTreeSet;

use super::{cpu, pack, Random};
use crate::kernel::kv::{token_lines, Panel};
use crate::kernel::{
    add, add_rms_norm, attention, matmul, matmul_add, rms_norm, rope, Activation, Activations, AttentionShape,
    AttentionSpan, Cpu, Input, KernelLevel, KvBlocks, KvFormat, KvShape, Precision, BLOCK_TOKENS,
};
use crate::source::Dtype;

fn cpus() -> impl Iterator<Item = Cpu> {
    let levels = KernelLevel::available();
    levels.flat_map(|level| [1, 2, 3].map(|threads| cpu(level, threads)))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn inputs_made_on_the_way_equal_those_made_before() {
    let mut random = Random(5);
    let cols = 256;
    let types = [Dtype::Q4_0, Dtype::Q4_1, Dtype::Q6_K, Dtype::F16];
    let weights: Vec<_> = types.iter().map(|&dtype| pack(dtype, 40, cols, &random.weights(dtype, 40, cols))).collect();
    for rows in [1, 3, 8, 13, 140] {
        let (x, up, weight) = (random.input(rows * cols), random.input(rows * cols), random.input(cols));
        let inputs = [
            Input::Rows(&x),
            Input::Normed { x: &x, weight: &weight, eps: 1e-5 },
            Input::Gated { activation: Activation::Silu, gate: &x, up: &up },
            Input::Gated { activation: Activation::GeluTanh, gate: &x, up: &up },
        ];
        for (cpu, weights) in cpus().flat_map(|cpu| weights.iter().map(move |weights| (cpu.clone(), weights))) {
            for (i, input) in inputs.iter().enumerate() {
                let mut made = vec![f32::NAN; rows * cols];
                input.write(&cpu, cols, &mut made);
                if i == 1 {
                    let mut normed = vec![0.0; rows * cols];
                    rms_norm(&cpu, &x, &weight, 1e-5, &mut normed);
                    assert_eq!(bits(&made), bits(&normed));
                }
                let product = |input: &Input<'_>| {
                    let mut acts = Activations::new();
                    acts.prepare_input(&cpu, input, rows, cols, &[weights], Precision::Int8Activations);
                    let mut out = vec![0.0; rows * 40];
                    matmul(&cpu, &[weights], &acts, &mut [&mut out]);
                    out
                };
                assert_eq!(bits(&product(input)), bits(&product(&Input::Rows(&made))), "{rows} rows, input {i}");
            }
        }
    }
}

#[test]
fn inputs_cut_into_columns_equal_those_made_before() {
    let mut random = Random(7);
    // Few rows of many columns, with a tail that is neither a pair nor a block where the type allows.
    let cases = [
        (Dtype::BF16, 8, 2101),
        (Dtype::F16, 8, 2101),
        (Dtype::F32, 5, 4133),
        (Dtype::Q8_0, 1, 16_416),
        (Dtype::Q4_1, 8, 4128),
    ];
    for (dtype, rows, cols) in cases {
        let weights = pack(dtype, 17, cols, &random.weights(dtype, 17, cols));
        let (x, up, weight) = (random.input(rows * cols), random.input(rows * cols), random.input(cols));
        let inputs = [
            Input::Rows(&x),
            Input::Normed { x: &x, weight: &weight, eps: 1e-5 },
            Input::Gated { activation: Activation::Silu, gate: &x, up: &up },
        ];
        for (i, input) in inputs.iter().enumerate() {
            let product = |cpu: &Cpu, input: &Input<'_>| {
                let mut acts = Activations::new();
                acts.prepare_input(cpu, input, rows, cols, &[&weights], Precision::Int8Activations);
                let mut out = vec![0.0; rows * 17];
                matmul(cpu, &[&weights], &acts, &mut [&mut out]);
                bits(&out)
            };
            let scalar = cpu(KernelLevel::Scalar, 1);
            let mut made = vec![f32::NAN; rows * cols];
            input.write(&scalar, cols, &mut made);
            let expected = product(&scalar, &Input::Rows(&made));
            for cpu in cpus() {
                assert_eq!(product(&cpu, input), expected, "{dtype} {rows} rows, input {i}");
            }
        }
    }
}

#[test]
fn products_added_equal_products_and_a_sum() {
    let mut random = Random(6);
    for dtype in [Dtype::Q5_0, Dtype::Q4_K, Dtype::BF16] {
        let weights = pack(dtype, 40, 256, &random.weights(dtype, 40, 256));
        for rows in [1, 5, 8, 20, 70] {
            let (x, before) = (random.input(rows * 256), random.input(rows * 40));
            for cpu in cpus() {
                let mut acts = Activations::new();
                acts.prepare(&cpu, &x, rows, 256, &[&weights], Precision::Int8Activations);
                let (mut expected, mut product, mut sum) = (before.clone(), vec![0.0; rows * 40], before.clone());
                matmul(&cpu, &[&weights], &acts, &mut [&mut product]);
                add(&cpu, &mut expected, &product);
                matmul_add(&cpu, &[&weights], &acts, &mut [&mut sum]);
                assert_eq!(bits(&sum), bits(&expected), "{dtype}, {rows} rows, {}", cpu.level);
            }
        }
    }
}

#[test]
fn a_norm_added_equals_a_norm_and_a_sum() {
    let mut random = Random(7);
    let (x, y, weight) = (random.input(90 * 77), random.input(90 * 77), random.input(77));
    for cpu in cpus() {
        let (mut expected, mut normed, mut sum) = (x.clone(), vec![0.0; y.len()], x.clone());
        rms_norm(&cpu, &y, &weight, 1e-6, &mut normed);
        add(&cpu, &mut expected, &normed);
        add_rms_norm(&cpu, &mut sum, &y, &weight, 1e-6);
        assert_eq!(bits(&sum), bits(&expected));
    }
}

#[test]
fn keys_rotated_on_the_way_into_the_cache_equal_those_rotated_before() {
    let mut random = Random(8);
    let shape = KvShape { kv_heads: 2, head_dim: 12 };
    let (width, half) = (24, 5);
    let table: Vec<u32> = (0..80).map(|b| b * 37 % 80).collect();
    for &format in KvFormat::ALL {
        for (first, tokens) in [(0, 1), (31, 2), (5, 100), (64, 32), (40, 2300)] {
            let (keys, values) = (random.input(tokens * width), random.input(tokens * width));
            let (cos, sin) = (random.input(tokens * half), random.input(tokens * half));
            let new = || {
                let mut blocks = KvBlocks::new(format, shape, 7);
                while blocks.len() < table.len() {
                    assert!(blocks.grow());
                }
                blocks
            };
            let q = random.input(tokens * width);
            let read = |blocks: &KvBlocks| -> Vec<u32> {
                let mut key = vec![0.0; width];
                // Values show in what attention makes of them; a window keeps the cost down.
                let shape = AttentionShape { heads: 2, scale: 0.1, softcap: None, window: Some(20), sinks: 0 };
                let inside = first.max(20)..first + tokens;
                let rows = inside.len().min(40);
                let span =
                    AttentionSpan { first_row: 0, rows, first_index: inside.end - rows, table: &table, live: None };
                let mut out = vec![0.0; rows * width];
                attention(&cpu(KernelLevel::detect(), 2), &shape, blocks, &[span], &q[..rows * width], None, &mut out);
                let mut all = bits(&out);
                for index in first..first + tokens {
                    blocks.read_key(table[index / BLOCK_TOKENS], index % BLOCK_TOKENS, &mut key);
                    all.extend(bits(&key));
                }
                all
            };
            let mut expected = new();
            let mut rotated = keys.clone();
            rope(&cpu(KernelLevel::Scalar, 1), &mut rotated, 2, 12, &cos, &sin);
            for (i, (key, value)) in rotated.chunks(width).zip(values.chunks(width)).enumerate() {
                let index = first + i;
                expected.write(table[index / BLOCK_TOKENS], index % BLOCK_TOKENS, key, value);
            }
            for cpu in cpus() {
                let (mut blocks, mut keys) = (new(), keys.clone());
                let span = AttentionSpan { first_row: 0, rows: tokens, first_index: first, table: &table, live: None };
                blocks.write_rotated(&cpu, &[span], (&mut keys, &values), (&cos, &sin));
                assert_eq!(bits(&keys), bits(&rotated));
                assert_eq!(read(&blocks), read(&expected), "{} {first} {tokens}", format.as_str());
            }
        }
    }
}

#[test]
fn several_sequences_are_written_at_once() {
    let mut random = Random(12);
    // An odd head_dim, which pads pairs of bf16.
    let shape = KvShape { kv_heads: 3, head_dim: 9 };
    let width = 27;
    let tables = [vec![5], vec![3, 0, 7], vec![1, 2], vec![6]];
    // Row 1 and the last one belong to no span.
    let spans: Vec<AttentionSpan<'_>> = [(0, 1, 31), (2, 41, 30), (43, 1, 32), (44, 0, 0)]
        .into_iter()
        .zip(&tables)
        .map(|((first_row, rows, first_index), table)| AttentionSpan {
            first_row,
            rows,
            first_index,
            table,
            live: None,
        })
        .collect();
    let (keys, values) = (random.input(45 * width), random.input(45 * width));
    let (cos, sin) = (random.input(45 * 3), random.input(45 * 3));
    for &format in KvFormat::ALL {
        let new = || {
            let mut blocks = KvBlocks::new(format, shape, 8);
            assert!(blocks.grow());
            blocks
        };
        let mut rotated = keys.clone();
        rope(&cpu(KernelLevel::Scalar, 1), &mut rotated, 3, 9, &cos, &sin);
        let mut expected = new();
        for span in &spans {
            for (row, index) in (span.first_row..span.first_row + span.rows).zip(span.first_index..) {
                let row = row * width..(row + 1) * width;
                let block = span.table[index / BLOCK_TOKENS];
                expected.write(block, index % BLOCK_TOKENS, &rotated[row.clone()], &values[row]);
            }
        }
        for cpu in cpus() {
            let (mut blocks, mut actual) = (new(), keys.clone());
            blocks.write_rotated(&cpu, &spans, (&mut actual, &values), (&cos, &sin));
            for row in (0..45).filter(|row| ![1, 44].contains(row)) {
                let row = row * width..(row + 1) * width;
                assert_eq!(bits(&actual[row.clone()]), bits(&rotated[row]));
            }
            for block in 0..8 {
                assert_eq!(blocks.bytes(block), expected.bytes(block), "{} block {block}", format.as_str());
            }
        }
    }
}

#[test]
#[should_panic(expected = "twice")]
fn a_block_that_stands_twice_is_refused() {
    let mut blocks = KvBlocks::new(KvFormat::F32, KvShape { kv_heads: 1, head_dim: 2 }, 4);
    assert!(blocks.grow());
    let (mut keys, values) = ([0.0; 80], [0.0; 80]);
    let span = AttentionSpan { first_row: 0, rows: 40, first_index: 10, table: &[1, 1], live: None };
    blocks.write_rotated(&cpu(KernelLevel::Scalar, 2), &[span], (&mut keys, &values), (&[], &[]));
}

#[test]
#[should_panic(expected = "twice")]
fn a_block_of_two_sequences_is_refused() {
    let mut blocks = KvBlocks::new(KvFormat::F32, KvShape { kv_heads: 1, head_dim: 2 }, 4);
    assert!(blocks.grow());
    let (mut keys, values) = ([0.0; 8], [0.0; 8]);
    let span = |first_row| AttentionSpan { first_row, rows: 2, first_index: 0, table: &[1], live: None };
    blocks.write_rotated(&cpu(KernelLevel::Scalar, 2), &[span(0), span(2)], (&mut keys, &values), (&[], &[]));
}

#[test]
fn lines_of_a_token_are_those_that_it_changes() {
    for &format in KvFormat::ALL {
        for (kv_heads, head_dim) in [(2, 64), (3, 9), (1, 256)] {
            let shape = KvShape { kv_heads, head_dim };
            for offset in [0, 1, 17, 31] {
                let mut blocks = KvBlocks::new(format, shape, 1);
                assert!(blocks.grow());
                let ones = vec![1.0; kv_heads * head_dim];
                blocks.write(0, offset, &ones, &ones);
                // Scales behind the panels are left out.
                let end = if format == KvFormat::Q8 { shape.block_len() } else { blocks.block_bytes() };
                let changed = blocks.bytes(0)[..end].iter().enumerate().filter(|(_, byte)| **byte != 0);
                let changed: BTreeSet<usize> = changed.map(|(at, _)| at / 64 * 64).collect();
                let lines: BTreeSet<usize> = token_lines(format, shape, offset).collect();
                assert_eq!(lines, changed, "{format:?} {shape:?} {offset}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "kv spans")]
fn spans_that_overlap_are_refused() {
    let mut blocks = KvBlocks::new(KvFormat::F32, KvShape { kv_heads: 1, head_dim: 2 }, 4);
    assert!(blocks.grow());
    let (mut keys, values) = ([0.0; 8], [0.0; 8]);
    let span = |first_row, table| AttentionSpan { first_row, rows: 2, first_index: 0, table, live: None };
    let spans = [span(0, &[1]), span(1, &[2])];
    blocks.write_rotated(&cpu(KernelLevel::Scalar, 2), &spans, (&mut keys, &values), (&[], &[]));
}

#[test]
fn panels_lie_where_prefetching_is_told() {
    for &format in KvFormat::ALL {
        for (kv_heads, head_dim) in [(2, 64), (3, 7)] {
            let shape = KvShape { kv_heads, head_dim };
            let mut blocks = KvBlocks::new(format, shape, 2);
            assert!(blocks.grow() && blocks.grow());
            let values = BLOCK_TOKENS * (head_dim + if format == KvFormat::Bf16 { head_dim % 2 } else { 0 });
            let bytes = values
                * match format {
                    KvFormat::F32 => 4,
                    KvFormat::Q8 => 1,
                    _ => 2,
                };
            for block in 0..4 {
                let address = |head, panel| blocks.panel_address(block, head, panel).unwrap().addr();
                for head in 0..kv_heads {
                    let keys = address(head, Panel::Keys);
                    assert_eq!(keys, address(0, Panel::Keys) + head * bytes, "{format:?}");
                    let values = address(head, Panel::Values);
                    assert_eq!(values, keys + kv_heads * bytes, "{format:?}");
                    if format == KvFormat::Bf16 {
                        assert_eq!(keys, blocks.key_pairs(block, head).as_ptr().addr());
                        assert_eq!(values, blocks.value_pairs(block, head, 0..16).as_ptr().addr());
                    }
                }
                let first = blocks.panel_address(block / 2 * 2, 0, Panel::Keys).unwrap().addr();
                assert_eq!(address(0, Panel::Keys), first + block as usize % 2 * blocks.block_bytes());
            }
            assert_eq!(blocks.panel_address(4, 0, Panel::Keys), None, "no memory yet");
            assert_eq!(blocks.panel_address(u32::MAX, 0, Panel::Values), None);
        }
    }
}
