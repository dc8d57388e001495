//! Seeded tiny models: complete sources with random weights that run in milliseconds and behave like real ones in all
//! but sense.
//!
//! Key and tensor names: GGUF's conventions for `llama`, `qwen2`, `qwen3` and `gemma3`. Must not know how a model is run.

use super::quantize::{quantize_blocks, random_blocks};
use super::vocabulary::{self, TokenizerKind};
use super::weights::normal;
use crate::quant::encode::has_writer;
use crate::source::{Dtype, Memory};
use crate::Result;

/// What a tiny model is a miniature of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Two norms per layer, no biases.
    Llama,
    /// Biases on q, k and v.
    Qwen2,
    /// Norms of q and k per head, head_dim independent of hidden.
    Qwen3,
    /// Norms after each block too, norms of q and k per head, a sliding window, head_dim independent of hidden.
    Gemma3,
}

/// Describes a tiny model; [`build`](TinyModel::build) makes it.
///
/// Weights are bell-shaped with a standard deviation of 1/√in, norms are near 1: activations neither vanish nor explode.
/// Types without a writer have random codes instead, with the same deviation.
/// The same description gives the same bytes on every machine.
///
/// ```
/// # #[cfg(feature = "testing")] {
/// use candlewick::source::{Dtype, WeightSource};
/// use candlewick::testing::TinyModel;
///
/// # fn main() -> candlewick::Result<()> {
/// let model = TinyModel { layers: 3, seed: 7, ..TinyModel::llama() }.with_dtype(Dtype::Q4_K).build()?;
/// assert_eq!(model.tensor("blk.2.ffn_down.weight").map(|t| t.dtype), Some(Dtype::Q4_K));
/// # Ok(())
/// # }
/// # main().unwrap(); }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TinyModel {
    /// What it is a miniature of.
    pub architecture: Architecture,
    /// Transformer blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of one head. `key_length` and `value_length` are written if it is not hidden / heads, and for Gemma 3.
    pub head_dim: usize,
    /// Width of the feed-forward block.
    pub ff: usize,
    /// Tokens; those that the tokenizer does not need are unused ones.
    pub vocab: usize,
    /// Positions that the model claims to know.
    pub context: usize,
    /// Sliding window, in tokens. `None`: the key is not written.
    pub window: Option<usize>,
    /// Layer i slides if (i + 1) mod n is not 0. `None`: the key is not written (Gemma 3 then means 6).
    pub window_pattern: Option<usize>,
    /// Type of the linear layers.
    pub dtype: Dtype,
    /// Type of the embedding and of an own head.
    pub embedding_dtype: Dtype,
    /// Whether the head is the embedding (no `output.weight`).
    pub tied: bool,
    /// Seed of the weights.
    pub seed: u64,
    /// Kind of vocabulary.
    pub tokenizer: TokenizerKind,
    /// `add_space_prefix` of a SentencePiece vocabulary.
    pub add_space_prefix: bool,
    /// Whether there is a chat template (ChatML).
    pub chat_template: bool,
}

impl TinyModel {
    /// Two layers of a Llama, byte-level vocabulary, own head, F32.
    pub fn llama() -> TinyModel {
        TinyModel {
            architecture: Architecture::Llama,
            layers: 2,
            hidden: 64,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            ff: 128,
            vocab: 323,
            context: 512,
            window: None,
            window_pattern: None,
            dtype: Dtype::F32,
            embedding_dtype: Dtype::F32,
            tied: false,
            seed: 1,
            tokenizer: TokenizerKind::Gpt2,
            add_space_prefix: true,
            chat_template: true,
        }
    }

    /// Two layers of a Qwen 2: as [`llama`](TinyModel::llama), with biases, a tied head and the `qwen2` splitting rule.
    pub fn qwen2() -> TinyModel {
        TinyModel {
            architecture: Architecture::Qwen2,
            tied: true,
            tokenizer: TokenizerKind::Qwen2,
            ..TinyModel::llama()
        }
    }

    /// Two layers of a Qwen 3: three query heads to one of keys, heads of 24 values beside a width of 96, tied head.
    pub fn qwen3() -> TinyModel {
        TinyModel {
            architecture: Architecture::Qwen3,
            hidden: 96,
            heads: 6,
            kv_heads: 2,
            head_dim: 24,
            ..TinyModel::qwen2()
        }
    }

    /// Seven layers of a Gemma 3, the sixth with full attention, the others with a window of 16; tied head,
    /// SentencePiece vocabulary, no chat template.
    pub fn gemma3() -> TinyModel {
        TinyModel {
            architecture: Architecture::Gemma3,
            layers: 7,
            head_dim: 32,
            window: Some(16),
            tied: true,
            tokenizer: TokenizerKind::Llama,
            add_space_prefix: false,
            chat_template: false,
            ..TinyModel::llama()
        }
    }

