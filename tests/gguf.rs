//! Well-formed GGUF files: what is written comes back, from any version, alignment, type and number of parts.

mod temp_dir;

use candlewick::source::{Array, Dtype, Gguf, Memory, Value, WeightSource};
use candlewick::testing::{GgufWriter, TinyModel};
use candlewick::{Error, SourceError};
use temp_dir::TempDir;

fn assert_same(a: &dyn WeightSource, b: &dyn WeightSource) {
    let keys = |s: &dyn WeightSource| {
        let mut all: Vec<_> = s.metadata().iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
        all.retain(|(k, _)| k != "general.alignment");
        all.sort_by(|x, y| x.0.cmp(&y.0));
        all
    };
    assert_eq!(keys(a), keys(b));
    assert_eq!(a.tensors(), b.tensors());
    for info in a.tensors() {
        let read = |s: &dyn WeightSource| {
            let mut out = vec![0; info.size_in_bytes];
            s.read(&info.name, 0, &mut out).unwrap();
            out
        };
        assert!(read(a) == read(b), "{}", info.name);
        assert_eq!(b.tensor(&info.name), Some(info));
    }
}

#[test]
fn tiny_models_come_back_from_every_version_and_alignment() {
    let dir = TempDir::new();
    for model in [TinyModel::llama(), TinyModel::qwen2(), TinyModel::qwen3(), TinyModel::gemma3()] {
        let source = model.build().unwrap();
        for (version, alignment) in [(2, 32), (3, 32), (3, 1), (3, 8), (3, 4096)] {
            let bytes = GgufWriter::new().version(version).alignment(alignment).to_bytes(&source).unwrap();
            let gguf = Gguf::open(dir.write("model.gguf", &bytes)).unwrap();
            assert_eq!((gguf.version(), gguf.num_parts()), (version, 1));
            assert_same(&source, &gguf);
        }
    }
}

#[test]
fn tensors_of_every_supported_type_come_back() {
    let dir = TempDir::new();
    for &dtype in Dtype::ALL.iter().filter(|d| d.is_supported()) {
        let source = TinyModel { layers: 1, ..TinyModel::llama() }.with_dtype(dtype).build().unwrap();
        let gguf = Gguf::open(dir.write("model.gguf", &GgufWriter::new().to_bytes(&source).unwrap())).unwrap();
        assert_same(&source, &gguf);
    }
}

#[test]
fn all_kinds_of_values_come_back() {
    let mut source = Memory::new("values");
    let arrays = vec![
        Array::U8(vec![1, 255]),
        Array::I8(vec![-1]),
        Array::U16(vec![65535]),
        Array::I16(vec![-2]),
        Array::U32(vec![7; 70_000]),
        Array::I32(vec![-3]),
        Array::U64(vec![u64::MAX]),
        Array::I64(vec![i64::MIN]),
        Array::F32(vec![0.1, -0.0]),
        Array::F64(vec![0.1]),
        Array::Bool(vec![true, false]),
        Array::String(vec!["".into(), "Ġthe".into(), "é".repeat(40_000)]),
        Array::Array(vec![]),
    ];
    for (i, array) in arrays.iter().enumerate() {
        source.set(format!("array.{i}"), array.clone());
    }
    source.set("array.of.arrays", Array::Array(arrays));
    for (key, value) in [
        ("u32", Value::Unsigned(5)),
        ("u64", Value::Unsigned(u64::MAX)),
        ("i32", Value::Signed(-5)),
        ("i64", Value::Signed(i64::MIN)),
        ("f32", Value::Float(0.5)),
        ("f64", Value::Float(0.1)),
        ("bool", Value::Bool(true)),
        ("string", Value::String("a\0b\u{10FFFF}".into())),
    ] {
        source.set(key, value);
    }
    let dir = TempDir::new();
    let gguf = Gguf::open(dir.write("values.gguf", &GgufWriter::new().to_bytes(&source).unwrap())).unwrap();
    assert_same(&source, &gguf);
    assert_eq!(gguf.tensors().len(), 0);
}

