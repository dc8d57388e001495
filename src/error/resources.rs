//! Errors of the machine: memory that is not there.

/// What ran out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// The request can never fit into the KV cache that the engine was built with.
    #[error("the request needs {needed} KV blocks, the cache has {capacity}; shorten it or build the engine with a larger `kv_tokens`")]
    CacheTooSmall {
        /// Blocks of 32 tokens of one layer.
        needed: usize,
        /// Blocks in all.
        capacity: usize,
    },
    /// The KV cache is in use by other requests.
    #[error("the call needs {needed} KV blocks, {free} are free; finish or cancel requests first")]
    CacheInUse {
        /// Blocks of 32 tokens of one layer.
        needed: usize,
        /// Blocks that no request has claimed.
        free: usize,
    },
    /// The drafter panicked and could not start again; answers come without drafts.
    #[error("the drafter panicked and could not start again; its answers go on without drafts")]
    DrafterGone,
    /// The system gave no memory for the KV cache.
    #[error(
        "the system has no memory left for the KV cache; use a smaller context, fewer sequences or `KvFormat::Bf16`"
    )]
    OutOfMemory,
}
