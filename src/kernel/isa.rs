//! Which instruction set the kernels use: found at run time, or named by the host.
//!
//! Every dispatch in this room goes through [`KernelLevel`]. Knows nothing of formats or arithmetic.

use std::fmt;
use std::sync::Arc;

use super::pool::Pool;

/// A family of kernels. All levels give bitwise the same results; they differ in speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KernelLevel {
    /// Plain Rust, on every platform; the oracle that the others are tested against.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C, and AVX-VNNI's dot products where they are.
    Avx2,
    /// x86-64 with AVX-512 F, BW, VL, DQ and VNNI, and BF16's dot products where they are.
    Avx512,
    /// 64-bit Arm, little-endian (NEON is part of its baseline).
    Neon,
}

impl KernelLevel {
    /// Every level, slowest first within an architecture.
    pub const ALL: &'static [KernelLevel] =
        &[KernelLevel::Scalar, KernelLevel::Neon, KernelLevel::Avx2, KernelLevel::Avx512];

    /// The fastest level of this machine.
    pub fn detect() -> KernelLevel {
        Self::ALL.iter().rev().copied().find(|level| level.is_available()).unwrap_or(KernelLevel::Scalar)
    }

    /// The levels of this machine, for tests: `CANDLEWICK_REQUIRE_KERNELS` names those that must be among them, or the
    /// best with its [`detail`](Self::detail).
    #[cfg(test)]
    pub(crate) fn available() -> impl Iterator<Item = KernelLevel> + Clone {
        let available = Self::ALL.iter().copied().filter(|level| level.is_available());
        let required = std::env::var("CANDLEWICK_REQUIRE_KERNELS").unwrap_or_default();
        for required in required.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let runs = Self::detect().detail() == required || available.clone().any(|level| level.as_str() == required);
            assert!(runs, "kernel level {required} is required and does not run here");
        }
        available
    }

    /// Whether this machine can run the level.
    pub fn is_available(self) -> bool {
        match self {
            KernelLevel::Scalar => true,
            KernelLevel::Neon => cfg!(all(target_arch = "aarch64", target_endian = "little")),
            #[cfg(target_arch = "x86_64")]
            KernelLevel::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
                    && std::arch::is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            KernelLevel::Avx512 => {
                KernelLevel::Avx2.is_available()
                    && std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                    && std::arch::is_x86_feature_detected!("avx512vl")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            KernelLevel::Avx2 | KernelLevel::Avx512 => false,
        }
    }

    /// The level's name: `scalar`, `avx2`, `avx512` or `neon`.
    pub fn as_str(self) -> &'static str {
        match self {
            KernelLevel::Scalar => "scalar",
            KernelLevel::Avx2 => "avx2",
            KernelLevel::Avx512 => "avx512",
            KernelLevel::Neon => "neon",
        }
    }

    /// The level with the instructions that it uses where this machine has them, for figures and reports: `avx512+vnni`
    /// or `avx512+vnni+bf16`, `avx2` or `avx2+vnni`, `neon`, `neon+dotprod` or `neon+dotprod+i8mm`, and `scalar`.
    pub fn detail(self) -> &'static str {
        match self {
            #[cfg(all(target_arch = "aarch64", target_endian = "little"))]
            KernelLevel::Neon => super::lanes::neon::Variant::detect().as_str(),
            #[cfg(target_arch = "x86_64")]
            KernelLevel::Avx512 if super::lanes::avx512_bf16::has_bf16() => "avx512+vnni+bf16",
            KernelLevel::Avx512 => "avx512+vnni",
            #[cfg(target_arch = "x86_64")]
            KernelLevel::Avx2 if super::lanes::avx_vnni::has_vnni() => "avx2+vnni",
            _ => self.as_str(),
        }
    }

    /// The level of a name that [`as_str`](Self::as_str) gives; `None` for any other text.
    pub fn parse(name: &str) -> Option<KernelLevel> {
        Self::ALL.iter().copied().find(|level| level.as_str() == name)
    }
}

impl fmt::Display for KernelLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a kernel call runs on: the threads and the instruction set.
///
/// `level` must be available on this machine ([`KernelLevel::is_available`]); [`Cpu::new`] sees to it, and the
/// kernels check again, falling back to the scalar level.
#[derive(Clone, Debug)]
pub struct Cpu {
    /// The threads; may be shared by several engines.
    pub pool: Arc<Pool>,
    /// The instruction set.
    pub level: KernelLevel,
}

impl Cpu {
    /// `threads` threads (the caller's included, at least 1) at the best level of this machine.
    ///
    /// # Errors
    /// The operating system's error when a thread cannot be started.
    pub fn new(threads: usize) -> std::io::Result<Cpu> {
        Ok(Cpu { pool: Arc::new(Pool::new(threads)?), level: KernelLevel::detect() })
    }

    /// The level that kernels may use: `level` if this machine has it, else scalar. Keeps a wrong `level` from
    /// executing instructions that do not exist.
    pub(crate) fn usable_level(&self) -> KernelLevel {
        if self.level.is_available() {
            self.level
        } else {
            KernelLevel::Scalar
        }
    }
}

impl From<&Cpu> for KernelLevel {
    /// The level that kernels may use.
    fn from(cpu: &Cpu) -> KernelLevel {
        cpu.usable_level()
    }
}
