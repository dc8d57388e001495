//! Errors of the builder: parts or options that do not fit together or this machine.

use crate::kernel::KernelLevel;

/// What is wrong with what the builder was given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// An option lies outside its range.
    #[error("option `{name}` is {value}; accepted: {range}")]
    InvalidOption {
        /// The option.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is accepted.
        range: String,
    },
    /// The machine lacks the instructions of the kernel level that was asked for.
    #[error("kernel level `{level}` needs instructions that this machine lacks; the best it has is `{best}`")]
    KernelLevel {
        /// The level asked for.
        level: KernelLevel,
        /// The level that would run.
        best: KernelLevel,
    },
    /// The system refused to start a thread.
    #[error("cannot start {threads} threads ({error}); ask for fewer")]
    Threads {
        /// Threads asked for.
        threads: usize,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// A quantization rule that cannot be read, or that applies to no weight of the model.
    #[error("quantization rule `{rule}`: {problem}")]
    InvalidRule {
        /// The rule.
        rule: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A weight that the quantizer cannot take.
    #[error("quantizer `{quantizer}` cannot take `{tensor}`: {problem}")]
    Quantize {
        /// The quantizer.
        quantizer: String,
        /// The tensor.
        tensor: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A weight that is infinite or not a number, or is in a block whose scale is.
    #[error(
        "tensor `{tensor}`: row {row} has {dtype} weights that are infinite or not numbers; \
         the file is damaged: download it again, or convert the model again"
    )]
    NotFiniteWeight {
        /// The tensor.
        tensor: String,
        /// How the source stores it.
        dtype: String,
        /// The first such row, counted from the first that the linear takes of its tensor.
        row: usize,
    },
    /// A quantizer answered with other matrices than it was asked for.
    #[error("quantizer `{quantizer}` made {found} of `{tensor}` instead of {expected}; it breaks its contract")]
    QuantizedShape {
        /// The quantizer.
        quantizer: String,
        /// The first tensor of the group, or the one whose matrix is wrong.
        tensor: String,
        /// What the group needs.
        expected: String,
        /// What came.
        found: String,
    },
    /// Matrices whose results depend on the rows beside them, together with a part that needs them not to.
    #[error(
        "quantizer `{quantizer}` makes matrices whose results depend on the other rows of a step, and {other} needs \
         results that do not; leave it out, or use a quantizer whose matrices are row-invariant"
    )]
    NotRowInvariant {
        /// The quantizer.
        quantizer: String,
        /// The other part.
        other: String,
    },
    /// The device is not one that the engine computes on.
    #[error("device {device} is not supported yet: the engine computes on the CPU; pass `Device::Cpu`")]
    Device {
        /// The device asked for.
        device: String,
    },
    /// A cache policy's answers about itself contradict each other.
    #[error("cache policy `{policy}`: {reason}")]
    InvalidCachePolicy {
        /// The policy's name.
        policy: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A cache policy keeps more positions than the model can tell apart.
    #[error(
        "cache policy `{policy}` keeps up to {kept} positions, but the model's context has {context}; \
         use a smaller window, fewer sinks, or another model"
    )]
    CachePolicyContext {
        /// The policy's name.
        policy: String,
        /// Positions that it keeps, sinks included.
        kept: usize,
        /// The model's context.
        context: usize,
    },
}
