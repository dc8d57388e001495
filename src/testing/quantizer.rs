//! The conformance suite of quantizers: what the engine relies on, checked on groups of many shapes.
//!
//! Works on the public traits alone, so that it says the same of built-in and foreign quantizers.

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use super::weights::normal;
use crate::kernel::{Cpu, KernelLevel, Pool, Precision};
use crate::quant::encode::encode;
use crate::quant::{
    Calibration, KernelContext, LinearGroup, QuantizedMatrix, Quantizer, Role, Site, WeightInfo, WeightView,
};
use crate::source::Dtype;

/// How far a product may lie from the one of the oracle's values, in units of ‖row‖ · ‖input‖ / √cols: with inputs
/// quantized to 8 bits per 32 values, and with f32 inputs.
const INT8_BOUND: f64 = 0.05;
const F32_BOUND: f64 = 1e-4;
/// What is left of a bell-shaped weight's root mean square after a quantization that is good for anything.
const LOSS_BOUND: f64 = 0.75;
/// Most rows of a batch.
const BATCH: usize = 9;

/// Checks a quantizer against the contracts of [`Quantizer`] and [`QuantizedMatrix`].
///
/// On seeded groups of one to three weights, odd row counts among them, in several storage types:
///
/// * a model of F32 weights with widths that are multiples of 256 is accepted, every place of it; other widths and types
///   are quantized or refused with an error, without a panic;
/// * matrices have the weights' dimensions and a plausible size in memory;
/// * `dequantize` gives the same values by rows and as a whole, within 75 % (root mean square) of the weights;
/// * products lie within 5 % of ‖row‖ · ‖input‖ / √cols of the f64 product with the dequantized values, and within 0.01 %
///   at [`Precision::F32`]; every value of the output is written;
/// * where a matrix claims row invariance, rows alone and in batches of 2 to 9, on 1 and 2 threads, have equal bits;
/// * quantizing again gives the same bits.
///
/// # Errors
/// What is wrong, with the group it was found on.
pub fn check_quantizer(quantizer: &dyn Quantizer) -> Result<(), String> {
    if quantizer.name().trim().is_empty() {
        return Err("the name is empty: errors could not say which quantizer they mean".to_string());
    }
    let threads = [1, 2].map(|threads| Pool::new(threads).map(Arc::new));
    let [one, two] = threads.map(|pool| pool.map(|pool| Cpu { pool, level: KernelLevel::detect() }));
    let (one, two) = (one.map_err(|e| e.to_string())?, two.map_err(|e| e.to_string())?);
    let cpus = [&one, &two];

    let model = model(Dtype::F32, 512, 256);
    let infos: Vec<WeightInfo> = model.iter().flatten().cloned().collect();
    guarded("check", || quantizer.check(&infos).map_err(|e| format!("check refuses an ordinary model: {e}")))?;
    for group in &model {
        if !check_group(quantizer, &cpus, group)? {
            return Err(format!("{}: refused, although `check` accepts the model", title(group)));
        }
    }
    // What may be refused: one layer each, so that the suite stays fast.
    use Dtype::{BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q6_K, Q8_0};
    for (dtype, hidden, ff) in
        [(F32, 96, 31), (F32, 40, 7), (F16, 64, 32), (BF16, 288, 96), (Q8_0, 96, 64), (Q4_0, 32, 160)]
    {
        check_layer(quantizer, &cpus, dtype, hidden, ff)?;
    }
    for (dtype, hidden, ff) in [(Q4_1, 352, 32), (Q4_K, 256, 512), (Q6_K, 256, 256)] {
        check_layer(quantizer, &cpus, dtype, hidden, ff)?;
    }
    Ok(())
}

fn check_layer(quantizer: &dyn Quantizer, cpus: &[&Cpu; 2], dtype: Dtype, h: usize, ff: usize) -> Result<(), String> {
    let model = model(dtype, h, ff);
    let infos: Vec<WeightInfo> = model.iter().flatten().cloned().collect();
    let refused = guarded("check", || Ok(quantizer.check(&infos).is_err()))?;
    if !refused {
        for group in &model[..5] {
            check_group(quantizer, cpus, group)?;
        }
    }
    Ok(())
}

