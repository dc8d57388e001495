//! candle-transformers' quantized model of a GGUF file, as its own examples use it.

use std::fs::File;
use std::path::Path;

use candle_transformers::models::{quantized_gemma3, quantized_llama, quantized_qwen2};
use candlewick::candle::quantized::gguf_file::Content;
use candlewick::candle::{Device, Tensor, D};

use super::support::Result;

/// The peer's model, with its cache.
pub(crate) enum Peer {
    Llama(quantized_llama::ModelWeights),
    Gemma3(quantized_gemma3::ModelWeights),
    Qwen2(quantized_qwen2::ModelWeights),
}

impl Peer {
    /// Opens a GGUF file of an architecture that the peer has.
    pub(crate) fn open(path: &Path) -> Result<Peer> {
        let mut file = File::open(path)?;
        let content = Content::read(&mut file)?;
        let architecture = content.metadata.get("general.architecture").ok_or("no architecture")?.to_string()?.clone();
        let device = Device::Cpu;
        Ok(match architecture.as_str() {
            "llama" => Peer::Llama(quantized_llama::ModelWeights::from_gguf(content, &mut file, &device)?),
            "gemma3" => Peer::Gemma3(quantized_gemma3::ModelWeights::from_gguf(content, &mut file, &device)?),
            "qwen2" => Peer::Qwen2(quantized_qwen2::ModelWeights::from_gguf(content, &mut file, &device)?),
            other => return Err(format!("the peer has no quantized model for {other}").into()),
        })
    }

    /// The likeliest token behind `ids`, the first of which is at `position`. Position 0 clears the cache.
    pub(crate) fn forward(&mut self, ids: &[u32], position: usize) -> Result<u32> {
        let input = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        let logits = match self {
            Peer::Llama(model) => model.forward(&input, position),
            Peer::Gemma3(model) => model.forward(&input, position),
            Peer::Qwen2(model) => model.forward(&input, position),
        }?;
        Ok(logits.squeeze(0)?.argmax(D::Minus1)?.to_scalar::<u32>()?)
    }
}