#[test]
fn every_type_id_is_listed_and_an_unknown_one_fails_only_when_read() {
    let dir = TempDir::new();
    let mut source = Memory::new("types");
    for dtype in Dtype::ALL {
        source
            .insert(format!("t{}", dtype.ggml_id()), *dtype, &[1, 256], vec![1; dtype.size_in_bytes(256).unwrap()])
            .unwrap();
    }
    let mut bytes = GgufWriter::new().to_bytes(&source).unwrap();
    // Make the F32 tensor, which comes first, one of type 250.
    let name = bytes.windows(2).position(|w| w == b"t0").unwrap();
    let type_at = name + 2 + 4 + 16;
    assert_eq!(bytes[type_at..type_at + 4], [0; 4]);
    bytes[type_at] = 250;
    let gguf = Gguf::open(dir.write("ids.gguf", &bytes)).unwrap();
    assert_eq!(gguf.tensors()[0].dtype, Dtype::Unknown(250));
    assert_eq!(gguf.tensors()[1..], source.tensors()[1..]);
    let error = gguf.read("t0", 0, &mut [0; 4]).unwrap_err();
    assert!(matches!(error, Error::Source(SourceError::UnsupportedType { .. })), "{error:?}");
    assert!(error.to_string().contains("`t0`") && error.to_string().contains("250"), "{error}");
    let mut byte = [0];
    gguf.read("t40", 35, &mut byte).unwrap();
    assert_eq!(byte, [1]);
}

#[test]
fn a_split_model_is_one_source() {
    let whole = TinyModel::qwen2().build().unwrap();
    let dir = TempDir::new();
    let count = whole.tensors().len();
    let cuts = [0, 5, 6, count];
    for no in 0..3 {
        let mut part = Memory::new("part");
        if no == 0 {
            whole.metadata().iter().for_each(|(k, v)| drop(part.set(k, v.clone())));
        }
        part.set("split.no", no as u32);
        part.set("split.count", 3u32);
        part.set("split.tensors.count", count as i32);
        for info in &whole.tensors()[cuts[no]..cuts[no + 1]] {
            part.insert(&info.name, info.dtype, &info.shape, whole.bytes(&info.name).unwrap().to_vec()).unwrap();
        }
        let alignment = [32, 64, 128][no];
        let bytes = GgufWriter::new().alignment(alignment).to_bytes(&part).unwrap();
        dir.write(&format!("tiny-{:05}-of-00003.gguf", no + 1), &bytes);
    }
    let mut gguf = Gguf::open(dir.path().join("tiny-00001-of-00003.gguf")).unwrap();
    assert_eq!(gguf.num_parts(), 3);
    let mut expected = whole.clone();
    expected.set("split.no", 0u32);
    expected.set("split.count", 3u32);
    expected.set("split.tensors.count", count as i32);
    assert_same(&expected, &gguf);
    // Also from several threads at once.
    let source: &dyn WeightSource = &gguf;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_same(&expected, source));
        }
    });
    gguf = Gguf::open(dir.path().join("tiny-00001-of-00003.gguf")).unwrap();
    assert!(format!("{gguf:?}").len() < 300, "Debug does not print the vocabulary");
}

#[test]
fn a_file_that_shrinks_while_it_is_open_gives_an_error() {
    let source = TinyModel::llama().build().unwrap();
    let bytes = GgufWriter::new().to_bytes(&source).unwrap();
    let dir = TempDir::new();
    let path = dir.write("model.gguf", &bytes);
    let gguf = Gguf::open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes.len() as u64 / 2).unwrap();
    let last = source.tensors().last().unwrap();
    let error = gguf.read(&last.name, 0, &mut vec![0; last.size_in_bytes]).unwrap_err();
    assert!(matches!(error, Error::Source(SourceError::Truncated { .. })), "{error:?}");
    assert!(error.to_string().contains(&last.name), "{error}");
}

#[test]
fn reads_outside_a_tensor_are_refused() {
    let source = TinyModel::llama().build().unwrap();
    let dir = TempDir::new();
    let gguf = Gguf::open(dir.write("m.gguf", &GgufWriter::new().to_bytes(&source).unwrap())).unwrap();
    let info = gguf.tensor("blk.0.attn_norm.weight").unwrap();
    assert_eq!(info.size_in_bytes, 256);
    for (offset, length) in [(0, 257), (255, 2), (256, 1), (257, 0), (u64::MAX, 1), (u64::MAX, 0)] {
        let error = gguf.read(&info.name, offset, &mut vec![0; length]).unwrap_err();
        assert!(matches!(error, Error::Source(SourceError::ReadOutOfRange { .. })), "{error:?}");
        assert!(error.to_string().contains("attn_norm"), "{error}");
    }
    gguf.read(&info.name, 256, &mut []).unwrap();
    let error = gguf.read("blk.0.attn_norm", 0, &mut []).unwrap_err();
    assert!(matches!(error, Error::Source(SourceError::MissingTensor { .. })), "{error:?}");
}