/// The groups of two layers and a head, by names of GGUF files; row counts are odd where they can be.
fn model(dtype: Dtype, hidden: usize, ff: usize) -> Vec<Vec<WeightInfo>> {
    let mut groups = vec![vec![WeightInfo::new(Site::new(None, Role::Head, "output.weight"), dtype, 67, hidden)]];
    for layer in 0..2 {
        let weight = |role: Role, rows: usize, cols: usize| {
            let site = Site::new(Some(layer), role, "");
            WeightInfo::new(Site { name: site.gguf_name(), ..site }, dtype, rows, cols)
        };
        groups.push(vec![
            weight(Role::Query, 48, hidden),
            weight(Role::Key, 17, hidden),
            weight(Role::Value, 1, hidden),
        ]);
        groups.push(vec![weight(Role::AttentionOutput, 33, hidden)]);
        groups.push(vec![weight(Role::Gate, 31, hidden), weight(Role::Up, 31, hidden)]);
        groups.push(vec![weight(Role::Down, 15, ff)]);
    }
    groups
}

fn title(group: &[WeightInfo]) -> String {
    let weights: Vec<String> =
        group.iter().map(|w| format!("{} ({} {} x {})", w.site, w.dtype, w.rows, w.cols)).collect();
    weights.join(", ")
}

/// Checks what becomes of one group; `false` if it is refused.
fn check_group(quantizer: &dyn Quantizer, cpus: &[&Cpu; 2], group: &[WeightInfo]) -> Result<bool, String> {
    let mut bytes = Vec::with_capacity(group.len());
    for info in group {
        let scale = 1.0 / (info.cols as f32).sqrt();
        let values: Vec<f32> =
            normal(11, &info.site.name, info.rows * info.cols).into_iter().map(|x| x * scale).collect();
        let Some(size) = info.dtype.size_in_bytes(info.cols).map(|row| row * info.rows) else {
            // The source would not have such a tensor.
            return Ok(false);
        };
        let mut encoded = vec![0; size];
        encode(info.dtype, &values, &mut encoded).map_err(|e| e.to_string())?;
        bytes.push(encoded);
    }
    let run = |cpu: &Cpu| {
        let views = group.iter().zip(&bytes).map(|(info, bytes)| WeightView::from_bytes(info.clone(), bytes));
        let views: Vec<WeightView<'_>> = views.collect::<crate::Result<_>>().map_err(|e| e.to_string())?;
        let original: Vec<Vec<f32>> =
            views.iter().map(|view| view.dequantize().map_err(|e| e.to_string())).collect::<Result<_, _>>()?;
        let group = LinearGroup::new(cpu, views);
        let quantized = guarded("quantize", || Ok(quantizer.quantize(&group, &Calibration::none()).ok()))?;
        Ok::<_, String>((original, quantized.map(|group| group.matrices)))
    };
    let context = |problem: String| format!("{}: {problem}", title(group));
    let (original, matrices) = run(cpus[0]).map_err(context)?;
    let Some(matrices) = matrices else { return Ok(false) };
    if matrices.len() != group.len() {
        return Err(context(format!("{} matrices of {} weights", matrices.len(), group.len())));
    }
    let again = run(cpus[1]).map_err(context)?.1.unwrap_or_default();
    for (i, (info, matrix)) in group.iter().zip(&matrices).enumerate() {
        let context = |problem: String| format!("{}: {problem}", title(&group[i..=i]));
        check_matrix(&**matrix, info, &original[i], cpus).map_err(context)?;
        let values = |matrix: &dyn QuantizedMatrix| guarded("dequantize", || Ok(whole(matrix)));
        let same = match again.get(i) {
            Some(again) => again.dims() == matrix.dims() && bits(&values(&**again)?) == bits(&values(&**matrix)?),
            None => false,
        };
        if !same {
            return Err(context("quantizing again, on two threads, gave other values".to_string()));
        }
    }
    Ok(true)
}

