//! Directories with safetensors files. For now: the tokenizer's files in them.

// Used once directories can be opened.
#[allow(dead_code)]
pub(super) mod tokenizer_files;
