//! Figures about repeated runs and about this process.

/// Mean and sample standard deviation; the deviation of one value is 0.
pub(crate) fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, variance.sqrt())
}

/// The most memory that this process had resident so far, in bytes; `None` where the system does not say.
pub(crate) fn peak_rss_bytes() -> Option<u64> {
    peak_of(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// The peak in the text of Linux's `status` file.
pub(crate) fn peak_of(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Token ids for measurements: the same for the same seed, spread over the vocabulary (Knuth's 64-bit
/// multiplicative congruential steps).
pub(crate) fn spread_ids(count: usize, vocab_size: usize, seed: u64) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocab_size.max(1) as u64) as u32
    };
    (0..count).map(|_| next()).collect()
}