fn check_matrix(
    matrix: &dyn QuantizedMatrix,
    info: &WeightInfo,
    original: &[f32],
    cpus: &[&Cpu; 2],
) -> Result<(), String> {
    let (rows, cols) = matrix.dims();
    if (rows, cols) != (info.rows, info.cols) {
        return Err(format!("a matrix of {rows} x {cols}"));
    }
    if matrix.format().trim().is_empty() {
        return Err("the format's name is empty".to_string());
    }
    // Twice f32, with room for padding.
    let (size, most) = (matrix.size_in_bytes(), 8 * rows.next_multiple_of(32) * cols.next_multiple_of(64) + 4096);
    if size == 0 || size > most {
        return Err(format!("a size of {size} bytes; expected 1 to {most}"));
    }
    let oracle = guarded("dequantize", || Ok(whole(matrix)))?;
    for r in 0..rows {
        let mut row = vec![f32::NAN; cols];
        guarded("dequantize", || {
            matrix.dequantize(r..r + 1, &mut row);
            Ok(())
        })?;
        if bits(&row) != bits(&oracle[r * cols..(r + 1) * cols]) {
            return Err(format!("dequantize of row {r} alone differs from that of the whole matrix"));
        }
    }
    let square = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let loss = square(&mut original.iter().zip(&oracle).map(|(a, b)| a - b)) / square(&mut original.iter().copied());
    // A NaN is no pass.
    let is_close = loss.sqrt() <= LOSS_BOUND;
    if !is_close {
        return Err(format!("dequantized values are {:.0} % off the weights", 100.0 * loss.sqrt()));
    }
    let x = normal(5, &info.site.name, BATCH * cols);
    for (precision, bound) in [(Precision::Int8Activations, INT8_BOUND), (Precision::F32, F32_BOUND)] {
        let batch = product(matrix, cpus[0], precision, &x)?;
        check_product(&oracle, &x, &batch, (rows, cols), bound).map_err(|e| format!("{precision:?}: {e}"))?;
        if matrix.row_invariant() {
            check_invariance(matrix, cpus, precision, &x, &batch)?;
        }
    }
    Ok(())
}

/// Products against the oracle's values in f64.
fn check_product(
    oracle: &[f32],
    x: &[f32],
    batch: &[f32],
    (rows, cols): (usize, usize),
    bound: f64,
) -> Result<(), String> {
    let norm = |values: &[f32]| values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    for (m, x) in x.chunks_exact(cols).enumerate() {
        for (r, w) in oracle.chunks_exact(cols).enumerate() {
            let expected: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            let found = f64::from(batch[m * rows + r]);
            let unit = norm(x) * norm(w) / (cols as f64).sqrt();
            let is_close = (found - expected).abs() <= bound * unit + 1e-12;
            if !is_close {
                let bound = bound * unit;
                return Err(format!(
                    "output {r} of row {m} is {found:e}, the dequantized values give {expected:e} (bound {bound:.1e})"
                ));
            }
        }
    }
    Ok(())
}

/// Rows alone, in batches of every size, on every number of threads: the same bits.
fn check_invariance(
    matrix: &dyn QuantizedMatrix,
    cpus: &[&Cpu; 2],
    precision: Precision,
    x: &[f32],
    expected: &[f32],
) -> Result<(), String> {
    let (rows, cols) = matrix.dims();
    for cpu in cpus {
        for n in 1..=BATCH {
            for first in [0, 1, BATCH - n].into_iter().filter(|first| first + n <= BATCH) {
                let found = product(matrix, cpu, precision, &x[first * cols..(first + n) * cols])?;
                if bits(&found) != bits(&expected[first * rows..(first + n) * rows]) {
                    return Err(format!(
                        "claims row invariance, but {n} rows from {first} on {} threads differ from the same rows \
                         among {BATCH}",
                        cpu.pool.threads()
                    ));
                }
            }
        }
    }
    Ok(())
}

fn product(matrix: &dyn QuantizedMatrix, cpu: &Cpu, precision: Precision, x: &[f32]) -> Result<Vec<f32>, String> {
    let (rows, cols) = matrix.dims();
    // What the output held before must not matter.
    let mut out = vec![f32::NAN; x.len() / cols * rows];
    guarded("matmul", || {
        matrix.matmul(&KernelContext::new(cpu, precision), x, &mut out).map_err(|e| format!("matmul failed: {e}"))
    })?;
    Ok(out)
}

fn whole(matrix: &dyn QuantizedMatrix) -> Vec<f32> {
    let (rows, cols) = matrix.dims();
    let mut values = vec![f32::NAN; rows * cols];
    matrix.dequantize(0..rows, &mut values);
    values
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn guarded<T>(what: &str, f: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(f))
        .unwrap_or_else(|panic| Err(format!("{what} panicked: {}", crate::quant::panic_message(panic))))
}

#[cfg(test)]
#[path = "quantizer_tests.rs"]
mod tests;
