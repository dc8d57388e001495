//! The suite passes what is right and catches what is not.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::kernel::matmul_f32;
use crate::quant::{QuantizedGroup, Requantize, Rule, Stored, Target};
use crate::Result;

#[test]
fn built_in_quantizers_pass() {
    check_quantizer(&Stored).unwrap();
    for &target in Target::ALL {
        check_quantizer(&Requantize::all(target)).unwrap_or_else(|e| panic!("{target}: {e}"));
    }
    check_quantizer(&Requantize::new([])).unwrap();
    let rules = [Rule::new("*.attn_*", Target::Q8_0), Rule::new("output.weight", Target::Stored)];
    check_quantizer(&Requantize::new(rules)).unwrap();
}

/// What a matrix does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    Fewer,
    Transposed,
    NoSize,
    Adds,
    Zeros,
    ShiftedRows,
    CompanyCounts,
    ForgetsLastRow,
    Random,
    PanicsOnOddWidths,
    RefusesEverything,
    Rough,
    Fails,
    NotANumber,
}

/// Dense f32 weights with a flaw.
#[derive(Debug)]
struct Broken(Flaw);

static CALLS: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
struct Dense {
    flaw: Flaw,
    rows: usize,
    cols: usize,
    values: Vec<f32>,
}

impl Quantizer for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn quantize(&self, group: &LinearGroup<'_>, _: &Calibration<'_>) -> Result<QuantizedGroup> {
        let flaw = self.0;
        let mut quantized = group.each(|weight| {
            assert!(flaw != Flaw::PanicsOnOddWidths || weight.cols().is_multiple_of(32), "32 or nothing");
            if flaw == Flaw::RefusesEverything {
                return Err(weight.info().refused("broken", "whatever it is"));
            }
            let mut values = weight.dequantize()?;
            match flaw {
                Flaw::Random => values[0] += 0.001 * CALLS.fetch_add(1, Ordering::Relaxed) as f32,
                Flaw::Rough => values.fill(0.0),
                Flaw::NotANumber => values[0] = f32::NAN,
                _ => {}
            }
            Ok(Box::new(Dense { flaw, rows: weight.rows(), cols: weight.cols(), values }))
        })?;
        if flaw == Flaw::Fewer {
            quantized.matrices.pop();
        }
        Ok(quantized)
    }
}

impl QuantizedMatrix for Dense {
    fn dims(&self) -> (usize, usize) {
        match self.flaw {
            Flaw::Transposed => (self.cols, self.rows),
            _ => (self.rows, self.cols),
        }
    }

    fn format(&self) -> &str {
        "f32"
    }

    fn matmul(&self, context: &KernelContext<'_>, x: &[f32], out: &mut [f32]) -> Result<()> {
        let before = out.to_vec();
        let fill = |rows: Range<usize>, w: &mut [f32]| {
            w.copy_from_slice(&self.values[rows.start * self.cols..rows.end * self.cols]);
        };
        matmul_f32(context.cpu, x, (self.rows, self.cols), &fill, out);
        match self.flaw {
            Flaw::Adds => out.iter_mut().zip(before).for_each(|(out, before)| *out += before),
            Flaw::Zeros => out.fill(0.0),
            // The last bit is enough.
            Flaw::CompanyCounts if out.len() > self.rows => out[0] = f32::from_bits(out[0].to_bits() ^ 1),
            Flaw::ForgetsLastRow => out[self.rows - 1] = before[self.rows - 1],
            Flaw::Fails => {
                let site = Site::new(None, Role::Head, "x");
                return Err(WeightInfo::new(site, Dtype::F32, 1, 1).refused("broken", "no device"));
            }
            _ => {}
        }
        Ok(())
    }

    fn dequantize(&self, rows: Range<usize>, out: &mut [f32]) {
        let first = match self.flaw {
            Flaw::ShiftedRows if rows.len() < self.rows => (rows.start + 1) % self.rows,
            _ => rows.start,
        };
        out.copy_from_slice(&self.values[first * self.cols..][..rows.len() * self.cols]);
    }

    fn size_in_bytes(&self) -> usize {
        match self.flaw {
            Flaw::NoSize => 0,
            _ => 4 * self.values.len(),
        }
    }

    fn row_invariant(&self) -> bool {
        true
    }
}

#[test]
fn a_dense_quantizer_passes_and_every_flaw_is_caught() {
    check_quantizer(&Broken(Flaw::None)).unwrap();
    for (flaw, expected) in [
        (Flaw::Fewer, "0 matrices of 1 weights"),
        (Flaw::Transposed, "a matrix of 512 x 67"),
        (Flaw::NoSize, "a size of 0 bytes"),
        (Flaw::Adds, "NaN"),
        (Flaw::Zeros, "output 0 of row 0 is 0e0"),
        (Flaw::ShiftedRows, "row 0 alone"),
        (Flaw::CompanyCounts, "claims row invariance"),
        (Flaw::ForgetsLastRow, "output 66 of row 0 is NaN"),
        (Flaw::Random, "quantizing again"),
        (Flaw::PanicsOnOddWidths, "quantize panicked: 32 or nothing"),
        (Flaw::RefusesEverything, "refused"),
        (Flaw::Rough, "100 % off"),
        (Flaw::Fails, "matmul failed"),
        (Flaw::NotANumber, "NaN % off"),
    ] {
        let found = check_quantizer(&Broken(flaw)).unwrap_err();
        assert!(found.contains(expected), "{flaw:?}: {found}");
    }
}

#[test]
fn a_quantizer_that_refuses_the_model_is_told() {
    let typo: Requantize = "blk.*.atn_q.weight=q8_0".parse().unwrap();
    let found = check_quantizer(&typo).unwrap_err();
    assert!(found.contains("atn_q") && found.contains("check refuses"), "{found}");
}