    /// Linear layers, embedding and head in `dtype`; widths grow to whole blocks of it.
    pub fn with_dtype(mut self, dtype: Dtype) -> TinyModel {
        let block = dtype.block_len();
        self.dtype = dtype;
        self.embedding_dtype = dtype;
        self.hidden = self.hidden.next_multiple_of(block);
        self.ff = self.ff.next_multiple_of(block);
        while !(self.heads * self.head_dim).is_multiple_of(block) {
            self.head_dim *= 2;
        }
        self
    }

    /// The `general.architecture` of the model.
    pub fn architecture_name(&self) -> &'static str {
        match self.architecture {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
            Architecture::Gemma3 => "gemma3",
        }
    }

    /// Makes metadata and weights.
    ///
    /// # Errors
    /// A width that is 0 or not a multiple of the type's block, a type that cannot be loaded, a vocabulary that is too
    /// small.
    pub fn build(&self) -> Result<Memory> {
        let mut out = Memory::new(format!("tiny {}", self.architecture_name()));
        self.set_keys(&mut out);
        vocabulary::set(&mut out, self.tokenizer, self.vocab, self.add_space_prefix, self.chat_template)?;

        let (hidden, ff) = (self.hidden, self.ff);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let gemma = self.architecture == Architecture::Gemma3;
        self.matrix(&mut out, "token_embd.weight", self.embedding_dtype, self.vocab, hidden)?;
        for layer in 0..self.layers {
            let name = |part: &str| format!("blk.{layer}.{part}");
            self.norm(&mut out, &name("attn_norm.weight"), hidden)?;
            for (part, rows) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
                self.matrix(&mut out, &name(&format!("{part}.weight")), self.dtype, rows, hidden)?;
                if self.architecture == Architecture::Qwen2 {
                    self.vector(&mut out, &name(&format!("{part}.bias")), rows, 0.0)?;
                }
            }
            if gemma || self.architecture == Architecture::Qwen3 {
                self.norm(&mut out, &name("attn_q_norm.weight"), self.head_dim)?;
                self.norm(&mut out, &name("attn_k_norm.weight"), self.head_dim)?;
            }
            self.matrix(&mut out, &name("attn_output.weight"), self.dtype, hidden, q)?;
            if gemma {
                self.norm(&mut out, &name("post_attention_norm.weight"), hidden)?;
            }
            self.norm(&mut out, &name("ffn_norm.weight"), hidden)?;
            self.matrix(&mut out, &name("ffn_gate.weight"), self.dtype, ff, hidden)?;
            self.matrix(&mut out, &name("ffn_up.weight"), self.dtype, ff, hidden)?;
            self.matrix(&mut out, &name("ffn_down.weight"), self.dtype, hidden, ff)?;
            if gemma {
                self.norm(&mut out, &name("post_ffw_norm.weight"), hidden)?;
            }
        }
        self.norm(&mut out, "output_norm.weight", hidden)?;
        if !self.tied {
            self.matrix(&mut out, "output.weight", self.embedding_dtype, self.vocab, hidden)?;
        }
        Ok(out)
    }

    fn set_keys(&self, out: &mut Memory) {
        let arch = self.architecture_name();
        out.set("general.architecture", arch);
        out.set("general.name", format!("tiny {arch}"));
        out.set("general.quantization_version", 2u32);
        let mut number = |key: &str, value: usize| out.set(format!("{arch}.{key}"), value as u64);
        number("block_count", self.layers);
        number("context_length", self.context);
        number("embedding_length", self.hidden);
        number("feed_forward_length", self.ff);
        number("attention.head_count", self.heads);
        number("attention.head_count_kv", self.kv_heads);
        let implied = self.heads.checked_mul(self.head_dim) == Some(self.hidden);
        if !implied || self.architecture == Architecture::Gemma3 {
            number("attention.key_length", self.head_dim);
            number("attention.value_length", self.head_dim);
        }
        if self.architecture == Architecture::Llama {
            number("rope.dimension_count", self.head_dim);
            number("vocab_size", self.vocab);
        }
        if let Some(window) = self.window {
            number("attention.sliding_window", window);
        }
        if let Some(pattern) = self.window_pattern {
            number("attention.sliding_window_pattern", pattern);
        }
        let (base, eps) = if self.architecture == Architecture::Llama { (1e4f32, 1e-5f32) } else { (1e6, 1e-6) };
        out.set(format!("{arch}.rope.freq_base"), base);
        out.set(format!("{arch}.attention.layer_norm_rms_epsilon"), eps);
    }

    fn matrix(&self, out: &mut Memory, name: &str, dtype: Dtype, rows: usize, columns: usize) -> Result<()> {
        let fits = rows > 0 && columns > 0 && columns.is_multiple_of(dtype.block_len());
        if !fits || !dtype.is_supported() {
            // Refused by the shape or, for a type that cannot be loaded, by the missing bytes.
            return out.insert(name, dtype, &[rows, columns], Vec::new());
        }
        let scale = 1.0 / (columns as f32).sqrt();
        if !has_writer(dtype) {
            return out.insert(
                name,
                dtype,
                &[rows, columns],
                random_blocks(self.seed, name, dtype, rows * columns, scale),
            );
        }
        let values: Vec<f32> = normal(self.seed, name, rows * columns).into_iter().map(|x| x * scale).collect();
        out.insert(name, dtype, &[rows, columns], quantize_blocks(dtype, &values))
    }

    fn norm(&self, out: &mut Memory, name: &str, len: usize) -> Result<()> {
        self.vector(out, name, len, 1.0)
    }

    /// An F32 vector of small deviations from `center`.
    fn vector(&self, out: &mut Memory, name: &str, len: usize, center: f32) -> Result<()> {
        let values: Vec<f32> = normal(self.seed, name, len).into_iter().map(|x| center + 0.1 * x).collect();
        out.insert(name, Dtype::F32, &[len], quantize_blocks(Dtype::F32, &values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::WeightSource;

    #[test]
    fn models_have_the_tensors_of_their_architecture() {
        for (model, count) in [
            (TinyModel::llama(), 3 + 2 * 9),
            (TinyModel { tied: true, ..TinyModel::llama() }, 2 + 2 * 9),
            (TinyModel::qwen2(), 2 + 2 * 12),
            (TinyModel::qwen3(), 2 + 2 * 11),
            (TinyModel::gemma3(), 2 + 7 * 13),
        ] {
            let source = model.build().unwrap();
            assert_eq!(source.tensors().len(), count, "{}", model.architecture_name());
        }
        let gemma = TinyModel::gemma3().build().unwrap();
        let shape = |name: &str| gemma.tensor(name).unwrap().shape.clone();
        assert_eq!(shape("blk.0.attn_q.weight"), [128, 64]);
        assert_eq!(shape("blk.6.attn_k.weight"), [64, 64]);
        assert_eq!(shape("blk.6.attn_output.weight"), [64, 128]);
        assert_eq!(shape("blk.3.attn_q_norm.weight"), [32]);
        assert_eq!(gemma.metadata().unsigned("gemma3.attention.key_length").unwrap(), Some(32));
        assert_eq!(gemma.metadata().unsigned("gemma3.attention.sliding_window_pattern").unwrap(), None);
        let llama = TinyModel::llama().build().unwrap();
        assert_eq!(llama.metadata().unsigned("llama.attention.key_length").unwrap(), None);
    }

    #[test]
    fn every_supported_type_can_be_built() {
        for &dtype in Dtype::ALL.iter().filter(|d| d.is_supported()) {
            for model in [
                TinyModel::llama(),
                TinyModel::qwen2(),
                TinyModel { layers: 1, ..TinyModel::qwen3() },
                TinyModel { layers: 1, ..TinyModel::gemma3() },
            ] {
                let source = model.with_dtype(dtype).build().unwrap();
                let info = source.tensor("blk.0.ffn_down.weight").unwrap();
                assert_eq!(info.dtype, dtype);
                assert_eq!(Some(info.size_in_bytes), dtype.size_in_bytes(info.shape[0] * info.shape[1]));
            }
        }
    }

    #[test]
    fn the_seed_decides_the_bytes() {
        let bytes = |seed| TinyModel { seed, ..TinyModel::llama() }.build().unwrap().remove("output.weight").unwrap();
        assert_eq!(bytes(5), bytes(5));
        assert_ne!(bytes(5), bytes(6));
        let first = f32::from_le_bytes(bytes(1)[..4].try_into().unwrap());
        assert!(first.abs() < 3.5 / 8.0 && first != 0.0);
    }

    #[test]
    fn widths_that_do_not_fit_are_errors() {
        let error = |model: TinyModel| model.build().unwrap_err().to_string();
        let message = error(TinyModel { dtype: Dtype::Q6_K, ..TinyModel::llama() });
        assert!(message.contains("256") && message.contains("attn_q"), "{message}");
        assert!(error(TinyModel { hidden: 0, ..TinyModel::llama() }).contains("zero"));
        assert!(error(TinyModel { dtype: Dtype::Q8_1, ..TinyModel::llama() }).contains("bytes"));
        assert!(error(TinyModel { vocab: 100, ..TinyModel::llama() }).contains("at least"));
    }
}
