//! The model: one decoder, driven by a declarative specification that each architecture fills in.
//!
//! Knows weights, blocks and rows; must not know requests, text or sampling.

mod arch;
mod decoder;
mod layer;
mod rope;
#[cfg(any(test, feature = "testing"))]
mod scripted;
mod spec;

pub(crate) use decoder::Decoder;
#[cfg(any(test, feature = "testing"))]
pub(crate) use scripted::{Script, Scripted};

use crate::cache::{BlockArena, CacheLayout, SequenceCache};
use crate::error::MatmulError;
use crate::kernel::KvShape;
use crate::quant::MatrixInfo;
use crate::types::TokenId;

/// Consecutive new tokens of one sequence. Their blocks are reserved; the cache's length is the first one's index.
pub(crate) struct Span<'a> {
    pub(crate) tokens: &'a [TokenId],
    pub(crate) cache: &'a SequenceCache,
}

/// Takes logits as they are computed: `take(first, logits)` gets `[n][vocab]` for the wanted rows from `first` on.
pub(crate) type TakeLogits<'a> = dyn FnMut(usize, &mut [f32]) + 'a;

/// What the engine runs: the decoder, or a script in tests of all that stands around it.
pub(crate) trait Model: Send {
    /// Logits per row.
    fn vocab_size(&self) -> usize;

    /// Positions that the model knows.
    fn context_length(&self) -> usize;

    /// Keys and values of one layer.
    fn kv_shape(&self) -> KvShape;

    /// How the layers' caches are grouped.
    fn cache_layout(&self) -> CacheLayout;

    /// Every matrix: the embedding if it is not the head, the head, the layers.
    fn matrices(&self) -> Vec<MatrixInfo>;

    /// Whether a row's results depend on that row alone, whatever runs beside it.
    fn row_invariant(&self) -> bool;

    /// Runs the rows of all spans, writes their keys and values, and hands the logits of `wanted` rows (ascending,
    /// counted over all spans) to `take`.
    ///
    /// # Errors
    /// A quantizer's matrix that fails or panics. What was written to the blocks of the spans means nothing then.
    fn forward(
        &mut self,
        arena: &mut BlockArena,
        spans: &[Span<'_>],
        wanted: &[usize],
        take: &mut TakeLogits<'_>,
    ) -> Result<(), MatmulError>;
}
