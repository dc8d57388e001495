//! Seeded numbers: a counter-based generator, so that a weight depends on seed, tensor and index and on nothing else.
//!
//! Only integer steps and exact float steps: the same on every machine.

/// The `index`-th number of the stream `key`: SplitMix64 (Steele, Lea, Flood 2014) as a function of its counter.
pub fn splitmix64(key: u64, index: u64) -> u64 {
    let mut z = key.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The stream of a tensor.
pub(super) fn stream(seed: u64, name: &str) -> u64 {
    // FNV-1a.
    let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
    splitmix64(hash, seed)
}

/// Bell-shaped values of mean 0 and variance 1, within ±3.47: sums of four uniform values.
///
/// `name` separates the tensors of one seed.
pub fn normal(seed: u64, name: &str, len: usize) -> Vec<f32> {
    let key = stream(seed, name);
    let value = |i: usize| {
        let bits = splitmix64(key, i as u64);
        let sum: u32 = (0..4).map(|k| (bits >> (16 * k)) as u32 & 0xFFFF).sum();
        // Each part has variance 65536²/12: four of them, divided by 65536 and times the root of 3, have variance 1.
        (sum as f32 - 131_070.0) * (1.732_050_8 / 65_536.0)
    };
    (0..len).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_matches_its_published_sequence() {
        // First outputs of SplitMix64 for the seed 1234567.
        let first: Vec<u64> = (0..3).map(|i| splitmix64(1_234_567, i)).collect();
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn moments_are_those_of_a_unit_normal() {
        let v = normal(7, "blk.0.attn_q.weight", 100_000);
        let mean = v.iter().map(|&x| f64::from(x)).sum::<f64>() / v.len() as f64;
        let variance = v.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / v.len() as f64;
        assert!(mean.abs() < 0.015 && (variance - 1.0).abs() < 0.02, "mean {mean}, variance {variance}");
        assert_ne!(v[..8], normal(8, "blk.0.attn_q.weight", 8)[..]);
        assert_ne!(v[..8], normal(7, "blk.1.attn_q.weight", 8)[..]);
    }
}
