#![no_main]
#![allow(dead_code)] // Each target uses its own of the shared properties.

#[path = "../../tests/fuzz_corpus/properties/mod.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    properties::safetensors::check(data);
});
