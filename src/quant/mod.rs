//! How the weights of linear layers are kept in memory and multiplied: one trait, and what comes with it.
//!
//! After the source and before the weights in the flow: the engine hands every group of linears to the quantizer once,
//! while it loads, and multiplies with what came back. Knows names, shapes, formats and products; must not know what a
//! model does with a linear.
//!
//! # Groups
//!
//! | group | linears | input |
//! |---|---|---|
//! | attention | q, k, v | the normed residual stream |
//! | attention output | o | the attended values |
//! | feed-forward | gate, up | the normed residual stream |
//! | feed-forward output | down | the gated values |
//! | head | the output matrix, or the embedding where the model has none of its own | the normed residual stream |
//!
//! An embedding that is not the head is no linear and stays as stored. Norms and biases stay f32.

pub(crate) mod encode;
mod group;
mod packed;
mod requantize;
mod rules;
mod site;
mod stored;

use std::fmt::Debug;
use std::ops::Range;

pub use group::{Calibration, LinearGroup, MatrixInfo, QuantizedGroup, WeightInfo, WeightView};
pub use packed::KernelContext;
pub(crate) use packed::{guarded, packed_forms, panic_message, products, Into};
pub use requantize::Requantize;
pub use rules::{Choice, Rule, Target};
pub use site::{Role, Site};
pub use stored::Stored;

use crate::kernel::PackedMatrix;
use crate::Result;

/// A way to keep weights: immutable and shared, it turns each group of linears into matrices.
///
/// # Contract
/// The same group gives the same matrices. One matrix per weight, in the group's order, with the weight's rows and
/// columns. What a matrix computes is what its own [`dequantize`](QuantizedMatrix::dequantize) says, within the
/// rounding of its arithmetic.
///
/// # When it is called
/// While an engine is built: [`check`](Quantizer::check) once, before any weight is read; then
/// [`quantize`](Quantizer::quantize) per group: the head, then the layers in the order of execution. Groups come one at
/// a time, so that memory beside the finished matrices is what the quantizer itself takes.
///
/// # Provided implementations
/// [`Stored`] (the default) keeps the file's format; [`Requantize`] changes it by rules on names.
///
/// # Implementing your own
/// Weights as 8-bit integers with one scale per row, products by the public
/// [`matmul_f32`](crate::kernel::matmul_f32), which keeps rows independent of each other:
///
/// ```
/// use candlewick::kernel::matmul_f32;
/// use candlewick::quant::{
///     Calibration, KernelContext, LinearGroup, QuantizedGroup, QuantizedMatrix, Quantizer, WeightView,
/// };
/// use candlewick::Result;
/// use std::ops::Range;
///
/// #[derive(Debug)]
/// struct Int8Rows;
///
/// #[derive(Debug)]
/// struct Int8Matrix {
///     cols: usize,
///     scales: Vec<f32>,
///     codes: Vec<i8>,
/// }
///
/// impl Quantizer for Int8Rows {
///     fn name(&self) -> &str {
///         "int8 rows"
///     }
///     fn quantize(&self, group: &LinearGroup<'_>, _: &Calibration<'_>) -> Result<QuantizedGroup> {
///         group.each(|weight| Ok(Box::new(Int8Matrix::new(weight)?)))
///     }
/// }
///
/// impl Int8Matrix {
///     fn new(weight: &WeightView<'_>) -> Result<Int8Matrix> {
///         let mut matrix = Int8Matrix { cols: weight.cols(), scales: Vec::new(), codes: Vec::new() };
///         weight.for_each_row(&mut |_, row| {
///             let scale = row.iter().fold(0f32, |most, x| most.max(x.abs())) / 127.0;
///             let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
///             matrix.scales.push(scale);
///             matrix.codes.extend(row.iter().map(|x| (x * inverse).round() as i8));
///         })?;
///         Ok(matrix)
///     }
/// }
///
/// impl QuantizedMatrix for Int8Matrix {
///     fn dims(&self) -> (usize, usize) {
///         (self.scales.len(), self.cols)
///     }
///     fn format(&self) -> &str {
///         "int8 rows"
///     }
///     fn matmul(&self, context: &KernelContext<'_>, x: &[f32], out: &mut [f32]) -> Result<()> {
///         matmul_f32(context.cpu, x, self.dims(), &|rows, weights| self.dequantize(rows, weights), out);
///         Ok(())
///     }
///     fn dequantize(&self, rows: Range<usize>, out: &mut [f32]) {
///         for (row, out) in rows.zip(out.chunks_exact_mut(self.cols)) {
///             let codes = &self.codes[row * self.cols..(row + 1) * self.cols];
///             out.iter_mut().zip(codes).for_each(|(x, &code)| *x = self.scales[row] * f32::from(code));
///         }
///     }
///     fn size_in_bytes(&self) -> usize {
///         self.codes.len() + 4 * self.scales.len()
///     }
///     fn row_invariant(&self) -> bool {
///         true
///     }
/// }
///
/// candlewick::testing::check_quantizer(&Int8Rows).unwrap();
/// ```
///
/// # Errors
/// A weight that the method cannot take is
/// [`BuildError::Quantize`](crate::BuildError::Quantize), which names the tensor and the remedy; it ends the build. A
/// panic does too.
pub trait Quantizer: Debug + Send + Sync + 'static {
    /// Name for error messages.
    fn name(&self) -> &str;

    /// Looks at all weights that will come, before any is read: the place to refuse a model, or options that do not fit
    /// it, without waiting for the load. Accepts everything unless it is implemented.
    ///
    /// # Errors
    /// What [`quantize`](Quantizer::quantize) would say, as far as names, shapes and formats tell.
    fn check(&self, weights: &[WeightInfo]) -> Result<()> {
        let _ = weights;
        Ok(())
    }

    /// The matrices of one group. `calibration` has what was measured on the group's inputs.
    ///
    /// # Errors
    /// A failed read of the source, passed on; a weight that the method cannot take
    /// ([`BuildError::Quantize`](crate::BuildError::Quantize)).
    fn quantize(&self, group: &LinearGroup<'_>, calibration: &Calibration<'_>) -> Result<QuantizedGroup>;
}

