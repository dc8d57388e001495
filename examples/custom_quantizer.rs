//! A quantizer of one's own: ternary weights with a scale per 32 values, except in the head. Checked by the suite, then
//! used by an engine.

use std::ops::Range;

use candlewick::kernel::matmul_f32;
use candlewick::quant::{
    Calibration, KernelContext, LinearGroup, QuantizedGroup, QuantizedMatrix, Quantizer, Role, Stored,
};
use candlewick::testing::{check_quantizer, TinyModel};
use candlewick::{Engine, Request, Result};

#[derive(Debug)]
struct Ternary;

#[derive(Debug, Default)]
struct TernaryMatrix {
    dims: (usize, usize),
    scales: Vec<f32>,
    codes: Vec<i8>,
}

impl Quantizer for Ternary {
    fn name(&self) -> &str {
        "ternary"
    }
    fn quantize(&self, group: &LinearGroup<'_>, calibration: &Calibration<'_>) -> Result<QuantizedGroup> {
        if group.weights().iter().any(|weight| weight.site().role == Role::Head) {
            return Stored.quantize(group, calibration);
        }
        group.each(|weight| {
            let mut matrix = TernaryMatrix { dims: (weight.rows(), weight.cols()), ..TernaryMatrix::default() };
            weight.for_each_row(&mut |_, row| {
                for block in row.chunks(32) {
                    // What is over two thirds of the mean magnitude becomes one step, the rest zero.
                    let least = 0.67 * block.iter().map(|x| x.abs()).sum::<f32>() / block.len() as f32;
                    let kept = block.iter().map(|x| x.abs()).filter(|x| *x > least);
                    matrix.scales.push(kept.clone().sum::<f32>() / kept.count().max(1) as f32);
                    matrix.codes.extend(block.iter().map(|x| if x.abs() > least { x.signum() as i8 } else { 0 }));
                }
            })?;
            Ok(Box::new(matrix))
        })
    }
}

impl QuantizedMatrix for TernaryMatrix {
    fn dims(&self) -> (usize, usize) {
        self.dims
    }
    fn format(&self) -> &str {
        "ternary"
    }
    fn matmul(&self, context: &KernelContext<'_>, x: &[f32], out: &mut [f32]) -> Result<()> {
        matmul_f32(context.cpu, x, self.dims, &|rows, weights| self.dequantize(rows, weights), out);
        Ok(())
    }
    fn dequantize(&self, rows: Range<usize>, out: &mut [f32]) {
        let (cols, blocks) = (self.dims.1, self.dims.1.div_ceil(32));
        for (row, out) in rows.zip(out.chunks_exact_mut(cols)) {
            let codes = &self.codes[row * cols..(row + 1) * cols];
            for (i, (x, &code)) in out.iter_mut().zip(codes).enumerate() {
                *x = self.scales[row * blocks + i / 32] * f32::from(code);
            }
        }
    }
    fn size_in_bytes(&self) -> usize {
        self.codes.len() + 4 * self.scales.len()
    }
    fn row_invariant(&self) -> bool {
        true
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    check_quantizer(&Ternary)?;
    println!("the suite passes");
    let mut engine = Engine::builder(TinyModel::llama().build()?).quantizer(Ternary).build()?;
    for matrix in engine.matrices() {
        println!("{:<28} {:<8} {:>6} bytes", matrix.site.to_string(), matrix.format, matrix.size_in_bytes);
    }
    for piece in engine.generate(Request::prompt("Once upon a time").max_tokens(16))? {
        print!("{}", piece?.text);
    }
    println!();
    Ok(())
}
