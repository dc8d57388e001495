//! The byte-level alphabet: every byte written as one printable character.
//!
//! Bytes that are printable in Latin-1 keep their code point; the other 68 take U+0100, U+0101, ... in order.

/// The character that writes a byte.
pub(crate) fn character(byte: u8) -> char {
    match byte {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        // Ranks of the others: 0x00–0x20, then 0x7F–0xA0, then 0xAD.
        0x00..=0x20 => shifted(u32::from(byte)),
        0x7F..=0xA0 => shifted(u32::from(byte) - 0x7F + 33),
        0xAD => shifted(67),
    }
}

/// The byte that a character writes; `None` for a character outside the alphabet.
pub(crate) fn byte(character: char) -> Option<u8> {
    let code = u32::from(character);
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

fn shifted(rank: u32) -> char {
    char::from_u32(0x100 + rank).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_letters() {
        assert_eq!(character(b' '), 'Ġ');
        assert_eq!(character(b'\n'), 'Ċ');
        assert_eq!(character(b'a'), 'a');
        assert_eq!(character(0x7F), 'ġ');
        assert_eq!(character(0xAD), 'Ń');
    }

    #[test]
    fn every_byte_has_its_own_letter() {
        let letters: std::collections::HashSet<char> = (0..=255).map(character).collect();
        assert_eq!(letters.len(), 256);
        for value in 0..=255 {
            assert_eq!(byte(character(value)), Some(value));
        }
        assert_eq!(byte('\u{144}'), None);
        assert_eq!(byte(' '), None);
    }
}