/// The weights of one linear in a quantizer's own form: `rows` outputs, `cols` inputs.
///
/// # Contract
/// `dequantize` is the oracle: `matmul` computes the product of its input with exactly these values, up to the rounding
/// of its arithmetic. At [`Precision::F32`](crate::Precision::F32) that is f32 arithmetic on unchanged inputs;
/// otherwise inputs may be quantized as well.
///
/// If [`row_invariant`](Self::row_invariant) answers `true`, the bits of a row's result depend on that row alone: not
/// on the rows beside it and not on the number of threads. Batching, drafting and resuming rely on that.
///
/// # When it is called
/// `matmul` several times per step, from one thread at a time; `dequantize` for the rows of an embedding, from several
/// threads at once, and by tests. The others while the engine is built, and for reports.
///
/// # Provided implementations
/// [`PackedMatrix`], which every built-in quantizer makes.
///
/// # Implementing your own
/// See [`Quantizer`], whose example has both.
///
/// # Errors
/// A `matmul` that fails or panics ends the requests of that step; the engine lives.
pub trait QuantizedMatrix: Debug + Send + Sync + 'static {
    /// Rows (length of an output) and columns (length of an input).
    fn dims(&self) -> (usize, usize);

    /// What the values are stored as, in a few words, for reports.
    fn format(&self) -> &str;

    /// `out`, `[n][rows]`, becomes `x`, `[n][cols]`, times this matrix transposed; every value of `out` is written. n
    /// is at least 1. A NaN in a row of `x` may make that row's outputs NaN, and no others.
    ///
    /// # Errors
    /// Whatever makes the product impossible, such as a lost device.
    fn matmul(&self, context: &KernelContext<'_>, x: &[f32], out: &mut [f32]) -> Result<()>;

    /// The values of some rows, `[rows.len()][cols]`.
    fn dequantize(&self, rows: Range<usize>, out: &mut [f32]);

    /// Bytes of memory that the weights take.
    fn size_in_bytes(&self) -> usize;

    /// Whether a row's result depends on that row alone, bit for bit.
    fn row_invariant(&self) -> bool;

    /// The packed form, so that several matrices of one input run in one pass and share its preparation. Nothing
    /// outside of this crate can name the argument's type, so only built-in matrices have one.
    #[doc(hidden)]
    fn packed(&self, _: packed::Sealed) -> Option<&PackedMatrix> {
        None
    }
}

#[cfg(test)]
mod engine_tests;
