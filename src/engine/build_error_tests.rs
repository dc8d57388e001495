//! Every way in which a build can fail is reached. The list is kept whole by the compiler: `kind` matches every variant.

use std::collections::BTreeSet;

use super::*;
use crate::cache::Window;
use crate::candle::Device;
use crate::draft::Ngram;
use crate::quant::{Calibration, LinearGroup, QuantizedGroup, QuantizedMatrix, Quantizer, Requantize, Target};
use crate::quant::{KernelContext, Stored};
use crate::source::Dtype;
use crate::testing::TinyModel;
use crate::{BuildError, Error};

fn kind(error: &BuildError) -> &'static str {
    match error {
        BuildError::InvalidOption { .. } => "InvalidOption",
        BuildError::KernelLevel { .. } => "KernelLevel",
        BuildError::Threads { .. } => "Threads",
        BuildError::InvalidRule { .. } => "InvalidRule",
        BuildError::Quantize { .. } => "Quantize",
        BuildError::NotFiniteWeight { .. } => "NotFiniteWeight",
        BuildError::QuantizedShape { .. } => "QuantizedShape",
        BuildError::NotRowInvariant { .. } => "NotRowInvariant",
        BuildError::Device { .. } => "Device",
        BuildError::InvalidCachePolicy { .. } => "InvalidCachePolicy",
        BuildError::CachePolicyContext { .. } => "CachePolicyContext",
    }
}

/// Stored matrices that say that their rows depend on each other, or none at all.
#[derive(Clone, Copy, Debug)]
enum Odd {
    DependsOnRows,
    GivesNothing,
}

impl Quantizer for Odd {
    fn name(&self) -> &str {
        "odd"
    }
    fn quantize(&self, group: &LinearGroup<'_>, calibration: &Calibration<'_>) -> Result<QuantizedGroup> {
        let QuantizedGroup { matrices } = Stored.quantize(group, calibration)?;
        Ok(QuantizedGroup::new(match self {
            Odd::GivesNothing => Vec::new(),
            Odd::DependsOnRows => matrices.into_iter().map(|m| Box::new(Dependent(m)) as Box<_>).collect(),
        }))
    }
}

#[derive(Debug)]
struct Dependent(Box<dyn QuantizedMatrix>);

impl QuantizedMatrix for Dependent {
    fn dims(&self) -> (usize, usize) {
        self.0.dims()
    }
    fn format(&self) -> &str {
        "dependent"
    }
    fn matmul(&self, context: &KernelContext<'_>, x: &[f32], out: &mut [f32]) -> Result<()> {
        self.0.matmul(context, x, out)
    }
    fn dequantize(&self, rows: std::ops::Range<usize>, out: &mut [f32]) {
        self.0.dequantize(rows, out);
    }
    fn size_in_bytes(&self) -> usize {
        self.0.size_in_bytes()
    }
    fn row_invariant(&self) -> bool {
        false
    }
}

fn refused(model: TinyModel, set: impl Fn(EngineBuilder) -> EngineBuilder) -> BuildError {
    match set(Engine::builder(model.build().unwrap()).threads(1)).build() {
        Err(Error::Build(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// A model with an infinite weight.
fn damaged() -> BuildError {
    let mut source = TinyModel::llama().build().unwrap();
    let mut bytes = source.remove("output.weight").unwrap();
    bytes[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    source.insert("output.weight", Dtype::F32, &[323, 64], bytes).unwrap();
    match Engine::builder(source).threads(1).build() {
        Err(Error::Build(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_kind_is_reached() {
    let llama = TinyModel::llama;
    let unavailable = KernelLevel::ALL.iter().copied().find(|level| !level.is_available());
    let errors = [
        refused(llama(), |b| b.max_sequences(0)),
        // No machine has the levels of two architectures.
        refused(llama(), |b| b.kernel_level(unavailable.unwrap())),
        refused(llama(), |b| b.quantizer("no_such.*=q8_0".parse::<Requantize>().unwrap())),
        // Rows of 144 values do not divide into blocks of 32.
        refused(TinyModel::qwen3(), |b| b.quantizer(Requantize::all(Target::Q8_0))),
        refused(llama(), |b| b.quantizer(Odd::GivesNothing)),
        refused(llama(), |b| b.quantizer(Odd::DependsOnRows).drafter(Ngram::default())),
        refused(llama(), |b| b.device(elsewhere())),
        refused(llama(), |b| b.cache_policy(Window { size: 0, sinks: 4 })),
        refused(llama(), |b| b.cache_policy(Window { size: 512, sinks: 4 })),
        damaged(),
    ];
    let reached: BTreeSet<&str> = errors.iter().map(kind).collect();
    // `Threads` has a test of its own, in a process with little memory.
    let all = [
        "InvalidOption",
        "KernelLevel",
        "InvalidRule",
        "Quantize",
        "NotFiniteWeight",
        "QuantizedShape",
        "NotRowInvariant",
        "Device",
        "InvalidCachePolicy",
        "CachePolicyContext",
    ];
    assert_eq!(reached, BTreeSet::from(all));
    let text = errors[5].to_string();
    assert!(text.contains("`odd`") && text.contains("`ngram`"), "both parts are named: {text}");
}

/// A device that candle can name without having it.
fn elsewhere() -> Device {
    Device::Metal(crate::candle::MetalDevice)
}

/// Set in the process that has little memory.
const CHILD: &str = "CANDLEWICK_TEST_FEW_THREADS";

#[cfg(unix)]
#[test]
fn threads_that_the_system_refuses_are_an_error() {
    if std::env::var_os(CHILD).is_some() {
        let error = refused(TinyModel::llama(), |b| b.threads(1000));
        assert_eq!(kind(&error), "Threads");
        assert!(error.to_string().contains("1000 threads"), "{error}");
        println!("refused as it should be");
        return;
    }
    let name = "engine::build_error_tests::threads_that_the_system_refuses_are_an_error";
    // 1000 stacks of 256 MB do not fit into 4 GB of addresses. They are large so that something is left for everybody else when
    // one is refused.
    let output = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 4000000 && exec \"$0\" --exact \"$1\" --nocapture --test-threads 1"])
        .arg(std::env::current_exe().unwrap())
        .arg(name)
        .env(CHILD, "1")
        .env("RUST_MIN_STACK", (256 << 20).to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("refused as it should be"), "{output:?}");
}
