//! A field of sixteen rows at once: elements of rows become lanes of units.
//!
//! Transpositions in registers by rounds of interleaving: a round writes the elements of two vectors in turns, which moves
//! the uppermost bit of a vector's number to the lowest of an element's place. As many rounds as an element's place has
//! bits bring the row's number there. Plain Rust whose fixed loops become shuffles in every baseline. Knows bytes and
//! places; no formats.

use super::format::PANEL;

/// The same bytes of every row of a panel.
pub(super) type Rows<'a> = [&'a [u8]; PANEL];

/// A vector of bytes.
type Vector = [u8; 16];

/// The rows of a panel.
pub(super) fn rows(bytes: &[u8], row_bytes: usize) -> Rows<'_> {
    std::array::from_fn(|r| &bytes[r * row_bytes..][..row_bytes])
}

/// Bytes `at..at + N` of every row.
#[inline(always)]
fn take<const N: usize>(rows: &Rows<'_>, at: usize) -> [[u8; N]; PANEL] {
    let mut taken = [[0; N]; PANEL];
    for (taken, row) in taken.iter_mut().zip(rows) {
        taken.copy_from_slice(&row[at..at + N]);
    }
    taken
}

/// Elements of `W` bytes of two vectors in turns.
#[inline(always)]
fn interleave<const W: usize>(a: Vector, b: Vector) -> [Vector; 2] {
    let mut out = [[0; 16]; 2];
    for (half, out) in out.iter_mut().enumerate() {
        for i in 0..8 / W {
            let from = half * 8 + i * W;
            out[2 * i * W..][..W].copy_from_slice(&a[from..][..W]);
            out[(2 * i + 1) * W..][..W].copy_from_slice(&b[from..][..W]);
        }
    }
    out
}

/// A round over all vectors: each of the first half with its partner in the second.
#[inline(always)]
fn round<const W: usize, const N: usize>(vectors: [Vector; N]) -> [Vector; N] {
    let mut out = [[0; 16]; N];
    for i in 0..N / 2 {
        [out[2 * i], out[2 * i + 1]] = interleave::<W>(vectors[i], vectors[i + N / 2]);
    }
    out
}

/// Four words of every row, changed by `code`, to four units of 16 words.
#[inline(always)]
pub(super) fn words(rows: &Rows<'_>, at: usize, units: &mut [u8], code: impl Fn(u8) -> u8) {
    let taken = take::<16>(rows, at);
    // Two rounds take the upper half of the vector's number: that must be the lower half of the row's.
    let vectors: [Vector; 16] = std::array::from_fn(|v| taken[v % 4 * 4 + v / 4].map(&code));
    let vectors = round::<4, 16>(round::<4, 16>(vectors));
    // A vector's number is now the upper half of the row's, then the element's.
    for (v, vector) in vectors.iter().enumerate() {
        units[(v % 4 * 4 + v / 4) * 16..][..16].copy_from_slice(vector);
    }
}

/// Four bytes of every row to four lines of 16 bytes.
#[inline(always)]
pub(super) fn bytes(rows: &Rows<'_>, at: usize, lines: &mut [u8]) {
    let taken = take::<4>(rows, at);
    let vectors: [Vector; 4] = std::array::from_fn(|v| std::array::from_fn(|i| taken[v * 4 + i / 4][i % 4]));
    let vectors = round::<1, 4>(round::<1, 4>(round::<1, 4>(round::<1, 4>(vectors))));
    for (line, vector) in lines.chunks_exact_mut(16).zip(vectors) {
        line.copy_from_slice(&vector);
    }
}

/// Eight pairs of bytes of every row to eight lines of 16 pairs.
#[inline(always)]
pub(super) fn halves(rows: &Rows<'_>, at: usize, lines: &mut [u8]) {
    let taken = take::<16>(rows, at);
    // Three rounds take the upper three bits of the vector's number, which must be the lower three of the row's.
    let vectors: [Vector; 16] = std::array::from_fn(|v| taken[v / 2 + v % 2 * 8]);
    let vectors = round::<2, 16>(round::<2, 16>(round::<2, 16>(vectors)));
    for (v, vector) in vectors.iter().enumerate() {
        lines[(v % 8 * 2 + v / 8) * 16..][..16].copy_from_slice(vector);
    }
}

/// One element of `W` bytes of every row, changed by `code`, to a line of 16.
#[inline(always)]
pub(super) fn one<const W: usize>(rows: &Rows<'_>, at: usize, line: &mut [u8], code: impl Fn([u8; W]) -> [u8; W]) {
    let taken = take::<W>(rows, at);
    for (element, taken) in line.as_chunks_mut::<W>().0.iter_mut().zip(taken) {
        *element = code(taken);
    }
}
