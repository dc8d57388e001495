//! The engine: takes requests, runs steps, gives events. Wires all rooms; holds no thread but the pool's.

mod answer;
mod builder;
mod clock;
mod drafting;
mod generation;
mod handle;
mod mask;
mod output;
mod prompt;
mod request;
mod score;
mod step;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

pub use builder::EngineBuilder;
pub use clock::{Clock, SystemClock};
pub use generation::Generation;
pub use handle::{EngineHandle, Submission, TokenStream};
pub use output::{Event, Output, Piece, Score, Usage};
pub use request::Request;

use crate::cache::{BlockArena, CacheLayout};
use crate::kernel::{Cpu, KernelLevel, KvFormat, Pool};
use crate::model::Model;
use crate::quant::MatrixInfo;
use crate::sample::{Distribution, Sampler};
use crate::source::WeightSource;
use crate::tokenizer::{ChatTemplate, ControlTokens, Tokenizer};
use crate::types::{FinishReason, SequenceId};
use crate::Result;
use answer::{guarded, Answer};
use drafting::Drafting;
use mask::TokenSet;

/// A model that is ready to answer.
///
/// The core has no threads of control and no clock of its own choosing: [`submit`](Engine::submit) takes requests,
/// each [`step`](Engine::step) computes one batch and says what happened, [`generate`](Engine::generate) drives both
/// for one request. What a request produces does not depend on the requests beside it, on the step's size or on the
/// number of threads.
pub struct Engine {
    cpu: Cpu,
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    control_tokens: ControlTokens,
    model: Box<dyn Model>,
    layout: CacheLayout,
    arena: BlockArena,
    context: usize,
    max_sequences: usize,
    step_tokens: usize,
    sampler: Arc<dyn Sampler>,
    clock: Box<dyn Clock>,
    drafting: Option<Drafting>,
    /// Tokens that may be chosen.
    legal: Arc<TokenSet>,
    waiting: VecDeque<Answer>,
    running: Vec<Answer>,
    /// Blocks that running requests may come to hold.
    committed: usize,
    /// Events that happened outside a step.
    events: Vec<Event>,
    next_id: u64,
    distribution: Distribution,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("context", &self.context)
            .field("waiting", &self.waiting.len())
            .field("running", &self.running.len())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Starts an engine from its one necessary part, the weights.
    pub fn builder(source: impl WeightSource) -> EngineBuilder {
        EngineBuilder::new(source)
    }

    /// Takes a request; it runs in the following steps.
    ///
    /// # Errors
    /// A prompt that is empty, too long or cannot be encoded; parameters out of range or that the sampler does not
    /// use; a chat without a template. Nothing has changed then.
    pub fn submit(&mut self, request: Request) -> Result<SequenceId> {
        let id = SequenceId(self.next_id);
        // Templates, samplers and policies may be foreign code; nothing of the engine changes before they are done.
        let answer = guarded("engine", "submit", || self.prepare(id, request))?;
        self.next_id += 1;
        let nothing_to_run = answer.limits.max_tokens == 0 && answer.prompt_logprobs.is_none();
        self.waiting.push_back(answer);
        if nothing_to_run {
            let mut events = std::mem::take(&mut self.events);
            self.end(id, FinishReason::Length, None, &mut events);
            self.events = events;
        }
        Ok(id)
    }

    /// Runs one batch: every running request gets its next token, and waiting prompts are worked off within the
    /// step's budget.
    ///
    /// Without work it answers an empty list at once (or events of cancelled requests).
    ///
    /// # Errors
    /// Only what ends all requests, such as a lost device; the failure of one request is an event.
    pub fn step(&mut self) -> Result<Vec<Event>> {
        let mut events = std::mem::take(&mut self.events);
        self.advance(&mut events);
        Ok(events)
    }

    /// Ends a request; its last event comes with the next step. `false` if it has ended already.
    pub fn cancel(&mut self, id: SequenceId) -> bool {
        let mut events = std::mem::take(&mut self.events);
        let found = self.end_request(id, FinishReason::Cancelled, &mut events);
        self.events = events;
        found
    }

    /// Whether no request is waiting or running and no event is pending.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty() && self.events.is_empty()
    }

    /// Submits a request and iterates over its pieces; dropping the iterator cancels it.
    ///
    /// Other requests go on meanwhile; their events wait for the next [`step`](Engine::step).
    ///
    /// # Errors
    /// As [`submit`](Engine::submit).
    pub fn generate(&mut self, request: Request) -> Result<Generation<'_>> {
        let id = self.submit(request)?;
        Ok(Generation::new(self, id))
    }

    /// Submits a request and runs it to its end; of several answers ([`Request::n`]) it gives the first.
    ///
    /// # Errors
    /// As [`submit`](Engine::submit), and the request's own failure.
    pub fn complete(&mut self, request: Request) -> Result<Output> {
        self.generate(request)?.into_output()
    }

    /// Submits a request and runs it to the end of all its answers, in the order of their choice index.
    ///
    /// # Errors
    /// As [`submit`](Engine::submit), and the first failure of an answer.
    pub fn complete_all(&mut self, request: Request) -> Result<Vec<Output>> {
        self.generate(request)?.into_outputs()
    }

    /// The vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens that prompt and answer may have together, unless the cache policy bounds the cache.
    pub fn context_length(&self) -> usize {
        self.context
    }

    /// Size of the vocabulary that logits cover; may exceed the tokenizer's.
    pub fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    /// The instruction set that computes; [`KernelLevel::detail`] tells what it uses of the processor.
    pub fn kernel_level(&self) -> KernelLevel {
        self.cpu.level
    }

    /// The format of the KV cache.
    pub fn kv_format(&self) -> KvFormat {
        self.arena.blocks().format()
    }

    /// The threads, to be shared with another engine.
    pub fn pool(&self) -> Arc<Pool> {
        self.cpu.pool.clone()
    }

    /// Bytes of the weight matrices in memory.
    pub fn weights_in_bytes(&self) -> usize {
        self.model.matrices().iter().map(|matrix| matrix.size_in_bytes).sum()
    }

    /// Every weight matrix, what it is stored as and the memory it takes: the embedding if it is not the head, the
    /// head, then the layers in order.
    pub fn matrices(&self) -> Vec<MatrixInfo> {
        self.model.matrices()
    }

    /// Blocks of the KV cache (32 tokens of one layer) that requests hold now.
    pub fn kv_blocks_in_use(&self) -> usize {
        self.arena.used()
    }

    /// Bytes of one block of the KV cache.
    pub fn kv_block_bytes(&self) -> usize {
        self.arena.blocks().block_bytes()
    }

    /// Whether every block of the KV cache is free or held by exactly one request; says what is wrong if not.
    ///
    /// # Errors
    /// A description of the first inconsistency.
    #[cfg(any(test, feature = "testing"))]
    pub fn check_integrity(&self) -> std::result::Result<(), String> {
        let answers = self.running.iter().chain(&self.waiting);
        self.arena.check_integrity(answers.clone().flat_map(|a| a.sequence.cache.held()))?;
        answers.into_iter().try_for_each(|a| a.sequence.cache.check_integrity(&self.layout))?;
        let committed: usize = self.running.iter().map(Answer::claimed).sum();
        if committed != self.committed || committed < self.arena.used() {
            return Err(format!(
                "{} blocks set aside, {committed} counted, {} used",
                self.committed,
                self.arena.used()
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod build_error_tests;
#[cfg(test)]
mod cache_tests;
#[cfg(test)]
mod choices_tests;
#[cfg(test)]
mod drafting_tests;
#[cfg(test)]
mod tests;
