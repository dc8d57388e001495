//! Directories as Hugging Face transformers saves them, as a source: config.json, tokenizer files and safetensors.
//!
//! `config` turns config.json into metadata (`family` knows the model types, `rope` the rotary positions, `fields` reads
//! single fields), `names` turns tensor names into GGUF's, `header` checks one file, `index` joins several, `json` reads
//! large JSON without keeping it, `tokenizer_files` adds the tokenizer's keys. Nothing is mapped. Must not know what
//! tensors are for.

mod config;
mod family;
mod fields;
mod header;
mod index;
mod json;
mod names;
mod rope;
mod tokenizer_files;

use std::fmt;
use std::path::Path;

use super::file::PositionedFile;
use super::listing::Listing;
use super::{shown, Metadata, TensorInfo, WeightSource};
use crate::{Result, SourceError};

const CONFIG: &str = "config.json";
/// Real ones have some KiB.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// A model's directory, open for reading: `config.json`, the tokenizer's files, and `model.safetensors` or
/// `model.safetensors.index.json` with the files that it names.
///
/// Model types: llama, mistral, qwen2, qwen3, gemma3 and gemma3_text; of models with several modalities the text part.
/// Tensors of F32, F16 and BF16 can be run; others are listed and fail when they are used. Quantized checkpoints are
/// refused.
///
/// Metadata and tensors appear in GGUF's convention, tensors that GGUF has no name for under their own. Where the model
/// must compute differently than for a GGUF file, keys that GGUF does not have say so (`A` is the architecture):
///
/// | key | meaning |
/// |---|---|
/// | `A.candlewick.rotary_rows` | `halves`: rows of q and k are not permuted, values half a head apart rotate together |
/// | `A.candlewick.norm_offset` | what is added to the norms' weights |
/// | `A.candlewick.activation` | `silu` or `gelu_tanh` |
/// | `A.candlewick.rope.low_freq_factor`, `.high_freq_factor` | of the rope scaling `llama3` |
/// | `A.candlewick.rope.attention_factor`, `.mscale`, `.mscale_all_dim`, `.truncate` | of the rope scaling `yarn` |
///
/// An open `Safetensors` holds its metadata, the list of tensors and its file handles; no weights. Reads may come from
/// several threads at once.
///
/// ```no_run
/// use candlewick::source::{Safetensors, WeightSource};
///
/// # fn main() -> candlewick::Result<()> {
/// let model = Safetensors::open("SmolLM2-135M-Instruct")?;
/// println!("{:?}", model.metadata().string("general.architecture")?);
/// # Ok(())
/// # }
/// ```
pub struct Safetensors {
    metadata: Metadata,
    listing: Listing,
}

impl Safetensors {
    /// Opens the directory and checks configuration and headers.
    ///
    /// # Errors
    /// [`SourceError`]: files that are missing, cannot be read, are damaged or contradict each other, a quantized
    /// checkpoint; [`ModelError`](crate::ModelError): a model type or variant that is not implemented;
    /// [`TokenizerError`](crate::TokenizerError): tokenizer files that cannot be used. Each names the file and the part.
    pub fn open(directory: impl AsRef<Path>) -> Result<Safetensors> {
        let directory = directory.as_ref();
        let name = directory.display().to_string();
        let kind =
            std::fs::metadata(directory).map_err(|error| SourceError::Io { path: directory.to_path_buf(), error })?;
        if !kind.is_dir() {
            return Err(SourceError::NotADirectory { source_name: name, found: "a file" }.into());
        }
        let config = read_config(directory, &name)?;
        let mut metadata = config.metadata;
        let mut listing = index::open(directory, &name)?;

        if let Some(info) = listing.tensors().iter().find(|info| names::is_of_quantization(&info.name)) {
            let method = format!("an unnamed method (it has a tensor `{}`)", shown(&info.name));
            return Err(SourceError::QuantizedCheckpoint { source_name: name, method }.into());
        }
        let (norms, tied) = (config.family.norms, config.tied);
        listing.rename(|info| {
            let name = names::translate(&info.name, norms)?;
            // What a tied checkpoint has as a head is not read.
            (!tied || name != "output.weight").then_some(name)
        });
        listing.index()?;
        let missing = |tensor: String| SourceError::MissingTensor { source_name: name.clone(), tensor };
        if !tied && listing.tensor("output.weight").is_none() {
            return Err(missing("lm_head.weight` (needed where `tie_word_embeddings` is false)".to_string()).into());
        }
        for layer in 0..config.layers {
            for module in &config.biases {
                let bias = format!("blk.{layer}.{module}.bias");
                if listing.tensor(&bias).is_none() {
                    return Err(missing(bias).into());
                }
            }
        }
        tokenizer_files::read(directory, &mut metadata)?;
        Ok(Safetensors { metadata, listing })
    }

    /// How many files the weights are in.
    pub fn num_files(&self) -> usize {
        self.listing.num_files()
    }
}

fn read_config(directory: &Path, name: &str) -> Result<config::Config> {
    let path = directory.join(CONFIG);
    if !path.exists() {
        return Err(SourceError::MissingFile { source_name: name.to_string(), file: CONFIG.to_string() }.into());
    }
    let file = PositionedFile::open(&path)?;
    let bytes = file.read_whole(MAX_CONFIG_BYTES)?;
    let json = serde_json::from_slice(&bytes).map_err(|error| SourceError::InvalidJson {
        source_name: file.name().to_string(),
        what: "the configuration",
        expected: "JSON".to_string(),
        found: shown(&error.to_string()),
        at: 0,
    })?;
    // What quantizes by GPTQ once wrote its own file and nothing into config.json.
    let quantized = directory.join("quantize_config.json");
    if quantized.exists() {
        let source_name = quantized.display().to_string();
        return Err(SourceError::QuantizedCheckpoint { source_name, method: "gptq".to_string() }.into());
    }
    config::translate(name, file.name(), &json)
}

impl WeightSource for Safetensors {
    fn name(&self) -> &str {
        self.listing.name()
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn tensors(&self) -> &[TensorInfo] {
        self.listing.tensors()
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.listing.tensor(name)
    }

    fn read(&self, name: &str, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.listing.read(name, offset, buffer)
    }
}

impl fmt::Debug for Safetensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Safetensors").field("listing", &self.listing).finish_non_exhaustive()
    }
}
