//! From a source and options to an engine.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use super::answer::guarded;
use super::clock::{Clock, SystemClock};
use super::drafting::Drafting;
use super::mask::TokenSet;
use super::Engine;
use crate::cache::{BlockArena, CachePolicy, Full};
use crate::candle::Device;
use crate::draft::{DraftContext, Drafter};
use crate::kernel::{self, Cpu, KernelLevel, KvFormat, Pool, Precision, BLOCK_TOKENS};
use crate::model::{Decoder, Model};
use crate::quant::{Quantizer, Stored};
use crate::sample::{Chain, Distribution, Sampler};
use crate::source::WeightSource;
use crate::tokenizer::{ChatTemplate, ControlTokens, Tokenizer};
use crate::types::TokenId;
use crate::{BuildError, Result};

/// Rows that a step runs at most beside the decodes.
const STEP_TOKENS: usize = 256;
const MAX_SEQUENCES: usize = 16;
const MAX_THREADS: usize = 1024;
/// Rows of a draft that cost little more than the one row of a step without.
const DRAFT_TOKENS: usize = 8;
const MAX_DRAFT_TOKENS: usize = 64;

/// Options of an engine; see [`Engine::builder`].
pub struct EngineBuilder {
    source: Box<dyn WeightSource>,
    device: Device,
    threads: Option<usize>,
    pool: Option<Arc<Pool>>,
    level: Option<KernelLevel>,
    precision: Precision,
    quantizer: Box<dyn Quantizer>,
    require_invariance: bool,
    kv_format: Option<KvFormat>,
    cache_policy: Arc<dyn CachePolicy>,
    max_context: Option<usize>,
    max_sequences: usize,
    kv_tokens: Option<usize>,
    step_tokens: usize,
    sampler: Arc<dyn Sampler>,
    drafter: Option<Arc<dyn Drafter>>,
    draft_tokens: usize,
    template: Option<ChatTemplate>,
    #[cfg(any(test, feature = "testing"))]
    script: Option<crate::model::Script>,
    clock: Box<dyn Clock>,
    progress: Box<dyn FnMut(u64, u64) -> bool>,
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBuilder").field("source", &self.source).finish_non_exhaustive()
    }
}

impl EngineBuilder {
    pub(super) fn new(source: impl WeightSource) -> EngineBuilder {
        EngineBuilder {
            source: Box::new(source),
            device: Device::Cpu,
            threads: None,
            pool: None,
            level: None,
            precision: Precision::Int8Activations,
            quantizer: Box::new(Stored),
            require_invariance: false,
            kv_format: None,
            cache_policy: Arc::new(Full),
            max_context: None,
            max_sequences: MAX_SEQUENCES,
            kv_tokens: None,
            step_tokens: STEP_TOKENS,
            sampler: Arc::new(Chain::new()),
            drafter: None,
            draft_tokens: DRAFT_TOKENS,
            template: None,
            #[cfg(any(test, feature = "testing"))]
            script: None,
            clock: Box::new(SystemClock::default()),
            progress: Box::new(|_, _| true),
        }
    }

    /// The device that computes; default and only choice so far: the CPU.
    pub fn device(mut self, device: Device) -> EngineBuilder {
        self.device = device;
        self
    }

    /// Threads that compute, the caller's included; default: the physical cores that the process may use, by its
    /// affinity mask and its control group's quota ([`usable_cores`](crate::kernel::usable_cores)).
    pub fn threads(mut self, threads: usize) -> EngineBuilder {
        self.threads = Some(threads);
        self
    }

    /// Computes on the threads of another engine ([`Engine::pool`]) instead of starting its own. Their jobs take turns: while
    /// this engine reads its weights, the other waits for up to 8 MiB of them at a time.
    pub fn pool(mut self, pool: Arc<Pool>) -> EngineBuilder {
        self.pool = Some(pool);
        self
    }

    /// The instruction set of the kernels; default: the best that the machine has.
    pub fn kernel_level(mut self, level: KernelLevel) -> EngineBuilder {
        self.level = Some(level);
        self
    }

    /// Precision of the activations in matrix products; default: 8 bits on quantized weights, bf16 on BF16 weights.
    pub fn precision(mut self, precision: Precision) -> EngineBuilder {
        self.precision = precision;
        self
    }

    /// How weights are kept; default: [`Stored`], in the file's formats. [`Requantize`](crate::quant::Requantize)
    /// changes them while they load.
    pub fn quantizer(mut self, quantizer: impl Quantizer) -> EngineBuilder {
        self.quantizer = Box::new(quantizer);
        self
    }

    /// Whether the build fails with a quantizer whose results depend on the other rows of a step
    /// ([`QuantizedMatrix::row_invariant`](crate::quant::QuantizedMatrix::row_invariant)); default: no. Everything that
    /// this crate provides is invariant.
    pub fn require_invariance(mut self, required: bool) -> EngineBuilder {
        self.require_invariance = required;
        self
    }

    /// Format of the KV cache; default: bf16, or f32 where the precision is f32.
    pub fn kv_format(mut self, format: KvFormat) -> EngineBuilder {
        self.kv_format = Some(format);
        self
    }

