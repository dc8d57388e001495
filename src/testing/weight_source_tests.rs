//! The suite passes the sources of this crate and catches broken ones.

use super::*;
use crate::source::{Gguf, Memory, Metadata};
use crate::testing::{GgufWriter, TinyModel};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    NoName,
    ListedTwice,
    NotFound,
    FoundUnderAnyName,
    DescribedTwice,
    WrongSize,
    ReadsBeyond,
    PanicsBeyond,
    RefusesTheEnd,
    Shifted,
    DiffersByThread,
    ReadsTheUnknown,
}

/// A source with one fault.
#[derive(Debug)]
struct Broken {
    fault: Fault,
    inner: Memory,
    tensors: Vec<TensorInfo>,
    thread: std::thread::ThreadId,
}

fn broken(fault: Fault) -> Broken {
    let inner = TinyModel { layers: 1, ..TinyModel::llama() }.build().unwrap();
    let mut tensors = inner.tensors().to_vec();
    match fault {
        Fault::ListedTwice => tensors.push(tensors[0].clone()),
        Fault::WrongSize => tensors[1].size_in_bytes -= 4,
        Fault::ReadsTheUnknown => {
            tensors[1].dtype = Dtype::Unknown(99);
        }
        _ => {}
    }
    Broken { fault, inner, tensors, thread: std::thread::current().id() }
}

impl WeightSource for Broken {
    fn name(&self) -> &str {
        if self.fault == Fault::NoName {
            ""
        } else {
            "broken"
        }
    }

    fn metadata(&self) -> &Metadata {
        self.inner.metadata()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        match self.fault {
            Fault::NotFound if name == "output.weight" => None,
            Fault::FoundUnderAnyName => self.tensors.iter().find(|t| t.name == name).or(self.tensors.first()),
            Fault::DescribedTwice if name == "output.weight" => self.tensors.first(),
            _ => self.tensors.iter().find(|t| t.name == name),
        }
    }

    fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> crate::Result<()> {
        let result = self.inner.read(name, offset, buffer);
        match self.fault {
            Fault::ReadsBeyond if name != ABSENT => return Ok(()),
            Fault::PanicsBeyond => assert!(result.is_ok(), "beyond"),
            Fault::RefusesTheEnd if buffer.is_empty() => return self.inner.read(name, u64::MAX, buffer),
            Fault::Shifted if offset > 0 => buffer.reverse(),
            Fault::DiffersByThread if std::thread::current().id() != self.thread => {
                buffer.iter_mut().for_each(|byte| *byte ^= 1);
            }
            _ => {}
        }
        result
    }
}

#[test]
fn faults_are_caught_and_named() {
    for (fault, words) in [
        (Fault::NoName, "no name"),
        (Fault::ListedTwice, "listed twice"),
        (Fault::NotFound, "`output.weight` is listed but not found"),
        (Fault::FoundUnderAnyName, "a name that is not listed"),
        (Fault::DescribedTwice, "`output.weight` is described in two ways"),
        (Fault::WrongSize, "expected Some(256)"),
        (Fault::ReadsBeyond, "succeeds"),
        (Fault::PanicsBeyond, "panics"),
        (Fault::RefusesTheEnd, "an empty read at its end fails"),
        (Fault::Shifted, "differ from those of a longer read"),
        (Fault::DiffersByThread, "another thread reads other bytes"),
        (Fault::ReadsTheUnknown, "unknown type was read"),
    ] {
        let message = check_weight_source(&broken(fault)).expect_err(&format!("{fault:?} passes"));
        assert!(message.contains(words), "{fault:?}: {message}");
    }
}

#[test]
fn memory_and_gguf_pass() {
    let models = [TinyModel::llama(), TinyModel::qwen3(), TinyModel { layers: 2, ..TinyModel::gemma3() }];
    let folder = std::env::temp_dir().join(format!("candlewick-suite-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (i, model) in models.into_iter().enumerate() {
        let memory = model.with_dtype(if i == 1 { Dtype::F32 } else { Dtype::Q5_0 }).build().unwrap();
        check_weight_source(&memory).unwrap();
        let path = folder.join(format!("{i}.gguf"));
        std::fs::write(&path, GgufWriter::new().to_bytes(&memory).unwrap()).unwrap();
        check_weight_source(&Gguf::open(&path).unwrap()).unwrap();
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
