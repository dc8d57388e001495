//! Damages inputs at random: what a fuzzer does, without its sense of direction and on the stable compiler.

use candlewick::testing::splitmix64;

/// A sequence of numbers that a seed decides.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        splitmix64(self.0, 0)
    }

    /// A number under `limit`; 0 for 0.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn pick<'a>(&mut self, from: &'a [Vec<u8>]) -> &'a [u8] {
        match from.is_empty() {
            true => &[],
            false => &from[self.below(from.len())],
        }
    }
}

/// The words of a dictionary in libFuzzer's format.
pub(crate) fn words(dictionary: &str) -> Vec<Vec<u8>> {
    let quoted = dictionary.lines().filter_map(|line| line.strip_prefix('"')?.strip_suffix('"'));
    quoted.map(unescape).collect()
}

fn unescape(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let hex = (bytes[at] == b'\\' && bytes.get(at + 1) == Some(&b'x')).then(|| text.get(at + 2..at + 4)).flatten();
        let (byte, len) = match hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => (byte, 4),
            None if bytes[at] == b'\\' && at + 1 < bytes.len() => (bytes[at + 1], 2),
            None => (bytes[at], 1),
        };
        out.push(byte);
        at += len;
    }
    out
}

/// One of `inputs`, damaged in one to eight places.
pub(crate) fn damaged(random: &mut Random, inputs: &[Vec<u8>], words: &[Vec<u8>]) -> Vec<u8> {
    const MOST: usize = 8 << 10;
    let mut data = random.pick(inputs).to_vec();
    for _ in 0..=random.below(8) {
        let at = random.below(data.len() + 1);
        let end = (at + 1 + random.below(16)).min(data.len());
        match random.below(10) {
            0 | 1 if at < data.len() => data[at] ^= 1 << random.below(8),
            2 | 3 if at < data.len() => data[at] = [0, 1, 0x7F, 0x80, 0xFF, random.next() as u8][random.below(6)],
            4 => drop(data.drain(at..end)),
            5 => {
                let copy = data[at..end].to_vec();
                let to = random.below(data.len() + 1);
                let times = 1 + random.below(4);
                data.splice(to..to, copy.repeat(times));
            }
            6 | 7 => {
                let word = random.pick(words).to_vec();
                data.splice(at..at, word);
            }
            8 => {
                let word = random.pick(words).to_vec();
                let end = (at + word.len()).min(data.len());
                data.splice(at..end, word);
            }
            _ => {
                let other = random.pick(inputs);
                let from = random.below(other.len() + 1);
                data.truncate(at);
                data.extend(&other[from..]);
            }
        }
    }
    data.truncate(MOST);
    data
}