    /// Which positions the KV cache keeps; default: [`Full`], all that the model's layers see. A policy that bounds
    /// the cache, such as [`Window`](crate::cache::Window), lets prompt and answer outgrow the context.
    pub fn cache_policy(mut self, policy: impl CachePolicy) -> EngineBuilder {
        self.cache_policy = Arc::new(policy);
        self
    }

    /// Tokens that prompt and answer of a request may have together; default and most: the model's context. Where the
    /// cache policy bounds the cache, only the default of `max_tokens` comes from it.
    pub fn max_context(mut self, tokens: usize) -> EngineBuilder {
        self.max_context = Some(tokens);
        self
    }

    /// Requests that run at the same time; default 16. Others wait in order.
    pub fn max_sequences(mut self, sequences: usize) -> EngineBuilder {
        self.max_sequences = sequences;
        self
    }

    /// Tokens that the KV cache holds for all requests together; default: room for `max_sequences` whole contexts.
    /// Memory is taken as tokens arrive, and kept.
    pub fn kv_tokens(mut self, tokens: usize) -> EngineBuilder {
        self.kv_tokens = Some(tokens);
        self
    }

    /// Rows that a step runs at most beside the decoding ones; default 256. Longer prompts are cut. Has no effect
    /// on any result.
    pub fn step_tokens(mut self, tokens: usize) -> EngineBuilder {
        self.step_tokens = tokens;
        self
    }

    /// The sampler of requests that bring none; default: [`Chain`], which reads the request's parameters.
    pub fn sampler(mut self, sampler: impl Sampler) -> EngineBuilder {
        self.sampler = Arc::new(sampler);
        self
    }

    /// Guesses tokens ahead, which the model then checks in one step; default: none. Changes how fast answers come, and
    /// no token or log-probability of them.
    pub fn drafter(mut self, drafter: impl Drafter) -> EngineBuilder {
        self.drafter = Some(Arc::new(drafter));
        self
    }

    /// The longest draft, from 1 to 64; default 8. Drafts get shorter by themselves where they are wrong.
    pub fn draft_tokens(mut self, tokens: usize) -> EngineBuilder {
        self.draft_tokens = tokens;
        self
    }

    /// Replaces the model by a script, for tests of what stands around it: `script(tokens, logits)` writes the logits
    /// after `tokens`, all −∞ before. Tokenizer and context are the source's; its weights are not read.
    #[cfg(any(test, feature = "testing"))]
    pub fn script(mut self, script: impl FnMut(&[TokenId], &mut [f32]) + Send + 'static) -> EngineBuilder {
        self.script = Some(Box::new(script));
        self
    }

    /// The chat template; default: the file's own, else ChatML if the vocabulary has its tokens.
    pub fn chat_template(mut self, template: ChatTemplate) -> EngineBuilder {
        self.template = Some(template);
        self
    }

    /// Where time comes from; default: the system.
    pub fn clock(mut self, clock: impl Clock) -> EngineBuilder {
        self.clock = Box::new(clock);
        self
    }

    /// Called while weights load with bytes done and bytes in all; answering `false` cancels the build.
    pub fn progress(mut self, progress: impl FnMut(u64, u64) -> bool + 'static) -> EngineBuilder {
        self.progress = Box::new(progress);
        self
    }

