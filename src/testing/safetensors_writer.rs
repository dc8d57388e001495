//! Writes safetensors bytes: for tests that read them back, whole or damaged.
//!
//! Must not check what it writes: a test may want a file that makes no sense.

use std::fmt::Write;

/// A safetensors file of tensors with name, type's name, shape (outermost first) and bytes; the data are in this order,
/// without gaps.
///
/// ```
/// # #[cfg(feature = "testing")] {
/// let bytes = candlewick::testing::safetensors_bytes(&[("a", "F32", &[2], &[0; 8])]);
/// assert_eq!(&bytes[8..], b"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  \0\0\0\0\0\0\0\0");
/// # }
/// ```
pub fn safetensors_bytes(tensors: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
    let mut header = "{".to_string();
    let mut offset = 0;
    for (i, (name, dtype, shape, bytes)) in tensors.iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        let name = serde_json::Value::from(*name);
        let shape = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let end = offset + bytes.len();
        // Writing to a string does not fail.
        let _ = write!(
            header,
            "{comma}{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{offset},{end}]}}"
        );
        offset = end;
    }
    header.push('}');
    // The data begin at a multiple of eight.
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    tensors.iter().for_each(|(.., bytes)| out.extend(*bytes));
    out
}
