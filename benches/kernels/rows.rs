//! What happens between products: norms, rotary positions, gates, and the quantization of activations.
//!
//! One row as in decoding, and a prompt's chunk; all of it from the caches, where a model finds it too.

use std::time::Duration;

use candlewick::kernel::{rms_norm, rope, Activation, Activations, Cpu, Input, PackedMatrix, Precision};
use candlewick::source::Dtype;
use criterion::Criterion;

use super::rate::{timed, values, Group, Work};

/// Width of a row: Qwen2 1.5B.
const WIDTH: usize = 1536;
/// Width inside its MLP.
const INNER: usize = 8960;
/// Its query heads and their size.
const HEADS: (usize, usize) = (12, 128);
const ROWS: [usize; 2] = [1, 512];

pub(crate) fn bench(criterion: &mut Criterion, cpu: &Cpu) {
    let group = Group::new(cpu);
    let of = |bytes: usize| Work { bytes, ..Work::default() };
    for rows in ROWS {
        let parameter = rows.to_string();
        let len = rows * WIDTH;
        group.bench(criterion, ("rms_norm", &parameter), of(8 * len), || {
            let (x, weight, mut out) = (values(len), values(WIDTH), vec![0f32; len]);
            timed(move |_| rms_norm(cpu, &x, &weight, 1e-6, &mut out))
        });
        let (heads, dim) = HEADS;
        group.bench(criterion, ("rope", &parameter), of(8 * rows * (heads * dim + dim / 2)), || {
            // A rotation by a fixed angle keeps lengths, however often it is repeated.
            let (cos, sin) = (vec![0.8f32; rows * dim / 2], vec![0.6f32; rows * dim / 2]);
            let mut x = values(rows * heads * dim);
            timed(move |_| rope(cpu, &mut x, heads, dim, &cos, &sin))
        });
        group.bench(criterion, ("gate-silu", &parameter), of(12 * rows * INNER), || gates(cpu, rows));
        for dtype in [Dtype::Q4_K, Dtype::Q6_K] {
            let name = format!("quantize-for-{}", dtype.name());
            // Four bytes of each value become one.
            group.bench(criterion, (&name, &parameter), of(5 * len), || {
                let weights = PackedMatrix::allocate(dtype, 16, WIDTH).expect("memory for a matrix");
                let (x, mut acts) = (values(len), Activations::new());
                timed(move |_| acts.prepare(cpu, &x, rows, WIDTH, &[&weights], Precision::Int8Activations))
            });
        }
    }
}

fn gates(cpu: &Cpu, rows: usize) -> impl FnMut(u64) -> Duration + '_ {
    let (gate, up, mut out) = (values(rows * INNER), values(rows * INNER), vec![0.0; rows * INNER]);
    timed(move |_| Input::Gated { activation: Activation::Silu, gate: &gate, up: &up }.write(cpu, INNER, &mut out))
}