    /// Reads the weights and makes the engine. Nothing of the source is held afterwards.
    ///
    /// # Errors
    /// Options out of range or that this machine cannot serve; a source, tokenizer, template or model that is
    /// malformed or not supported.
    pub fn build(mut self) -> Result<Engine> {
        // By name: candle panics when a device whose backend is not compiled in is asked where it is.
        let device = match self.device {
            Device::Cpu => None,
            Device::Cuda(_) => Some("cuda"),
            Device::Metal(_) => Some("metal"),
        };
        if let Some(device) = device {
            return Err(BuildError::Device { device: device.to_string() }.into());
        }
        let cpu = self.cpu()?;
        // Before the weights, which may take long.
        let template = match self.template.take() {
            Some(template) => Some(template),
            None => self.source.metadata().string("tokenizer.chat_template")?.map(ChatTemplate::new).transpose()?,
        };
        let (tokenizer, model) = self.tokenizer_and_model(&cpu)?;
        let speaks_chatml = || ["<|im_start|>", "<|im_end|>"].iter().all(|t| tokenizer.token_id(t).is_some());
        let template = template.or_else(|| speaks_chatml().then(ChatTemplate::chatml));
        // Quantizers are foreign code as long as their matrices are asked anything.
        if !guarded("quant", self.quantizer.name(), || Ok(model.row_invariant()))? {
            let other = match (&self.drafter, self.require_invariance) {
                (_, true) => Some("`require_invariance(true)`".to_string()),
                (Some(drafter), _) => Some(format!("the drafter `{}`", drafter.name())),
                (None, false) => None,
            };
            if let Some(other) = other {
                let quantizer = self.quantizer.name().to_string();
                return Err(BuildError::NotRowInvariant { quantizer, other }.into());
            }
        }
        let context = self.max_context.unwrap_or(model.context_length());
        in_range("max_context", context, 1, model.context_length())?;
        in_range("max_sequences", self.max_sequences, 1, 1 << 16)?;
        in_range("step_tokens", self.step_tokens, 1, 1 << 20)?;
        let layout = guarded("cache", "policy", || model.cache_layout(self.cache_policy))?;
        let longest = if layout.is_bounded() { usize::MAX } else { context };
        let all = layout.blocks_needed(longest, self.step_tokens).saturating_mul(self.max_sequences);
        let capacity = match self.kv_tokens {
            Some(tokens) => {
                in_range("kv_tokens", tokens, BLOCK_TOKENS, usize::MAX)?;
                layout.blocks_of(tokens).min(all)
            }
            None => all,
        };
        let format = self.kv_format.unwrap_or(match self.precision {
            Precision::F32 => KvFormat::F32,
            _ => KvFormat::Bf16,
        });
        let arena = BlockArena::new(format, model.kv_shape(), capacity);
        // Rows above the vocabulary only pad the matrix; their logits mean nothing.
        let known = tokenizer.vocab_size();
        let mut legal = TokenSet::all(model.vocab_size());
        (0..model.vocab_size() as TokenId)
            .filter(|&token| token as usize >= known || tokenizer.is_unused(token))
            .for_each(|token| legal.remove(token));
        let drafting = match self.drafter.take() {
            Some(drafter) => {
                in_range("draft_tokens", self.draft_tokens, 1, MAX_DRAFT_TOKENS)?;
                Some(Drafting::start(drafter, DraftContext::new(model.vocab_size(), self.draft_tokens))?)
            }
            None => None,
        };
        Ok(Engine {
            control_tokens: ControlTokens::new(tokenizer.control_tokens()),
            cpu,
            tokenizer: Arc::new(tokenizer),
            template,
            model,
            layout,
            arena,
            context,
            max_sequences: self.max_sequences,
            step_tokens: self.step_tokens,
            sampler: self.sampler,
            clock: self.clock,
            drafting,
            legal: Arc::new(legal),
            waiting: VecDeque::new(),
            running: Vec::new(),
            committed: 0,
            events: Vec::new(),
            next_id: 0,
            distribution: Distribution::new(),
        })
    }

    /// Reads both, the tokenizer on a thread of its own where the engine may have several: a large vocabulary takes as long
    /// as the weights of a small model. An error of the tokenizer comes first, and ends the reading of weights.
    fn tokenizer_and_model(&mut self, cpu: &Cpu) -> Result<(Tokenizer, Box<dyn Model>)> {
        #[cfg(any(test, feature = "testing"))]
        if let Some(script) = self.script.take() {
            let tokenizer = Tokenizer::from_metadata(self.source.metadata())?;
            self.kv_format = Some(KvFormat::F32);
            let (vocab_size, context_length) = crate::model::Scripted::sizes(self.source.metadata())?;
            return Ok((tokenizer, Box::new(crate::model::Scripted { vocab_size, context_length, script })));
        }
        let (source, quantizer, precision) = (&*self.source, &*self.quantizer, self.precision);
        let progress = &mut self.progress;
        let model = |progress: &mut dyn FnMut(u64, u64) -> bool| {
            guarded("model", "load", || Decoder::load(source, cpu, precision, quantizer, progress))
        };
        let failed = AtomicBool::new(false);
        let read = || {
            let tokenizer = catch_unwind(AssertUnwindSafe(|| Tokenizer::from_metadata(source.metadata())));
            failed.store(!matches!(tokenizer, Ok(Ok(_))), Ordering::Relaxed);
            tokenizer.unwrap_or_else(|panic| resume_unwind(panic))
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("candlewick-tokenizer".to_string());
            let aside = (cpu.pool.threads() > 1).then(|| thread.spawn_scoped(scope, read)).and_then(io::Result::ok);
            let (tokenizer, model) = match aside {
                Some(aside) => {
                    let model = model(&mut |done, all| !failed.load(Ordering::Relaxed) && progress(done, all));
                    (aside.join().unwrap_or_else(|panic| resume_unwind(panic))?, model)
                }
                // One thread, or a system that gives no more.
                None => (read()?, model(progress)),
            };
            Ok((tokenizer, Box::new(model?) as Box<dyn Model>))
        })
    }

    fn cpu(&self) -> Result<Cpu> {
        let best = KernelLevel::detect();
        let level = self.level.unwrap_or(best);
        if !level.is_available() {
            return Err(BuildError::KernelLevel { level, best }.into());
        }
        let pool = match &self.pool {
            Some(pool) => pool.clone(),
            None => {
                let threads = self.threads.unwrap_or_else(|| kernel::usable_cores().min(MAX_THREADS));
                in_range("threads", threads, 1, MAX_THREADS)?;
                Arc::new(Pool::new(threads).map_err(|error| BuildError::Threads { threads, error })?)
            }
        };
        Ok(Cpu { pool, level })
    }
}

fn in_range(name: &'static str, value: usize, min: usize, max: usize) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(BuildError::InvalidOption { name, value: value.to_string(), range: format!("{min} to {max}") }.into())
}
