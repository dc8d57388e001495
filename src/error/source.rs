//! Errors of the weight source: unreadable, malformed or incomplete files.

use std::path::PathBuf;

/// What is wrong with the file or directory that holds the weights.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The operating system refused a read.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// The path leads to something else than a regular file.
    #[error(
        "{source_name}: {found}, not a file; a GGUF model is one file, a directory is opened with `Safetensors::open`"
    )]
    NotAFile {
        /// The source.
        source_name: String,
        /// What the path leads to, with its article.
        found: &'static str,
    },
    /// The file does not start as a GGUF file does.
    #[error("{source_name}: not a GGUF file: expected the bytes `GGUF` at the start, found {found}")]
    NotGguf {
        /// The source.
        source_name: String,
        /// What is there instead.
        found: String,
    },
    /// A GGUF version that is not read.
    #[error("{source_name}: GGUF version {version} cannot be read, only versions 2 and 3; convert the model again")]
    UnsupportedVersion {
        /// The source.
        source_name: String,
        /// The version in the file.
        version: u32,
    },
    /// A GGUF file for big-endian machines.
    #[error("{source_name}: big-endian GGUF cannot be read; use the little-endian file of this model or convert it")]
    BigEndian {
        /// The source.
        source_name: String,
    },
    /// The file ends before what its header promises.
    #[error(
        "{source_name}: the file ends at byte {file_size}, but {what} reaches to byte {needed}; \
         it is incomplete or damaged: download it again"
    )]
    Truncated {
        /// The source.
        source_name: String,
        /// The part of the file that is cut.
        what: String,
        /// Where that part would end, in bytes from the start (saturating).
        needed: u64,
        /// The file's length in bytes.
        file_size: u64,
    },
    /// A count in the header that the rest of the file cannot hold.
    #[error(
        "{source_name}: {what}: found a count of {count}, expected at most {most}, which is all that the rest of the \
         file can hold; it is incomplete or damaged: download it again"
    )]
    ImpossibleCount {
        /// The source.
        source_name: String,
        /// What is counted.
        what: String,
        /// The count in the file.
        count: u64,
        /// The largest count that can be true.
        most: u64,
    },
    /// A part of the header is larger than any real model needs.
    #[error("{source_name}: {what}: found {found}, more than the limit of {limit}; the file is damaged or hostile")]
    LimitExceeded {
        /// The source.
        source_name: String,
        /// What is too large, with its unit.
        what: String,
        /// What the file has.
        found: u64,
        /// What is accepted.
        limit: u64,
    },
    /// Text in the header that is not UTF-8.
    #[error("{source_name}: {what}: expected UTF-8 text, found the invalid byte 0x{byte:02X} at index {index} of it")]
    InvalidUtf8 {
        /// The source.
        source_name: String,
        /// Which text.
        what: String,
        /// Index of the first invalid byte within the text.
        index: usize,
        /// That byte.
        byte: u8,
    },
    /// A metadata value of a type that GGUF does not define.
    #[error("{source_name}: metadata key `{key}`: expected a value type from 0 to 12, found {type_id}")]
    UnknownValueType {
        /// The source.
        source_name: String,
        /// The key.
        key: String,
        /// The type's id in the file.
        type_id: u32,
    },
    /// Arrays within arrays within arrays.
    #[error("{source_name}: metadata key `{key}`: arrays are nested deeper than {limit} levels")]
    NestedTooDeep {
        /// The source.
        source_name: String,
        /// The key.
        key: String,
        /// Levels that are accepted.
        limit: usize,
    },
    /// A metadata key occurs twice.
    #[error("{source_name}: metadata key `{key}` occurs twice; the file is malformed: convert the model again")]
    DuplicateKey {
        /// The source.
        source_name: String,
        /// The key.
        key: String,
    },
    /// A metadata key that the model needs is absent.
    #[error("{source_name}: metadata key `{key}` is missing; the file is incomplete or not a language model")]
    MissingKey {
        /// The source.
        source_name: String,
        /// The key.
        key: String,
    },
    /// A metadata key has another type or an impossible value.
    #[error("{source_name}: metadata key `{key}`: expected {expected}, found {found}")]
    InvalidKey {
        /// The source.
        source_name: String,
        /// The key.
        key: String,
        /// What is accepted.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A tensor that the model needs is absent.
    #[error("{source_name}: tensor `{tensor}` is missing")]
    MissingTensor {
        /// The source.
        source_name: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor name occurs twice.
    #[error("{source_name}: tensor `{tensor}` occurs twice; the file is malformed: convert the model again")]
    DuplicateTensor {
        /// The source.
        source_name: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor has another shape than the metadata implies.
    #[error("{source_name}: tensor `{tensor}` has shape {found:?}, expected {expected:?}")]
    TensorShape {
        /// The source.
        source_name: String,
        /// The tensor.
        tensor: String,
        /// The shape that the metadata implies, outermost first.
        expected: Vec<usize>,
        /// The shape found, outermost first.
        found: Vec<usize>,
    },
    /// A tensor's shape is impossible in itself.
    #[error("{source_name}: tensor `{tensor}`: expected {expected}, found {found}; the file is damaged")]
    InvalidShape {
        /// The source.
        source_name: String,
        /// The tensor.
        tensor: String,
        /// What is accepted.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A tensor does not start at a multiple of the file's alignment.
    #[error(
        "{source_name}: tensor `{tensor}`: expected an offset that is a multiple of the alignment {alignment}, \
         found {offset}; the file is damaged"
    )]
    MisalignedTensor {
        /// The source.
        source_name: String,
        /// The tensor.
        tensor: String,
        /// Bytes from the start of the tensor data.
        offset: u64,
        /// The file's alignment in bytes.
        alignment: u64,
    },
    /// Two tensors share bytes of the file.
    #[error("{source_name}: tensors `{first}` and `{second}` overlap in the file; it is damaged: download it again")]
    OverlappingTensors {
        /// The source.
        source_name: String,
        /// The tensor that starts first.
        first: String,
        /// The other one.
        second: String,
    },
    /// The bytes given for a tensor do not fit its type and shape.
    #[error("{source_name}: tensor `{tensor}`: expected {expected} bytes for its type and shape, found {found}")]
    TensorBytes {
        /// The source.
        source_name: String,
        /// The tensor.
        tensor: String,
        /// Bytes that type and shape imply.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A read outside the tensor.
    #[error(
        "{source_name}: tensor `{tensor}` has {size} bytes; a read of {length} bytes at byte {offset} is outside of it"
    )]
    ReadOutOfRange {
        /// The source.
        source_name: String,
        /// The tensor.
        tensor: String,
        /// Start of the read within the tensor.
        offset: u64,
        /// Bytes asked for.
        length: usize,
        /// Bytes of the tensor.
        size: usize,
    },
    /// A tensor's type cannot be run.
    #[error("{source_name}: tensor `{tensor}` has type {dtype}, which this version cannot run; requantize the file to F16 or a type such as Q8_0 or Q4_K")]
    UnsupportedType {
        /// The source.
        source_name: String,
        /// The tensor.
        tensor: String,
        /// The type's name.
        dtype: String,
    },
    /// The host's progress callback asked to stop.
    #[error("{source_name}: loading was cancelled")]
    Cancelled {
        /// The source.
        source_name: String,
    },
    /// A part of a split model is not there.
    #[error("{source_name}: part {number} of {count} is missing: expected the file {}; download it too", part.display())]
    MissingPart {
        /// The first part.
        source_name: String,
        /// The file that is missing.
        part: PathBuf,
        /// Its number, from 1.
        number: u64,
        /// How many parts there are.
        count: u64,
    },
    /// A later part of a split model was opened.
    #[error("{source_name}: this is part {number} of {count} of a split model; open its first part (`...-00001-of-{count:05}.gguf`)")]
    NotFirstPart {
        /// The part.
        source_name: String,
        /// Its number, from 1.
        number: u64,
        /// How many parts there are.
        count: u64,
    },
    /// The parts of a split model do not belong together.
    #[error("{source_name}: split model: expected {expected}, found {found}; download all parts of one model again")]
    InconsistentSplit {
        /// The part at fault.
        source_name: String,
        /// What the first part says.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The path leads to something else than a directory.
    #[error("{source_name}: {found}, not a directory; give the directory that holds config.json and the weights")]
    NotADirectory {
        /// The path.
        source_name: String,
        /// What the path leads to, with its article.
        found: &'static str,
    },
    /// The model's directory lacks a file.
    #[error("{source_name}: the file `{file}` is missing; download it too")]
    MissingFile {
        /// The directory.
        source_name: String,
        /// The file, or the files of which one is needed.
        file: String,
    },
    /// A file of the directory names a file outside of it.
    #[error(
        "{source_name}: expected the name of a file beside this one, found `{path}`; the file is hostile or damaged"
    )]
    OutsideDirectory {
        /// The file that names it.
        source_name: String,
        /// The name.
        path: String,
    },
    /// The file does not start as a safetensors file does.
    #[error("{source_name}: not a safetensors file: it starts as {found}")]
    NotSafetensors {
        /// The file.
        source_name: String,
        /// What it is instead, with its article.
        found: &'static str,
    },
    /// Text that is not the JSON that belongs there.
    #[error("{source_name}: {what}: expected {expected}, found {found} at byte {at}; the file is damaged")]
    InvalidJson {
        /// The file.
        source_name: String,
        /// The part of the file.
        what: &'static str,
        /// What is accepted.
        expected: String,
        /// What is there.
        found: String,
        /// Index of the first byte that does not fit, in the part.
        at: usize,
    },
    /// Bytes of a safetensors file that belong to no tensor.
    #[error(
        "{source_name}: {bytes} bytes at byte {at} of the data belong to no tensor; \
         the file is damaged: download it again"
    )]
    UnclaimedBytes {
        /// The file.
        source_name: String,
        /// Index of the first of them in the data.
        at: u64,
        /// How many.
        bytes: u64,
    },
    /// The index of a checkpoint of several files does not fit the files.
    #[error(
        "{source_name}: expected tensor `{tensor}` in `{file}`, where it is not; download all files of one model again"
    )]
    InconsistentIndex {
        /// The index.
        source_name: String,
        /// The tensor.
        tensor: String,
        /// The file that the index names.
        file: String,
    },
    /// A checkpoint whose weights are quantized in a way that is not read.
    #[error(
        "{source_name}: the checkpoint is quantized by `{method}`, which is not supported yet; \
         use the unquantized checkpoint or a GGUF file of the model"
    )]
    QuantizedCheckpoint {
        /// The file that says so.
        source_name: String,
        /// The method's name.
        method: String,
    },
}
