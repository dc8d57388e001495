//! What is computed on the way in or out of another operation equals the operations one by one, bit for bit.

use super::{cpu, pack, Random};
use crate::kernel::kv::Panel;
use crate::kernel::{
    add, add_rms_norm, attention, matmul, matmul_add, rms_norm, rope, Activation, Activations, AttentionShape,
    AttentionSpan, Cpu, Input, KernelLevel, KvBlocks, KvFormat, KvShape, Precision, BLOCK_TOKENS,
};
use crate::source::Dtype;

fn cpus() -> impl Iterator<Item = Cpu> {
    let levels = KernelLevel::ALL.iter().copied().filter(|level| level.is_available());
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
                blocks.write_rotated(&cpu, &table, first, (&mut keys, &values), (&cos, &sin));
                assert_eq!(bits(&keys), bits(&rotated));
                assert_eq!(read(&blocks), read(&expected), "{} {first} {tokens}", format.as_str());
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
    blocks.write_rotated(&cpu(KernelLevel::Scalar, 2), &[1, 1], 10, (&mut keys, &values), (&[], &[]));
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
                    assert_eq!(keys, address(0, Panel::Keys) + 2 * head * bytes, "{format:?}");
                    assert_eq!(address(head, Panel::Values), keys + bytes, "{format:?}");
                    if format == KvFormat::Bf16 {
                        assert_eq!(keys, blocks.key_pairs(block, head).as_ptr().addr());
                        assert_eq!(keys + bytes, blocks.value_pairs(block, head, 0..16).as_ptr().addr());
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
