//! Real models against references from outside: golden logits, perplexities, a peer's speed.
//!
//! A model that is not in the cache skips its tests, and says so on stderr; with `CANDLEWICK_REQUIRE_MODELS=1` its
//! absence is a failure. Nothing is downloaded here.

#[path = "../temp_dir/mod.rs"]
mod temp_dir;

mod export;
mod files;
mod golden;
mod peer;
mod perplexity;
mod text;
mod tokenizer;
mod tokenizer_json;
mod vocabularies;
mod window;
